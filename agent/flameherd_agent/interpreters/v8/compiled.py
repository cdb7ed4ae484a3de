"""Compiled code: which Code object a program counter lies in, and which functions and lines it stands for there.

In front of the instructions of each piece of code lies an object that leads to its Code (up to version 10 the Code
itself), on a 64-byte boundary less its size: it is searched backward from the program counter. What is found is proved:
the Code says where its instructions begin and end.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, Protocol

import numpy as np

from flameherd_agent.interpreters.base import TornRead
from flameherd_agent.interpreters.memory import MAX_READ, MemoryGone
from flameherd_agent.interpreters.v8.exits import Exit, Modes, safepoints_bytes
from flameherd_agent.interpreters.v8.exits import positions as exit_positions
from flameherd_agent.interpreters.v8.functions import (
    Function,
    Shared,
    bytecode_of,
    positions_of,
)
from flameherd_agent.interpreters.v8.heap import MAX_TABLE, Heap, is_pointer, smi
from flameherd_agent.interpreters.v8.positions import (
    Place,
    PositionTable,
    baseline_offsets,
    inlinings,
)
from flameherd_agent.interpreters.v8.process import MOST_COMPILED, Process, keep
from flameherd_agent.interpreters.v8.words import word_at
from flameherd_agent.types import Line

_ALIGNMENT: Final = 64
"""kCodeAlignment; the code itself starts on such a boundary."""
_CHUNK: Final = 64 << 10
MOST_CODE: Final = 4 << 20
"""Bytes of one function's code that are searched."""
_MOST_DEPTH: Final = 64
"""Functions inlined into each other."""
_MOST_LITERALS: Final = 1 << 14
_DATA: Final = 16  # elements of a FixedArray
_MOST_DEOPT_ENTRIES: Final = 1 << 15
_DEOPT_ENTRY: Final = 3
"""Words for each exit; the first is the offset of its bytecode."""
_MAGLEV: Final = 1
"""Its kind of code comes after the baseline's."""
_MOST_TRIED: Final = 256


class CompiledCode(Protocol):
    """One Code object: what holds at each of its instructions."""

    def belongs(self, shared: Shared) -> bool:
        """Whether it was compiled for this function."""

    def lines(self, pc: int, function: Function) -> tuple[Line, ...]:
        """Functions and lines at an instruction, innermost first. `function`: that of the frame."""


class BaselineCode:
    """Machine code of each bytecode in turn."""

    def __init__(self, heap: Heap, start: int, bytecode: int, table: bytes) -> None:
        layout = heap.layout
        size = smi(word_at(heap.body(bytecode, _DATA)[1], 8))
        if not 0 <= size <= MAX_TABLE:
            raise TornRead(f"process {heap.memory.pid}: {size} bytes of bytecode at {bytecode:#x}")
        at = bytecode - 1 + layout["BytecodeArray.data"]
        self._start = start
        self._bytecode = bytecode
        self._positions = positions_of(heap, bytecode)
        self._ends, self._offsets = baseline_offsets(
            table, heap.memory.read(at, size) if size else b"", layout.bytecode_sizes
        )

    def belongs(self, shared: Shared) -> bool:
        return shared.bytecode() == self._bytecode

    def lines(self, pc: int, function: Function) -> tuple[Line, ...]:
        at = bisect_right(self._ends, pc - self._start)
        bytecode = self._offsets[at] if at < len(self._offsets) else -1
        return (function.line(self._positions.at(max(bytecode, 0)).offset),)


