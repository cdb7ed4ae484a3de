"""Samples × period is CPU time: at every rate, and for programs that alias with a constant period.

The truth is the scheduler's own account (`/proc/PID/task/TID/schedstat`). The bound is that of
random sampling, 4/√n of the expected n samples; stratified sampling does better.
"""

import math
from collections import Counter
from contextlib import ExitStack

import pytest
from flameherd_agent.kernel import abi
from flameherd_agent.recording import Recording, RecordingResult

from tests.ebpf.recorded import OPTIONS, needs_root
from tests.programs.running import Running, running

pytestmark = [needs_root, pytest.mark.timeout(900)]
RATES_HZ = [97, 99, 997]
SHORT_S = 8.0
FULL_S = 60.0


def sampled_ns(result: RecordingResult) -> Counter[int]:
    """{tid: CPU nanoseconds by samples}"""
    found: Counter[int] = Counter()
    for resource in result.profiles:
        for profile in resource.profiles:
            for sample in profile.samples:
                tid = int(dict(sample.attributes)["thread.id"])
                found[tid] += sample.value * profile.period_ns
    return found


def check(slots: list[tuple[Running, int]], seconds: float) -> None:
    """Record each program at its rate; every thread's CPU time must come out."""
    with Recording(
        slots=[(program.pid, rate) for program, rate in slots], options=OPTIONS
    ) as recording:
        before = [program.cpu_ns_by_thread() for program, _ in slots]
        recording.run(seconds)
        after = [program.cpu_ns_by_thread() for program, _ in slots]
        result = recording.result()
    seen = sampled_ns(result)
    rows = []
    for (program, rate), old, new in zip(slots, before, after, strict=True):
        for tid, end_ns in new.items():
            used_ns = end_ns - old.get(tid, 0)
            samples = used_ns * rate / 1e9
            if samples >= 1:  # two_threads' first thread only waits
                error = 4 / math.sqrt(samples)
                rows.append((program.name, rate, tid, used_ns / 1e9, seen[tid] / 1e9, error))
    text = "\n".join(
        f"{name} at {rate} Hz, thread {tid}: used {used:.2f} s, sampled {got:.2f} s, ± {error:.1%}"
        for name, rate, tid, used, got, error in rows
    )
    print(text)
    assert len(rows) >= len(slots)
    assert all(abs(got - used) <= error * used for *_, used, got, error in rows), text


def check_programs(names: list[str], rates: list[int], seconds: float) -> None:
    with ExitStack() as stack:
        programs = [stack.enter_context(running(name)) for name in names]
        check(list(zip(programs, rates, strict=True)), seconds)


def test_equal_hogs_at_different_rates_use_equal_cpu() -> None:
    check_programs(["hog", "hog"], [19, 97], SHORT_S)


@pytest.mark.soak
def test_equal_hogs_at_different_rates_at_full_length() -> None:
    check_programs(["hog", "hog"], [19, 97], FULL_S)


@pytest.mark.parametrize("rate_hz", RATES_HZ)
def test_programs_that_sleep_do_not_alias(rate_hz: int) -> None:
    check_programs(["periodic", "random_sleeper", "two_threads"], [rate_hz] * 3, SHORT_S)


@pytest.mark.soak
@pytest.mark.parametrize("rate_hz", RATES_HZ)
def test_programs_that_sleep_at_full_length(rate_hz: int) -> None:
    check_programs(["periodic", "random_sleeper", "two_threads"], [rate_hz] * 3, FULL_S)


def test_an_unselected_process_is_never_unwound() -> None:
    """By the kernel's own counters: no more stacks begun than samples of the selected one."""
    with (
        running("hog") as selected,
        running("hog") as other,
        Recording([selected.pid], frequency_hz=97, options=OPTIONS) as recording,
    ):
        recording.run(3.0)
        result = recording.result()
        counters = recording.engine.sampler.counters()
    tids = set(sampled_ns(result))
    assert selected.pid in tids
    assert other.pid not in tids
    assert counters[abi.Counter.UNSELECTED] > 0
    assert counters[abi.Counter.UNWOUND] <= result.samples
