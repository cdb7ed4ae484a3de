"""The rows of the builder against `readelf -wF`, for every row of real files.

`readelf` interprets the same sections with code of its own. It prints "exp" for any expression, so
what an expression means is tested in `test_unwind_rules.py`.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flameherd_agent.elf.reader import ET_DYN, ET_EXEC, ElfFile
from flameherd_agent.errors import ElfError
from flameherd_agent.kernel.abi import CfaKind, FpKind
from flameherd_agent.unwind.build import build_table, code_range
from flameherd_agent.unwind.eh_frame import PADDING_BYTES
from flameherd_agent.unwind.rules import RA_REGISTERS
from flameherd_agent.unwind.table import UnwindTable

_FDE = re.compile(r"FDE cie=([0-9a-f]+) pc=([0-9a-f]+)\.\.([0-9a-f]+)")
_CIE = re.compile(r"^([0-9a-f]+) [0-9a-f]+ [0-9a-f]+ CIE")
NOTHING = ("", "", "", "")
Row = tuple[str, str, str, str]


class Function:
    """One FDE as readelf prints it; rows of (address, (CFA, rbp, ra, rbx))."""

    def __init__(self, begin: int, end: int, order: int, rows: list[tuple[int, Row]]) -> None:
        self.begin, self.end, self.order, self.rows = begin, end, order, rows


def readelf_functions(path: Path) -> list[Function]:
    """All FDEs, `.eh_frame` before `.debug_frame`."""
    command = ["readelf", "--debug-dump=frames-interp,no-follow-links", "-W", str(path)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1 << 20
    )
    functions: list[Function] = []
    cies: dict[str, list[tuple[int, Row]]] = {}
    columns: dict[str, int] = {}
    rows: list[tuple[int, Row]] = []
    section = 0
    assert process.stdout is not None
    for line in process.stdout.read().splitlines():
        line = line.replace(" (", "(")  # a register's number and name: "r9 (r9)"
        if line[:1] not in "0123456789abcdef":
            if line.startswith("   LOC"):
                columns = {name: i for i, name in enumerate(line.split())}
            elif line.startswith("Contents of the"):
                section = 0 if ".eh_frame" in line else 1
                cies = {}
            continue
        if " FDE " in line[:60] and (match := _FDE.search(line)):
            rows = []
            begin, end = int(match[2], 16), int(match[3], 16)
            function = Function(begin, end, section, rows)
            inherited = cies.get(match[1].lstrip("0") or "0", [])
            rows.extend((begin, row) for _, row in inherited[-1:])
            functions.append(function)
        elif match := _CIE.match(line):
            rows = cies[match[1].lstrip("0") or "0"] = []
        elif (fields := line.split())[1:2] and fields[1] != "ZERO":
            wanted = ("CFA", "rbp", "ra", "rbx")
            cells = [fields[columns[c]] if c in columns else "u" for c in wanted]
            rows.append((int(fields[0], 16), (cells[0], cells[1], cells[2], cells[3])))
    process.stdout.close()
    assert process.wait() == 0
    return functions


def covered(functions: list[Function], base: int, limit: int) -> Iterator[tuple[int, Row]]:
    """(address, row) in order, overlaps clipped as documented, NOTHING after each function."""
    reach = -1
    for function in sorted(functions, key=lambda f: f.begin):
        begin = max(function.begin, reach)
        if not base <= function.begin < limit or begin >= function.end:
            continue
        inside = [(a, r) for a, r in function.rows if a < function.end]
        before = [r for a, r in inside if a <= begin]
        yield begin, before[-1]
        yield from ((a, r) for a, r in inside if a > begin)
        yield function.end, NOTHING
        reach = function.end


def expected_rows(path: Path, base: int, limit: int) -> tuple[list[int], list[Row]]:
    """Addresses and what holds from each on, by readelf."""
    functions = readelf_functions(path)
    layers: list[tuple[list[int], list[Row]]] = []
    for section in (0, 1):
        rows = dict(covered([f for f in functions if f.order == section], base, limit))
        layers.append((list(rows), list(rows.values())))
    if not layers[1][0]:
        return layers[0]
    addresses = sorted({*layers[0][0], *layers[1][0]})
    found = [
        [
            layer[1][i] if i >= 0 else NOTHING
            for i in np.searchsorted(layer[0], addresses, "right") - 1
        ]
        if layer[0]
        else [NOTHING] * len(addresses)
        for layer in layers
    ]
    # A row that the first section cannot tell is filled from the second.
    merged = [a if a != NOTHING and tells(a) else b for a, b in zip(*found, strict=True)]
    return addresses, merged


def tells(row: Row) -> bool:
    """Whether a row of readelf can be a rule at all."""
    if row[2] in _RA_REGISTERS:
        return row[0].startswith("rsp") and not row[1].startswith(("c", "exp"))
    return row[2] == "u" or re.fullmatch(r"c[+-]\d+", row[2]) is not None or row[0] == "exp"


_NAMES = ["rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", *(f"r{i}" for i in range(8, 16))]

_RA_REGISTERS = [f"r{number}({_NAMES[number]})" for number in RA_REGISTERS]


def describe(table: UnwindTable) -> list[Row]:
    """Each rule of a table as readelf would print it; expressions stay recognisable."""
    texts: list[Row] = []
    for rule in table.rule_table:
        kind, fp = CfaKind(rule["cfa"]), FpKind(rule["fp"])
        saved = f"c{rule['fp_offset']:+d}" if fp == FpKind.CFA else "u" if not fp else "exp"
        offset = f"{rule['cfa_offset']:+d}"
        cfa = {CfaKind.NONE: "", CfaKind.SP: f"rsp{offset}", CfaKind.FP: f"rbp{offset}"}.get(kind)
        if kind == CfaKind.REGISTER:
            cfa = f"{_NAMES[rule['cfa_extra']]}{offset}"
        plain = kind in (CfaKind.SP, CfaKind.FP) and rule["cfa_extra"]
        rbx = f"c{rule['cfa_extra']:+d}" if plain else "u"
        ra = f"c{rule['ra_offset']:+d}"
        if kind == CfaKind.SP_RA_REGISTER:
            cfa, ra = f"rsp{offset}", f"r{rule['cfa_extra']}({_NAMES[rule['cfa_extra']]})"
        texts.append((cfa if cfa is not None else kind.name, saved, ra, rbx))
    return texts


def same(expected: Row, got: Row) -> bool:
    """Whether readelf's row and a rule say the same as far as the rule can."""
    if expected == NOTHING or got[0] == "":
        return (expected == NOTHING or not tells(expected) or expected[0] == "exp") and not got[0]
    if got[0] == CfaKind.SIGNAL.name:
        return expected[0] == "exp" and expected[2] == "exp"
    if expected[2] == "u" or got[0] == CfaKind.END.name:
        return expected[2] == "u" and got[0] == CfaKind.END.name
    if expected[0] != "exp" and expected[0] != got[0]:
        return False
    fp = expected[1]
    fp_same = got[1] == fp or (got[1] == "u" and not fp.startswith("c"))
    plain = got[0].startswith(("rsp", "rbp")) and expected[0] != "exp"
    rbx_same = not plain or expected[3] == got[3] or not (expected[3] + got[3]).count("c")
    return fp_same and rbx_same and expected[2] == got[2]


