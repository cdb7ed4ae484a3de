"""Symbol indexes of ELF files against binutils, and of files made for the purpose."""

import lzma
import re
import struct
import subprocess
from pathlib import Path

import pytest
from flameherd_agent.elf.reader import PT_GNU_EH_FRAME, ElfFile
from flameherd_agent.errors import ElfError
from flameherd_agent.symbols import debug_files
from flameherd_agent.symbols.build import IndexSummary, build_symbol_index
from flameherd_agent.symbols.debug_files import DebugOpener
from flameherd_agent.symbols.function_starts import function_starts
from flameherd_agent.symbols.index import SymbolIndex
from flameherd_agent.types import FileAddress, FrameType
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.elf_files import TEXT, elf_file

LOADER = Path("/lib64/ld-linux-x86-64.so.2")
SOURCE = r"""
#include <string.h>
#include <stdio.h>
__attribute__((noinline)) int work(const char *s) { return (int)strlen(s) + puts(s); }
__attribute__((noinline)) static int hidden(const char *s) { return work(s) * 3; }
int alias_of_work(const char *s) __attribute__((alias("work")));
int __underscored(const char *s) __attribute__((alias("work")));
static int (*resolve(void))(int);
static int real(int x) { return x + 1; }
int chosen(int x) __attribute__((ifunc("resolve")));
static int (*resolve(void))(int) { return real; }
__asm__(".text\nasm_function:\n nop\n nop\n.Llocal:\n nop\nasm_next:\n nop\n ret\n");
int main(int n, char **v) { return hidden(v[0]) + chosen(n); }
"""


def run(*command: object) -> str:
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=True, timeout=120
    ).stdout


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    (folder / "a.c").write_text(SOURCE)
    run("gcc", "-O1", "-g", "-o", folder / "a", folder / "a.c")
    return folder / "a"


def build(
    path: Path, target: Path, opener: DebugOpener | None = None, inside: str = ""
) -> tuple[SymbolIndex, IndexSummary]:
    out = target / "index"
    summary = build_symbol_index(ElfFile.open(path), out, opener=opener, path=inside)
    assert summary.size_bytes == out.stat().st_size
    return SymbolIndex.open(out), summary


def symbols(path: Path) -> dict[int, tuple[int, set[str]]]:
    """Address → (size of the first sized one, names) of functions, by readelf."""
    found: dict[int, tuple[int, set[str]]] = {}
    for line in run("readelf", "-sW", path).splitlines():
        fields = line.split()
        if len(fields) < 8 or fields[3] not in ("FUNC", "IFUNC") or not fields[6].isdigit():
            continue
        address, size, name = int(fields[1], 16), int(fields[2], 0), fields[7].split("@")[0]
        known = found.setdefault(address, (size, set()))
        found[address] = (max(known[0], size), known[1] | {name})
    return found


def own_name(index: SymbolIndex, address: int) -> str | None:
    lines = index.lookup(FileAddress(address))
    return (lines[0].system_name or lines[0].function) if lines else None


LIBRARIES = [
    path
    for path in (
        Path("/usr/lib/x86_64-linux-gnu/libc.so.6"),
        Path("/usr/lib/x86_64-linux-gnu/libstdc++.so.6"),
        Path("/bin/bash"),
        *Path("/usr/lib/jvm").glob("temurin-*/lib/server/libjvm.so"),
    )
    if path.exists()
]


@pytest.mark.parametrize("path", LIBRARIES, ids=lambda p: p.name)
def test_every_function_of_a_library(path: Path, tmp_path: Path) -> None:
    index, summary = build(path, tmp_path)
    assert not summary.problems
    truth = symbols(path)
    assert len(truth) > 1000
    for address, (size, names) in truth.items():
        assert own_name(index, address) in names, hex(address)
        last = address + size - 1
        if size and not any(a in truth for a in range(address + 1, last + 1)):
            assert own_name(index, last) in names, hex(last)
    ends = [address + size for address, (size, _) in sorted(truth.items()) if size]
    batch = index.lookup_batch([FileAddress(e) for e in ends])
    assert batch == [index.lookup(FileAddress(e)) for e in ends]


