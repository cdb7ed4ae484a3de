"""Function names that an ELF file carries: `.symtab`, `.dynsym`, PLT entries.

All numpy: a symbol table of 100,000 entries costs some milliseconds, and Python objects are made
only for the names that win (`index.py`). Layouts: System V gABI, chapter "Symbol Table";
x86-64 psABI for the PLT.

A file without section headers still has its dynamic symbols: their place comes from `PT_DYNAMIC`.

Not here: which of several names wins and how far it reaches (`resolve.py`), debug files
(`debug_files.py`), Go (`gopclntab.py`).
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from flameherd_agent.elf.reader import (
    EM_X86_64,
    PF_X,
    PT_LOAD,
    SHF_EXECINSTR,
    SHT_DYNSYM,
    SHT_SYMTAB,
    ElfFile,
    Section,
)
from flameherd_agent.errors import ElfError

MAX_SYMBOL_BYTES = 512 << 20
"""Symbol and string tables larger than this are refused."""

SYMBOL = np.dtype(
    [
        ("name", "<u4"),
        ("info", "u1"),
        ("other", "u1"),
        ("shndx", "<u2"),
        ("value", "<u8"),
        ("size", "<u8"),
    ]
)
"""Elf64_Sym."""
RELA = np.dtype([("offset", "<u8"), ("info", "<u8"), ("addend", "<i8")])
"""Elf64_Rela."""

STT_NOTYPE, STT_FUNC, STT_GNU_IFUNC = 0, 2, 10
STB_LOCAL, STB_GLOBAL, STB_WEAK = 0, 1, 2
_SHN_LORESERVE = 0xFF00
_DT_STRTAB, _DT_SYMTAB, _DT_STRSZ = 5, 6, 10
_R_X86_64_GLOB_DAT, _R_X86_64_JUMP_SLOT, _R_X86_64_IRELATIVE = 6, 7, 37
_PLT_SECTIONS = (".plt", ".plt.sec", ".plt.got", ".plt.bnd")
_JMP_RIP = 0x25FF  # ff 25: jmp *disp32(%rip)


class Functions(NamedTuple):
    """Candidates for function names of one string table; arrays of one length, in file order."""

    start: npt.NDArray[np.uint64]
    size: npt.NDArray[np.uint64]
    """0 where the symbol states none."""
    limit: npt.NDArray[np.uint64]
    """Where the section or segment ends that the function lies in."""
    binding: npt.NDArray[np.uint8]
    name: npt.NDArray[np.uint32]
    """Offset in `strings`."""
    strings: npt.NDArray[np.uint8]


class PltEntry(NamedTuple):
    """One stub of a procedure linkage table."""

    start: int
    size: int
    name: bytes
    """Of the function that it jumps to, without `@plt`."""


def text_ranges(elf: ElfFile) -> list[tuple[int, int]]:
    """(start, end) of every executable section, or of every executable segment without sections."""
    ranges = [(s.addr, s.addr + s.size) for s in elf.sections if s.flags & SHF_EXECINSTR and s.size]
    if not ranges:
        ranges = [
            (s.vaddr, s.vaddr + s.memsz)
            for s in elf.segments
            if s.type == PT_LOAD and s.flags & PF_X and s.memsz
        ]
    return sorted((start, end) for start, end in ranges if start < end < 1 << 63)


def symbol_tables(elf: ElfFile) -> Iterator[tuple[npt.NDArray[np.void], npt.NDArray[np.uint8]]]:
    """(symbols of dtype `SYMBOL`, string table) of `.symtab`, then of `.dynsym`."""
    found_dynamic = False
    for kind in (SHT_SYMTAB, SHT_DYNSYM):
        for section in elf.sections:
            if section.type == kind and section.link < len(elf.sections):
                found_dynamic |= kind == SHT_DYNSYM
                yield _table(elf, section), _strings(elf, elf.sections[section.link])
    if not found_dynamic:
        dynamic = _dynamic_table(elf)
        if dynamic is not None:
            yield dynamic


def functions(
    symbols: npt.NDArray[np.void],
    strings: npt.NDArray[np.uint8],
    ranges: list[tuple[int, int]],
) -> Functions:
    """The symbols that name code: defined, of function kind, in an executable range.

    Untyped symbols count too (assembly labels); mapping symbols (`$x`) and local labels (`.L`) do
    not."""
    kind = symbols["info"] & 15
    keep = (kind == STT_FUNC) | (kind == STT_GNU_IFUNC) | (kind == STT_NOTYPE)
    keep &= (symbols["shndx"] != 0) & (symbols["shndx"] < _SHN_LORESERVE)
    keep &= symbols["name"] < len(strings)
    picked = symbols[keep]
    limit = _limits(picked["value"], ranges)
    keep = limit > 0
    if len(strings):
        first = strings[picked["name"]]
        keep &= (first != 0) & (first != ord("$"))
        keep &= ~((first == ord(".")) & (picked["info"] >> 4 == STB_LOCAL))
    picked, limit = picked[keep], limit[keep]
    return Functions(
        picked["value"].astype(np.uint64),
        picked["size"].astype(np.uint64),
        limit,
        (picked["info"] >> 4).astype(np.uint8),
        picked["name"].astype(np.uint32),
        strings,
    )


def plt_entries(elf: ElfFile) -> list[PltEntry]:
    """The stubs of all PLT sections with the names they jump to; x86-64 only, else empty.

    Each stub's own `jmp *slot(%rip)` is decoded and its slot looked up among the relocations: no
    assumption on headers, order or on lazy and `-z now` layouts.
    """
    if elf.machine != EM_X86_64:
        return []
    slots = _got_slots(elf)
    if not slots:
        return []
    entries: list[PltEntry] = []
    for name in _PLT_SECTIONS:
        section = elf.section(name)
        if section is None:
            continue
        width = 8 if name == ".plt.got" and section.entsize == 8 else 16
        code = np.frombuffer(elf.section_data(section, MAX_SYMBOL_BYTES), np.uint8)
        entries += _stubs(code, section.addr, width, slots)
    return entries


def string_at(strings: npt.NDArray[np.uint8], offset: int, limit: int = 4096) -> bytes:
    """The zero-terminated string at `offset`; without `@VERSION`; cut at `limit` bytes."""
    return strings[offset : offset + limit].tobytes().split(b"\0", 1)[0].split(b"@", 1)[0]


def _table(elf: ElfFile, section: Section) -> npt.NDArray[np.void]:
    data = elf.section_data(section, MAX_SYMBOL_BYTES)
    return np.frombuffer(data[: len(data) // SYMBOL.itemsize * SYMBOL.itemsize], SYMBOL)


def _strings(elf: ElfFile, section: Section) -> npt.NDArray[np.uint8]:
    return np.frombuffer(elf.section_data(section, MAX_SYMBOL_BYTES), np.uint8)


def _dynamic_table(
    elf: ElfFile,
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.uint8]] | None:
    """The dynamic symbols by PT_DYNAMIC. Their number is stated nowhere: linkers put `.dynstr`
    after."""
    tags = dict(elf.dynamic())
    symtab, strtab, strsz = (tags.get(t, 0) for t in (_DT_SYMTAB, _DT_STRTAB, _DT_STRSZ))
    if not 0 < symtab < strtab or max(strtab - symtab, strsz) > MAX_SYMBOL_BYTES:
        return None
    count = (strtab - symtab) // SYMBOL.itemsize
    try:
        symbols = elf.vaddr_data(symtab, count * SYMBOL.itemsize, "DT_SYMTAB")
        strings = elf.vaddr_data(strtab, strsz, "DT_STRTAB")
    except ElfError:
        return None
    return np.frombuffer(symbols, SYMBOL), np.frombuffer(strings, np.uint8)


def _limits(
    values: npt.NDArray[np.uint64], ranges: list[tuple[int, int]]
) -> npt.NDArray[np.uint64]:
    """The end of the executable range that holds each value; 0 where none does."""
    if not ranges:
        return np.zeros(len(values), np.uint64)
    starts = np.array([r[0] for r in ranges], np.uint64)
    ends = np.array([r[1] for r in ranges], np.uint64)
    at = starts.searchsorted(values, "right").astype(np.int64) - 1
    inside = (at >= 0) & (values < ends[at])
    return np.where(inside, ends[at], np.uint64(0))


def _got_slots(elf: ElfFile) -> dict[int, bytes]:
    """GOT slot address → name of the function whose address the dynamic linker puts there."""
    dynsym = next((s for s in elf.sections if s.type == SHT_DYNSYM), None)
    if dynsym is None or dynsym.link >= len(elf.sections):
        return {}
    symbols = _table(elf, dynsym)
    strings = _strings(elf, elf.sections[dynsym.link])
    slots: dict[int, bytes] = {}
    for name in (".rela.dyn", ".rela.plt"):
        section = elf.section(name)
        if section is None:
            continue
        data = elf.section_data(section, MAX_SYMBOL_BYTES)
        rela = np.frombuffer(data[: len(data) // RELA.itemsize * RELA.itemsize], RELA)
        kind, index = rela["info"] & 0xFFFFFFFF, rela["info"] >> 32
        keep = ((kind == _R_X86_64_JUMP_SLOT) | (kind == _R_X86_64_GLOB_DAT)) & (
            index < len(symbols)
        )
        offsets = rela["offset"][keep].tolist()
        names = symbols["name"][index[keep].astype(np.int64)].tolist()
        for offset, name_at in zip(offsets, names, strict=True):
            text = string_at(strings, name_at)
            if text:
                slots[offset] = text
    return slots


def _stubs(
    code: npt.NDArray[np.uint8], address: int, width: int, slots: dict[int, bytes]
) -> list[PltEntry]:
    """Decodes the stubs of one section: `[endbr64] [bnd] jmp *disp32(%rip)` within `width`
    bytes."""
    count = len(code) // width
    if count == 0:
        return []
    table = code[: count * width].reshape(count, width)
    entries: list[PltEntry] = []
    named = np.zeros(count, np.bool_)
    for at in (0, 4, 5, 1):
        if at + 6 > width:
            continue
        hit = (table[:, at] == (_JMP_RIP & 255)) & (table[:, at + 1] == _JMP_RIP >> 8) & ~named
        rows = np.flatnonzero(hit)
        disp = np.ascontiguousarray(table[rows, at + 2 : at + 6]).view("<i4").ravel()
        for row, displacement in zip(rows.tolist(), disp.tolist(), strict=True):
            start = address + row * width
            name = slots.get(start + at + 6 + displacement)
            if name is not None:
                named[row] = True
                entries.append(PltEntry(start, width, name))
    return entries
