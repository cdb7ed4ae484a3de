"""Targets that read the agent's own files: they are on disk, and the worker that wrote them parsed
hostile input, so they are not trusted either."""

import os
import struct
import zlib

import numpy as np
from flameherd_agent.elf.reader import ElfFile
from flameherd_agent.errors import ElfError
from flameherd_agent.symbols.flat import Columns, FlatIndex, SectionKind, write
from flameherd_agent.symbols.index import GO_HEADER, SymbolIndex
from flameherd_agent.types import FileAddress
from flameherd_agent.unwind.build import build_table
from flameherd_agent.unwind.table import UnwindTable

from tests.fuzz import programs
from tests.fuzz.target import must, scratch
from tests.unit.elf_files import TEXT, eh_frame_file

_SUMMED = 36
"""Bytes of a table's header before its checksum."""


def flat(data: bytes) -> None:
    """An index of names."""
    try:
        index = SymbolIndex(FlatIndex(data))
    except ElfError:
        return
    some = [int(a) for a in index._index.starts[:24].tolist()]
    addresses = [FileAddress(a) for a in [*some, *(a + 1 for a in some if a < 2**64 - 1), TEXT, 0]]
    lines = [index.lookup(address) for address in addresses]
    if bool((np.diff(index._index.starts.astype(object)) > 0).all()):
        must(index.lookup_batch(addresses) == lines, "lookups in batch and one by one agree")
    for address in addresses:
        index.frame_type(address)
        index.function_start(address)


def table(data: bytes) -> None:
    """An unwind table; its checksum is set right, or nothing behind it would be reached."""
    content = bytearray(data)
    if len(content) >= _SUMMED + 4:
        struct.pack_into("<I", content, _SUMMED, zlib.crc32(bytes(content[:_SUMMED])))
    fd = os.memfd_create("fuzz")
    try:
        os.write(fd, content)
        loaded = UnwindTable.load(fd)
    except ElfError:
        return
    finally:
        os.close(fd)
    for pc in [0, loaded.base, loaded.base + 17, 2**64 - 1]:
        loaded.lookup(pc)
    loaded.shed()


def flat_seeds() -> list[bytes]:
    """An index with a few names, one with Go's tables too."""
    starts = np.array([TEXT, TEXT + 32, TEXT + 128], np.uint64)
    sizes = np.array([32, 64, 16], np.uint32)
    offsets = np.array([1, 6, 11], np.uint32)
    columns = Columns(starts, sizes, offsets, offsets[::-1].copy(), b"\0main\0next\0last\0")
    sections: dict[SectionKind, bytes | memoryview] = dict(columns.sections())
    path = scratch() / "seed"
    write(path, sections)
    seeds = [path.read_bytes()]
    sections[SectionKind.GO_HEADER] = GO_HEADER.pack(0x2000, 0)
    sections[SectionKind.GO_PCLNTAB] = programs.pclntab()
    sections[SectionKind.GO_INLINE] = programs.inline_tree()
    write(path, sections)
    return [*seeds, path.read_bytes()]


def table_seeds() -> list[bytes]:
    """A table of two functions, and an empty one."""
    path = scratch() / "seed"
    seeds = []
    for functions in ([(TEXT, 64, b"\x41\x0e\x10"), (TEXT + 100, 9, b"\x41\x0e\x20")], []):
        build_table(ElfFile(eh_frame_file(functions))).save(path)
        seeds.append(path.read_bytes())
    return seeds
