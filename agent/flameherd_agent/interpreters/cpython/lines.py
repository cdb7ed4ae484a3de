"""Line tables of code objects: which line an instruction belongs to.

Three formats, described in CPython's `Objects/lnotab_notes.txt` and `InternalDocs/code_objects.md`: `lnotab` up to
3.9, `ranges` in 3.10, `locations` from 3.11 on. Each is turned into a list of (end in bytes or code units, line),
once a function. The tables are untrusted: a damaged one ends where it stops to make sense.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Final

MAX_LINE: Final = 1 << 31
_NO_LINE: Final = -128

Span = tuple[int, int]
"""(position where it ends, line; 0 = none)"""


class LineTable:
    """Lines by position in the bytecode; the unit is the format's own."""

    def __init__(self, kind: str, table: bytes, first: int) -> None:
        self._first = first
        spans = [span for span in _READERS[kind](table, first) if 0 <= span[1] < MAX_LINE]
        self._ends = [end for end, _ in spans]
        self._lines = [line for _, line in spans]

    def line(self, position: int) -> int:
        """The line at a position; before the first instruction that of the definition; 0 = none."""
        if position < 0:
            return self._first
        at = bisect_right(self._ends, position)
        if at < len(self._lines):
            return self._lines[at]
        return 0 if self._lines else self._first


def _lnotab(table: bytes, first: int) -> Iterator[Span]:
    """Pairs (bytes of bytecode, signed lines): the line changes behind these bytes."""
    line, end = first, 0
    for at in range(0, len(table) - 1, 2):
        step = table[at]
        if step:
            end += step
            yield end, line
        line += _signed(table[at + 1])
    # The last line holds up to the end, which the table does not tell.
    yield 1 << 62, line


def _ranges(table: bytes, first: int) -> Iterator[Span]:
    """Pairs (bytes of bytecode, signed lines or -128 for none): the line of these bytes."""
    line, end = first, 0
    for at in range(0, len(table) - 1, 2):
        delta = _signed(table[at + 1])
        if delta != _NO_LINE:
            line += delta
        end += table[at]
        if table[at]:
            yield end, 0 if delta == _NO_LINE else line


def _locations(table: bytes, first: int) -> Iterator[Span]:
    """Entries of a kind (4 bits), a length in code units (3 bits), and what the kind says of lines and columns."""
    line, end, at = first, 0, 0
    while at < len(table):
        kind, length = table[at] >> 3 & 15, (table[at] & 7) + 1
        at += 1
        end += length
        if kind == 15:  # no location
            yield end, 0
            continue
        if kind < 10:  # same line, columns in one byte
            at += 1
        elif kind < 13:  # 0 to 2 lines on, two columns of a byte
            line += kind - 10
            at += 2
        else:  # 13: lines only; 14: lines, end line, two columns
            delta, at = _variable(table, at)
            line += -(delta >> 1) if delta & 1 else delta >> 1
            for _ in range(3 if kind == 14 else 0):
                _, at = _variable(table, at)
        yield end, line


def _variable(table: bytes, at: int) -> tuple[int, int]:
    """(a number in groups of six bits, least first; where it ends)."""
    value = shift = 0
    while at < len(table):
        byte = table[at]
        at += 1
        value |= (byte & 63) << shift
        if not byte & 64 or shift > 60:
            break
        shift += 6
    return value, at


def _signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


_READERS: Final[dict[str, Callable[[bytes, int], Iterator[Span]]]] = {
    "lnotab": _lnotab,
    "ranges": _ranges,
    "locations": _locations,
}
