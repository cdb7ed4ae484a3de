"""The ELF reader: what it reads equals readelf, and damaged files cost an `ElfError`, no more."""

import re
import struct
import subprocess
import zlib
from pathlib import Path

import pytest
from flameherd_agent.elf.identity import htlhash, identify
from flameherd_agent.elf.reader import SHF_COMPRESSED, ElfFile
from flameherd_agent.errors import ElfError
from flameherd_agent.unwind.build import build_table
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.elf_files import EH_FRAME, TEXT, Part, eh_frame, eh_frame_file, elf_file

SHELL = Path("/bin/sh").resolve()


def test_sections_and_segments_equal_readelf() -> None:
    text = subprocess.run(
        ["readelf", "-SlW", str(SHELL)], capture_output=True, text=True, check=True
    ).stdout
    wanted = re.findall(r"\] (\S+) +\w+ +([0-9a-f]{16}) ([0-9a-f]{6}) ([0-9a-f]{6})", text)
    elf = ElfFile.open(SHELL)
    got = [(s.name, f"{s.addr:016x}", f"{s.offset:06x}", f"{s.size:06x}") for s in elf.sections]
    assert got[1:] == wanted
    loads = re.findall(r"LOAD +0x(\w+) 0x(\w+) \S+ 0x(\w+) 0x(\w+)", text)
    assert [(s.offset, s.vaddr, s.filesz, s.memsz) for s in elf.segments if s.type == 1] == [
        tuple(int(field, 16) for field in load) for load in loads
    ]


def test_addresses_and_offsets_convert_both_ways() -> None:
    elf = ElfFile(elf_file([Part(".x", 1, 2, 0x9000, b"abcd")]))
    section = elf.section(".x")
    assert section is not None
    assert elf.vaddr_to_offset(0x9002) == section.offset + 2
    assert elf.offset_to_vaddr(section.offset + 2) == 0x9002
    assert elf.offset_to_vaddr(TEXT + 5) == TEXT + 5
    assert elf.vaddr_to_offset(0xFFFF_0000) is None
    assert bytes(elf.vaddr_data(0x9001, 3)) == b"bcd"
    with pytest.raises(ElfError, match="no loaded segment"):
        elf.vaddr_data(0x9001, 4)


def test_compressed_sections_inflate_within_their_limit() -> None:
    packed = struct.pack("<IIQQ", 1, 0, 5000, 1) + zlib.compress(b"x" * 5000)
    old_style = b"ZLIB" + (5000).to_bytes(8, "big") + zlib.compress(b"x" * 5000)
    lying = struct.pack("<IIQQ", 1, 0, 10, 1) + zlib.compress(b"x" * 5000)
    elf = ElfFile(
        elf_file(
            [
                Part(".debug_frame", 1, SHF_COMPRESSED, 0, packed),
                Part(".zdebug_frame", 1, 0, 0, old_style),
                Part(".lying", 1, SHF_COMPRESSED, 0, lying),
                Part(".bss", 8, 2, 0, b"not in the file"),
            ]
        )
    )
    by_name = {s.name: s for s in elf.sections}
    assert elf.section_data(by_name[".debug_frame"]) == b"x" * 5000
    assert elf.section_data(by_name[".zdebug_frame"]) == b"x" * 5000
    assert elf.section_data(by_name[".bss"]) == b""
    with pytest.raises(ElfError, match="limit"):
        elf.section_data(by_name[".debug_frame"], limit=4999)
    with pytest.raises(ElfError, match="stated"):
        elf.section_data(by_name[".lying"])


def test_build_ids_equal_readelf_and_the_hash_follows_its_definition() -> None:
    text = subprocess.run(
        ["readelf", "-n", str(SHELL)], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"Build ID: (\w+)", text)
    assert found is not None
    assert identify(ElfFile.open(SHELL)).gnu_build_id == found[1]
    # sha256(first 4096 + last 4096 + length as big-endian u64)[:16], computed with coreutils.
    script = (
        f"(head -c 4096 {SHELL}; tail -c 4096 {SHELL}; "
        f"printf '%016x' $(stat -c %s {SHELL}) | xxd -r -p) | sha256sum"
    )
    if subprocess.run(["which", "xxd"], capture_output=True).returncode == 0:
        digest = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
        assert htlhash(memoryview(SHELL.read_bytes())) == digest.stdout[:32]
    assert htlhash(memoryview(b"short")) == htlhash(memoryview(b"short"))


