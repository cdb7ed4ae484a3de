"""`/proc/PID/maps`: what proc(5) says, and nothing that only looks like it."""

import os
from pathlib import Path

import pytest
from flameherd_agent.process.maps import NO_FILE, VDSO_FILE, FileKey, Region, parse_maps, read_maps
from flameherd_agent.types import Pid


@pytest.mark.parametrize(
    ("line", "region"),
    [
        (
            b"7f001000-7f002000 r-xp 00001000 fd:01 42                    /usr/lib/a b.so (deleted)",
            Region(0x7F001000, 0x7F002000, 0x1000, FileKey((0xFD, 1), 42, "/usr/lib/a b.so (deleted)")),
        ),
        (b"7f00-7f10 rwxp 00000000 00:00 0 ", Region(0x7F00, 0x7F10, 0, NO_FILE)),
        (b"7f00-7f10 r-xp 00000000 00:00 0   [vdso]", Region(0x7F00, 0x7F10, 0, VDSO_FILE)),
        (b"7f00-7f10 r--p 00000000 fd:01 42 /x", None),
        (b"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]", None),
        (b"7f10-7f00 r-xp 00000000 fd:01 42 /x", None),
        (b"7f00-17f100000000000000 r-xp 00000000 fd:01 42 /x", None),
        (b"7f00-7f10 r-xp -1 fd:01 42 /x", None),
        (b"7f00-7f10 r-xp 00000000 fd:01 99999999999999999999 /x", None),
        (b"7_f00-7f10 r-xp 00000000 fd:01 42 /x", None),
        (b"7f00-7f10 x", None),
    ],
)  # fmt: skip
def test_lines(line: bytes, region: Region | None) -> None:
    assert parse_maps(line + b"\n") == ([] if region is None else [region])


def test_a_live_process() -> None:
    """The interpreter's own executable is among its mappings, where /proc/self/map_files has it."""
    target = Path("/proc/self/exe").readlink()
    found = [region for region in read_maps(Pid(os.getpid())) if region.file.path == str(target)]
    assert found
    assert found[0].file.inode == target.stat().st_ino
