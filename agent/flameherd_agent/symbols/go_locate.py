"""Finds Go's pclntab and moduledata in an ELF file, with or without section headers.

- pclntab: the section `.gopclntab` (`.data.rel.ro.gopclntab` in position-independent files), else a
  scan of the loaded segments for its first eight bytes, each hit checked as a whole. A file
  whose section headers name none of Go's sections is not scanned.
- moduledata: the section `.go.module` (Go ≥ 1.26), else a scan of the data for a word that points
  to the pclntab and is followed by a pointer to its name table. Position-independent files linked
  by the C linker hold these words in relocations only, so RELATIVE relocations are applied.

moduledata has no version. Its first 24 words have not moved since Go 1.18 (runtime/symtab.go):
pcHeader, six slices, findfunctab, minpc, maxpc, text (22), etext (23). Behind lie a growing number
of section bounds, then gofunc, from Go 1.26 on epclntab, then the slice textsectmap, whose length
and capacity are equal and small: its pattern ends the search.

Nothing here looks up a name: see `gopclntab.py`.
"""

import re
import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from flameherd_agent.elf.reader import PT_LOAD, ElfFile, Segment
from flameherd_agent.errors import ElfError
from flameherd_agent.symbols.elf_symbols import RELA
from flameherd_agent.symbols.gopclntab import (
    FUNCDATA_INL_TREE,
    HEADER_BYTES,
    NO_FUNCDATA,
    NPCDATA,
    GoTable,
)

MAX_PCLNTAB_BYTES = 512 << 20
_SECTIONS = (".gopclntab", ".data.rel.ro.gopclntab")
_GO_SECTIONS = (".go.", ".note.go.")
_MAGIC = re.compile(rb"[\xf0\xf1]\xff\xff\xff\0\0[\1\4]\x08")
_MAX_CANDIDATES = 64
_TEXT, _FIRST_BOUND, _EPCLNTAB, _WORDS = 22, 24, 41, 56
_MAX_TEXT_SECTIONS = 1024
_INLINE_SLACK = 1 << 16
"""Bytes kept behind the start of the last inline tree: 4,096 inlined calls."""
_RELATIVE = {62: 8, 183: 1027}
"""R_X86_64_RELATIVE, R_AARCH64_RELATIVE by e_machine."""


class GoProgram(NamedTuple):
    """The Go part of a file."""

    table: GoTable
    pclntab: memoryview
    """The table's bytes, without what follows it in its segment."""
    inline: memoryview
    """The part of `go:func.*` that holds inline trees."""
    inline_offset: int
    """Where `inline` starts, in bytes behind `moduledata.gofunc`."""


def find_go(elf: ElfFile) -> GoProgram | None:
    """The Go tables of a file; None when it has none of Go ≥ 1.18. `ElfError` when they are
    damaged."""
    relocations = _Relocations(elf)
    for address, data in _candidates(elf):
        try:
            header_only = GoTable(data, 0, memoryview(b""), 0)
        except ElfError:
            continue
        module = _moduledata(elf, address, header_only, relocations)
        if module is None:
            continue
        text, gofunc = module
        pclntab = data[: _extent(header_only)]
        inline, inline_offset = _inline_region(elf, header_only, gofunc)
        return GoProgram(
            GoTable(pclntab, text, inline, inline_offset), pclntab, inline, inline_offset
        )
    return None


def record_offsets(table: GoTable) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """(entry text offsets, positions of the `_func` records in the pclntab) of all functions.

    Raises `ElfError` when a record lies outside or the entries are not sorted.
    """
    words = np.frombuffer(table.data, "<u4", 2 * table.count + 1, table.functab_at)
    entries = words[::2]
    if len(entries) > 1 and (np.diff(entries.astype(np.int64)) < 0).any():
        raise ElfError("pclntab: functions are not sorted by address")
    records = words[1::2].astype(np.int64) + table.functab_at
    if (records + table.layout.func_bytes > len(table.data)).any():
        raise ElfError("pclntab: a function's record lies outside of it")
    return entries, records