def differences(path: Path) -> tuple[int, list[str]]:
    """(rows compared, differences) of one file."""
    elf = ElfFile.open(path)
    base, limit = code_range(elf)
    table = build_table(elf)
    addresses, rows = expected_rows(path, base, limit)
    if not addresses:
        return 0, [] if not len(table) else [f"{path}: {len(table)} rows where readelf has none"]
    known = {row: i for i, row in enumerate(dict.fromkeys([NOTHING, *rows]))}
    rules = describe(table)
    equal = np.array([[same(row, rule) for rule in rules] for row in known])
    mine = table.pcs.astype(np.int64) + base
    places = np.union1d(np.array(addresses), mine)
    theirs = np.searchsorted(addresses, places, "right") - 1
    numbers = np.array([known[row] for row in rows])
    wanted = np.where(theirs >= 0, numbers[theirs], 0)
    found = np.searchsorted(mine, places, "right") - 1
    got = np.where(found >= 0, table.rules[found] if len(mine) else 0, 0)
    wrong = np.flatnonzero(~equal[wanted, got])
    texts = list(known)
    end = np.append(places[1:], places[-1] + (1 << 30))
    report = [
        f"{path.name} {places[i]:#x}: readelf {texts[wanted[i]]}, table {rules[got[i]]}"
        for i in wrong.tolist()
        # The padding between two functions keeps the rule before it.
        if not (wanted[i] == 0 and end[i] - places[i] <= PADDING_BYTES)
    ]
    return len(addresses), report


def _library(pattern: str) -> Path:
    found = sorted(Path("/usr/lib/x86_64-linux-gnu").glob(pattern))
    if not found:
        pytest.skip(f"{pattern} is not installed")
    return found[0]


@pytest.mark.parametrize(
    "pattern", ["libc.so.6", "libstdc++.so.6", "libcrypto.so*", "ld-linux-x86-64.so.2", "libm.so.6"]
)
def test_rows_of_system_libraries_equal_readelf(pattern: str) -> None:
    compared, wrong = differences(_library(pattern))
    assert wrong == []
    assert compared > 500


def test_rows_of_the_running_python_equal_readelf() -> None:
    compared, wrong = differences(Path("/proc/self/exe").resolve())
    assert wrong == []
    assert compared > 500


def every_elf_file() -> Iterator[Path]:
    """Programs and shared libraries that Debian packages put on this machine, each inode once."""
    seen: set[tuple[int, int]] = set()
    for top in ("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/libexec", "/usr/local"):
        for folder, _, names in os.walk(top):
            for name in names:
                path = Path(folder) / name
                if path.is_symlink() or not path.is_file():
                    continue
                status = path.stat()
                with path.open("rb") as file:
                    head = file.read(20)
                # Debug files are never mapped; readelf fails on their empty sections.
                is_program = (
                    not name.endswith(".debug")
                    and head[:6] == b"\x7fELF\2\1"
                    and head[16] in (ET_EXEC, ET_DYN)
                )
                if is_program and (status.st_dev, status.st_ino) not in seen:
                    seen.add((status.st_dev, status.st_ino))
                    yield path


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_rows_of_every_file_equal_readelf() -> None:
    files = rows = 0
    wrong: list[str] = []
    for path in every_elf_file():
        try:
            compared, differing = differences(path)
        except ElfError as error:
            print(f"{path}: {error}")
            continue
        files += 1
        rows += compared
        wrong += differing
    print(f"{files} files, {rows} rows, {len(wrong)} differences")
    assert wrong == []
