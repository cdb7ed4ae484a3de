"""Names the frames of V8: a function, its script, the line; for compiled code also what was inlined there.

What the sample saw of the function (`fh_v8_identify` in `bpf/interpreters/v8.h`) is compared with what is there now:
where another object lies by now, nothing is named.
"""

from collections.abc import Iterator
from typing import Final

from flameherd_agent.interpreters.base import Layout as AnyLayout
from flameherd_agent.interpreters.base import TornRead
from flameherd_agent.interpreters.memory import MemoryGone, ProcessMemory
from flameherd_agent.interpreters.v8.compiled import find
from flameherd_agent.interpreters.v8.functions import Function, Shared, positions_of
from flameherd_agent.interpreters.v8.heap import Heap
from flameherd_agent.interpreters.v8.layouts import Layout
from flameherd_agent.interpreters.v8.positions import PositionTable
from flameherd_agent.interpreters.v8.process import Process, code_ranges
from flameherd_agent.interpreters.v8.words import mix
from flameherd_agent.kernel.abi import V8Frame
from flameherd_agent.types import Line

_ADDRESS: Final = (1 << 48) - 1
_HALF: Final = (1 << 32) - 1
_TAG_BYTES: Final = 8


class Named:
    """A function of which no position is known: one of V8's own, or code that cannot be told."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def lines(self, position: int) -> tuple[Line, ...]:
        return (self._function.line(-1),)

    def arrive(self, memory: ProcessMemory, position: int) -> None:
        """Nothing: it has a name and no line."""


class Bytecode:
    """A function that is interpreted."""

    def __init__(self, function: Function, positions: PositionTable, data: int) -> None:
        self._function = function
        self._positions = positions
        self._first = data - 1  # as V8 counts: from the tagged pointer to the array

    def lines(self, position: int) -> tuple[Line, ...]:
        """`position`: the offset in the bytecode array."""
        place = self._positions.at(max(position - self._first, 0))
        return (self._function.line(place.offset),)

    def arrive(self, memory: ProcessMemory, position: int) -> None:
        """Nothing: the table was read with the function."""


class Compiled:
    """A function in compiled code, at one program counter."""

    def __init__(self, lines: tuple[Line, ...]) -> None:
        self._lines = lines

    def lines(self, position: int) -> tuple[Line, ...]:
        return self._lines

    def arrive(self, memory: ProcessMemory, position: int) -> None:
        """Nothing: the tag belongs to this one program counter."""


def read_code(
    memory: ProcessMemory, layout: AnyLayout, address: int, second: int
) -> Named | Bytecode | Compiled:
    """The function of a frame. `address`: its kind and the SharedFunctionInfo, from the first word.

    Raises TornRead if it is not the one that the frame had, MemoryGone if it cannot be read.
    """
    assert isinstance(layout, Layout)
    heap = Heap(memory, layout)
    process = layout.processes.of(memory.pid)
    kind, tag = address >> 48, second >> 32
    shared = Shared(heap, address & _ADDRESS)
    if kind == V8Frame.COMPILED:
        pc = _program_counter(heap, process, shared, second)
        code = find(heap, process, pc)
        if not code.belongs(shared):
            raise TornRead(f"process {memory.pid}: {pc:#x} is not in code of {shared.at:#x}")
        return Compiled(code.lines(pc, shared.function(process)))
    if shared.tag != tag:
        raise TornRead(f"process {memory.pid}: {shared.at:#x} is another function by now")
    function = shared.function(process)
    if kind != V8Frame.BYTECODE:
        return Named(function)
    bytecode = shared.bytecode()
    positions = PositionTable(b"") if bytecode is None else positions_of(heap, bytecode)
    return Bytecode(function, positions, layout["BytecodeArray.data"])


def _program_counter(heap: Heap, process: Process, shared: Shared, second: int) -> int:
    """The program counter of a frame in compiled code: its lower half is known, and a tag of function and code."""
    for pc in _candidates(heap, process, second & _HALF):
        try:
            code = int.from_bytes(heap.memory.read(pc + 1 - _TAG_BYTES, _TAG_BYTES), "little")
        except MemoryGone:
            continue
        if mix(mix(shared.tag, code), second & _HALF) >> 32 == second >> 32:
            return pc
    raise TornRead(f"process {heap.memory.pid}: {shared.at:#x} has other code by now")


def _candidates(heap: Heap, process: Process, half: int) -> Iterator[int]:
    """Addresses with this lower half where code may lie: those of the known ranges, then of the present ones."""
    tried: set[int] = set()
    for again in (False, True):
        if again:
            process.ranges |= code_ranges(heap.memory.pid)
        for start, end in process.ranges:
            pc = start & ~_HALF | half
            pc += (1 << 32) if pc < start else 0
            if pc < end and pc not in tried:
                tried.add(pc)
                yield pc
