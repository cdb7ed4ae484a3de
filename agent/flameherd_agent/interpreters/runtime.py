"""The interpreters of a node at work: attached processes, the programs they need, the names of their functions.

A program is compiled when the first process needs it (`compiling.py`); until it is there, such processes are unwound
as native ones. A process is asked again until its interpreter is initialised. Everything here is called from the
agent's loop.
"""

import logging
import struct
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flameherd_agent.errors import EnvironmentProblem
from flameherd_agent.interpreters.base import (
    Code,
    Interpreter,
    Layout,
    NotReady,
    NotSupported,
    RuntimeFile,
    TornRead,
)
from flameherd_agent.interpreters.compiling import Compilers, Neighbour
from flameherd_agent.interpreters.memory import MemoryGone, ProcessMemory
from flameherd_agent.interpreters.registry import BY_NAME, INTERPRETERS
from flameherd_agent.interpreters.words import ADDRESS_MASK, interpreted
from flameherd_agent.kernel.abi import FrameKind, Limit, Program
from flameherd_agent.kernel.loader import Bytecode, Loaded, extend
from flameherd_agent.model import Location
from flameherd_agent.types import Pid

log = logging.getLogger(__name__)

NATIVE: Final = (int(Program.NATIVE), 0)
MAX_CODES: Final = 20_000
"""Functions whose names and lines are kept, over all processes."""
MAX_LOCATIONS: Final = 60_000
_RETRY_FIRST_S: Final = 0.02
_YOUNG_S: Final = 3.0
_RETRY_MOST_S: Final = 5.0


@dataclass(slots=True)
class _Attachment:
    """A process and what is known of its interpreter."""

    pid: Pid
    file: RuntimeFile
    bias: int
    layout: Layout | None = None
    refused: bool = False
    retry_s: float = _RETRY_FIRST_S
    retry_at: float = 0.0