@pytest.mark.parametrize("path", LIBRARIES[:3], ids=lambda p: p.name)
def test_plt_names_equal_objdump(path: Path, tmp_path: Path) -> None:
    index, _ = build(path, tmp_path)
    compared = 0
    for section in (".plt", ".plt.sec", ".plt.got"):
        if ElfFile.open(path).section(section) is None:
            continue
        for line in run("objdump", "-d", "-j", section, path).splitlines():
            if line.endswith("@plt>:") and "*ABS*" not in line:
                address, name = line.split(maxsplit=1)
                (found,) = index.lookup(FileAddress(int(address, 16) + 1))
                raw = found.system_name or found.function
                assert raw == name[1:-2]
                compared += 1
    assert compared > 10


@pytest.mark.parametrize("path", [LOADER, Path("/bin/bash")])
def test_functions_without_a_name_have_a_beginning(path: Path, tmp_path: Path) -> None:
    """Every function of the unwind tables that no symbol covers, by readelf."""
    file = path.resolve()
    dump = run("readelf", "--debug-dump=frames,no-follow-links", "-W", file)
    described = re.findall(r"FDE cie=\S+ pc=([0-9a-f]+)\.\.([0-9a-f]+)", dump)
    index, _ = build(file, tmp_path)
    unnamed = 0
    for begin, end in sorted((int(a, 16), int(b, 16)) for a, b in described):
        for address in {begin, (begin + end) // 2, end - 1}:
            if index.lookup(FileAddress(address)):
                continue
            found = index.function_start(FileAddress(address))
            assert found == begin or index.lookup(FileAddress(begin)), hex(address)
            unnamed += 1
    assert unnamed > 100
    assert index.function_start(FileAddress(1)) is None
    assert index.function_start(FileAddress(1 << 40)) is None


def test_a_table_that_does_not_fit_costs_only_itself(tmp_path: Path) -> None:
    data = bytearray(LOADER.resolve().read_bytes())
    segment = next(s for s in ElfFile(bytes(data)).segments if s.type == PT_GNU_EH_FRAME)
    data[segment.offset + 8 : segment.offset + 12] = b"\xff\xff\xff\x7f"
    (tmp_path / "file").write_bytes(data)
    index, summary = build(tmp_path / "file", tmp_path)
    assert any("does not fit" in problem for problem in summary.problems)
    assert index.function_start(FileAddress(0x5000)) is None


def test_rules_of_names(program: Path, tmp_path: Path) -> None:
    index, _ = build(program, tmp_path)
    at = {f[2]: int(f[0], 16) for f in map(str.split, run("nm", program).splitlines()) if f[2:]}
    for name in ("main", "hidden", "chosen", "asm_function", "asm_next", "_start"):
        assert own_name(index, at[name]) == name or name == "chosen"
    assert own_name(index, at["work"]) in ("work", "alias_of_work")
    assert own_name(index, at["asm_function"] + 2) == "asm_function"
    assert own_name(index, 0) is None
    assert index.frame_type(FileAddress(at["main"])) is FrameType.NATIVE
    first, second = tmp_path / "one", tmp_path / "two"
    for target in (first, second):
        build_symbol_index(ElfFile.open(program), target)
    assert first.read_bytes() == second.read_bytes()


def test_dynamic_symbols_without_section_headers(tmp_path: Path) -> None:
    library = LIBRARIES[0]
    data = bytearray(library.read_bytes())
    data[40:48] = bytes(8)
    data[58:64] = bytes(6)
    (tmp_path / "bare").write_bytes(data)
    index, _ = build(tmp_path / "bare", tmp_path)
    named = [own_name(index, a) in names for a, (_, names) in symbols(library).items()]
    assert all(named)


@pytest.fixture(scope="module")
def separated(program: Path) -> tuple[Path, Path]:
    """(stripped program with a debug link, debug file)."""
    debug, stripped = program.with_name("a.debug"), program.with_name("a.stripped")
    run("objcopy", "--only-keep-debug", program, debug)
    run("objcopy", "--strip-all", f"--add-gnu-debuglink={debug}", program, stripped)
    return stripped, debug


def address_of(program: Path, name: str) -> int:
    return next(a for a, (_, names) in symbols(program).items() if name in names)


def test_debug_link(program: Path, separated: tuple[Path, Path], tmp_path: Path) -> None:
    stripped, debug = separated
    asked: list[str] = []

    def opener(path: str) -> ElfFile | None:
        asked.append(path)
        return ElfFile.open(debug) if path == "/app/.debug/a.debug" else None

    hidden = address_of(program, "hidden")
    assert own_name(build(stripped, tmp_path)[0], hidden) is None
    index, summary = build(stripped, tmp_path, opener, "/app/a")
    assert own_name(index, hidden) == "hidden"
    assert not summary.problems
    assert asked[0].startswith("/usr/lib/debug/.build-id/")


def test_a_debug_file_of_another_build_is_refused(
    program: Path, separated: tuple[Path, Path], tmp_path: Path
) -> None:
    stripped, _ = separated
    other = ElfFile.open("/bin/true")
    index, summary = build(stripped, tmp_path, lambda path: other, "/app/a")
    assert own_name(index, address_of(program, "hidden")) is None
    assert "another build id" in summary.problems[0]
    index, summary = build(
        stripped, tmp_path, lambda path: None if ".build-id" in path else other, "/app/a"
    )
    assert "CRC" in summary.problems[0]


def test_mini_debug_info(program: Path, separated: tuple[Path, Path], tmp_path: Path) -> None:
    mini, packed, target = tmp_path / "mini", tmp_path / "mini.xz", tmp_path / "a"
    run("objcopy", "-S", "--keep-symbol=hidden", separated[1], mini)
    packed.write_bytes(lzma.compress(mini.read_bytes()))
    run("objcopy", "--add-section", f".gnu_debugdata={packed}", separated[0], target)
    index, summary = build(target, tmp_path)
    assert own_name(index, address_of(program, "hidden")) == "hidden"
    assert not summary.problems


@pytest.mark.parametrize("content", ["bomb", "garbage"])
def test_hostile_mini_debug_info_is_left_out(
    content: str, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debug_files, "MAX_DEBUGDATA_BYTES", 1 << 20)
    packed, target = tmp_path / "packed", tmp_path / "a"
    packed.write_bytes(lzma.compress(bytes(8 << 20)) if content == "bomb" else b"\xfd7zXZ junk")
    run("objcopy", "--add-section", f".gnu_debugdata={packed}", program, target)
    index, summary = build(target, tmp_path)
    assert ".gnu_debugdata" in summary.problems[0]
    assert own_name(index, address_of(program, "hidden")) == "hidden"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_files_never_crash(
    program: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    damaged = bytearray(program.read_bytes())
    sections = int.from_bytes(damaged[40:48], "little")
    for _ in range(data.draw(st.integers(1, 30))):
        at = data.draw(
            st.one_of(
                st.integers(0, len(damaged) - 1),
                st.integers(sections, len(damaged) - 1),
                st.integers(0, 1023),
            )
        )
        damaged[at] = data.draw(st.integers(0, 255))
    target = tmp_path_factory.getbasetemp() / "damaged-index"
    try:
        build_symbol_index(ElfFile(bytes(damaged)), target)
    except ElfError:
        return
    index = SymbolIndex.open(target)
    for address in (0, 0x1000, 0x1139, (1 << 64) - 1):
        index.lookup(FileAddress(address))


def test_a_search_table_at_no_address_of_a_program_is_an_elf_error() -> None:
    head = struct.pack("<4siI2i", b"\x01\x1b\x03\x3b", 0, 1, 16, 0)
    file = bytearray(elf_file([], segments=[(0x6474E550, 4, 0, 0, len(head), len(head), 4)]))
    file[TEXT : TEXT + len(head)] = head
    for address, ends_well in ((0x9000, True), (1 << 63, False), ((1 << 64) - 8, False)):
        struct.pack_into("<QQ", file, 64 + 56 + 8, TEXT, address)
        if ends_well:
            assert function_starts(ElfFile(bytes(file))).tolist() == [0x9010]
        else:
            with pytest.raises(ElfError, match="no address"):
                function_starts(ElfFile(bytes(file)))
