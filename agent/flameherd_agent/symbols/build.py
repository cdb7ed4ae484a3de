"""Builds the index of one executable's names; runs in the worker.

It merges what a file and its debug files say (`elf_symbols.py`, `debug_files.py`), chooses one name
per address (`resolve.py`), demangles, and copies Go's pclntab as it is. Lookups are `index.py`,
apart from this since the agent does not need what building needs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flameherd_agent.elf.reader import ElfFile
from flameherd_agent.errors import ElfError
from flameherd_agent.symbols import flat
from flameherd_agent.symbols.debug_files import (
    DebugOpener,
    mini_debug_info,
    separate_debug_file,
)
from flameherd_agent.symbols.demangle import demangle
from flameherd_agent.symbols.elf_symbols import (
    STB_GLOBAL,
    Functions,
    PltEntry,
    functions,
    plt_entries,
    symbol_tables,
    text_ranges,
)
from flameherd_agent.symbols.flat import SectionKind
from flameherd_agent.symbols.function_starts import function_starts
from flameherd_agent.symbols.go_locate import GoProgram, find_go
from flameherd_agent.symbols.index import GO_HEADER
from flameherd_agent.symbols.resolve import Ranges, resolve

MAX_SYMBOLS = 8_000_000
"""Candidates of one file; the largest browsers have about a million."""
MAX_STRINGS_BYTES = 512 << 20
MAX_RAW_NAME_BYTES = 4096
_DECODE_ROWS = 8192


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """What a build found."""

    symbols: int
    """Address ranges with a name from symbol tables."""
    go_functions: int
    size_bytes: int
    """Of the index file."""
    problems: tuple[str, ...]
    """Sources that were damaged or did not fit the file, and were left out."""


def build_symbol_index(
    elf: ElfFile, out_path: Path, *, opener: DebugOpener | None = None, path: str = ""
) -> IndexSummary:
    """Writes the index of `elf` to `out_path`.

    `path` is where the file lies inside its container, for debug files beside it. A damaged source
    is left out and told in the summary; `ElfError` is raised only when a cap is exceeded.
    """
    problems: list[str] = []
    go = _go(elf, problems)
    candidates = list(_functions(elf, elf, problems))
    for debug in _debug_files(elf, opener, path, problems):
        candidates += _functions(debug, elf, problems)
    columns = _columns(candidates, _plt(elf, problems), go)
    sections: dict[SectionKind, bytes | memoryview] = dict(columns.sections())
    sections[SectionKind.FUNCTIONS] = _unnamed(elf, columns, problems).astype("<u8").tobytes()
    if go is not None:
        sections[SectionKind.GO_HEADER] = GO_HEADER.pack(go.table.text, go.inline_offset)
        sections[SectionKind.GO_PCLNTAB] = go.pclntab
        sections[SectionKind.GO_INLINE] = go.inline
    size = flat.write(out_path, sections)
    go_functions = go.table.count if go is not None else 0
    return IndexSummary(len(columns.starts), go_functions, size, tuple(problems))


def _go(elf: ElfFile, problems: list[str]) -> GoProgram | None:
    try:
        return find_go(elf)
    except ElfError as error:
        problems.append(str(error))
        return None


def _functions(elf: ElfFile, code: ElfFile, problems: list[str]) -> list[Functions]:
    """Candidates of `elf` that lie in the text of `code` (a debug file has none of its own)."""
    ranges = text_ranges(code)
    found: list[Functions] = []
    try:
        for symbols, strings in symbol_tables(elf):
            found.append(functions(symbols, strings, ranges))
    except ElfError as error:
        problems.append(str(error))
    return found


def _plt(elf: ElfFile, problems: list[str]) -> list[PltEntry]:
    try:
        return plt_entries(elf)
    except ElfError as error:
        problems.append(str(error))
        return []


def _unnamed(elf: ElfFile, columns: flat.Columns, problems: list[str]) -> npt.NDArray[np.uint64]:
    """Where functions begin that no name covers."""
    try:
        starts = function_starts(elf)
    except ElfError as error:
        problems.append(str(error))
        return np.zeros(0, np.uint64)
    if not len(columns.starts):
        return starts
    row = columns.starts.searchsorted(starts, "right").astype(np.int64) - 1
    safe = np.maximum(row, 0)
    named = (row >= 0) & (starts - columns.starts[safe] < columns.sizes[safe])
    return starts[~named]


def _debug_files(
    elf: ElfFile, opener: DebugOpener | None, path: str, problems: list[str]
) -> list[ElfFile]:
    found: list[ElfFile] = []
    try:
        if (mini := mini_debug_info(elf)) is not None:
            found.append(mini)
    except ElfError as error:
        problems.append(str(error))
    if opener is not None and elf.section(".symtab") is None:
        try:
            if (debug := separate_debug_file(elf, path, opener)) is not None:
                found.append(debug)
        except ElfError as error:
            problems.append(str(error))
    return found


def _columns(
    candidates: list[Functions], plt: list[PltEntry], go: GoProgram | None
) -> flat.Columns:
    """Merges the candidates, resolves them and spells the names of those that win."""
    tables = [len(c.start) for c in candidates]
    total = sum(tables) + len(plt)
    if total > MAX_SYMBOLS:
        raise ElfError(f"{total} symbols are over the limit of {MAX_SYMBOLS}")
    plt_start = np.array([e.start for e in plt], np.uint64)
    plt_size = np.array([e.size for e in plt], np.uint64)
    start = np.concatenate([*(c.start for c in candidates), plt_start])
    size = np.concatenate([*(c.size for c in candidates), plt_size])
    limit = np.concatenate([*(c.limit for c in candidates), plt_start + plt_size])
    binding = np.concatenate(
        [*(c.binding for c in candidates), np.full(len(plt), STB_GLOBAL, np.uint8)]
    )
    hidden = np.concatenate([*(_underscores(c) for c in candidates), np.zeros(len(plt), np.uint8)])
    outside = np.arange(total)
    if go is not None:  # the pclntab knows better
        offset = start - np.uint64(go.table.text)
        outside = np.flatnonzero(
            (offset < np.uint64(go.table.first)) | (offset >= np.uint64(go.table.end))
        )
    ranges = resolve(
        start[outside], size[outside], limit[outside], binding[outside], hidden[outside]
    )
    return _spell(ranges._replace(symbol=outside[ranges.symbol]), candidates, plt)


def _underscores(c: Functions) -> npt.NDArray[np.uint8]:
    """How many underscores each name starts with, up to 3; mangled names count as having none."""
    if not len(c.strings):
        return np.zeros(len(c.name), np.uint8)
    count = np.zeros(len(c.name), np.uint8)
    running = np.ones(len(c.name), np.bool_)
    last = len(c.strings) - 1
    for at in range(3):
        character = c.strings[np.minimum(c.name.astype(np.int64) + at, last)]
        if at == 1:
            count[running & ((character == ord("Z")) | (character == ord("R")))] = 0
        running &= character == ord("_")
        count += running
    return count


def _spell(ranges: Ranges, candidates: list[Functions], plt: list[PltEntry]) -> flat.Columns:
    """Writes the names of the chosen candidates, readable and as in the file; readable ones once.

    Only those repeat (constructors, clones), and a dictionary of both would double the memory.
    """
    blob = bytearray(b"\0")
    places: dict[str, int] = {"": 0}

    def place(text: str) -> int:
        at = len(blob)
        blob.extend(text.encode("utf-8", "replace"))
        blob.append(0)
        if len(blob) > MAX_STRINGS_BYTES:
            raise ElfError(f"symbol names are over the limit of {MAX_STRINGS_BYTES} bytes")
        return at

    used, inverse = np.unique(ranges.symbol, return_inverse=True)
    names = np.zeros(len(used), np.uint32)
    system_names = np.zeros(len(used), np.uint32)
    for row, raw in enumerate(_raw_names(used, candidates, plt)):
        stem = raw.removesuffix("@plt")
        readable = demangle(stem) + raw[len(stem) :]
        at = places.get(readable)
        if at is None:
            at = places[readable] = place(readable)
        names[row] = at
        system_names[row] = at if readable == raw else place(raw)
    sizes = np.minimum(ranges.end - ranges.start, np.uint64(0xFFFF_FFFF)).astype(np.uint32)
    return flat.Columns(ranges.start, sizes, names[inverse], system_names[inverse], blob)


def _raw_names(
    used: npt.NDArray[np.int64], candidates: list[Functions], plt: list[PltEntry]
) -> Iterator[str]:
    """The names of candidates by their position in the concatenation; `used` is sorted."""
    first = 0
    for c in candidates:
        low, high = used.searchsorted([first, first + len(c.start)])
        yield from _decode(c.strings, c.name[used[low:high] - first])
        first += len(c.start)
    for i in used[used.searchsorted(first) :].tolist():
        yield plt[i - first].name.decode("utf-8", "replace") + "@plt"


def _decode(strings: npt.NDArray[np.uint8], offsets: npt.NDArray[np.uint32]) -> Iterator[str]:
    """Strings of a string table, without symbol versions; cut at `MAX_RAW_NAME_BYTES`."""
    ends = np.append(np.flatnonzero(strings == 0).astype(np.uint32), np.uint32(len(strings)))
    for at in range(0, len(offsets), _DECODE_ROWS):  # in pieces, since a piece takes 9 bytes a byte
        some = offsets[at : at + _DECODE_ROWS]
        length = np.minimum(ends[ends.searchsorted(some)] - some, MAX_RAW_NAME_BYTES)
        packed, _ = flat.pack_strings(strings, some.astype(np.int64), length.astype(np.int64))
        for name in packed.decode("utf-8", "replace").split("\0")[:-1]:
            yield name.split("@", 1)[0] if "@" in name else name
