"""Perf maps: parsing of untrusted text, incremental reads, the files of processes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from flameherd_agent.symbols import perfmap
from flameherd_agent.symbols.perfmap import PerfMap, PerfMaps, parse
from flameherd_agent.types import Address, Pid
from hypothesis import given
from hypothesis import strategies as st


def _name(table: PerfMap | PerfMaps, address: int, pid: int = 0) -> str | None:
    if isinstance(table, PerfMaps):
        line = table.lookup(Pid(pid), Address(address))
    else:
        line = table.lookup(Address(address))
    return None if line is None else line.function


@pytest.mark.parametrize(
    ("line", "function"),
    [
        (b"7f00 10 LazyCompile:*f /app/a.js:1", (0x7F00, 0x7F10, b"LazyCompile:*f /app/a.js:1")),
        (b"0x7f00 0x10 f", (0x7F00, 0x7F10, b"f")),
        (b"7f00 10 f\r", (0x7F00, 0x7F10, b"f")),
        (b"7f00 10 a\0b", (0x7F00, 0x7F10, b"a")),
        (b"7f00 10 \0b", None),
        (b"7f00 0 empty", None),
        (b"7f00 10", None),
        (b"7f00 10 ", None),
        (b"-7f00 10 f", None),
        (b"7f_00 10 f", None),
        (b"zz 10 f", None),
        (b"11112222333344445 10 f", None),
        (b"ffffffffffffffff 10 f", None),
        (b"7f00 10 " + b"x" * 5000, None),
    ],
)
def test_lines(line: bytes, function: tuple[int, int, bytes] | None) -> None:
    assert parse(line) == ([] if function is None else [function])


def test_reads_what_was_appended(tmp_path: Path) -> None:
    path = tmp_path / "perf-1.map"
    path.write_bytes(b"1000 100 first\n2000 100 sec")
    table = PerfMap()
    fd = os.open(path, os.O_RDONLY)
    try:
        assert table.update(fd)
        assert (_name(table, 0x1050), _name(table, 0x2000)) == ("first", None)
        with path.open("ab") as file:
            file.write(b"ond\n1080 10 inner\n1000 20 moved\n")
        assert table.update(fd)
        assert not table.update(fd)
    finally:
        os.close(fd)
    assert _name(table, 0x2000) == "second"
    assert _name(table, 0x1084) == "inner"
    assert _name(table, 0x1000) == "moved"
    assert _name(table, 0xFFF) is None
    assert _name(table, 0x2100) is None


def test_a_replaced_file_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "perf-1.map"
    table = PerfMap()
    for text in (b"1000 100 old\n", b"2000 100 new\n"):
        path.unlink(missing_ok=True)
        path.write_bytes(text)
        fd = os.open(path, os.O_RDONLY)
        try:
            table.update(fd)
        finally:
            os.close(fd)
        (tmp_path / "keeps-the-inode").unlink(missing_ok=True)
        os.link(path, tmp_path / "keeps-the-inode")
    assert (_name(table, 0x1000), _name(table, 0x2000)) == (None, "new")


def test_caps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(perfmap, "MAX_FUNCTIONS", 3)
    path = tmp_path / "map"
    path.write_bytes(b"".join(b"%x 10 f%d\n" % (i * 16, i) for i in range(1, 9)))
    table = PerfMap()
    fd = os.open(path, os.O_RDONLY)
    try:
        table.update(fd)
    finally:
        os.close(fd)
    assert len(table) == 3
    assert table.is_cut


def test_the_map_of_a_process() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    path = Path(f"/tmp/perf-{child.pid}.map")
    try:
        maps = PerfMaps()
        assert _name(maps, 0x1000, child.pid) is None
        path.write_bytes(b"1000 100 jitted\n")
        assert _name(PerfMaps(), 0x1000, child.pid) == "jitted"
        if os.geteuid() == 0:
            os.chown(path, 12345, 12345)
            assert _name(PerfMaps(), 0x1000, child.pid) is None
    finally:
        path.unlink(missing_ok=True)
        child.communicate(b"\n", timeout=30)
    assert _name(PerfMaps(), 0x1000, child.pid) is None


@given(st.binary(max_size=300))
def test_hostile_text_never_crashes(data: bytes) -> None:
    for start, end, name in parse(data):
        assert 0 <= start < end < 1 << 64
        assert name


def test_a_file_that_takes_long_to_read_is_left_alone_for_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    read: list[float] = []

    def slow(pid: Pid, known: PerfMap | None) -> PerfMap:
        nonlocal now
        read.append(now)
        now += 2.0
        return known or PerfMap()

    monkeypatch.setattr(perfmap, "_refreshed", slow)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    maps = PerfMaps()
    for _ in range(100):
        maps.lookup(Pid(1), Address(0x1000))
        now += 1.0
    assert read == [100.0, 140.0, 180.0]