class OptimizedCode:
    """Machine code of a function and of what was inlined into it."""

    def __init__(
        self,
        heap: Heap,
        process: Process,
        start: int,
        deopt: int,
        table: bytes,
        exits: list[tuple[int, Exit]],
    ) -> None:
        """`exits`: of code without a table of positions."""
        layout = heap.layout
        entries = heap.elements(deopt, _MOST_DEOPT_ENTRIES)
        if len(entries) <= max(layout["deopt.positions"], layout["deopt.literals"]):
            raise TornRead(f"process {heap.memory.pid}: no deoptimization data at {deopt:#x}")
        owner = _owner(heap, entries)
        shared = {-1: owner}
        self._start = start
        self._owner = owner.identity
        self._functions: dict[int, Function] = {}
        """By index among the literals."""
        self._inlinings = inlinings(heap.bytes_of(entries[layout["deopt.positions"]]))
        literals = heap.elements(entries[layout["deopt.literals"]], _MOST_LITERALS)
        for index in {inlining.function for inlining in self._inlinings}:
            if 0 <= index < len(literals):
                # Literals may be weak references, which end in 11.
                shared[index] = Shared(heap, literals[index] & ~2)
                self._functions[index] = shared[index].function(process)
        self._positions = (
            PositionTable.of(self._places(heap, entries, exits, shared))
            if exits
            else PositionTable(table)
        )

    def _places(
        self,
        heap: Heap,
        entries: tuple[int, ...],
        exits: list[tuple[int, Exit]],
        shared: dict[int, Shared],
    ) -> Iterator[tuple[int, Place]]:
        """Positions of exits: by the bytecode at which each leads to the interpreter."""
        first = heap.layout["deopt.first"]
        tables: dict[int, PositionTable] = {}
        for offset, leave in exits:
            inlined = leave.inlined if 0 <= leave.inlined < len(self._inlinings) else -1
            index = self._inlinings[inlined].function if inlined >= 0 else -1
            at = first + _DEOPT_ENTRY * leave.number
            if index not in shared or not first <= at < len(entries):
                continue
            if index not in tables:
                bytecode = shared[index].bytecode()
                tables[index] = (
                    PositionTable(b"") if bytecode is None else positions_of(heap, bytecode)
                )
            yield offset, Place(tables[index].at(max(smi(entries[at]), 0)).offset, inlined)

    def belongs(self, shared: Shared) -> bool:
        return shared.identity == self._owner

    def lines(self, pc: int, function: Function) -> tuple[Line, ...]:
        place = self._positions.at(pc - self._start)
        found: list[Line] = []
        for _ in range(_MOST_DEPTH):
            if not 0 <= place.inlined < len(self._inlinings):
                break
            inlining = self._inlinings[place.inlined]
            inlined = self._functions.get(inlining.function)
            if inlined is not None:
                found.append(inlined.line(place.offset))
            place = inlining.call
        return (*found, function.line(place.offset))


def _owner(heap: Heap, entries: tuple[int, ...]) -> Shared:
    """The function that optimised code was made for, by its deoptimization data."""
    layout = heap.layout
    wrapped = layout.get("deopt.wrapped")
    if wrapped is None:
        return Shared(heap, entries[layout["deopt.shared"]])
    at = layout["SharedFunctionInfoWrapper.shared_info"]
    return Shared(heap, word_at(heap.body(entries[wrapped], at + 8)[1], at))


def find(heap: Heap, process: Process, pc: int) -> CompiledCode:
    """The code that a program counter lies in. Raises TornRead if there is none, MemoryGone."""
    read = 0
    end = pc + 1
    while read < MOST_CODE:
        low = (end - 1) & -_CHUNK
        try:
            chunk = heap.memory.read(
                max(low - _ALIGNMENT * 2, 1), end - max(low - _ALIGNMENT * 2, 1)
            )
        except MemoryGone:
            low = (end - 1) & -4096
            chunk = heap.memory.read(low, end - low)
            first = low
        else:
            first = max(low - _ALIGNMENT * 2, 1)
        found = _search(heap, process, first, chunk, pc)
        if found is not None:
            return found
        read += end - low
        end = low
    raise TornRead(f"process {heap.memory.pid}: {pc:#x} is in no code")


