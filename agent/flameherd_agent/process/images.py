"""What a process had mapped, even if it is gone: the log of MMAP2, FORK, COMM and EXIT events.

A short-lived process has often ended before its first sample is looked at; `/proc` knows nothing of it by then. The
kernel's event stream does: this log keeps, for every process that started while the agent ran, what it mapped since
its last exec, as raw records that are only parsed when a sample needs them. A process that has lived for
`SETTLED_NS` is dropped from the log: `/proc` answers for it from then on. Memory is bounded by `MAX_BYTES`; beyond it
the oldest processes are forgotten and counted.
"""

from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from flameherd_agent.errors import ProcessGone
from flameherd_agent.kernel.perf import (
    CommEvent,
    ExitEvent,
    ForkEvent,
    LostEvent,
    MapEvent,
    ProcessEvent,
)
from flameherd_agent.process.maps import NO_FILE, Region, file_key, read_maps
from flameherd_agent.types import Pid

SETTLED_NS: Final = 10_000_000_000
GONE_NS: Final = 10_000_000_000
MAX_EVENTS: Final = 40_000
_MAX_DEPTH: Final = 16
"""Generations of fork that are followed back to an exec."""
_MAX_EXECS: Final = 3
"""Programs of one process that are remembered besides the present one."""


@dataclass(frozen=True, slots=True)
class Image:
    """Executable regions at one time, and the path of the program."""

    regions: tuple[Region, ...]
    program: str
    from_log: bool


@dataclass(slots=True)
class _Life:
    started_ns: int
    parent: Pid | None
    executed_ns: int = 0
    maps: list[MapEvent] = field(default_factory=list)
    ended_ns: int = 0
    """When it ended or executed another program."""
    before: "_Life | None" = None
    """What the process was before its last exec: its samples may still be under way."""

    def at(self, time_ns: int) -> "_Life":
        """What the process was at a time; the earliest that is known if that was before."""
        life = self
        while life.before is not None and time_ns < life.executed_ns:
            life = life.before
        return life

    def events(self) -> int:
        return 1 + len(self.maps) + (self.before.events() if self.before is not None else 0)


class ImageLog:
    """The log. Feed it every event in order of time; ask it for the image of a sample."""

    def __init__(self) -> None:
        self._lives: OrderedDict[Pid, _Life] = OrderedDict()
        self._events = 0
        self.forgotten = 0
        self.lost_events = 0

    def feed(self, event: ProcessEvent) -> None:
        """Take note of one event."""
        if isinstance(event, MapEvent):
            life = self._lives.get(event.pid)
            if life is not None:
                life.maps.append(event)
                self._events += 1
        elif isinstance(event, ForkEvent):
            self._forget(event.pid)
            self._lives[event.pid] = _Life(event.time_ns, event.parent)
            self._events += 1
        elif isinstance(event, CommEvent):
            if event.exec:
                before = self._lives.pop(event.pid, None)
                if before is not None:
                    before.ended_ns = event.time_ns
                    self._cut(before)
                self._lives[event.pid] = _Life(event.time_ns, None, event.time_ns, before=before)
                self._events += 1
        elif isinstance(event, ExitEvent):
            life = self._lives.get(event.pid)
            if life is not None:
                life.ended_ns = event.time_ns
        elif isinstance(event, LostEvent):
            self.lost_events += event.count

    def clear(self) -> None:
        """Forget every process."""
        self._lives.clear()
        self._events = 0

    def expire(self, now_ns: int) -> None:
        """Forget what has settled or ended long ago, and the oldest beyond the cap."""
        settled = [
            pid
            for pid, life in self._lives.items()
            if (life.ended_ns and now_ns - life.ended_ns > GONE_NS)
            or (not life.ended_ns and now_ns - life.started_ns > SETTLED_NS)
        ]
        for pid in settled:
            self._forget(pid)
        while self._events > MAX_EVENTS:
            _, life = self._lives.popitem(last=False)
            self._events -= life.events()
            self.forgotten += 1

    def _cut(self, life: _Life) -> None:
        """Forget what is more than `_MAX_EXECS` programs ago."""
        for _ in range(_MAX_EXECS - 1):
            if life.before is None:
                return
            life = life.before
        if life.before is not None:
            self._events -= life.before.events()
            life.before = None

    def _forget(self, pid: Pid) -> None:
        life = self._lives.pop(pid, None)
        if life is not None:
            self._events -= life.events()

    def image(self, pid: Pid, time_ns: int) -> Image:
        """The image of `pid` at `time_ns`. Raises ProcessGone if neither the log nor /proc knows it.

        A process that has executed another program since the sample is asked of the log only.
        """
        life = self._lives.get(pid)
        if life is None or (
            not life.ended_ns and max(life.executed_ns, life.started_ns) <= time_ns
        ):
            try:
                return Image(tuple(read_maps(pid)), _program(pid), False)
            except ProcessGone:
                if life is None:
                    raise
        return self._from_log(pid, life.at(time_ns), 0)

    def _from_log(self, pid: Pid, life: _Life, depth: int) -> Image:
        regions: tuple[Region, ...] = ()
        program = ""
        if not life.executed_ns:
            if life.parent is None or depth > _MAX_DEPTH:
                raise ProcessGone(f"process {pid} has ended, and its program is not known")
            parent = self._lives.get(life.parent)
            if parent is None:
                inherited = Image(tuple(read_maps(life.parent)), _program(life.parent), True)
            else:
                inherited = self._from_log(life.parent, parent.at(life.started_ns), depth + 1)
            regions, program = inherited.regions, inherited.program
        if life.maps and not program:
            program = life.maps[0].path
        for event in life.maps:
            regions = overlay(
                regions,
                Region(
                    event.start,
                    event.start + event.length,
                    event.page_offset,
                    file_key(event.device, event.inode, event.path),
                ),
            )
        if not regions:
            raise ProcessGone(f"process {pid} has ended before it mapped anything")
        return Image(regions, program, True)


def overlay(regions: tuple[Region, ...], new: Region) -> tuple[Region, ...]:
    """`regions` after mmap put `new` over them: sorted, what is covered cut away."""
    result: list[Region] = []
    for old in regions:
        if old.end <= new.start or old.start >= new.end:
            result.append(old)
            continue
        if old.start < new.start:
            result.append(Region(old.start, new.start, old.offset, old.file))
        if old.end > new.end:
            moved = 0 if old.file == NO_FILE else new.end - old.start
            result.append(Region(new.end, old.end, old.offset + moved, old.file))
    starts = [region.start for region in result]
    result.insert(bisect_left(starts, new.start), new)
    return tuple(result)


def _program(pid: Pid) -> str:
    try:
        return str(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        return ""
