"""V8's tables of positions: from machine code or bytecode to places in the source, also through what was inlined.

Formats: V8's src/codegen/source-position.h, source-position-table.cc, src/baseline/bytecode-offset-iterator.h,
src/objects/code.h (InliningPosition). The tables are untrusted: a damaged one ends where it stops to make sense.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

_MOST_ENTRIES: Final = 1 << 18
_INLINING: Final = struct.Struct("<Qi4x")
_PREFIXES: Final = {0: 1, 1: 2, 2: 1, 3: 2}
"""Wide, ExtraWide, DebugBreakWide, DebugBreakExtraWide: the scale of the operands behind them."""


class Place(NamedTuple):
    """A position in the source of a function."""

    offset: int
    """Characters from the beginning of the script; -1: none."""
    inlined: int
    """Which inlining it belongs to; -1: the function itself."""


def place(raw: int) -> Place:
    """A `SourcePosition`: a bit for positions outside of scripts, 30 of the offset + 1, 16 of the inlining + 1."""
    if raw & 1:
        return Place(-1, (raw >> 31 & 0xFFFF) - 1)
    return Place((raw >> 1 & 0x3FFFFFFF) - 1, (raw >> 31 & 0xFFFF) - 1)


class PositionTable:
    """Offsets in code, ascending, and the position that holds from each on."""

    def __init__(self, table: bytes) -> None:
        self._offsets: list[int] = []
        self._places: list[Place] = []
        code, position = -1, 0  # the first entry is often that of the function's entry
        numbers = _signed(table)
        for delta, step in zip(numbers, numbers, strict=False):
            # The sign says whether a statement begins here.
            code += delta if delta >= 0 else -delta - 1
            position += step
            self._offsets.append(code)
            self._places.append(place(position))
            if len(self._offsets) >= _MOST_ENTRIES:
                break

    @classmethod
    def of(cls, entries: Iterable[tuple[int, Place]]) -> "PositionTable":
        """A table of known places."""
        table = cls(b"")
        for offset, found in entries:
            table._offsets.append(offset)
            table._places.append(found)
        return table

    def at(self, offset: int) -> Place:
        """The position at an offset."""
        found = bisect_right(self._offsets, offset) - 1
        return self._places[found] if found >= 0 else Place(-1, -1)


class Inlining(NamedTuple):
    """Where a function was inlined."""

    call: Place
    """The call that it stands for."""
    function: int
    """Index among the literals; -1: the outermost function itself."""


def inlinings(table: bytes) -> list[Inlining]:
    """An array of `InliningPosition`: a position and an index."""
    whole = len(table) - len(table) % _INLINING.size
    return [
        Inlining(place(raw), function) for raw, function in _INLINING.iter_unpack(table[:whole])
    ]


def baseline_offsets(
    table: bytes, bytecode: bytes, sizes: tuple[bytes, ...]
) -> tuple[list[int], list[int]]:
    """(ends in the code, offset of the bytecode up to each of them) of baseline code.

    The first number is the size of the prologue, which belongs to offset -1, each other one that of the code for one
    instruction.
    """
    ends: list[int] = []
    offsets: list[int] = []
    starts = _instructions(bytecode, sizes)
    end, offset = 0, -1
    for size in _unsigned(table):
        end += size
        ends.append(end)
        offsets.append(offset)
        offset = next(starts, offset)
    return ends, offsets


def _instructions(bytecode: bytes, sizes: tuple[bytes, ...]) -> Iterator[int]:
    """Where each instruction begins."""
    at = 0
    while at < len(bytecode) and len(sizes) == 3:
        yield at
        scale = _PREFIXES.get(bytecode[at], 0)
        if scale:
            at += 1
        if at >= len(bytecode) or bytecode[at] >= len(sizes[0]):
            return
        at += sizes[scale][bytecode[at]]


def _unsigned(table: bytes) -> Iterator[int]:
    """Numbers in groups of seven bits, least first, the highest bit of a byte says that more follow."""
    value = shift = 0
    for byte in table:
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            yield value
            value = shift = 0
        elif shift > 63:
            return


def _signed(table: bytes) -> Iterator[int]:
    """The same, with the sign in the lowest bit."""
    for value in _unsigned(table):
        yield (value >> 1) ^ -(value & 1)
