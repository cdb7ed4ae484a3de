"""Reads what compiled code says of itself: which methods are inlined at a position, and where in them it is.

A compiled method (nmethod) has a table of PcDescs, one for each place where the JVM may stop it: calls above all, so
that callers are exact. A leaf between two of them is taken to be on the way to the next. A PcDesc leads to a scope:
a method, an index of a bytecode, and the scope that it was inlined into.
"""

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np

from flameherd_agent.interpreters.base import TornRead
from flameherd_agent.interpreters.hotspot.compressed import Numbers
from flameherd_agent.interpreters.hotspot.layout import Layout
from flameherd_agent.interpreters.hotspot.method import read_method, tag
from flameherd_agent.interpreters.memory import MAX_READ, ProcessMemory
from flameherd_agent.types import Line

MAX_DEPTH: Final = 96
"""Methods that are inlined into each other: the compilers stop far below."""
MAX_POSITIONS: Final = 2_000
"""Positions of one compiled method whose lines are kept."""
_PC_DESC: Final = np.dtype(
    {"names": ["pc", "scope"], "formats": ["<i4", "<i4"], "offsets": [0, 4], "itemsize": 16}
)
_SCOPE_BYTES: Final = 15
"""Three numbers of five bytes at most."""
_NO_ZERO_BYTES: Final = 20


@dataclass(frozen=True, slots=True)
class Head:
    """The head of an nmethod: addresses, but for the id."""

    method: int
    compile_id: int
    pcs: int
    pcs_end: int
    scopes: int
    scopes_end: int
    metadata: int
    metadata_end: int

    @property
    def tag(self) -> int:
        return tag(self.method, self.compile_id)


def read_head(memory: ProcessMemory, layout: Layout, address: int) -> Head:
    """The head of the nmethod at an address. Raises MemoryGone."""
    vm = layout.vm
    data = memory.read(address, vm.size("nmethod"))

    def word(*names: str) -> int:
        return int(struct.unpack_from("<Q", data, layout.nmethod(*names))[0])

    def number(name: str) -> int:
        return int(struct.unpack_from("<I", data, layout.nmethod(name))[0])

    def blob(name: str, form: str = "<I") -> int:
        return int(struct.unpack_from(form, data, vm.offset("CodeBlob", name))[0])

    method, compile_id = word("_method"), number("_compile_id")
    if layout.find_nmethod("_immutable_data") is not None:  # 23 on: outside of the code cache
        base = word("_immutable_data")
        pcs, scopes = base + number("_scopes_pcs_offset"), base + number("_scopes_data_offset")
        end = base + number("_immutable_data_size")
        if layout.find_nmethod("_metadata_offset") is not None:  # 23, 24
            metadata = address + blob("_data_offset") + number("_metadata_offset")
            metadata_end = address + blob("_size")
        else:
            mutable = blob("_mutable_data", "<Q")
            metadata = mutable + blob("_relocation_size")
            metadata_end = mutable + blob("_mutable_data_size")
        return Head(method, compile_id, pcs, scopes, scopes, end, metadata, metadata_end)
    pcs, end = address + number("_scopes_pcs_offset"), address + number("_dependencies_offset")
    if layout.find_nmethod("_scopes_data_begin") is not None:  # 9 to 22
        scopes = word("_scopes_data_begin")
    else:
        scopes = address + number("_scopes_data_offset")
    metadata = address + number("_metadata_offset")
    return Head(method, compile_id, pcs, end, scopes, pcs, metadata, scopes)


class CompiledCode:
    """A compiled method: the lines of the positions that were sampled."""

    __slots__ = ("_address", "_head", "_layout", "_lines")

    def __init__(self, layout: Layout, address: int, head: Head) -> None:
        self._layout = layout
        self._address = address
        self._head = head
        self._lines: dict[int, tuple[Line, ...]] = {}

    def lines(self, position: int) -> tuple[Line, ...]:
        """The methods at a position, innermost first; () if they could not be read."""
        return self._lines.get(position, ())

    def arrive(self, memory: ProcessMemory, position: int) -> None:
        """Read the methods at a position. Raises TornRead, MemoryGone."""
        if position in self._lines:
            return
        lines = self._read(memory, position)
        if read_head(memory, self._layout, self._address) != self._head:
            raise TornRead(f"process {memory.pid}: {self._address:#x} was freed meanwhile")
        if len(self._lines) >= MAX_POSITIONS:
            self._lines.clear()
        self._lines[position] = lines

    def _read(self, memory: ProcessMemory, position: int) -> tuple[Line, ...]:
        scope = self._scope_at(memory, position)
        lines: list[Line] = []
        while scope and len(lines) < MAX_DEPTH:
            at = self._head.scopes + scope
            size = min(_SCOPE_BYTES, self._head.scopes_end - at)
            if size <= 0:
                raise TornRead(f"process {memory.pid}: a scope lies outside of its nmethod")
            data = memory.read(at, size)
            numbers = Numbers(data, self._layout.version >= _NO_ZERO_BYTES)
            sender, index, bci = numbers.unsigned(), numbers.unsigned(), numbers.unsigned() - 1
            if sender >= scope:
                raise TornRead(f"process {memory.pid}: scopes go in circles")
            lines.append(read_method(memory, self._layout, self._metadata(memory, index)).line(bci))
            scope = sender
        if not lines:  # native methods, and code behind the last place where it may stop
            lines.append(read_method(memory, self._layout, self._head.method).line(-1))
        return tuple(lines)

    def _scope_at(self, memory: ProcessMemory, position: int) -> int:
        """Offset of the innermost scope at a position; 0 if there is none."""
        size = (self._head.pcs_end - self._head.pcs) & ~(_PC_DESC.itemsize - 1)
        if size <= 0:
            return 0
        if size > MAX_READ:
            raise TornRead(f"process {memory.pid}: {size} bytes of PcDescs")
        descs = np.frombuffer(memory.read(self._head.pcs, size), _PC_DESC)
        # The first and the last are sentinels.
        at = int(np.searchsorted(descs["pc"], position))
        return int(descs["scope"][at]) if at < len(descs) - 1 else 0

    def _metadata(self, memory: ProcessMemory, index: int) -> int:
        """The Method of an index; they count from 1."""
        at = self._head.metadata + 8 * (index - 1)
        if index < 1 or at + 8 > self._head.metadata_end:
            raise TornRead(f"process {memory.pid}: no metadata {index}")
        return memory.word(at)
