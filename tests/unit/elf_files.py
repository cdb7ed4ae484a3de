"""Small ELF files made in memory, byte by byte, for tests of the readers."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

TEXT = 0x1000
"""Address and file offset of the code segment."""
TEXT_BYTES = 0x1000
EH_FRAME = 0x4000
"""Address of `.eh_frame`, which has a segment of its own."""


class Part(NamedTuple):
    """A section: name, type, flags, address, content."""

    name: str
    type: int
    flags: int
    address: int
    content: bytes


def elf_file(
    parts: list[Part],
    *,
    machine: int = 62,
    sections: bool = True,
    segments: Sequence[tuple[int, ...]] = (),
    notes: bytes = b"",
) -> bytes:
    """An ET_DYN file with a code segment and one segment for each part that has an address.

    `segments` adds program headers (type, flags, offset, vaddr, filesz, memsz, align).
    """
    body = bytearray(b"\xcc" * (TEXT + TEXT_BYTES))
    placed: list[tuple[Part, int]] = []
    headers = [(1, 5, TEXT, TEXT, TEXT_BYTES, TEXT_BYTES, 4096), *segments]
    for part in parts:
        offset = len(body)
        placed.append((part, offset))
        body += part.content
        body += bytes(-len(body) % 16)
        if part.address:
            size = len(part.content)
            headers.append((1, 4, offset, part.address, size, size, 4096))
    if notes:
        headers.append((4, 4, len(body), 0, len(notes), len(notes), 4))
        body += notes
    names = b"\0" + b"".join(p.name.encode() + b"\0" for p in parts) + b".shstrtab\0"
    names_at = len(body)
    body += names + bytes(-len(names) % 16)
    table_at = len(body)
    rows = [(0,) * 10]
    for part, offset in placed:
        rows.append(
            (
                names.index(b"\0" + part.name.encode() + b"\0") + 1,
                *(part.type, part.flags, part.address, offset, len(part.content), 0, 0, 8, 0),
            )
        )
    rows.append((names.index(b".shstrtab"), 3, 0, 0, names_at, len(names), 0, 0, 1, 0))
    for row in rows:
        body += struct.pack("<IIQQQQIIQQ", *row)
    program = b"".join(
        struct.pack("<IIQQQQQQ", t, f, o, v, v, fs, ms, al) for t, f, o, v, fs, ms, al in headers
    )
    body[64 : 64 + len(program)] = program
    body[:64] = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01",
        *(3, machine, 1, TEXT, 64, table_at if sections else 0, 0, 64, 56, len(headers)),
        *((64, len(rows), len(rows) - 1) if sections else (0, 0, 0)),
    )
    return bytes(body)


def uleb(value: int) -> bytes:
    """Unsigned LEB128."""
    out = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)


def sleb(value: int) -> bytes:
    """Signed LEB128."""
    out = bytearray()
    while True:
        low = value & 0x7F
        value >>= 7
        done = (value == 0 and not low & 0x40) or (value == -1 and bool(low & 0x40))
        out.append(low | (0 if done else 0x80))
        if done:
            return bytes(out)


def record(body: bytes) -> bytes:
    """Length and body, padded with DW_CFA_nop."""
    body += bytes(-(len(body) + 4) % 8)
    return struct.pack("<I", len(body)) + body


INITIAL = bytes([0x0C, 7, 8, 0x90, 1])
"""def_cfa rsp+8; return address at CFA-8: what every x86-64 CIE says."""


def cie(
    initial: bytes = INITIAL,
    *,
    augmentation: bytes = b"zR",
    data: bytes = b"\x1b",
    code_align: int = 1,
    data_align: int = -8,
    register: int = 16,
) -> bytes:
    """A common record of `.eh_frame`."""
    body = struct.pack("<I", 0) + b"\x01" + augmentation + b"\0"
    body += uleb(code_align) + sleb(data_align) + bytes([register])
    if augmentation.startswith(b"z"):
        body += uleb(len(data)) + data
    return record(body + initial)


def fde(at: int, cie_at: int, begin: int, size: int, code: bytes, base: int = EH_FRAME) -> bytes:
    """A function's record at section offset `at`, with pcrel sdata4 pointers."""
    body = struct.pack("<I", at + 4 - cie_at)
    body += struct.pack("<iI", begin - (base + at + 8), size) + b"\0" + code
    return record(body)


def eh_frame(functions: list[tuple[int, int, bytes]], common: bytes | None = None) -> bytes:
    """A section with one CIE and functions (begin, size, instructions)."""
    section = common if common is not None else cie()
    for begin, size, code in functions:
        section += fde(len(section), 0, begin, size, code)
    return section + bytes(4)


def eh_frame_file(functions: list[tuple[int, int, bytes]], common: bytes | None = None) -> bytes:
    """An ELF file whose `.eh_frame` has these functions."""
    return elf_file([Part(".eh_frame", 1, 2, EH_FRAME, eh_frame(functions, common))])
