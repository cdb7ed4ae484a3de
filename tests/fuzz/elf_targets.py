"""Targets that read ELF files: whole ones, and single sections wrapped in a sound file.

A mutation somewhere in a whole file mostly breaks what leads to the tables. So sections also come
alone: the input is the content of sections, and the harness puts a file around them.
"""

import contextlib
import os
import struct

import numpy as np
from flameherd_agent.elf.identity import identify
from flameherd_agent.elf.reader import EM_AARCH64, EM_X86_64, PT_GNU_EH_FRAME, ElfFile
from flameherd_agent.errors import ElfError
from flameherd_agent.kernel.abi import CfaKind, FpKind
from flameherd_agent.symbols.build import build_symbol_index
from flameherd_agent.symbols.debug_files import separate_debug_file
from flameherd_agent.symbols.go_rows import go_rows, sp_deltas
from flameherd_agent.symbols.gopclntab import GoTable
from flameherd_agent.symbols.index import SymbolIndex
from flameherd_agent.types import FileAddress
from flameherd_agent.unwind.build import build_table
from flameherd_agent.unwind.table import UnwindTable
from flameherd_agent.worker.snapshot import take_snapshot
from flameherd_agent.worker.tables import full_table

from tests.fuzz import programs
from tests.fuzz.target import joined, must, parts_of, scratch
from tests.unit.elf_files import (
    EH_FRAME,
    INITIAL,
    TEXT,
    Part,
    cie,
    eh_frame,
    elf_file,
    record,
    sleb,
    uleb,
)

_SECTION_HEADER = 64
_PROGRAM_HEADERS, _PROGRAM_HEADER = 64, 56
_PCLNTAB, _MODULE, _INLINE = 0x10000, 0x40000, 0x50000
_DYNAMIC, _RELA = 0x60000, 0x70000


def elf(data: bytes) -> None:
    """A whole file, as the worker reads it: copy, ids, unwind table, names, lookups."""
    fd = os.memfd_create("fuzz")
    try:
        os.write(fd, data)
        snapshot = take_snapshot(fd, len(data))
        snapshot_of = snapshot.elf
        whole = ElfFile(data)
        must(
            [(s.type, s.vaddr, s.filesz) for s in snapshot_of.segments]
            == [(s.type, s.vaddr, s.filesz) for s in whole.segments],
            "the copy has the segments of the file",
        )
        must(identify(snapshot_of).htlhash == identify(whole).htlhash, "edges are copied")
    except ElfError:
        return
    finally:
        os.close(fd)
    for segment in whole.segments[:64]:
        for offset in (segment.offset, segment.offset + segment.filesz - 1):
            address = whole.offset_to_vaddr(offset)
            if address is not None:
                must(whole.vaddr_to_offset(address) is not None, "what is loaded has an offset")
    for section in whole.sections[:64]:
        try:
            whole.section_data(section, 1 << 20)
        except ElfError:
            continue
    try:
        table, _ = full_table(snapshot_of)
    except ElfError:
        pass
    else:
        check_table(table)
    _names(snapshot_of)


def frames(data: bytes) -> None:
    """`.eh_frame` and `.debug_frame`: the first byte says how they lie in the file."""
    options = data[0] if data else 0
    eh, debug = parts_of(data[1:], 2)
    parts = [Part(".eh_frame", 1, 2, EH_FRAME, eh)] if eh else []
    if debug:
        parts.append(Part(".debug_frame", 1, 0, 0, debug))
    machine = EM_AARCH64 if options & 1 else EM_X86_64
    segments = []
    if options & 2 and eh:  # reached through PT_GNU_EH_FRAME, in a file without section headers
        header = bytes([1, 0x1B, 0xFF, 0xFF]) + struct.pack("<iQ", EH_FRAME - 0x90004, 0)
        parts.insert(0, Part(".eh_frame_hdr", 1, 2, 0x90000, header))
        segments = [(PT_GNU_EH_FRAME, 4, 0x2000, 0x90000, len(header), len(header), 4)]
    file = elf_file(parts, machine=machine, sections=not options & 2, segments=segments)
    try:
        table = build_table(ElfFile(file))
    except ElfError:
        return
    check_table(table)
    must(not len(table) or int(table.rules[-1]) == 0, "nothing is known behind the last function")


