"""A private copy of what matters in an ELF file, and the key of exactly those bytes.

The cache is shared between containers, so its key must stand for what tables and names are made
from: whoever can write a file could otherwise change it between hashing and parsing (through a
shared mapping even without a trace in its time stamps) and leave wrong names under the key of
another tenant's library. So every byte is read once, into private memory, and hashed on the way;
the parsers see that copy only. What is left out (machine code, read-only data, DWARF) reads as
zeros and costs no memory: it cannot influence anything, since nobody sees it.

Which sections are left out follows from the section table, which is hashed. Of Go programs only
DWARF is left out. A file without a section table, and one without an `.eh_frame` *section* but with
PT_GNU_EH_FRAME, is copied whole.
"""

import hashlib
import mmap
import os
from dataclasses import dataclass

from flameherd_agent.elf.reader import (
    MAX_FILE_BYTES,
    MAX_SECTIONS,
    PT_GNU_EH_FRAME,
    SHF_EXECINSTR,
    SHT_NOBITS,
    ElfFile,
)
from flameherd_agent.errors import ElfError
from flameherd_agent.unwind.table import VERSION as TABLE_VERSION
from flameherd_agent.worker.tables import may_be_go

MAX_COPIED_BYTES = 256 << 20
"""Larger symbol and unwind sections than these together are refused; node has some 40 MB."""
FORMAT = 2
"""Raise it when names come out differently for the same file: cached ones are then made anew."""

_HEADER_BYTES = 64
_SECTION_BYTES = 64
_EDGE = 4096
_CHUNK = 1 << 20
_MAP_NORESERVE = 0x4000
_DATA = frozenset(
    [".rodata", ".data", ".data.rel.ro", ".gcc_except_table", ".comment", ".rela.dyn", ".tdata"]
)

Range = tuple[int, int]
"""Begin and end, file offsets."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The copy and its key: 32 hex digits."""

    elf: ElfFile
    key: str
    is_go: bool
    copied: int
    """Bytes of memory that it takes."""


def take_snapshot(fd: int, size: int, *, whole: bool = False) -> Snapshot:
    """Copies and hashes what matters of the file open as `fd`, or the `whole` of it. `ElfError`."""
    if not _HEADER_BYTES <= size <= MAX_FILE_BYTES:
        raise ElfError(f"a file of {size} bytes is not read (limit {MAX_FILE_BYTES})")
    reader = _Reader(fd, size)
    # The edges, the headers and the sections' names: they tell what else is to be read.
    reader.read([(0, _EDGE), (size - _EDGE, size)])
    word = reader.number
    program_headers, sections = word(32, 8), word(40, 8)  # e_phoff, e_shoff
    reader.read([(program_headers, program_headers + word(54, 2) * word(56, 2))])
    reader.read([(sections, sections + _SECTION_BYTES)])
    count = word(60, 2) or word(sections + 32, 8)  # e_shnum, or section 0's sh_size
    reader.read([(sections, sections + _SECTION_BYTES * min(count, MAX_SECTIONS))])
    names = word(62, 2)  # e_shstrndx, or section 0's sh_link
    names = sections + _SECTION_BYTES * (word(sections + 40, 4) if names == 0xFFFF else names)
    reader.read([(word(names + 24, 8), word(names + 24, 8) + word(names + 32, 8))])
    elf = ElfFile(reader.copy)
    is_go = bool(elf.sections) and may_be_go(elf)
    reader.read(without([(0, size)], [] if whole else _unread(elf, is_go)))
    return Snapshot(elf, reader.digest.hexdigest()[:32], is_go, reader.copied)


class _Reader:
    """Copies ranges of a file, each byte once, and hashes them with their places."""

    def __init__(self, fd: int, size: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        try:
            self.copy = mmap.mmap(-1, size, flags=flags)
        except OSError as error:
            raise ElfError(f"no address space for a file of {size} bytes: {error}") from error
        self.digest = hashlib.sha256(f"{FORMAT} {TABLE_VERSION} {size}".encode())
        self._fd = fd
        self._size = size
        self._done: list[Range] = []
        self._left = MAX_COPIED_BYTES

    @property
    def copied(self) -> int:
        """Bytes copied so far."""
        return MAX_COPIED_BYTES - self._left

    def number(self, offset: int, size: int) -> int:
        """An unsigned number that was read before; 0 outside the file."""
        return int.from_bytes(self.copy[offset : offset + size], "little")

    def read(self, wanted: list[Range]) -> None:
        """Copies what of the ranges lies in the file and was not copied before."""
        inside = [(max(0, begin), min(end, self._size)) for begin, end in wanted]
        for begin, end in without(inside, self._done):
            self._left -= end - begin
            if self._left < 0:
                raise ElfError(f"more than {MAX_COPIED_BYTES} bytes of symbols and unwind tables")
            self.digest.update(b"%d %d " % (begin, end))
            self._copy(begin, end)
            self._done.append((begin, end))

    def _copy(self, begin: int, end: int) -> None:
        view = memoryview(self.copy)
        for at in range(begin, end, _CHUNK):
            part = view[at : min(at + _CHUNK, end)]
            if os.preadv(self._fd, [part], at) != len(part):
                raise ElfError(f"the file ended at {at:#x} while it was read")
            self.digest.update(part)


def _unread(elf: ElfFile, is_go: bool) -> list[Range]:
    """What neither tables nor names are made from."""
    if not elf.sections:
        return []
    through_segment = any(s.type == PT_GNU_EH_FRAME for s in elf.segments)
    if through_segment and elf.section(".eh_frame") is None:
        return []
    # Its stubs are named by what the dynamic relocations put into the slots that they jump through.
    stubs = elf.section(".plt.got") is not None
    ranges: list[Range] = []
    for section in elf.sections:
        if section.type == SHT_NOBITS:
            continue
        is_code = section.flags & SHF_EXECINSTR and not section.name.startswith(".plt")
        is_dwarf = section.name.startswith((".debug_", ".zdebug_")) and "frame" not in section.name
        # Go keeps tables in data, inline trees in read-only data, and its prologues are looked at.
        is_data = section.name in _DATA and (section.name != ".rela.dyn" or not stubs)
        if is_dwarf or (not is_go and (is_code or is_data)):
            ranges.append((section.offset, section.offset + section.size))
    return ranges


def without(wanted: list[Range], cut: list[Range]) -> list[Range]:
    """The parts of `wanted` that lie in no range of `cut`, sorted, joined, none empty."""
    result: list[Range] = []
    cuts = sorted(cut)
    reach = 0
    for begin, end in sorted(wanted):
        at = max(begin, reach)
        for cut_begin, cut_end in cuts:
            if cut_end <= at or cut_begin >= end:
                continue
            if cut_begin > at:
                result.append((at, cut_begin))
            at = max(at, cut_end)
        if at < end:
            result.append((at, end))
        reach = max(reach, end)
    return result
