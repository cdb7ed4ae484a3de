"""Scripts: their names, and the lines of positions in their sources.

V8 computes line ends only when something asks for them, so they are made here from the source, once a script.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flameherd_agent.interpreters.base import TornRead
from flameherd_agent.interpreters.memory import MemoryGone
from flameherd_agent.interpreters.v8.heap import Heap, is_pointer, smi
from flameherd_agent.interpreters.v8.words import word_at

_LF, _CR = 10, 13
_TERMINATORS: Final = (_LF, _CR, 0x2028, 0x2029)
MOST_LINES: Final = 1 << 20


class Script:
    """A script that functions belong to."""

    __slots__ = ("_ends", "_first", "file")

    def __init__(self, file: str, first: int, ends: NDArray[np.uint32] | None) -> None:
        self.file = file
        self._first = first
        self._ends = ends

    def line(self, offset: int) -> int:
        """The line of a position, from 1 on; 0 = not known."""
        if offset < 0 or self._ends is None:
            return 0
        return int(self._ends.searchsorted(offset)) + 1 + self._first


def read_script(heap: Heap, tagged: int) -> Script:
    """The Script at a tagged pointer. Raises TornRead, MemoryGone."""
    layout = heap.layout
    tagged, body = heap.typed(tagged, layout["script.id"] + 8, "Script")
    name = word_at(body, layout["Script.name"])
    file = heap.text(name) if is_pointer(name) and heap.is_string(name) else ""
    return Script(
        file,
        smi(word_at(body, layout["script.line_offset"])),
        _line_ends(heap, word_at(body, layout["Script.source"])),
    )


def _line_ends(heap: Heap, source: int) -> NDArray[np.uint32] | None:
    """Where each line ends; None if the source cannot be had whole."""
    try:
        parts, whole = heap.source(source)
    except (TornRead, MemoryGone):
        return None
    if not whole:
        return None
    pieces: list[NDArray[np.int64]] = []
    base = 0
    for data, wide in parts:
        units = np.frombuffer(data, "<u2" if wide else "u1")
        pieces.append(_ends(units) + base)
        base += len(units)
    return (
        np.concatenate(pieces)[:MOST_LINES].astype(np.uint32) if pieces else np.zeros(0, np.uint32)
    )


def _ends(units: NDArray[Any]) -> NDArray[np.int64]:
    """Where lines end: LF, CR, both as one, and Unicode's two separators."""
    ends = np.isin(units, _TERMINATORS)
    ends[:-1] &= ~((units[:-1] == _CR) & (units[1:] == _LF))
    return np.flatnonzero(ends)