def symbols(data: bytes) -> None:
    """Symbol tables, string tables, PLT and its relocations, debug link, MiniDebugInfo."""
    symtab, strtab, plt, rela, link, mini, search = parts_of(data, 7)
    # (part, index of the section that it links to, size of an element)
    wanted = [
        (Part(".symtab", 2, 0, 0, symtab), 2, 24),
        (Part(".strtab", 3, 0, 0, strtab), 0, 0),
        (Part(".dynsym", 11, 2, 0x20000, symtab), 2, 24),
        (Part(".plt", 1, 6, 0x30000, plt), 0, 16),
        (Part(".rela.plt", 4, 2, 0x38000, rela), 3, 24),
        (Part(".text", 1, 6, TEXT, bytes(0x1000)), 0, 0),
    ]
    if link:
        wanted.append((Part(".gnu_debuglink", 1, 0, 0, link), 0, 0))
    if mini:
        wanted.append((Part(".gnu_debugdata", 1, 0, 0, mini), 0, 0))
    segments = []
    if search:  # its address, then .eh_frame_hdr; known to the program headers only
        address, size = int.from_bytes(search[:8], "little"), len(search[8:])
        wanted.append((Part(".eh_frame_hdr", 1, 2, 0, search[8:]), 0, 0))
        segments.append((PT_GNU_EH_FRAME, 4, 0, address, size, size, 4))
    file = bytearray(elf_file([part for part, _, _ in wanted], segments=segments))
    if search:
        at = file.rindex(search[8:]) if search[8:] else 0
        struct.pack_into("<Q", file, _PROGRAM_HEADERS + _PROGRAM_HEADER + 8, at)
    table = int.from_bytes(file[40:48], "little")  # e_shoff
    for index, (_, to, size) in enumerate(wanted, 1):
        struct.pack_into("<I", file, table + index * _SECTION_HEADER + 40, to)
        struct.pack_into("<Q", file, table + index * _SECTION_HEADER + 56, size)
    _names(ElfFile(bytes(file)))


def _names(elf_: ElfFile) -> None:
    """Builds the index of a file (which is its own debug file), opens it, looks names up."""
    path = scratch() / "names"
    with contextlib.suppress(ElfError):  # the index leaves it out then
        separate_debug_file(elf_, "/usr/bin/x", lambda _: elf_)
    try:
        build_symbol_index(elf_, path, opener=lambda _: elf_, path="/usr/bin/x")
        index = SymbolIndex.open(path)
    except ElfError:
        return
    flat = index._index
    starts, sizes = flat.starts, flat.sizes.astype(np.uint64)
    ends = starts + sizes
    must(bool((starts[1:] > starts[:-1]).all()), "names are sorted by address")
    must(bool((ends[:-1] <= starts[1:]).all() and (ends >= starts).all()), "names do not overlap")
    edges = np.concatenate([starts[:16], ends[:16], starts[-4:] + np.uint64(1)]).tolist()
    addresses = [FileAddress(a) for a in [*edges, 0, TEXT, TEXT + 64, TEXT + 130, 2**64 - 1]]
    for address in addresses:
        start = index.function_start(address)
        must(start is None or start <= address, "a function begins before what it holds")
    one_by_one = [index.lookup(address) for address in addresses]
    must(index.lookup_batch(addresses) == one_by_one, "lookups in batch and one by one agree")
    for lines in one_by_one:
        must(all(line.function for line in lines), "a name is not empty")


def check_table(table: UnwindTable) -> None:
    """What every unwind table promises."""
    pcs, rules = table.pcs, table.rules
    must(bool((pcs[1:] > pcs[:-1]).all()), "rows rise strictly")
    must(bool((rules[1:] != rules[:-1]).all()), "neighbours differ")
    must(not len(pcs) or int(rules.max()) < len(table.rule_table), "rules exist")
    must(int(table.rule_table["cfa"].max()) <= max(CfaKind), "CFA kinds exist")
    must(int(table.rule_table["fp"].max()) <= max(FpKind), "frame pointer kinds exist")
    path = scratch() / "rows"
    table.save(path)
    again = UnwindTable.load(path)
    must(
        np.array_equal(again.pcs, pcs)
        and np.array_equal(again.rules, rules)
        and again.rule_table.tobytes() == table.rule_table.tobytes(),
        "a saved table is the same",
    )