def field(table: GoTable, records: npt.NDArray[np.int64], offset: int) -> npt.NDArray[np.uint32]:
    """The u32 at `offset` behind each record's start (0 where that lies outside)."""
    data = np.frombuffer(table.data, np.uint8)
    at = records + offset
    safe = np.where(at + 4 <= len(data), at, 0)
    value = np.zeros(len(records), np.uint32)
    for byte in range(4):
        value |= data[safe + byte].astype(np.uint32) << np.uint32(8 * byte)
    value[at + 4 > len(data)] = 0
    return value


class _Relocations:
    """RELATIVE relocations (offset → addend), read only when a file has them."""

    def __init__(self, elf: ElfFile) -> None:
        kind = _RELATIVE.get(elf.machine, 8)
        rela = _rela(elf)
        rela = rela[(rela["info"] & 0xFFFFFFFF) == kind]
        order = np.argsort(rela["offset"], kind="stable")
        self.offset: npt.NDArray[np.uint64] = rela["offset"][order]
        self.addend: npt.NDArray[np.uint64] = rela["addend"][order].astype(np.uint64)

    def pointing_to(self, address: int) -> list[int]:
        """Where a relocation puts `address`."""
        hits = self.offset[self.addend == np.uint64(address)]
        return [int(hit) for hit in hits[:_MAX_CANDIDATES]]

    def apply(self, address: int, words: list[int]) -> list[int]:
        """`words` read from `address`, as they are once the file is loaded at its own addresses."""
        low = int(self.offset.searchsorted(np.uint64(address)))
        high = int(self.offset.searchsorted(np.uint64(address + 8 * len(words))))
        for at in range(low, high):
            index, rest = divmod(int(self.offset[at]) - address, 8)
            if not rest:
                words[index] = int(self.addend[at])
        return words


