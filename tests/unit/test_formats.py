"""The file formats, each read back by another reader than our own where there is one."""

import gzip
import json
import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from flameherd_agent.errors import EnvironmentProblem, UsageError
from flameherd_agent.model import (
    FrameType,
    Line,
    Location,
    Mapping,
    Profile,
    ResourceProfiles,
    Sample,
)
from flameherd_agent.pipeline.formats import EXTENSIONS, check_path, write_profile
from flameherd_agent.pipeline.formats import collapsed as collapsed_format
from flameherd_agent.pipeline.formats import pprof as pprof_format
from flameherd_agent.pipeline.formats import svg as svg_format
from flameherd_agent.pipeline.frames import (
    MAX_NAME,
    clean,
    executables,
    placeholder,
    with_process_roots,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.profiles import HOSTILE, MAIN, SYSCALL, resources

GO = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
SVG = "{http://www.w3.org/2000/svg}"
PERIOD_19, PERIOD_97 = round(1e9 / 19), round(1e9 / 97)
TOTAL_NS = 11 * PERIOD_19 + 8 * PERIOD_97


def one(*stack: Location, value: int = 1) -> list[ResourceProfiles]:
    return [ResourceProfiles((), [Profile([Sample(stack, (), value)], 1000, 1, 1)])]


def named(name: str, kind: FrameType = FrameType.NATIVE) -> Location:
    return Location(kind, 1, None, (Line(name),))


# --- writing ---


def test_an_unknown_extension_names_the_four(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        write_profile(tmp_path / "out.json", resources())
    for extension in EXTENSIONS:
        assert extension in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_missing_folder_is_told_before_recording(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder"):
        check_path(tmp_path / "none" / "out.svg")


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, extension: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"out{extension}"
    write_profile(path, resources())
    before = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("flameherd_agent.pipeline.formats.write.os.fsync", full)
    with pytest.raises(EnvironmentProblem, match="No space left"):
        write_profile(path, one(MAIN))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def _umask() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(r"Umask:\s*(\d+)", status)
    assert found
    return int(found.group(1), 8)


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_no_samples_is_still_a_file(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"out{extension}"
    write_profile(path, [])
    write_profile(path, [ResourceProfiles((), [Profile([], 0, 0, 0)])])
    assert path.exists()


# --- names ---


def test_placeholders() -> None:
    assert placeholder(Location(FrameType.NATIVE, 0x10, Mapping("/a/b.so"))) == "[b.so]+0x10"
    assert placeholder(Location(FrameType.NATIVE, 0x10, Mapping("[vdso]"))) == "[vdso]+0x10"
    assert placeholder(Location(FrameType.KERNEL, 0x10)) == "[kernel]+0x10"
    assert placeholder(Location(FrameType.NATIVE, 0x10)) == "[unknown]+0x10"


def test_clean_bounds_and_repairs() -> None:
    assert clean("x" * 9999) == "x" * (MAX_NAME - 1) + "…"
    assert clean("a\udc80b") == "a?b"
    assert clean("é") == "é"


# --- collapsed ---


def test_collapsed(tmp_path: Path) -> None:
    path = tmp_path / "out.collapsed.txt"
    write_profile(path, resources())
    lines = path.read_text(encoding="utf-8").split("\n")
    assert lines[-1] == ""
    evil = 'evil_"><script>alert(1)</script>_]]>&_?_é'
    assert lines[:-1] == [
        "[truncated];main;work 1",
        "main.main 7",
        "main;[app]+0x3000;outer;inner;work 8",
        f"main;{evil} 1",
        "main;work;do_syscall_64_[k] 2",
    ]


@given(st.lists(st.text(max_size=20), min_size=1, max_size=4), st.integers(1, 9))
def test_collapsed_survives_any_name(names: list[str], value: int) -> None:
    text = b"".join(collapsed_format.chunks(one(*map(named, names), value=value))).decode()
    assert len(text.splitlines()) == 1
    stack, _, count = text.rstrip("\n").rpartition(" ")
    assert int(count) == value
    assert len(stack.split(";")) == len(names)


def test_process_roots(tmp_path: Path) -> None:
    path = tmp_path / "out.collapsed.txt"
    write_profile(path, with_process_roots(resources()))
    text = path.read_text(encoding="utf-8")
    assert "app;[truncated];main;work 1\n" in text
    assert "app;main.main 7\n" in text
    assert executables(resources()) == {"app"}


# --- speedscope ---


def test_speedscope(tmp_path: Path) -> None:
    path = tmp_path / "out.speedscope.json"
    write_profile(path, resources())
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    (profile,) = document["profiles"]
    assert (profile["type"], profile["unit"], profile["startValue"]) == (
        "sampled",
        "nanoseconds",
        0,
    )
    assert profile["endValue"] == sum(profile["weights"]) == TOTAL_NS
    assert len(profile["samples"]) == len(profile["weights"])
    frames = document["shared"]["frames"]
    stacks = {
        tuple(frames[index]["name"] for index in stack): weight
        for stack, weight in zip(profile["samples"], profile["weights"], strict=True)
    }
    assert stacks["main", "[app]+0x3000", "outer", "inner", "work"] == 8 * PERIOD_19
    assert stacks["[truncated]", "main", "work"] == PERIOD_19
    assert stacks[("main.main",)] == 7 * PERIOD_97
    assert {"name": "inner", "file": "/src/app.h", "line": 3} in frames


# --- pprof ---


def pprof(path: Path, *options: str) -> str:
    assert GO
    result = subprocess.run(
        [GO, "tool", "pprof", *options, str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PPROF_TMPDIR": str(path.parent), "GOTOOLCHAIN": "local"},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.skipif(GO is None, reason="needs Go's pprof as the reader")
def test_pprof_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "out.pb.gz"
    write_profile(path, resources())
    raw = pprof(path, "-raw")
    assert "PeriodType: cpu nanoseconds" in raw
    assert f"Period: {PERIOD_19}" in raw
    assert "Duration: 10.0" in raw
    assert "samples/count cpu/nanoseconds" in raw
    assert "first" in raw
    assert re.search(rf"^\s+3\s+{3 * PERIOD_19}: 1 2 3 4\s*$", raw, re.MULTILINE)
    assert re.search(r"pid:\[10\].*tid:\[11\]|tid:\[11\].*pid:\[10\]", raw)
    assert "thread:[io]" in raw
    assert f"container:[{'c' * 64}]" in raw
    assert re.search(r"2: 0x2000 M=1 inner /src/app.h:3.*\n\s+outer /src/app.cc:40", raw)
    assert re.search(r"3: 0x3000 M=1\s*$", raw, re.MULTILINE)
    assert "[truncated]" in raw
    mapping = re.compile(r"^(\d+): 0x0/(0x[0-9a-f]+)/0x0 (\S+) (\S+)", re.MULTILINE)
    mappings = {match[3]: match[4] for match in mapping.finditer(raw)}
    assert mappings["/usr/bin/app"] == "0a" * 20
    assert mappings["/usr/bin/goapp"] == "go/build/id"


@pytest.mark.skipif(GO is None, reason="needs Go's pprof as the reader")
def test_pprof_adds_up(tmp_path: Path) -> None:
    path = tmp_path / "out.pb.gz"
    write_profile(path, resources())
    top = pprof(path, "-top", "-sample_index=samples", "-nodecount=50")
    flat = {
        line.split(None, 5)[5]: line.split()[0]
        for line in top.splitlines()
        if re.match(r"\s+\d+ ", line)
    }
    assert flat["work"] == "9"
    assert flat["main.main"] == "7"
    assert flat["do_syscall_64"] == "2"
    traces = pprof(path, "-traces", "-unit=ns", "-sample_index=cpu")
    assert f"{7 * PERIOD_97}ns" in traces


@given(st.integers(0, 2**64 - 1))
def test_varint(value: int) -> None:
    encoded = pprof_format.varint(value)
    assert sum((byte & 0x7F) << 7 * n for n, byte in enumerate(encoded)) == value
    assert all(byte & 0x80 for byte in encoded[:-1])
    assert not encoded[-1] & 0x80


def test_pprof_with_hostile_names_is_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "out.pb.gz"
    write_profile(path, one(named(HOSTILE)))
    assert HOSTILE.encode("utf-8", "replace") in gzip.decompress(path.read_bytes())


# --- svg ---


def svg_frames(path: Path) -> dict[str, ET.Element]:
    tree = ET.fromstring(path.read_bytes())
    return {
        frame.attrib["data-n"]: frame for frame in tree.iter(f"{SVG}g") if "data-n" in frame.attrib
    }


def test_svg(tmp_path: Path) -> None:
    path = tmp_path / "out.svg"
    write_profile(path, resources())
    frames = svg_frames(path)
    assert int(frames["all"].attrib["data-w"]) == TOTAL_NS
    assert int(frames["main.main"].attrib["data-w"]) == 7 * PERIOD_97
    title = frames["do_syscall_64"].findtext(f"{SVG}title")
    assert title is not None
    assert title.startswith("do_syscall_64 (kernel): ")
    assert title.endswith(f"{100 * 2 * PERIOD_19 / TOTAL_NS:.2f} %")
    fills = {
        name: rect.attrib["fill"]
        for name, frame in frames.items()
        if (rect := frame.find(f"{SVG}rect")) is not None
    }
    hues = [fills[name].split(",")[0] for name in ("do_syscall_64", "main", "main.main")]
    assert len(set(hues)) == 3
    assert "shop/cpu" in path.read_text(encoding="utf-8")


def test_svg_children_lie_within_their_parents(tmp_path: Path) -> None:
    placed = [
        (start, start + node.weight, depth)
        for node, start, depth in svg_format._layout(svg_format._tree(resources()))
    ]
    for start, end, depth in placed:
        if depth:
            assert any(s <= start and end <= e and d == depth - 1 for s, e, d in placed)
        assert not any(
            d == depth and s < end and start < e and (s, e) != (start, end) for s, e, d in placed
        )


def test_svg_holds_hostile_names_as_text_only(tmp_path: Path) -> None:
    path = tmp_path / "out.svg"
    hostile = [
        HOSTILE,
        '" onload="alert(1)',
        "</title><script>alert(2)</script>",
        "&lt;b&gt;&amp;",
        "' onclick='x",
        "<!ENTITY x SYSTEM 'file:///etc/passwd'>",
    ]
    write_profile(path, one(*map(named, hostile)))
    tree = ET.fromstring(path.read_bytes())
    assert len(list(tree.iter(f"{SVG}script"))) == 1
    allowed = {
        *("class", "tabindex", "data-n", "data-x", "data-w", "data-d", "id", "viewBox", "style"),
        *("x", "y", "width", "height", "rx", "fill", "text-anchor", "data-width"),
    }
    for element in tree.iter():
        assert set(element.attrib) <= allowed
        assert "href" not in element.attrib
    assert "&lt;b&gt;&amp;" in svg_frames(path)
    # The only address in the file is the name of the SVG format itself.
    assert set(re.findall(r"https?://[^\"'\s]+", path.read_text(encoding="utf-8"))) == {
        "http://www.w3.org/2000/svg"
    }


@given(st.text(max_size=30))
def test_svg_survives_any_name(name: str) -> None:
    ET.fromstring(b"".join(svg_format.chunks(one(named(name)))))


def test_svg_prunes_what_nobody_can_see(tmp_path: Path) -> None:
    many = [Sample((named(f"f{n}"), MAIN), (), 1) for n in range(50_000)]
    many.append(Sample((SYSCALL, MAIN), (), 50_000))
    path = tmp_path / "out.svg"
    write_profile(path, [ResourceProfiles((), [Profile(many, 1, 1, 1)])])
    assert set(svg_frames(path)) == {"all", "main", "do_syscall_64"}


def test_svg_of_a_deep_stack(tmp_path: Path) -> None:
    path = tmp_path / "out.svg"
    write_profile(path, one(*[named(f"f{n}") for n in range(3000)]))
    assert len(svg_frames(path)) == 3001