def pclntab(data: bytes) -> None:
    """A Go symbol table alone, with its inline trees: lookups all over it, and stack deltas."""
    content, inline = parts_of(data, 2)
    try:
        table = GoTable(memoryview(content), TEXT, memoryview(inline), 0)
    except ElfError:
        return
    for step in range(24):
        lines = table.lookup(TEXT + table.first + (table.end - table.first) * step // 24)
        must(all(len(line.function) <= 4096 for line in lines), "names are bounded")
    must(table.lookup(TEXT - 1) == () if table.first >= 0 else True, "nothing before the text")
    must(table.lookup(TEXT + table.end) == (), "nothing behind the text")
    try:
        deltas = sp_deltas(table)
    except ElfError:
        return
    same = deltas.function[1:] == deltas.function[:-1]
    must(bool((deltas.pc[1:][same] > deltas.pc[:-1][same]).all()), "deltas rise in a function")


def go(data: bytes) -> None:
    """A Go program's tables in a file: found by name or by scan, rows and names made of them."""
    options = data[0] if data else 0
    content, module, inline, code, rela = parts_of(data[1:], 5)
    parts = [
        Part(".gopclntab", 1, 2, _PCLNTAB, content),
        Part(".go.module", 1, 3, _MODULE, module),
        Part(".go.func", 1, 2, _INLINE, inline),
    ]
    segments = []
    if rela:  # a file that the C linker made position-independent: pointers stand in relocations
        dynamic = struct.pack("<6Q", 7, _RELA, 8, len(rela), 0, 0)
        parts.insert(0, Part(".dynamic", 6, 3, _DYNAMIC, dynamic))
        parts.append(Part(".rela.dyn", 4, 2, _RELA, rela))
        segments.append((2, 4, 0x2000, _DYNAMIC, len(dynamic), len(dynamic), 8))
    file = bytearray(elf_file(parts, sections=not options & 1, segments=segments))
    file[TEXT : TEXT + min(len(code), 0x1000)] = code[:0x1000]
    elf_ = ElfFile(bytes(file))
    try:
        rows = go_rows(elf_)
    except ElfError:
        pass
    else:
        if rows is not None:
            must(bool((rows.pcs[1:] > rows.pcs[:-1]).all()), "rows of Go rise strictly")
            must(len(rows.pcs) == len(rows.rules), "each row has a rule")
    try:
        table, _ = full_table(elf_)
    except ElfError:
        pass
    else:
        check_table(table)
    _names(elf_)


def frame_seeds() -> list[bytes]:
    """Functions with the instructions that compilers use, and with rare ones."""
    ordinary = [(TEXT, 64, bytes([0x41, 0x0E, 16, 0x86, 2, 0x43, 0x0D, 6, 0x60, 0x0C, 7, 8]))]
    states = [(TEXT, 64, bytes([0x41, 0x0E, 16, 0x0A, 0x42, 0x0E, 32, 0x0B, 0x42, 0xC6, 0x07, 16]))]
    plt = bytes([0x0F, 11, 0x77, 8, 0x80, 0, 0x3F, 0x1A, 0x3B, 0x2A, 0x33, 0x24, 0x22])
    realigned = bytes([0x0F, 3, 0x76, 0x70, 0x06, 0x10, 6, 2, 0x76, 0, 0x2E, 8])
    rare = bytes([0x02, 3, 0x03, 4, 0, 0x04, 5, 0, 0, 0, 0x12, 7, 0x78, 0x13, 0x70, 0x05, 6, 3])
    rare += bytes([0x11, 6, 0x7E, 0x2F, 6, 2, 0x14, 6, 1, 0x16, 6, 1, 0x70, 0x06, 6, 0x08, 6])
    handler = bytes([0x0F, 4, 0x77, 0xA0, 0x01, 0x06, 0x10, 16, 3, 0x77, 0xA8, 0x01])
    more = bytes([0x0F, 5, 0x77, 0x10, 0x06, 0x23, 8, 0x41, 0x0F, 5, 0x76, 0x70, 0x06, 0x38, 0x22])
    more += bytes([0x41, 0x0F, 2, 0x7A, 0, 0x41, 0x0F, 2, 0x77, 8, 0x41, 0x0F, 2, 0x76, 16])
    many = [(TEXT + 32 * i, 32, bytes([0x40 | i, 0x0E, 8 * i])) for i in range(20)]
    sections = [eh_frame(f) for f in (ordinary, states, many)]
    sections += [eh_frame([(TEXT, 64, code)]) for code in (plt, realigned, rare, more)]
    sections.append(eh_frame([(TEXT, 16, handler)], cie(b"", augmentation=b"zRS")))
    sections.append(eh_frame(ordinary, cie(augmentation=b"zPLR", data=b"\x9b\0\0\0\0\x1b\x1b")))
    sections.append(eh_frame([(TEXT, 64, b"\x01\0\x10\0\0\x0e\x20")]))
    sections.append(eh_frame(ordinary, _cie_4()))
    old = b"\x01eh\0" + bytes(8) + b"\x01\x78\x10" + INITIAL
    sections.append(record(bytes(4) + old) + sections[0])
    sections.append(eh_frame(ordinary, cie(augmentation=b"zRB", data=b"\x33")))
    seeds = [bytes([option]) + section for section in sections for option in (0, 1, 2)]
    common = struct.pack("<I", 0xFFFFFFFF) + b"\x01\0\x01\x78\x10\x0c\x07\x08\x90\x01\0\0"
    debug = struct.pack("<I", len(common)) + common
    body = struct.pack("<IQQ", 0, TEXT + 8, 400) + b"\x41\x0e\x20\0"
    debug += struct.pack("<I", len(body)) + body
    seeds.append(joined(b"\0" + sections[0], debug))
    return seeds


def _cie_4() -> bytes:
    """Version 4: sizes of an address and of a segment, the register as LEB128."""
    head = bytes(4) + b"\x04zR\0\x08\0" + uleb(1) + sleb(-8) + uleb(16)
    return record(head + b"\x01\x1b" + INITIAL)


def symbol_seeds() -> list[bytes]:
    """Functions with and without sizes, aliases, a PLT stub and its relocation, a debug link."""
    strings = b"\0main\0_ZN3foo3barEv\0_RNvC1a1b\0alias\0.Llabel\0"
    rows = b"\0" * 24
    for name, info, value, size in (
        (1, 0x12, 0, 32), (6, 0x12, 32, 64), (20, 0x22, 32, 64), (30, 0x10, 40, 0), (36, 0, 200, 0)
    ):  # fmt: skip
        rows += struct.pack("<IBBHQQ", name, info, 0, 1, TEXT + value, size)
    slot = 0x38000
    stub = b"\xff\x25" + struct.pack("<i", slot - (0x30000 + 6)) + bytes(10)
    relocation = struct.pack("<QQq", slot, (1 << 32) | 7, 0)
    link = b"x.debug\0" + bytes(4)
    search = struct.pack("<Q4siI", 0x90000, b"\x01\x1b\x03\x3b", 0, 3)
    search += struct.pack("<6i", TEXT + 64 - 0x90000, 0, TEXT + 300 - 0x90000, 0, -0x90000, 0)
    return [
        joined(rows, strings, stub, relocation, link, b"", search),
        joined(rows, strings, b"", b"", b"", b"", search),
        joined(rows, strings),
    ]


def pclntab_seeds() -> list[bytes]:
    """Tables of both layouts."""
    return [
        joined(programs.pclntab(new=new, flag=flag), programs.inline_tree(new=new))
        for new in (True, False)
        for flag in (0, 1, 2, 6)
    ]


def go_seeds() -> list[bytes]:
    """Programs of both layouts, with and without section headers."""
    module = programs.moduledata(_PCLNTAB, TEXT, _INLINE)
    code = (b"\x90\x90\x90\x55\x48\x89\xe5" + bytes(57)) * 3
    relocations = b"".join(
        struct.pack("<QQq", _MODULE + 8 * index, 8, word)
        for index, (word,) in enumerate(struct.iter_unpack("<Q", module))
        if word >= TEXT
    )
    small = [word if word < TEXT else 0 for (word,) in struct.iter_unpack("<Q", module)]
    bare_module = struct.pack(f"<{len(small)}Q", *small)
    return [
        bytes([bare])
        + joined(programs.pclntab(new=new), words, programs.inline_tree(new=new), code, rela)
        for new in (True, False)
        for bare in (0, 1)
        for words, rela in ((module, b""), (bare_module, relocations))
    ]


def elf_seeds() -> list[bytes]:
    """Files of the compiler and the smallest ones of the wrapped targets."""
    return [*programs.elf_files(), elf_file([Part(".x", 1, 2, EH_FRAME, b"abcd")])]
