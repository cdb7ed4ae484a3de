"""What processes do while they are sampled: fork, exec, swap libraries, run from a deleted file."""

import time

import pytest

from tests.ebpf.recorded import FULL, SHORT, Judged, judged_module, soak_parameters
from tests.programs.catalog import MANY_THREADS, PROCESSES
from tests.programs.running import alive, running

pytestmark = pytest.mark.timeout(900)
judged = judged_module(PROCESSES, SHORT)


@pytest.mark.parametrize("name", [case.name for case in PROCESSES])
def test_stacks_are_the_known_chain(judged: Judged, name: str) -> None:
    judged.check(name)


def test_a_closed_librarys_names_never_show_in_its_successors_place(judged: Judged) -> None:
    """But for the first swap of all: from then on, the process is unwound by the agent's view."""
    one = judged.of("plugins")
    mixed = sum(
        count
        for (_, stack), count in one.wrong.items()
        if ("run_a" in stack and "plugin_b.so" in stack)
        or ("run_b" in stack and "plugin_a.so" in stack)
    )
    assert mixed == 0


def test_both_libraries_are_seen(judged: Judged) -> None:
    assert set(judged.of("plugins").reached) == {0, 1}


def test_children_are_sampled(judged: Judged) -> None:
    """vfork's run two programs in turn; prefork's come before and after the start."""
    assert {0, 1, 2} <= set(judged.of("vfork").reached)
    assert len(judged.of("prefork").pids) >= 4


def test_two_hundred_threads() -> None:
    """Alone: they would leave their neighbours no CPU."""
    one = SHORT.check_all(MANY_THREADS, 997)["threads"]
    assert len(one.threads) >= 100


def test_programs_leave_nothing_behind() -> None:
    with running("prefork") as program:
        family = program.family()
        assert len(family) >= 3
    # Killed ones are reaped by init, in its time.
    until = time.monotonic() + 60
    while any(alive(pid) for pid in family):
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.soak
@pytest.mark.timeout(4000)
@soak_parameters
def test_at_full_length(frequency_hz: int) -> None:
    FULL.check_all(PROCESSES, frequency_hz)


@pytest.mark.soak
@pytest.mark.timeout(4000)
@soak_parameters
def test_two_hundred_threads_at_full_length(frequency_hz: int) -> None:
    FULL.check_all(MANY_THREADS, frequency_hz)
