"""C and C++: every stack is the program's own chain, to the root."""

import pytest

from tests.ebpf.recorded import FULL, SHORT, Judged, judged_module, soak_parameters
from tests.programs.catalog import NATIVE

pytestmark = pytest.mark.timeout(900)
judged = judged_module(NATIVE, SHORT)


@pytest.mark.parametrize("name", [case.name for case in NATIVE])
def test_stacks_are_the_known_chain(judged: Judged, name: str) -> None:
    judged.check(name)


@pytest.mark.soak
@pytest.mark.timeout(4000)
@soak_parameters
def test_at_full_length(frequency_hz: int) -> None:
    FULL.check_all(NATIVE, frequency_hz)


def test_too_deep_is_truncated_and_marked(judged: Judged) -> None:
    """1,000 frames do not fit: nearly all samples are marked; none of shallower programs is."""
    deep = judged.of("deep1000")
    assert deep.truncated >= 0.9 * deep.samples
    assert all(judged.of(name).truncated == 0 for name in ("deep250", "deep500"))


def test_kernel_frames_lie_over_user_frames(judged: Judged) -> None:
    """Reading /dev/zero is kernel work: most stacks have both parts."""
    one = judged.of("syscalls")
    assert one.with_kernel >= 0.5 * one.samples
