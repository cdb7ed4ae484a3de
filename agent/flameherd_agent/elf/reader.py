"""Reads the frame of an ELF file: header, segments, sections, notes. Every read is checked first.

The layouts are those of the System V gABI (ELF-64, little-endian); x86-64 and AArch64 are accepted.
Files come from containers and are hostile: every count and size has a cap, nothing is trusted to
lie inside the file, and what is wrong raises `ElfError` with the place. A section table that lies
outside the file counts as absent, since the kernel runs such files too: `PT_DYNAMIC`, `PT_NOTE` and
`PT_GNU_EH_FRAME` then lead to the content.

A file is mapped, not read: a table of 100 KB in a file of 500 MB costs 100 KB. A file that is
truncated while it is mapped raises SIGBUS, which is one reason why only the worker child reads
files of other processes.

Not here: symbols (`symbols/`), unwind tables (`unwind/`), finding and opening files safely
(`elf/open.py`).
"""

import mmap
import os
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple, Self

from flameherd_agent.errors import ElfError

EM_X86_64 = 62
EM_AARCH64 = 183

ET_EXEC = 2
ET_DYN = 3

PT_LOAD = 1
PT_DYNAMIC = 2
PT_NOTE = 4
PT_GNU_EH_FRAME = 0x6474E550
PF_X = 1
PF_W = 2
PF_R = 4

SHT_SYMTAB = 2
SHT_STRTAB = 3
SHT_RELA = 4
SHT_NOTE = 7
SHT_NOBITS = 8
SHT_DYNSYM = 11
SHF_ALLOC = 2
SHF_EXECINSTR = 4
SHF_COMPRESSED = 0x800

MAX_FILE_BYTES = 2 << 30
"""Larger files are refused; the largest browsers with debug information are below 2 GiB."""
MAX_SEGMENTS = 1024
MAX_SECTIONS = 65536
MAX_NOTES = 4096
MAX_NOTE_BYTES = 4096
"""Of a note's name and of its content; longer notes are left out."""
MAX_DYNAMIC = 4096
MAX_SECTION_BYTES = 256 << 20
"""Default limit of one section's content after decompression."""

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_CHDR = struct.Struct("<IIQQ")
_NOTE = struct.Struct("<III")
_DYN = struct.Struct("<qQ")
_ELFCOMPRESS_ZLIB = 1


class Segment(NamedTuple):
    """A program header. Addresses and sizes in bytes."""

    type: int
    flags: int
    offset: int
    vaddr: int
    filesz: int
    memsz: int
    align: int


class Section(NamedTuple):
    """A section header. `size` is the size in the file, before decompression."""

    name: str
    type: int
    flags: int
    addr: int
    offset: int
    size: int
    link: int
    info: int
    entsize: int


class Note(NamedTuple):
    """One entry of a note segment. `name` without its terminating zero."""

    name: bytes
    type: int
    desc: bytes


