"""The names of one executable: looked up by the agent in an index file that the worker built.

In Go's text the pclntab answers, with files, lines and inlined calls; elsewhere the symbol tables
do, with one name and no line. Building is `build.py`.

DWARF inline frames would be one more section of the file and one more source in
`SymbolIndex.lookup`, which returns a tuple for that reason.
"""

from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from typing import Self

from flameherd_agent.errors import ElfError
from flameherd_agent.symbols import flat
from flameherd_agent.symbols.flat import SectionKind
from flameherd_agent.symbols.gopclntab import GoTable
from flameherd_agent.types import FileAddress, FrameType, Line

GO_HEADER = Struct("<QQ")
"""Section GO_HEADER: address of Go's text, offset of GO_INLINE behind `moduledata.gofunc`."""


class SymbolIndex:
    """The names of one executable, mapped from an index file."""

    def __init__(self, index: flat.FlatIndex) -> None:
        self._index = index
        self._go = _go_table(index)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Maps a file that `build_symbol_index` wrote. `ElfError` when it is damaged."""
        return cls(flat.FlatIndex.open(path))

    def shed(self) -> None:
        """Gives the resident pages of the index file back; lookups go on to work."""
        self._index.shed()

    def lookup(self, address: FileAddress) -> tuple[Line, ...]:
        """The functions at an address, innermost inlined first, the physical one last; () =
        none."""
        if self._go is not None and self._go.contains(address):
            return self._go.lookup(address)
        line = self._index.lookup(address)
        return () if line is None else (line,)

    def lookup_batch(self, addresses: Sequence[FileAddress]) -> list[tuple[Line, ...]]:
        """`lookup` of many addresses; much faster than one by one outside Go's text."""
        answer: list[tuple[Line, ...]] = [
            () if line is None else (line,) for line in self._index.lookup_batch(addresses)
        ]
        if self._go is not None:
            for at, address in enumerate(addresses):
                if self._go.contains(address):
                    answer[at] = self._go.lookup(address)
        return answer

    def function_start(self, address: FileAddress) -> int | None:
        """Where the function begins that holds an address and has no name; None if unknown."""
        return self._index.function_start(address)

    def frame_type(self, address: FileAddress) -> FrameType:
        """GO in Go's text, else NATIVE (C in a cgo program, too)."""
        is_go = self._go is not None and self._go.contains(address)
        return FrameType.GO if is_go else FrameType.NATIVE


def _go_table(index: flat.FlatIndex) -> GoTable | None:
    header = index.section(SectionKind.GO_HEADER)
    pclntab = index.section(SectionKind.GO_PCLNTAB)
    if header is None or pclntab is None:
        return None
    if len(header) != GO_HEADER.size:
        raise ElfError(f"symbol index: a Go header of {len(header)} bytes")
    text, inline_offset = GO_HEADER.unpack(header)
    inline = index.section(SectionKind.GO_INLINE) or memoryview(b"")
    return GoTable(pclntab, text, inline, inline_offset)
