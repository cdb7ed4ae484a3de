"""What the kernel side knows of processes: `fh_processes` and `fh_mappings`.

Work is per *sampled* process: a process enters when its first sample arrives cold, not when it starts. Its cold
samples are held until its executables are readable or have been given up, and are then unwound here, so that nothing
of a process's first moments is lost. An entry is bound to one address space by its cookie; fork copies entries in
the kernel, exec and exit delete them there, and this table follows by the event stream.
"""

import logging
import struct
import time
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from flameherd_agent.errors import ProcessGone
from flameherd_agent.interpreters.base import RuntimeFile
from flameherd_agent.interpreters.runtime import Interpreters
from flameherd_agent.kernel.abi import Limit, Mapping, Outcome, Process, ProcessFlag
from flameherd_agent.kernel.extents import Extents
from flameherd_agent.kernel.loader import Loaded
from flameherd_agent.kernel.perf import (
    CommEvent,
    ExitEvent,
    ForkEvent,
    LostEvent,
    MapEvent,
    ProcessEvent,
)
from flameherd_agent.process.executables import NO_EXECUTABLE, Executable, Executables, State
from flameherd_agent.process.held import Held, HeldSamples
from flameherd_agent.process.images import ImageLog
from flameherd_agent.process.maps import NO_FILE, Region, file_key
from flameherd_agent.types import ExecutableId, Pid
from flameherd_agent.unwind.copied import CopiedStack, unwind
from flameherd_agent.unwind.table import UnwindTable

log = logging.getLogger(__name__)

HOLD_NS: Final = 20_000_000_000
"""A cold sample waits this long for the worker, then it is unwound with what is there."""

FRESH_NS: Final = 2_000_000_000
"""So long after a change of mappings, code that the kernel side does not know may be newer than its mappings."""

SWAPPED_NS: Final = 300_000_000_000
"""A process that put a library in another's place is unwound here for so long: the kernel side would go by the old
mapping until the agent has taken note of the new one, and give its functions the names of the old one's."""

_REREAD_PAUSE_NS: Final = 50_000_000

REMEMBER_NS: Final = 30_000_000_000
"""An ended process is remembered this long: its samples may still be in the count maps."""


class ColdSample(NamedTuple):
    """A cold sample after it was unwound: what a count-map entry and a stack definition would have said."""

    record: Any
    kernel: tuple[int, ...]
    user: tuple[int, ...]
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class _UserSpan:
    start: int
    end: int
    bias: int
    executable: ExecutableId
    table: UnwindTable | None


_View = dict[Region, Executable | None]
"""What is mapped where at one time, by address."""


@dataclass(slots=True, eq=False)
class TrackedProcess:
    """One address space of one process."""

    pid: Pid
    cookie: int
    program: str
    regions: tuple[Region, ...]
    executables: _View
    earlier: list[tuple[int, _View]] = field(default_factory=list)
    """What was mapped before, and until when (CLOCK_MONOTONIC, ns): for samples that are still held."""
    changed_ns: int = 0
    """When the mappings first changed since they were read; 0 = not, or not known when."""
    first_mapping: int = 0
    mappings: int = 0
    stale: bool = False
    """The mappings have changed since they were read."""
    from_log: bool = False
    swapped_ns: int = 0
    """When code was last mapped over code of another file; 0 = never."""
    reread_ns: int = 0
    """When its mappings were last read."""
    last_cold_ns: int = 0
    """When its last cold sample was taken (CLOCK_MONOTONIC)."""
    ended_ns: int = 0

    def view(self, time_ns: int) -> _View:
        """The mappings as they were at a time."""
        return next(
            (view for until_ns, view in self.earlier if time_ns < until_ns), self.executables
        )

    def swapped(self, now_ns: int) -> bool:
        """Whether it has swapped libraries lately."""
        return self.swapped_ns != 0 and now_ns - self.swapped_ns < SWAPPED_NS

    def overlaps(self, event: MapEvent) -> bool:
        """Whether an event puts code over that of another file."""
        end = event.start + event.length
        file = file_key(event.device, event.inode, event.path)
        return any(
            region.start < end and event.start < region.end and region.file not in (file, NO_FILE)
            for region in self.regions
        )

    def waiting(self) -> bool:
        """Whether the worker still owes an answer for one of its executables."""
        return _waiting(self.executables)