def test_go_build_id_and_odd_notes() -> None:
    go = struct.pack("<III", 4, 7, 4) + b"Go\0\0" + b"abc/def\0"
    long_ = struct.pack("<III", 4, 1 << 30, 3) + b"GNU\0"
    elf = ElfFile(elf_file([], notes=go + long_))
    assert identify(elf).go_build_id == "abc/def"
    assert identify(elf).gnu_build_id == ""


def test_a_file_without_section_headers_is_unwound_through_its_segment() -> None:
    frames = eh_frame([(TEXT, 64, bytes([0x41, 0x0E, 16]))])
    header_at = 0x8000
    header = bytes([1, 0x1B, 0xFF, 0xFF]) + struct.pack("<i", EH_FRAME - (header_at + 4))
    header += bytes(8)
    parts = [Part(".eh_frame", 1, 2, EH_FRAME, frames), Part(".hdr", 1, 2, header_at, header)]
    whole = ElfFile(elf_file(parts))
    section = whole.section(".hdr")
    assert section is not None
    size = len(header)
    extra = [(0x6474E550, 4, section.offset, header_at, size, size, 4)]
    bare = ElfFile(elf_file(parts, sections=False, segments=extra))
    assert bare.sections == ()
    assert build_table(bare).pcs.tolist() == build_table(whole).pcs.tolist() == [0, 1, 64]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "too few"),
        (b"#!/bin/sh\n" * 20, "starts with"),
        (b"\x7fELF\x01\x01" + bytes(100), "64-bit"),
        (elf_file([], machine=40), "neither x86-64 nor"),
        (elf_file([])[:80], "program headers"),
    ],
)
def test_what_is_no_file_for_us_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ElfError, match=message):
        ElfFile(data)


def test_a_truncated_file_loses_its_sections_only() -> None:
    whole = eh_frame_file([(TEXT, 64, b"")])
    cut = ElfFile(whole[:-100])
    assert cut.sections == ()
    assert len(cut.segments) == 2


SAMPLE = eh_frame_file([(TEXT, 64, bytes([0x41, 0x0E, 16, 0x86, 2])), (TEXT + 64, 32, b"\x0a\x0b")])


@settings(max_examples=300, deadline=None)
@example(changes=[(87, 128)], length=0)  # code at an address beyond 2^63
@given(
    changes=st.lists(
        st.tuples(st.integers(0, len(SAMPLE) - 1), st.integers(0, 255)), min_size=1, max_size=12
    ),
    length=st.integers(0, len(SAMPLE)),
)
def test_damaged_files_raise_elf_errors_only(changes: list[tuple[int, int]], length: int) -> None:
    data = bytearray(SAMPLE)
    for at, value in changes:
        data[at] = value
    for candidate in (bytes(data), bytes(data[:length])):
        try:
            elf = ElfFile(candidate)
            identify(elf)
            elf.dynamic()
            table = build_table(elf)
        except ElfError:
            continue
        assert (table.pcs[1:] > table.pcs[:-1]).all()
        assert not len(table) or int(table.rules.max()) < len(table.rule_table)


def test_long_notes_are_left_out_and_the_rest_is_read() -> None:
    """Notes may overlap: copying each would cost gigabytes of copying for a file of megabytes."""
    long_ = struct.pack("<III", 4, 5000, 3) + b"GNU\0" + bytes(5000)
    build_id = struct.pack("<III", 4, 4, 3) + b"GNU\0" + b"\x12\x34\x56\x78"
    elf = ElfFile(elf_file([], notes=long_ + build_id))
    assert [note.desc.hex() for note in elf.notes()] == ["12345678"]
    assert identify(elf).gnu_build_id == "12345678"
