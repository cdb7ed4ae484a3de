"""Every tick is accounted for: due = idle + seen + missed, by sources that do not know each other.

Due is the perf events' own time, idle is `/proc/stat`'s, seen is counted by the program. Here, the
time due is held against the clock, idle time against the scheduler's switches (`switches.py`), and
missed ticks against events of the same period that run no program (`fired.py`) while a load makes
the kernel skip programs: system calls that read a map in batches, pinned to one CPU. A tick is
skipped whichever task it falls on, as the kernel may preempt such a system call half way.
"""

import os
import signal
import time
from dataclasses import dataclass

import pytest
from flameherd_agent.kernel.perf import online_cpus
from flameherd_agent.kernel.sampler import TICKS_PER_PERIOD
from flameherd_agent.recording import Recording
from flameherd_agent.types import SlotId

from tests.ebpf.fired import Fired
from tests.ebpf.recorded import OPTIONS, needs_root
from tests.ebpf.switches import SwitchMeter
from tests.programs.running import Running, running

pytestmark = [needs_root, pytest.mark.timeout(600)]
FREQUENCY_HZ = 499
PERIOD_NS = round(1e9 / (FREQUENCY_HZ * TICKS_PER_PERIOD))
SHORT_S = 6.0
FULL_S = 60.0
SLOT = SlotId(1)
ERROR = 0.02
"""Share of all ticks: /proc/stat has 10 ms for each CPU and field, and books interrupts that come while
a CPU idles apart."""


@dataclass(frozen=True)
class Window:
    """What happened in it, in ticks."""

    wall: float
    due: float
    idle: float
    idle_by_switches: float
    fired: int
    seen: int
    missed: float
    load_used: float
    """By the load, after the scheduler's account."""
    load_seen: int
    """Of the load's slot."""


def measure(recording: Recording, load: Running, seconds: float) -> Window:
    sampler = recording.engine.sampler

    with SwitchMeter() as meter, Fired(PERIOD_NS) as fired:

        def read() -> tuple[float, ...]:
            idle_ns = meter.idle_ns()
            balance = sampler.tick_balance()
            now = balance.due - balance.idle - balance.seen
            return (
                time.monotonic_ns() * len(online_cpus()) / PERIOD_NS,
                balance.due,
                balance.idle,
                idle_ns / PERIOD_NS,
                fired.count(),
                balance.seen,
                now,
                sum(load.cpu_ns_by_thread().values()) / PERIOD_NS,
                sampler.meter(SLOT).ticks,
            )

        before = read()
        recording.run(seconds)
        after = read()
    return Window(*(new - old for old, new in zip(before, after, strict=True)))  # type: ignore[arg-type]


def balance(seconds: float) -> None:
    with (
        running("map_load") as load,
        running("hog"),
        Recording([load.pid], frequency_hz=FREQUENCY_HZ, options=OPTIONS) as recording,
    ):
        os.sched_setaffinity(load.pid, {online_cpus()[-1]})
        load.process.send_signal(signal.SIGSTOP)
        recording.run(1.0)
        quiet = measure(recording, load, seconds)
        load.process.send_signal(signal.SIGCONT)
        loaded = measure(recording, load, seconds)
    print(f"without load: {quiet}\nwith: {loaded}")
    for window in (quiet, loaded):
        allowed = ERROR * window.wall
        assert abs(window.due - window.wall) <= 0.001 * window.wall, window
        assert abs(window.idle - window.idle_by_switches) <= allowed, window
        assert abs(window.fired - window.seen - window.missed) <= allowed, window
    assert quiet.missed < ERROR * quiet.wall, quiet
    took = loaded.load_used - loaded.load_seen
    assert took > 0.05 * loaded.load_used, f"the load made the kernel skip nothing: {loaded}"
    assert loaded.missed - quiet.missed > took - ERROR * loaded.wall, (quiet, loaded)


def test_ticks_are_accounted_for_and_missed_ones_counted() -> None:
    balance(SHORT_S)


@pytest.mark.soak
def test_ticks_are_accounted_for_at_full_length() -> None:
    balance(FULL_S)