class _Plugin:
    """One interpreter's program and its layouts in the kernel."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        self.ready = False
        self.failed = False
        self.layouts: dict[int, Layout] = {}
        """By number. A layout of its own for each process, or one for all processes of a build: as the plug-in has it."""
        self.numbers: dict[str, int] = {}
        self.users: dict[int, set[int]] = {}
        """Cookies of the processes that each layout is used by."""
        self.free: deque[int] = deque(range(1, Limit.MAX_LAYOUTS))
        """Numbers that no process refers to, the one that was given up first in front."""


class _NoLayoutError(Exception):
    """The layout that a frame was read by is no longer known: its process has ended a while ago."""


class Interpreters:
    """The plug-ins of one agent."""

    def __init__(
        self, loaded: Loaded, cache: Path | None, neighbour: Neighbour | None = None
    ) -> None:
        self._loaded = loaded
        self._compilers = Compilers(cache, neighbour)
        self._plugins = {interpreter.name: _Plugin(interpreter) for interpreter in INTERPRETERS}
        self._by_kind = {plugin.interpreter.frame_kind: plugin for plugin in self._plugins.values()}
        self._attached: dict[int, _Attachment] = {}  # by cookie
        self._codes: dict[tuple[int, int, int], Code] = {}
        self._locations: dict[tuple[int, int, int], Location] = {}
        self._young_until = 0.0
        self.refused: Counter[str] = Counter()
        """{reason: processes whose interpreter is not unwound}"""
        self.unnamed: Counter[str] = Counter()
        """{reason: frames whose function could not be read as they arrived}"""

    # Processes

    def of(
        self, cookie: int, pid: Pid, files: Sequence[tuple[RuntimeFile, int]]
    ) -> tuple[int, int]:
        """(program, layout) to unwind a process by. `files`: interpreters that it maps, and their biases."""
        attachment = self._attached.get(cookie)
        if attachment is None:
            if not files:
                return NATIVE
            attachment = self._attached[cookie] = _Attachment(pid, *files[0])
            self._young_until = time.monotonic() + _YOUNG_S
            self._try(attachment)
        if attachment.layout is None:
            return NATIVE
        return self._place(cookie, self._plugins[attachment.file.name], attachment.layout)

    def has(self, cookie: int) -> bool:
        """Whether a process runs an interpreter that is known."""
        attachment = self._attached.get(cookie)
        return attachment is not None and not attachment.refused

    @property
    def named(self) -> int:
        """Functions whose names are kept."""
        return len(self._codes)

    def layouts_of(self, name: str) -> list[Layout]:
        """The layouts of one interpreter that processes are unwound by now."""
        return list(self._plugins[name].layouts.values())

    @property
    def young(self) -> bool:
        """Whether a process has been attached to lately: many live for a moment only."""
        return time.monotonic() < self._young_until

    def forget(self, cookie: int) -> None:
        """The process is gone; what is named stays until room is needed."""
        attachment = self._attached.pop(cookie, None)
        if attachment is None:
            return
        plugin = self._plugins[attachment.file.name]
        for number, users in list(plugin.users.items()):
            users.discard(cookie)
            if not users:
                del plugin.users[number], plugin.numbers[repr(plugin.layouts.pop(number))]
                plugin.free.append(number)

    @property
    def pending(self) -> int:
        """Processes that are not unwound yet but may soon be."""
        return sum(
            not attachment.refused
            and (
                attachment.layout is None
                or not (
                    self._plugins[attachment.file.name].ready
                    or self._plugins[attachment.file.name].failed
                )
            )
            for attachment in self._attached.values()
        )

    def poll(self) -> set[int]:
        """Go on with what was not ready. Returns cookies of processes that `of` answers anew for."""
        changed: set[int] = set()
        now = time.monotonic()
        for cookie, attachment in self._attached.items():
            if attachment.layout is None and not attachment.refused and now >= attachment.retry_at:
                self._try(attachment)
                if attachment.layout is not None:
                    changed.add(cookie)
        if (done := self._compilers.poll()) is not None:
            interpreter, compiled = done
            self._load(self._plugins[interpreter.name], compiled)
            changed |= {c for c, a in self._attached.items() if a.file.name == interpreter.name}
        return changed

    def _try(self, attachment: _Attachment) -> None:
        interpreter = BY_NAME[attachment.file.name]
        try:
            memory = ProcessMemory(attachment.pid)
            attachment.layout = interpreter.attach(memory, attachment.file, attachment.bias)
            attachment.layout.row()
        except (NotReady, MemoryGone) as reason:
            attachment.retry_at = time.monotonic() + attachment.retry_s
            attachment.retry_s = min(2 * attachment.retry_s, _RETRY_MOST_S)
            log.debug("%s of process %d: %s", interpreter.name, attachment.pid, reason)
        except NotSupported as reason:
            attachment.layout = None
            attachment.refused = True
            self.refused[reason.reason] += 1
            log.warning("%s of process %d: %s", interpreter.name, attachment.pid, reason)

    def _place(self, cookie: int, plugin: _Plugin, layout: Layout) -> tuple[int, int]:
        """Where the kernel side has a layout; the program is made first if need be."""
        if plugin.failed:
            return NATIVE
        if not plugin.ready:
            self._compilers.want(plugin.interpreter)
            return NATIVE
        number = plugin.numbers.get(repr(layout))
        if number is None:
            if not plugin.free:
                self.refused["room"] += 1
                return NATIVE
            number = plugin.free.popleft()
            name = plugin.interpreter.process_info
            self._loaded.maps[name].update(struct.pack("<I", number), layout.row().tobytes())
            plugin.layouts[number] = layout
            plugin.numbers[repr(layout)] = number
            plugin.users[number] = set()
        plugin.users[number].add(cookie)
        return int(plugin.interpreter.number), number

    def _load(self, plugin: _Plugin, compiled: Bytecode | EnvironmentProblem) -> None:
        try:
            if isinstance(compiled, EnvironmentProblem):
                raise compiled
            program = extend(self._loaded, compiled, plugin.interpreter.program)
        except EnvironmentProblem as problem:
            plugin.failed = True
            self.refused["program"] += 1
            log.error("%s is unwound as native code: %s", plugin.interpreter.name, problem)
            return
        number = struct.pack("<I", plugin.interpreter.number)
        self._loaded.maps["fh_programs"].update(number, struct.pack("<I", program.fd))
        plugin.ready = True

    # Names

    def arrive(self, pid: Pid, cookie: int, layout: int, words: Sequence[int]) -> None:
        """A stack has come: read what its functions are called while they are there."""
        memory = ProcessMemory(pid)
        for first, second in interpreted(words):
            if (cookie, first, second) in self._locations:
                continue
            key = (cookie, first, second >> 32)
            try:
                code = self._codes.get(key) or self._symbolize(memory, key, layout, second)
                code.arrive(memory, second & 0xFFFFFFFF)
            except _NoLayoutError:
                self.unnamed["layout"] += 1
            except TornRead:
                self.unnamed["torn"] += 1
            except MemoryGone:
                self.unnamed["gone"] += 1

    def _symbolize(
        self, memory: ProcessMemory, key: tuple[int, int, int], number: int, second: int
    ) -> Code:
        first = key[1]
        plugin = self._by_kind[_kind(first)]
        layout = plugin.layouts.get(number)
        if layout is None:
            raise _NoLayoutError
        if len(self._codes) >= MAX_CODES:
            # The older half goes: it is in the order of arrival.
            for old in list(self._codes)[: MAX_CODES // 2]:
                del self._codes[old]
        code = plugin.interpreter.symbolize(memory, layout, first & ADDRESS_MASK, second)
        self._codes[key] = code
        return code

    def location(self, cookie: int, first: int, second: int) -> Location:
        """The named location of a frame; without a name if its function could not be read."""
        key = (cookie, first, second)
        found = self._locations.get(key)
        if found is None:
            code = self._codes.get((cookie, first, second >> 32))
            lines = () if code is None else code.lines(second & 0xFFFFFFFF)
            kind = self._by_kind[_kind(first)].interpreter.frame_type
            found = Location(kind, first & ADDRESS_MASK, None, lines)
            if lines:
                if len(self._locations) >= MAX_LOCATIONS:
                    self._locations.clear()
                self._locations[key] = found
        return found

    def close(self) -> None:
        """Wait for a compiler that still runs."""
        self._compilers.close()


def _kind(first: int) -> FrameKind:
    return FrameKind(first >> 60)