class ElfFile:
    """A 64-bit little-endian ELF file in memory.

    `machine` and `type` are `e_machine` and `e_type`; `entry` is `e_entry`; `size` is the file's
    length in bytes. Raises `ElfError` when the header or the program headers are malformed.
    """

    def __init__(self, data: bytes | mmap.mmap | memoryview) -> None:
        self.data = memoryview(data).cast("B").toreadonly()
        self.size = len(self.data)
        if self.size < _HEADER.size:
            raise ElfError(f"not an ELF file: {self.size} bytes are too few for a header")
        header = _HEADER.unpack_from(self.data)
        ident: bytes = header[0]
        if ident[:4] != b"\x7fELF":
            raise ElfError(f"not an ELF file: it starts with {ident[:4].hex()}")
        if ident[4:6] != b"\x02\x01":
            raise ElfError("not a 64-bit little-endian ELF file")
        self.type: int = header[1]
        self.machine: int = header[2]
        if self.machine not in (EM_X86_64, EM_AARCH64):
            raise ElfError(f"ELF machine {self.machine} is neither x86-64 nor AArch64")
        self.entry: int = header[4]
        phoff, shoff = header[5], header[6]
        phentsize, phnum, shentsize, shnum, shstrndx = header[9:14]
        first = self._first_section(shoff, shentsize)
        if phnum == 0xFFFF and first is not None:  # PN_XNUM: the count is in section 0
            phnum = first[7]
        self.segments: tuple[Segment, ...] = self._read_segments(phoff, phentsize, phnum)
        self.sections: tuple[Section, ...] = ()
        if first is not None:
            shnum = shnum or first[5]
            shstrndx = first[6] if shstrndx == 0xFFFF else shstrndx
            self.sections = self._read_sections(shoff, shnum, shstrndx)
        self._by_name: dict[str, Section] = {}
        for section in self.sections:
            self._by_name.setdefault(section.name, section)
        self._loads = [s for s in self.segments if s.type == PT_LOAD]

    @classmethod
    def open(cls, source: int | str | os.PathLike[str]) -> Self:
        """Maps a file given by descriptor (stays open, stays the caller's) or by path, read-only.

        For a path that someone else chose use `elf.open.open_mapped` first and pass the descriptor.
        """
        if isinstance(source, int):
            return cls._map(source)
        fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            return cls._map(fd)
        finally:
            os.close(fd)

    @classmethod
    def _map(cls, fd: int) -> Self:
        size = os.fstat(fd).st_size
        if not _HEADER.size <= size <= MAX_FILE_BYTES:
            raise ElfError(f"a file of {size} bytes is not read (limit {MAX_FILE_BYTES})")
        try:
            return cls(mmap.mmap(fd, size, access=mmap.ACCESS_READ))
        except OSError as error:
            raise ElfError(f"cannot map a file of {size} bytes: {error}") from error

    def _first_section(self, shoff: int, shentsize: int) -> tuple[int, ...] | None:
        """Section 0 (it carries counts too large for the header); None without a section table."""
        if shoff == 0 or shentsize != _SECTION.size or shoff + _SECTION.size > self.size:
            return None
        return _SECTION.unpack_from(self.data, shoff)

    def _read_segments(self, phoff: int, phentsize: int, phnum: int) -> tuple[Segment, ...]:
        if phnum == 0:
            return ()
        if phentsize != _SEGMENT.size or phnum > MAX_SEGMENTS:
            raise ElfError(f"{phnum} program headers of {phentsize} bytes are not plausible")
        table = self.bytes_at(phoff, phnum * _SEGMENT.size, "program headers")
        return tuple(
            Segment(type_, flags, offset, vaddr, filesz, memsz, align)
            for type_, flags, offset, vaddr, _, filesz, memsz, align in _SEGMENT.iter_unpack(table)
        )

    def _read_sections(self, shoff: int, shnum: int, shstrndx: int) -> tuple[Section, ...]:
        if shnum > MAX_SECTIONS:
            raise ElfError(f"{shnum} sections are over the limit of {MAX_SECTIONS}")
        if shoff + shnum * _SECTION.size > self.size:
            return ()
        headers = list(_SECTION.iter_unpack(self.data[shoff : shoff + shnum * _SECTION.size]))
        names = b""
        if shstrndx < shnum:
            offset, size = headers[shstrndx][4:6]
            if offset + size <= self.size and size <= MAX_SECTIONS * 256:
                names = bytes(self.data[offset : offset + size])
        return tuple(
            Section(_name(names, name), type_, flags, addr, offset, size, link, info, entsize)
            for name, type_, flags, addr, offset, size, link, info, _, entsize in headers
        )

    def bytes_at(self, offset: int, size: int, what: str = "data") -> memoryview:
        """`size` bytes of the file from `offset`. `ElfError` when they are not all there."""
        if offset < 0 or size < 0 or offset + size > self.size:
            raise ElfError(
                f"{what} at offset {offset:#x}, {size} bytes, not within {self.size} bytes"
            )
        return self.data[offset : offset + size]

    def section(self, name: str) -> Section | None:
        """The first section of that name, or None."""
        return self._by_name.get(name)

    def section_data(self, section: Section, limit: int = MAX_SECTION_BYTES) -> memoryview | bytes:
        """The content of a section, decompressed if need be (SHF_COMPRESSED, `.zdebug_*`).

        Empty for SHT_NOBITS. Raises `ElfError` when it is outside the file, over `limit` bytes, or
        damaged.
        """
        if section.type == SHT_NOBITS:
            return b""
        what = f"section {section.name}"
        if section.size > limit:
            raise ElfError(f"{what} of {section.size} bytes is over the limit of {limit}")
        raw = self.bytes_at(section.offset, section.size, what)
        if section.flags & SHF_COMPRESSED:
            if len(raw) < _CHDR.size:
                raise ElfError(f"{what} is too short for a compression header")
            kind, _, size, _ = _CHDR.unpack_from(raw)
            if kind != _ELFCOMPRESS_ZLIB:
                raise ElfError(f"{what} has compression type {kind}; only zlib is read")
            return _inflate(raw[_CHDR.size :], size, limit, what)
        if section.name.startswith(".zdebug_") and bytes(raw[:4]) == b"ZLIB" and len(raw) >= 12:
            return _inflate(raw[12:], int.from_bytes(raw[4:12], "big"), limit, what)
        return raw

    def vaddr_to_offset(self, vaddr: int) -> int | None:
        """The file offset of an address in `p_vaddr` space, or None where nothing is loaded."""
        for s in self._loads:
            if s.vaddr <= vaddr < s.vaddr + s.filesz:
                return vaddr - s.vaddr + s.offset
        return None

    def offset_to_vaddr(self, offset: int) -> int | None:
        """The address in `p_vaddr` space of a file offset, or None when it is not loaded.

        Where segments share a file page, the executable one wins: callers ask about code.
        """
        found: int | None = None
        for s in self._loads:
            if s.offset <= offset < s.offset + s.filesz:
                if s.flags & PF_X:
                    return offset - s.offset + s.vaddr
                if found is None:
                    found = offset - s.offset + s.vaddr
        return found

    def vaddr_data(self, vaddr: int, size: int, what: str = "data") -> memoryview:
        """`size` bytes at an address. `ElfError` when no one segment holds them all."""
        for s in self._loads:
            if s.vaddr <= vaddr and vaddr + size <= s.vaddr + s.filesz:
                return self.bytes_at(vaddr - s.vaddr + s.offset, size, what)
        raise ElfError(f"{what} at address {vaddr:#x}, {size} bytes, is in no loaded segment")

    def dynamic(self) -> list[tuple[int, int]]:
        """(tag, value) pairs of PT_DYNAMIC up to DT_NULL; empty without one."""
        for s in self.segments:
            if s.type == PT_DYNAMIC and s.filesz:
                size = min(s.filesz, MAX_DYNAMIC * _DYN.size) // _DYN.size * _DYN.size
                pairs: list[tuple[int, int]] = []
                for tag, value in _DYN.iter_unpack(self.bytes_at(s.offset, size, "PT_DYNAMIC")):
                    if tag == 0:
                        break
                    pairs.append((tag, value))
                return pairs
        return []

    def notes(self) -> Iterator[Note]:
        """The notes of all PT_NOTE segments, or of all SHT_NOTE sections where there are none.

        A note that runs over its segment's end ends that segment quietly: notes are labels, never
        addresses.
        """
        areas = [(s.offset, s.filesz, s.align) for s in self.segments if s.type == PT_NOTE]
        if not areas:
            areas = [(s.offset, s.size, 4) for s in self.sections if s.type == SHT_NOTE]
        left = MAX_NOTES
        for offset, size, align in areas:
            if offset + size > self.size:
                continue
            pad = 7 if align == 8 else 3
            area = self.data[offset : offset + size]
            at = 0
            while at + _NOTE.size <= size and left > 0:
                left -= 1
                name_size, desc_size, type_ = _NOTE.unpack_from(area, at)
                name_end = at + _NOTE.size + name_size
                desc = (name_end + pad) & ~pad
                if desc + desc_size > size:
                    break
                if name_size <= MAX_NOTE_BYTES and desc_size <= MAX_NOTE_BYTES:
                    name = bytes(area[at + _NOTE.size : name_end]).rstrip(b"\0")
                    yield Note(name, type_, bytes(area[desc : desc + desc_size]))
                at = (desc + desc_size + pad) & ~pad


def _name(names: bytes, start: int) -> str:
    if start >= len(names):
        return ""
    end = names.find(b"\0", start, start + 256)
    return names[start : end if end >= 0 else start + 256].decode("ascii", "replace")


def _inflate(raw: memoryview, size: int, limit: int, what: str) -> bytes:
    """Inflates the stated `size` bytes; a stream that yields more or less is damaged."""
    if size > limit:
        raise ElfError(f"{what} of {size} bytes uncompressed is over the limit of {limit}")
    try:
        data = zlib.decompressobj().decompress(raw, size + 1)
    except zlib.error as error:
        raise ElfError(f"{what} is damaged: {error}") from error
    if len(data) != size:
        raise ElfError(f"{what} inflates to {len(data)} bytes where {size} are stated")
    return data
