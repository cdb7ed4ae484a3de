"""The engine: the kernel side, processes, names and the drain, wired and driven by one loop.

`record`, `top` and `agent` all run it; they differ in what they select and in where the profiles go. Everything here
runs on one thread. The loop sleeps until a cold sample, a process event or the worker wakes it, or a timer is due.
"""

import logging
import selectors
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from flameherd_agent.interpreters.runtime import Interpreters
from flameherd_agent.kernel.abi import Counter, Outcome
from flameherd_agent.kernel.capabilities import LOST, how_to_give, lacking
from flameherd_agent.kernel.ringbuf import RingBuffer
from flameherd_agent.kernel.sampler import Sampler
from flameherd_agent.metadata.hierarchy import PidsHierarchy
from flameherd_agent.metadata.resource import PodSource, ResourceLabeler
from flameherd_agent.model import ResourceProfiles
from flameherd_agent.pipeline.assemble import Assembler, SlotLabels
from flameherd_agent.pipeline.drain import Drain, Interval
from flameherd_agent.pipeline.naming import Namer
from flameherd_agent.process.executables import Executables
from flameherd_agent.process.table import ProcessTable
from flameherd_agent.symbols.perfmap import PerfMaps
from flameherd_agent.types import Pid, SlotId
from flameherd_agent.unwind.slabs import SlabStore
from flameherd_agent.worker.client import WorkerClient
from flameherd_agent.worker.kernel_names import KernelNames

log = logging.getLogger(__name__)

DEFAULT_CACHE: Final = Path("/var/cache/flameherd")
_EVENTS_PERIOD_S: Final = 0.25
"""The event stream is read at least this often."""
_REST_S: Final = 1.0
"""While nothing is sampled, there is nothing to read."""
_YOUNG_PERIOD_S: Final = 0.05
"""Stacks are looked at this often while a process that runs an interpreter is new."""
_EVENTS_PAUSE_S: Final = 0.01
"""And at most this often: a storm of events does not wake the agent for each."""
_HOUSEKEEPING_S: Final = 2.0
_NAMES_WAIT_S: Final = 15.0
"""An interval is held so long for names; sampling goes on meanwhile."""
_BUSY_POLL_S: Final = 0.02
"""While something is waited for."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Sizes and places."""

    cache: Path = DEFAULT_CACHE
    cold_bytes_per_second: int = 32 << 20
    """Cap of copied stack bytes, for each CPU."""
    max_slabs: int = 11
    """Kernel memory for unwind rows, in MiB."""


@dataclass(slots=True)
class Selection:
    """One slot: its labels and rate."""

    labels: SlotLabels
    frequency_hz: int


@dataclass(slots=True)
class RunSummary:
    """Samples since the start, by what became of them."""

    samples: int = 0
    outcomes: Tally[str] = field(default_factory=Tally)
    lost: int = 0


