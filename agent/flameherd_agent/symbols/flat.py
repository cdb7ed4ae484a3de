"""Index files: named address ranges on disk that the agent maps and searches in place.

One format for the kernel's names and for those of an ELF file. The worker writes it, the agent maps
it read-only, so that a hundred thousand names cost the agent the pages that it touches and no
parsing. A file is written beside its place and renamed, hence whole or absent.

The agent does not trust the file either (the worker that wrote it parsed hostile input): sizes are
checked on opening, every string offset on lookup, and damage raises `ElfError` or yields no name,
never a crash.

Layout, little-endian: a header `magic, version, sections`; a directory of `(kind, reserved, offset,
size)`; the sections, each aligned to 8 bytes. Rows are columns of equal length, sorted by start,
not overlapping: `STARTS` u64, `SIZES` u32 (bytes), `NAMES` and `SYSTEM_NAMES` u32 (offsets into
`STRINGS`, zero-terminated UTF-8; a system name equal to the name has the same offset).

Not here: where names come from (`kallsyms.py`, `elf_symbols.py`), Go's own tables (`gopclntab.py`).
"""

import os
import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt

from flameherd_agent.elf.filemap import FileMap
from flameherd_agent.errors import ElfError
from flameherd_agent.types import Line

MAGIC = b"FHNAMES\0"
VERSION = 1
MAX_SECTIONS = 32
MAX_FUNCTION_BYTES = 256 << 10
"""Functions without a name have no end either: what lies farther from a beginning is not in it."""
MAX_NAME_BYTES = 2048
"""A longer name is cut on lookup: a damaged string table must not yield megabytes."""

_HEADER = struct.Struct("<8sII")
_ENTRY = struct.Struct("<IIQQ")

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
_Scalar = TypeVar("_Scalar", bound=np.generic)
Buffer = bytes | bytearray | memoryview


class SectionKind(IntEnum):
    """What a section of an index file holds."""

    STARTS = 1
    SIZES = 2
    NAMES = 3
    SYSTEM_NAMES = 4
    STRINGS = 5
    GO_HEADER = 6
    GO_PCLNTAB = 7
    GO_INLINE = 8
    FUNCTIONS = 9
    """u64, sorted: where functions begin that have no name."""


class Columns:
    """The rows of an index before they are written. All four arrays have the same length.

    `starts` u64 sorted, `sizes` u32 bytes, `names` and `system_names` u32 offsets into `strings`.
    """

    def __init__(
        self, starts: U64, sizes: U32, names: U32, system_names: U32, strings: Buffer
    ) -> None:
        self.starts = starts
        self.sizes = sizes
        self.names = names
        self.system_names = system_names
        self.strings = strings

    def sections(self) -> dict[SectionKind, bytes | memoryview]:
        """The columns as the sections that `write` takes."""
        return {
            SectionKind.STARTS: self.starts.astype("<u8").tobytes(),
            SectionKind.SIZES: self.sizes.astype("<u4").tobytes(),
            SectionKind.NAMES: self.names.astype("<u4").tobytes(),
            SectionKind.SYSTEM_NAMES: self.system_names.astype("<u4").tobytes(),
            SectionKind.STRINGS: memoryview(self.strings),
        }


def write(path: Path, sections: Mapping[SectionKind, bytes | memoryview]) -> int:
    """Writes an index file and renames it into place; returns its size in bytes."""
    offset = _align(_HEADER.size + len(sections) * _ENTRY.size)
    directory = bytearray(_HEADER.pack(MAGIC, VERSION, len(sections)))
    placed: list[tuple[int, bytes | memoryview]] = []
    for kind, content in sections.items():
        directory += _ENTRY.pack(kind, 0, offset, len(content))
        placed.append((offset, content))
        offset = _align(offset + len(content))
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(directory)
            for at, content in placed:
                file.seek(at)
                file.write(content)
            file.truncate(offset)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return offset


def _align(offset: int) -> int:
    return (offset + 7) & ~7