def _search(heap: Heap, process: Process, first: int, chunk: bytes, pc: int) -> CompiledCode | None:
    """The code that begins in these bytes and holds `pc`."""
    layout = heap.layout
    header = layout["stream.header"]
    # Beginnings of the objects in front of code: headers end on a boundary.
    lead = -(first + header) % _ALIGNMENT
    count = (len(chunk) - lead - 8) // _ALIGNMENT + 1
    if count <= 0:
        return None
    words = np.ndarray((count,), "<u8", chunk, lead, (_ALIGNMENT,))
    likely = words == process.code_map if process.code_map else (words & 3) == 1
    tried = 0
    for index in np.flatnonzero(likely)[::-1]:
        at = first + lead + int(index) * _ALIGNMENT
        if at + header > pc:
            continue
        tried += 1
        if tried > _MOST_TRIED:
            break
        try:
            code = _code_at(heap, process, at, pc)
        except (TornRead, MemoryGone):
            if process.code_map:
                raise
            continue
        if code is not None:
            process.code_map = int(words[index])
            return code
        if process.code_map:
            return None
    return None


def _code_at(heap: Heap, process: Process, at: int, pc: int) -> CompiledCode | None:
    """The Code whose instructions lie behind `at`, if they hold `pc`."""
    layout = heap.layout
    start = at + layout["stream.header"]
    pointer = layout.get("stream.code")
    tagged = at + 1 if pointer is None else heap.memory.word(at + pointer)
    size = 8 + max(layout[f"code.{name}"] for name in ("deopt", "positions", "size", "flags"))
    size = max(size, layout.get("code.start") or 0)
    tagged, body = heap.typed(tagged, size, "Code")
    begins = layout.get("code.start")
    if begins is not None and word_at(body, begins) != start:
        return None
    length = int.from_bytes(body[layout["code.size"] : layout["code.size"] + 4], "little")
    if not start <= pc < start + length:
        return None
    deopt, positions = word_at(body, layout["code.deopt"]), word_at(body, layout["code.positions"])
    flags = int.from_bytes(body[layout["code.flags"] : layout["code.flags"] + 4], "little")
    key = (start, length, flags & layout["CodeKindFieldMask"], deopt, positions)
    known = process.compiled.get(key)
    if known is None:
        known = keep(process.compiled, key, _make(heap, process, key), MOST_COMPILED)
    return known


def _make(heap: Heap, process: Process, key: tuple[int, ...]) -> CompiledCode:
    start, length, kind, deopt, positions = key
    layout = heap.layout
    table = heap.bytes_of(positions) if is_pointer(positions) else b""
    baseline = layout["CodeKindBaseline"]
    if kind > baseline:
        known = "maglev.jump" in layout.table and kind == baseline + _MAGLEV and not table
        exits = _exits(heap, start, length) if known else []
        return OptimizedCode(heap, process, start, deopt, table, exits)
    bytecode = bytecode_of(heap, deopt) if kind == baseline else None
    if bytecode is None:
        raise TornRead(f"process {heap.memory.pid}: {start:#x} is no function's code")
    return BaselineCode(heap, start, bytecode, table)


def _exits(heap: Heap, start: int, length: int) -> list[tuple[int, Exit]]:
    """Where Maglev's code may be left."""
    layout = heap.layout
    if length > MOST_CODE:
        return []
    at = start - layout["stream.header"] + layout["stream.relocation"]
    relocation = heap.bytes_of(heap.memory.word(at))
    # The table of safepoints is the first of the code's metadata, which lie behind the instructions.
    size = safepoints_bytes(heap.memory.read(start + length, 16))
    table = heap.memory.read(start + length, size) if 16 <= size <= MAX_TABLE else bytes(16)
    code = b"".join(
        heap.memory.read(start + part, min(MAX_READ, length - part))
        for part in range(0, length, MAX_READ)
    )
    return exit_positions(
        relocation, table, code, Modes(*(layout[f"maglev.{name}"] for name in Modes._fields))
    )
