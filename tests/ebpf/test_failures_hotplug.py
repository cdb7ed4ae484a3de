"""CPUs that go and come, simulated: the list of online CPUs is replaced, or an event is switched off.

The kernel switches a CPU's events off for good when the CPU goes. `tests/kernels` takes a real CPU of
a virtual machine away.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from flameherd_agent.kernel import perf, ticks
from flameherd_agent.kernel.perf import enabled_ns, online_cpus
from flameherd_agent.recording import Recording
from flameherd_agent.types import SlotId

from tests.ebpf.recorded import OPTIONS, needs_root
from tests.programs.running import Running, running

pytestmark = [
    needs_root,
    pytest.mark.skipif(len(online_cpus()) < 2, reason="needs two CPUs that are online"),
]
IOC_DISABLE = 0x2401
LAST = online_cpus()[-1]


@contextmanager
def recorded_on_last_cpu() -> Iterator[tuple[Recording, Running]]:
    with (
        running("hog") as program,
        Recording([program.pid], frequency_hz=499, options=OPTIONS) as recording,
    ):
        os.sched_setaffinity(program.pid, {LAST})
        recording.run(1.0)
        yield recording, program


def sampled(recording: Recording, program: Running, cpu_s: float = 0.5) -> int:
    """Samples taken while the program uses some CPU time."""
    before = recording.engine.sampler.meter(SlotId(1)).samples
    until = program.cpu_seconds() + cpu_s
    while program.cpu_seconds() < until:
        recording.run(0.1)
    return recording.engine.sampler.meter(SlotId(1)).samples - before


def set_online(patch: pytest.MonkeyPatch, cpus: list[int]) -> None:
    for module in (perf, ticks):
        patch.setattr(module, "online_cpus", lambda: cpus)


def until(recording: Recording, done: Callable[[], bool]) -> None:
    """The engine looks after its CPUs every few seconds."""
    recording.run(60.0, lambda _: not done())
    assert done()


def test_a_cpu_that_goes_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded_on_last_cpu() as (recording, program):
        sampler = recording.engine.sampler
        assert sampled(recording, program) > 100

        set_online(monkeypatch, [cpu for cpu in online_cpus() if cpu != LAST])
        until(recording, lambda: len(sampler.events.filenos()) == len(online_cpus()) - 1)
        assert sampled(recording, program) == 0
        due = sampler.tick_balance().due

        monkeypatch.undo()
        until(recording, lambda: len(sampler.events.filenos()) == len(online_cpus()))
        assert sampled(recording, program) > 100
        assert sampler.tick_balance().due > due, "what a CPU had counted is not forgotten"
        result = recording.result()
    assert result.lost == 0
    assert result.outcomes["COMPLETE"] > 0.9 * result.samples


def switch_off(fd: int) -> None:
    """As the kernel does with the events of a CPU that goes."""
    fcntl.ioctl(fd, IOC_DISABLE, 0)


def test_a_cpu_that_was_away_for_a_moment() -> None:
    with recorded_on_last_cpu() as (recording, program):
        sampler = recording.engine.sampler
        assert sampler._ticks is not None
        switch_off(sampler._ticks._ticks[LAST].fd)
        switch_off(sampler.events._rings[LAST][0])
        lost = recording.engine.processes.lost_events
        until(recording, lambda: recording.engine.processes.lost_events > lost)
        assert sampled(recording, program) > 100
        ring_fd = sampler.events._rings[LAST][0]
        assert enabled_ns(ring_fd) < enabled_ns(ring_fd), "process events are told again"