class FlatIndex:
    """An index file in memory. Lookups touch only the pages of a binary search and of one name.

    Raises `ElfError` when the file is no index, of another version, or damaged.
    """

    def __init__(self, data: Buffer, file: FileMap | None = None) -> None:
        self._file = file
        self._view = memoryview(data).cast("B").toreadonly()
        self._sections = _read_directory(self._view)
        self.starts: U64 = self._column(SectionKind.STARTS, np.uint64)
        self.sizes: U32 = self._column(SectionKind.SIZES, np.uint32)
        self.names: U32 = self._column(SectionKind.NAMES, np.uint32)
        self.system_names: U32 = self._column(SectionKind.SYSTEM_NAMES, np.uint32)
        self.functions: U64 = self._column(SectionKind.FUNCTIONS, np.uint64)
        self._strings = self.section(SectionKind.STRINGS) or memoryview(b"")
        lengths = {len(self.starts), len(self.sizes), len(self.names), len(self.system_names)}
        if len(lengths) != 1:
            raise ElfError(f"symbol index: columns of different lengths {sorted(lengths)}")

    @classmethod
    def open(cls, path: Path) -> Self:
        """Maps the file at `path`. `ElfError` when it is damaged, `OSError` when not there."""
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < _HEADER.size:
                raise ElfError(f"symbol index {path.name}: {size} bytes are too few for a header")
            mapped = FileMap(file.fileno())
        return cls(mapped.data, mapped)

    def shed(self) -> None:
        """Gives resident pages back: a lookup makes 16 pages resident for each one it touches."""
        if self._file is not None:
            self._file.shed()

    def __len__(self) -> int:
        return len(self.starts)

    def section(self, kind: SectionKind) -> memoryview | None:
        """A section's bytes, or None where the file has none of that kind."""
        place = self._sections.get(kind)
        return None if place is None else self._view[place[0] : place[0] + place[1]]

    def _column(self, kind: SectionKind, dtype: type[_Scalar]) -> npt.NDArray[_Scalar]:
        content = self.section(kind) or memoryview(b"")
        if len(content) % np.dtype(dtype).itemsize:
            raise ElfError(f"symbol index: section {kind.name} has a torn last element")
        return np.frombuffer(content, dtype)

    def function_start(self, address: int) -> int | None:
        """Where the function without a name begins that holds `address`, or None."""
        if not 0 <= address < 1 << 64:
            return None
        row = int(self.functions.searchsorted(np.uint64(address), "right")) - 1
        if row < 0 or address - int(self.functions[row]) > MAX_FUNCTION_BYTES:
            return None
        start = int(self.functions[row])
        named = int(self.starts.searchsorted(np.uint64(address), "right")) - 1
        # Behind a function with a name: code that no table tells of.
        return start if named < 0 or int(self.starts[named]) <= start else None

    def lookup(self, address: int) -> Line | None:
        """The name of the range that holds `address`, or None."""
        if not 0 <= address < 1 << 64:
            return None
        row = int(self.starts.searchsorted(np.uint64(address), "right")) - 1
        if row < 0 or address - int(self.starts[row]) >= int(self.sizes[row]):
            return None
        return self._line(row)

    def lookup_batch(self, addresses: Sequence[int] | U64) -> list[Line | None]:
        """`lookup` of many addresses; each distinct name is decoded once."""
        wanted = np.asarray(addresses, np.uint64)
        rows = self.starts.searchsorted(wanted, "right").astype(np.int64) - 1
        found = rows >= 0
        safe = np.where(found, rows, 0)
        if len(self.starts):
            found &= wanted - self.starts[safe] < self.sizes[safe]
        lines: dict[int, Line | None] = {}
        answer: list[Line | None] = []
        for row, ok in zip(rows.tolist(), found.tolist(), strict=True):
            if not ok:
                answer.append(None)
                continue
            if row not in lines:
                lines[row] = self._line(row)
            answer.append(lines[row])
        return answer

    def _line(self, row: int) -> Line | None:
        name_at, system_at = int(self.names[row]), int(self.system_names[row])
        name = self._string(name_at)
        if not name:
            return None
        return Line(name, "" if system_at == name_at else self._string(system_at))

    def _string(self, offset: int) -> str:
        raw = bytes(self._strings[offset : offset + MAX_NAME_BYTES])
        return raw.split(b"\0", 1)[0].decode("utf-8", "replace")


def _read_directory(view: memoryview) -> dict[int, tuple[int, int]]:
    if len(view) < _HEADER.size:
        raise ElfError(f"symbol index: {len(view)} bytes are too few for a header")
    magic, version, count = _HEADER.unpack_from(view)
    if magic != MAGIC or version != VERSION:
        raise ElfError(f"symbol index: magic {magic!r} version {version} is not ours; rebuild it")
    if count > MAX_SECTIONS or _HEADER.size + count * _ENTRY.size > len(view):
        raise ElfError(f"symbol index: a directory of {count} sections does not fit")
    sections: dict[int, tuple[int, int]] = {}
    for at in range(count):
        kind, _, offset, size = _ENTRY.unpack_from(view, _HEADER.size + at * _ENTRY.size)
        if offset % 8 or offset + size > len(view):
            raise ElfError(f"symbol index: section {kind} lies outside the file")
        sections[kind] = (offset, size)
    return sections


def pack_strings(
    data: U8, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> tuple[bytes, U32]:
    """Copies many strings out of a buffer into one zero-terminated blob.

    `starts` and `lengths` are in bytes, within `data`, in any order. Returns the blob and the
    offset of each string in it.
    """
    offsets = np.zeros(len(starts), np.int64)
    np.cumsum(lengths[:-1] + 1, out=offsets[1:])
    total = int(lengths.sum()) + len(lengths)
    if len(data) >= 1 << 31 or total >= 1 << 31:
        raise ElfError(f"strings out of {len(data)} bytes are over the limit of 2 GiB")
    # One index per byte: source position minus target position is constant within a string.
    source = np.arange(total, dtype=np.int32)
    source += np.repeat((starts - offsets).astype(np.int32), lengths + 1)
    np.minimum(source, max(len(data) - 1, 0), out=source)
    blob = data[source] if len(data) else np.zeros(total, np.uint8)
    blob[offsets + lengths] = 0
    return blob.tobytes(), offsets.astype(np.uint32)