def _waiting(view: _View) -> bool:
    return any(
        executable is not None and executable.state is State.WANTED for executable in view.values()
    )


def _spans(view: _View) -> list[_UserSpan]:
    """The mappings as `unwind.copied` wants them."""
    spans = []
    for region, executable in view.items():
        bias = executable.bias(region) if executable is not None else 0
        if executable is None or bias is None:
            spans.append(_UserSpan(region.start, region.end, 0, NO_EXECUTABLE, None))
        else:
            spans.append(_UserSpan(region.start, region.end, bias, executable.id, executable.table))
    return spans


@dataclass(slots=True)
class TableStats:
    """Counters of this table, since the start."""

    loaded: int = 0
    reloaded: int = 0
    gone: int = 0
    cold_unwound: int = 0
    cold_dropped: int = 0
    """Cold samples given up: over the cap, or of a process of which nothing is known."""
    cold_interpreted: int = 0
    """Cold samples of processes that run an interpreter: they have native frames only."""
    no_room: int = 0
    """Processes that did not fit the kernel's maps."""
    outcomes: dict[Outcome, int] = field(default_factory=dict)
    """What became of cold samples that were unwound."""


class ProcessTable:
    """Processes that are sampled. Single-threaded: everything is called from the agent's loop."""

    def __init__(
        self, loaded: Loaded, executables: Executables, interpreters: Interpreters
    ) -> None:
        self._executables = executables
        self._interpreters = interpreters
        self._entries = loaded.maps["fh_processes"]
        self._mappings = loaded.maps["fh_mappings"]
        self._extents = Extents(int(Limit.MAX_MAPPINGS))
        self._log = ImageLog()
        self._processes: dict[int, TrackedProcess] = {}  # by cookie
        self._current: dict[Pid, TrackedProcess] = {}
        self._held = HeldSamples()
        self._with_earlier: list[TrackedProcess] = []
        self._changed: set[int] = set()  # cookies
        self.stats = TableStats()

    def __len__(self) -> int:
        return len(self._current)

    @property
    def held(self) -> int:
        return len(self._held)

    @property
    def mappings_used(self) -> int:
        return self._extents.used

    @property
    def lost_events(self) -> int:
        return self._log.lost_events

    def find(self, cookie: int) -> TrackedProcess | None:
        """The process with this address space, if one of its samples was cold or it was forked from one."""
        return self._processes.get(cookie)

    def current(self, pid: Pid) -> TrackedProcess | None:
        """The process that has this pid now."""
        return self._current.get(pid)

    # Events

    def feed(self, event: ProcessEvent) -> None:
        """Take note of one event of the stream."""
        self._log.feed(event)
        if isinstance(event, MapEvent):
            if event.pid in self._current:
                process = self._current[event.pid]
                process.changed_ns = process.changed_ns or event.time_ns
                if process.overlaps(event):
                    process.swapped_ns = event.time_ns
                self._mark_stale(process)
        elif isinstance(event, ForkEvent):
            parent = self._current.get(event.parent)
            if parent is not None:
                self._adopt(event.pid, parent)
        elif isinstance(event, CommEvent):
            if event.exec:
                self._end(event.pid, event.time_ns)
        elif isinstance(event, ExitEvent):
            # The leader may exit before its threads: the kernel side deletes the entry with the last one.
            ended = self._current.get(event.pid)
            if ended is not None:
                ended.ended_ns = ended.ended_ns or event.time_ns
        elif isinstance(event, LostEvent):
            for process in self._current.values():
                self._mark_stale(process)
            log.warning("%d process events were lost: reading mappings anew", event.count)

    def _mark_stale(self, process: TrackedProcess) -> None:
        process.stale = True
        self._changed.add(process.cookie)

    def _adopt(self, pid: Pid, parent: TrackedProcess) -> None:
        """A child has its parent's mappings; the kernel side copied the entry, and its cookie is read from there."""
        entry = self._entry(pid)
        if entry is None:
            return
        cookie = int(entry["cookie"])
        child = TrackedProcess(
            pid, cookie, parent.program, parent.regions, dict(parent.executables)
        )
        for executable in child.executables.values():
            if executable is not None:
                executable.users.add(cookie)
        self._processes[cookie] = child
        self._current[pid] = child
        # An extent of its own, so that the parent's may change.
        self._changed.add(cookie)

    def _entry(self, pid: Pid) -> Any:
        value = self._entries.lookup(struct.pack("<I", pid))
        return None if value is None else np.frombuffer(value, Process)[0]

    def forget(self) -> None:
        """Processes are not followed for a while: what is known of them would grow stale."""
        for pid in list(self._current):
            self._end(pid, time.monotonic_ns())
        for key in list(self._entries.keys()):
            self._entries.delete(key)
        self._log.clear()

    # Cold samples

    def cold(self, data: bytes) -> None:
        """A record of `fh_cold_ring`."""
        held = Held(data, None, time.monotonic_ns())
        record = held.record
        pid, cookie = Pid(int(record["tgid"])), int(record["cookie"])
        process = self._processes.get(cookie)
        if process is None:
            process = self._load(pid, cookie, int(record["time_ns"]))
        elif self._current.get(pid) is process and not process.waiting():
            # Its executables are all there, and yet a sample was cold: the mappings are out of date, or the kernel's
            # entry is gone.
            now = time.monotonic_ns()
            if not process.swapped(now) and now - process.reread_ns > _REREAD_PAUSE_NS:
                self._mark_stale(process)
        if process is not None:
            process.last_cold_ns = int(record["time_ns"])
        held.owner = process
        self._held.add(held)

    def _load(self, pid: Pid, cookie: int, time_ns: int) -> TrackedProcess | None:
        try:
            image = self._log.image(pid, time_ns)
        except ProcessGone:
            self.stats.gone += 1
            return None
        known = self._current.get(pid)
        process = TrackedProcess(pid, cookie, image.program, image.regions, {})
        process.from_log = image.from_log
        process.executables = {
            region: self._executables.want(cookie, pid, region) for region in image.regions
        }
        if known is not None and known is not process:
            self._end(pid, time_ns)
        self._processes[cookie] = process
        self._current[pid] = process
        self._changed.add(cookie)
        self.stats.loaded += 1
        return process

    def _end(self, pid: Pid, time_ns: int) -> None:
        process = self._current.pop(pid, None)
        if process is None:
            return
        process.ended_ns = process.ended_ns or time_ns
        self._extents.free(process.first_mapping, process.mappings, time.monotonic_ns())
        process.mappings = 0

    # The loop's step

    def step(self, events_ns: int) -> list[ColdSample]:
        """Take the worker's answers, tell the kernel what changed, and unwind the cold samples that can be.

        Events up to `events_ns` (CLOCK_MONOTONIC) have been fed: younger samples wait.
        """
        self._changed |= self._executables.poll() | self._interpreters.poll()
        changed, self._changed = self._changed, set()
        for cookie in changed:
            process = self._processes.get(cookie)
            if process is not None and self._current.get(process.pid) is process:
                self._refresh(process)
        return self._unwind_held(events_ns)

    def _refresh(self, process: TrackedProcess) -> None:
        if process.stale:
            process.stale = False
            self._reread(process)
        self._install(process)

    def _reread(self, process: TrackedProcess) -> None:
        try:
            image = self._log.image(process.pid, time.monotonic_ns())
        except ProcessGone:
            return
        self.stats.reloaded += 1
        process.reread_ns = time.monotonic_ns()
        before = {executable for executable in process.executables.values() if executable}
        if process.changed_ns:
            process.earlier.append((process.changed_ns, process.executables))
            self._with_earlier.append(process)
            process.changed_ns = 0
        process.regions = image.regions
        process.executables = {
            region: process.executables.get(region)
            or self._executables.want(process.cookie, process.pid, region)
            for region in image.regions
        }
        after = {executable for executable in process.executables.values() if executable}
        self._executables.leave(process.cookie, before - after)

    def _install(self, process: TrackedProcess) -> None:
        """Write the mappings into a fresh extent and point the kernel's entry to it."""
        rows: list[tuple[int, int, int, int, int]] = []
        runtimes: list[tuple[RuntimeFile, int]] = []
        for region in process.regions:
            executable = process.executables[region]
            if executable is None:
                rows.append((region.start, region.end, 0, 0, 0))
                continue
            bias = executable.bias(region) or 0
            spans = self._executables.table_spans(executable, region)
            rows += [
                (start, end, bias, executable.id | flags, table)
                for start, end, table, flags in self._executables.evaluation_spans(
                    executable, spans, bias
                )
            ]
            if executable.interpreter is not None:
                runtimes.append((executable.interpreter, bias))
        now = time.monotonic_ns()
        first = self._extents.allocate(len(rows), now)
        if first is None:
            self.stats.no_room += 1
            return
        self._mappings.write(first, np.array(rows, Mapping))
        entry = np.zeros(1, Process)
        entry["cookie"] = process.cookie
        entry["first_mapping"] = first
        entry["mappings"] = len(rows)
        entry["fresh_until_ns"] = now + FRESH_NS
        entry["program"], entry["layout"] = self._interpreters.of(
            process.cookie, process.pid, runtimes
        )
        if process.swapped(now):
            entry["flags"] = ProcessFlag.COLD
        try:
            self._entries.update(struct.pack("<I", process.pid), entry.tobytes())
        except OSError:
            self._extents.free(first, len(rows), now)
            self.stats.no_room += 1
            return
        self._extents.free(process.first_mapping, process.mappings, now)
        process.first_mapping, process.mappings = first, len(rows)

    def _unwind_held(self, events_ns: int) -> list[ColdSample]:
        """Unwind what no longer waits, each sample by what was mapped when it was taken."""
        now = time.monotonic_ns()
        waiting: set[int] = set()
        views: dict[int, bool] = {}  # by the identity of the view: whether it waits

        def ready(held: Held) -> bool:
            process: TrackedProcess | None = held.owner
            if process is None or now - held.arrived_ns >= HOLD_NS:
                return True
            time_ns = int(held.record["time_ns"])
            if time_ns > events_ns:
                waiting.add(id(process))
                return False
            view = process.view(time_ns)
            if id(view) not in views:
                views[id(view)] = _waiting(view)
            if views[id(view)]:
                waiting.add(id(process))
            return not views[id(view)]

        taken, dropped = self._held.take(ready)
        self.stats.cold_dropped += dropped
        spans: dict[int, list[_UserSpan]] = {}  # by the identity of the view
        samples = [self._unwind(held, spans) for held in taken]
        for process in self._with_earlier:
            if id(process) not in waiting:
                process.earlier.clear()
        self._with_earlier = [process for process in self._with_earlier if process.earlier]
        return samples

    def _unwind(self, held: Held, spans: dict[int, list[_UserSpan]]) -> ColdSample:
        record = held.record
        process: TrackedProcess | None = held.owner
        words = held.kernel_words()
        kernel = struct.unpack(f"<{len(words) // 8}Q", words)
        stack = CopiedStack(int(record["registers"]["sp"]), held.stack())
        if process is None or not stack.data:
            user: list[int] = []
            outcome = Outcome.COLD_DROPPED
        else:
            view = process.view(int(record["time_ns"]))
            if id(view) not in spans:
                spans[id(view)] = _spans(view)
            user, outcome = unwind(spans[id(view)], record["registers"], stack)
            if self._interpreters.has(process.cookie):
                self.stats.cold_interpreted += 1
        self.stats.cold_unwound += 1
        self.stats.outcomes[outcome] = self.stats.outcomes.get(outcome, 0) + 1
        return ColdSample(record, kernel, tuple(user), outcome)

    def expire(self) -> None:
        """Forget processes that ended a while ago."""
        now = time.monotonic_ns()
        self._log.expire(now)
        for pid, process in list(self._current.items()):
            if process.swapped_ns and not process.swapped(now):
                process.swapped_ns = 0
                self._changed.add(process.cookie)
            # Exit of the leader was seen: the entry in the kernel goes with the last thread.
            if process.ended_ns and self._entry(pid) is None:
                self._end(pid, process.ended_ns)
        for cookie, process in list(self._processes.items()):
            if (
                process.ended_ns
                and now - process.ended_ns > REMEMBER_NS
                and self._current.get(process.pid) is not process
            ):
                del self._processes[cookie]
                self._interpreters.forget(cookie)
                gone = {executable for executable in process.executables.values() if executable}
                self._executables.leave(cookie, gone)
        self._executables.expire(now)