class Engine:
    """Use as a context manager: leaving it detaches and unloads everything."""

    def __init__(
        self,
        options: EngineOptions | None = None,
        hierarchy: PidsHierarchy | None = None,
        pods: PodSource | None = None,
    ) -> None:
        self.options = options or EngineOptions()
        self.hierarchy = hierarchy or PidsHierarchy.discover()
        for name in lacking(LOST):
            log.warning("%s is missing: %s; %s", name, LOST[name], how_to_give([name]))
        self.sampler = Sampler(
            self.options.cache, cold_bytes_per_second=self.options.cold_bytes_per_second
        )
        self.worker = WorkerClient(self.options.cache)
        # Ready when the first sample comes; not beside the compiler, which takes the memory of three workers.
        self.worker.start()
        self.slabs = SlabStore(self.sampler.loaded, self.options.max_slabs)
        self.executables = Executables(self.worker, self.slabs)
        self.interpreters = Interpreters(self.sampler.loaded, self.options.cache, self.worker)
        self.processes = ProcessTable(self.sampler.loaded, self.executables, self.interpreters)
        self.drain = Drain(self.sampler, self.interpreters)
        self.kernel_names = KernelNames(self.worker, self.options.cache)
        self.perf_maps = PerfMaps()
        self.namer = Namer(self.executables, self.kernel_names, self.perf_maps, self.interpreters)
        self.sampler.use_hierarchy(self.hierarchy.version)
        self.labeler = ResourceLabeler(self.hierarchy, pods=pods)
        self.assembler = Assembler(self.namer, self.labeler, self.processes)
        self._cold_ring = RingBuffer(self.sampler.loaded.maps["fh_cold_ring"])
        self.each_step: Callable[[], None] = _nothing
        """Called in every step, also in those that wait for names."""
        self._slots: dict[SlotId, Selection] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._cold_ring.fd, selectors.EVENT_READ)
        # Readable also before a CPU wakes us: whoever waits is not woken for each stack, though.
        self._selector.register(self.drain.ring_fd, selectors.EVENT_READ)
        self._event_fds: set[int] = set()
        self._watch_events()
        self._worker_socket = (-1, 0)
        now = time.monotonic()
        self._next_events = now
        self._events_pause = now
        self._events_ns = 0
        self._next_housekeeping = now + _HOUSEKEEPING_S

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _watch_events(self) -> None:
        # All anew: an event that was opened again may well have the number of the one before.
        for fd in self._event_fds:
            self._selector.unregister(fd)
        self._event_fds = set(self.sampler.events.filenos())
        for fd in self._event_fds:
            self._selector.register(fd, selectors.EVENT_READ)

    def _watch_worker(self) -> None:
        """Its socket changes when a child ends or is started."""
        # The next child's socket may well have the same number.
        now = (self.worker.fileno(), self.worker.children)
        if now == self._worker_socket:
            return
        if self._worker_socket[0] >= 0:
            self._selector.unregister(self._worker_socket[0])
        if now[0] >= 0:
            self._selector.register(now[0], selectors.EVENT_READ)
        self._worker_socket = now

    def wake_for(self, fds: Iterable[int]) -> None:
        """End a step's wait when one of these is readable: `each_step` reads it."""
        for fd in fds:
            self._selector.register(fd, selectors.EVENT_READ)

    def rest(self) -> None:
        """Nothing is to be sampled: close every perf event and stop following processes."""
        if self.sampler.resting:
            return
        self._read_events()
        self.sampler.rest()
        self.processes.forget()
        self._watch_events()
        log.info("nothing is selected: no perf event is open")

    def rouse(self) -> None:
        """Be ready to sample again. Processes become known as they did after the start."""
        if self.sampler.resting:
            self.sampler.rouse()
            self._watch_events()
            self._next_events = time.monotonic()

    # Selection

    def set_slot(self, slot: SlotId, labels: SlotLabels, frequency_hz: int) -> None:
        """Give a slot its labels and rate."""
        self._slots[slot] = Selection(labels, frequency_hz)
        self.sampler.set_rate(slot, frequency_hz)

    def clear_slot(self, slot: SlotId) -> None:
        """Switch a slot off. Its labels stay until the interval that is under way has been taken."""
        self.sampler.set_rate(slot, 0)
        self.sampler.deselect_slot(slot)

    def select_process(self, pid: Pid, slot: SlotId) -> None:
        """Sample a process, and what it forks from now on."""
        self.sampler.select_process(pid, slot)

    # The loop

    def run(self, seconds: float) -> None:
        """Drive the engine for a while."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.step(left)

    def step(self, timeout: float) -> None:
        """Wait for work, at most `timeout` seconds, and do what is there."""
        now = time.monotonic()
        if self.processes.held:
            # They wait for the events that happened before them.
            self._next_events = min(self._next_events, now + _EVENTS_PAUSE_S)
        wait = min(timeout, self._next_events - now, self._next_housekeeping - now)
        if self.interpreters.young:
            # A short-lived process's functions are to be read before it ends.
            wait = min(wait, _YOUNG_PERIOD_S)
        self._watch_worker()
        ready = self._selector.select(max(0.0, wait))
        if ready and timeout:
            time.sleep(max(0.0, self._events_pause - time.monotonic()))
        now = time.monotonic()
        if ready or not timeout or now >= self._next_events:
            self._read_events()
            self._next_events = now + (_REST_S if self.sampler.resting else _EVENTS_PERIOD_S)
            self._events_pause = now + _EVENTS_PAUSE_S
        for record in self._cold_ring.read(self._cold_ring.size):
            self.processes.cold(record)
        self.drain.add_cold(self.processes.step(self._events_ns))
        self.drain.read_ring()
        self.each_step()
        if now >= self._next_housekeeping:
            self._next_housekeeping = now + _HOUSEKEEPING_S
            self._keep_house()

    def _read_events(self) -> None:
        self._events_ns = time.monotonic_ns()
        for event in self.sampler.events.read():
            self.processes.feed(event)

    def _keep_house(self) -> None:
        self.processes.expire()
        if self.sampler.resting:
            return
        came, went = self.sampler.follow_cpus()
        if came or went:
            log.info("CPUs came %s, went %s", came, went)
            self._watch_events()

    def take(self) -> Interval:
        """End the interval and return its raw samples, cold ones included that could be unwound by now."""
        self.step(0.0)
        return self.drain.flip()

    def profiles(self, interval: Interval, *, hold: bool = True) -> list[ResourceProfiles]:
        """Name and label an interval, once the executables that its stacks go through have names.

        `hold`: see `Assembler.assemble`.
        """
        self.kernel_names.refresh()
        until = time.monotonic() + _NAMES_WAIT_S
        wanted = interval.executables() if self.executables.naming else set()
        while self.executables.hurry(wanted) and time.monotonic() < until:
            self.step(_BUSY_POLL_S)
        labels = {slot: selection.labels for slot, selection in self._slots.items()}
        return self.assembler.assemble(interval, self.sampler.periods_ns, labels, hold=hold)

    def settle(self, seconds: float) -> None:
        """Let cold samples find their executables, at most `seconds`; used at the end of a recording."""
        until = time.monotonic() + seconds
        while self.waits_for() and time.monotonic() < until:
            self.step(_BUSY_POLL_S)

    def waits_for(self) -> dict[str, int]:
        """What keeps processes from being known as well as they will soon be; {} when nothing does."""
        waiting = {
            "cold samples": self.processes.held,
            "requests to the worker": self.worker.pending,
            "interpreters": self.interpreters.pending,
        }
        return {what: count for what, count in waiting.items() if count}

    def summary(self) -> RunSummary:
        """Samples and outcomes since the start. Cold samples count as what they became in user space."""
        counters = self.sampler.counters()
        result = RunSummary(samples=counters[Counter.SAMPLES])
        for outcome in Outcome:
            if outcome is not Outcome.COLD and counters[outcome]:
                result.outcomes[outcome.name] += counters[outcome]
        for outcome, count in self.processes.stats.outcomes.items():
            result.outcomes[outcome.name] += count
        if self.processes.stats.cold_dropped:
            result.outcomes[Outcome.COLD_DROPPED.name] += self.processes.stats.cold_dropped
        result.lost = sum(
            count for name, count in result.outcomes.items() if name.startswith("LOST")
        )
        return result

    def close(self) -> None:
        self._selector.close()
        self._cold_ring.close()
        self.drain.close()
        self.interpreters.close()
        self.sampler.close()
        self.slabs.close()
        self.worker.close()


def _nothing() -> None:
    """Nobody follows the steps."""
