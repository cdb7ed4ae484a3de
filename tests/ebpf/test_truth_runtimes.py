"""Rust and Go: every stack is the program's own chain, to the root."""

import pytest

from tests.ebpf.recorded import FULL, SHORT, Judged, judged_module, soak_parameters
from tests.programs.catalog import RUNTIMES

pytestmark = pytest.mark.timeout(900)
judged = judged_module(RUNTIMES, SHORT)


@pytest.mark.parametrize("name", [case.name for case in RUNTIMES])
def test_stacks_are_the_known_chain(judged: Judged, name: str) -> None:
    judged.check(name)


def test_calls_back_into_go_are_seen(judged: Judged) -> None:
    assert {0, 1} <= set(judged.of("go_cgo").reached)


@pytest.mark.soak
@pytest.mark.timeout(4000)
@soak_parameters
def test_at_full_length(frequency_hz: int) -> None:
    FULL.check_all(RUNTIMES, frequency_hz)
