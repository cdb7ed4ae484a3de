"""Frame words → named locations.

Every distinct word is named once and kept: locations are interned, so that writers may compare them by identity.
Words are stable (executable id, address in the file), which makes the cache good across processes and intervals.
Raw words (memory without a file) are named by the process's perf map, if it wrote one, and belong to that process.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from flameherd_agent.interpreters.runtime import Interpreters
from flameherd_agent.interpreters.words import TWO_WORDS, frames
from flameherd_agent.kernel.abi import FrameKind
from flameherd_agent.model import FrameType, Line, Location
from flameherd_agent.process.executables import Executable, Executables
from flameherd_agent.symbols.index import SymbolIndex
from flameherd_agent.types import Address, ExecutableId, FileAddress, Pid

log = logging.getLogger(__name__)

CACHED_LOCATIONS: Final = 15_000
"""Of one generation. A location takes some 540 bytes, with its names."""
EXECUTABLE_SHIFT: Final = 40
EXECUTABLE_MASK: Final = (1 << 20) - 1
_ADDRESS_MASK: Final = (1 << 40) - 1
_RAW_MASK: Final = (1 << 56) - 1

_Key = tuple[int, int]


class KernelNames(Protocol):
    """Names of kernel functions."""

    def lookup(self, address: Address) -> Line | None: ...

    def shed(self) -> None: ...


class RawNames(Protocol):
    """Names of code without a file: perf maps."""

    def lookup(self, pid: Pid, address: Address) -> Line | None: ...


class Namer:
    """Words to locations. Single-threaded."""

    def __init__(
        self,
        executables: Executables,
        kernel: KernelNames,
        raw: RawNames,
        interpreters: Interpreters,
    ) -> None:
        self._interpreters = interpreters
        self._executables = executables
        self._kernel = kernel
        self._raw = raw
        self._cache: dict[_Key, Location] = {}
        self._older: dict[_Key, Location] = {}
        """The generation before: what is asked for again moves to the new one, the rest goes with it."""
        self._read: set[SymbolIndex] = set()

    def kernel(self, address: int) -> Location:
        """Location of a kernel frame."""
        found = self._cached((address, -1))
        if found is None:
            line = self._kernel.lookup(Address(address))
            lines = (line,) if line is not None else ()
            found = Location(FrameType.KERNEL, address, None, lines)
            if lines:  # another may be named later: an eBPF program that was just loaded
                self._keep((address, -1), found)
        return found

    def stack(self, words: Sequence[int], pid: Pid, cookie: int) -> Iterator[Location]:
        """Locations of the user frames of a process, leaf first."""
        for first, second in frames(words):
            if first >> 60 in TWO_WORDS:
                yield self._interpreters.location(cookie, first, second)
            else:
                yield self.user(first, pid)

    def user(self, word: int, pid: Pid) -> Location:
        """Location of a user frame word of a process."""
        is_raw = word >> 60 == FrameKind.RAW
        key = (word, pid if is_raw else 0)
        found = self._cached(key)
        if found is None:
            found = self._raw_location(word, pid) if is_raw else self._named(word)
            # What may be named later is asked for again: a perf map grows while the process runs.
            if found.lines if is_raw else not self._names_due(word):
                self._keep(key, found)
        return found

    def _cached(self, key: _Key) -> Location | None:
        found = self._cache.get(key)
        if found is None and (found := self._older.get(key)) is not None:
            self._keep(key, found)
        return found

    def _keep(self, key: _Key, location: Location) -> None:
        if len(self._cache) >= CACHED_LOCATIONS:
            self._older, self._cache = self._cache, {}
        self._cache[key] = location

    def _raw_location(self, word: int, pid: Pid) -> Location:
        address = word & _RAW_MASK
        line = self._raw.lookup(pid, Address(address))
        return Location(FrameType.NATIVE, address, None, (line,) if line is not None else ())

    def _executable(self, word: int) -> Executable | None:
        return self._executables.get(ExecutableId((word >> EXECUTABLE_SHIFT) & EXECUTABLE_MASK))

    def _names_due(self, word: int) -> bool:
        executable = self._executable(word)
        return executable is not None and executable.names_due

    def _named(self, word: int) -> Location:
        address = FileAddress(word & _ADDRESS_MASK)
        executable = self._executable(word)
        if executable is None:
            return Location(FrameType.NATIVE, address, None)
        symbols = self._executables.symbols_of(executable)
        if symbols is None:
            return Location(FrameType.NATIVE, address, executable.mapping)
        self._read.add(symbols)
        lines = symbols.lookup(address)
        start = None if lines else symbols.function_start(address)
        return Location(symbols.frame_type(address), address, executable.mapping, lines, start)

    def shed(self) -> None:
        """Give back what an interval made resident of the worker's files: most names are cached from now on."""
        for symbols in self._read:
            symbols.shed()
        self._read.clear()
        self._kernel.shed()
        self._executables.shed()