def _rela(elf: ElfFile) -> npt.NDArray[np.void]:
    """The content of DT_RELA (which needs no section headers)."""
    tags = dict(elf.dynamic())
    address, size = tags.get(7, 0), tags.get(8, 0)
    if not address or not 0 < size <= MAX_PCLNTAB_BYTES:
        return np.zeros(0, RELA)
    try:
        data = elf.vaddr_data(address, size, "DT_RELA")
    except ElfError:
        return np.zeros(0, RELA)
    return np.frombuffer(data[: size // RELA.itemsize * RELA.itemsize], RELA)


def _candidates(elf: ElfFile) -> list[tuple[int, memoryview]]:
    """(address, bytes up to the end of its section or segment) of what may be a pclntab."""
    for name in _SECTIONS:
        section = elf.section(name)
        if section is not None and HEADER_BYTES <= section.size <= MAX_PCLNTAB_BYTES:
            data = memoryview(elf.section_data(section, MAX_PCLNTAB_BYTES))
            return [(section.addr, data)]
    if elf.sections and not any(s.name.startswith(_GO_SECTIONS) for s in elf.sections):
        return []  # a scan would read the whole of a large library
    found: list[tuple[int, memoryview]] = []
    for segment in _loaded(elf):
        if len(found) < _MAX_CANDIDATES:
            found += _scan(elf, segment)
    return found


def _loaded(elf: ElfFile) -> list[Segment]:
    """The segments to scan. Sound ones overlap by a page: what exceeds twice the file is left out."""
    found: list[Segment] = []
    left = 2 * elf.size
    for segment in elf.segments:
        if segment.type == PT_LOAD and segment.filesz <= left:
            left -= segment.filesz
            found.append(segment)
    return found


def _scan(elf: ElfFile, segment: Segment) -> list[tuple[int, memoryview]]:
    size = min(segment.filesz, elf.size - segment.offset)
    if size < HEADER_BYTES:
        return []
    data = elf.bytes_at(segment.offset, size, "segment")
    found: list[tuple[int, memoryview]] = []
    for match in _MAGIC.finditer(data):
        at = match.start()
        if (segment.vaddr + at) % 8 == 0:
            found.append((segment.vaddr + at, data[at : at + MAX_PCLNTAB_BYTES]))
            if len(found) == _MAX_CANDIDATES:
                break
    return found


def _moduledata(
    elf: ElfFile, pclntab: int, table: GoTable, relocations: _Relocations
) -> tuple[int, int | None] | None:
    """(text, gofunc) of the moduledata that belongs to the pclntab at an address."""
    section = elf.section(".go.module")
    places = [section.addr] if section is not None else []
    places += relocations.pointing_to(pclntab)
    places += _words_equal(elf, pclntab)
    for place in places:
        words = _read_words(elf, place, relocations)
        if (
            len(words) > _FIRST_BOUND
            and words[0] == pclntab
            and words[1] == pclntab + table.names_at
            and elf.vaddr_to_offset(words[_TEXT]) is not None
        ):
            return words[_TEXT], _gofunc(words, pclntab + table.functab_at)
    return None


def _gofunc(words: list[int], functab: int) -> int | None:
    """`moduledata.gofunc`: before the slice textsectmap, or before epclntab and that.

    epclntab lies behind `functab`, the address of the pclntab's last table, and behind gofunc.
    """
    for at in range(_FIRST_BOUND + 8, len(words) - 3):
        pointer, length, capacity = words[at + 1 : at + 4]
        if pointer > _MAX_TEXT_SECTIONS and 0 < length == capacity <= _MAX_TEXT_SECTIONS:
            has_end = at >= _EPCLNTAB and words[at] > functab
            return words[at - 1] if has_end else words[at]
    return None


def _read_words(elf: ElfFile, address: int, relocations: _Relocations) -> list[int]:
    for count in (_WORDS, _FIRST_BOUND + 18):
        try:
            data = elf.vaddr_data(address, 8 * count, "moduledata")
        except ElfError:
            continue
        return relocations.apply(address, list(struct.unpack(f"<{count}Q", data)))
    return []


def _words_equal(elf: ElfFile, value: int) -> list[int]:
    """Addresses of aligned words of the loaded segments that hold `value`; some of them, if many."""
    hits: list[int] = []
    for segment in _loaded(elf):
        if segment.vaddr % 8 != segment.offset % 8 or len(hits) >= _MAX_CANDIDATES:
            continue
        skip = -segment.offset % 8
        size = min(segment.filesz, elf.size - segment.offset) - skip
        if size < 8:
            continue
        data = elf.bytes_at(segment.offset + skip, size // 8 * 8, "segment")
        for at in np.flatnonzero(np.frombuffer(data, "<u8") == value)[:_MAX_CANDIDATES]:
            hits.append(segment.vaddr + skip + 8 * int(at))
    return hits


def _extent(table: GoTable) -> int:
    """Bytes from the table's start to the end of its last record."""
    _, records = record_offsets(table)
    last = int(records.max())
    npcdata = int(field(table, records[records == last], NPCDATA)[0])
    nfuncdata: int = table.data[last + table.layout.func_id + 3]
    end: int = last + table.layout.func_bytes + 4 * (min(npcdata, 64) + nfuncdata)
    least: int = table.functab_at + table.functab_bytes
    return min(max(end, least), len(table.data))


def _inline_region(elf: ElfFile, table: GoTable, gofunc: int | None) -> tuple[memoryview, int]:
    """(bytes, offset behind gofunc) from the first inline tree to behind the last; empty
    without."""
    if gofunc is None:
        return memoryview(b""), 0
    _, records = record_offsets(table)
    npcdata = field(table, records, NPCDATA).astype(np.int64)
    nfuncdata = field(table, records, table.layout.func_id) >> 24
    has_tree = (nfuncdata > FUNCDATA_INL_TREE) & (npcdata < 64)
    records, npcdata = records[has_tree], npcdata[has_tree]
    place = records + table.layout.func_bytes + 4 * (npcdata + FUNCDATA_INL_TREE)
    trees = field(table, place, 0)
    trees = trees[trees != NO_FUNCDATA]
    if not len(trees):
        return memoryview(b""), 0
    first, last = int(trees.min()), int(trees.max())
    for segment in elf.segments:
        if segment.type == PT_LOAD and segment.vaddr <= gofunc + first:
            left = segment.vaddr + segment.filesz - (gofunc + first)
            size = min(last - first + _INLINE_SLACK, left)
            if size > last - first:
                return elf.vaddr_data(gofunc + first, size, "inline trees"), first
    return memoryview(b""), 0
