"""Unwind rows of Go programs against the `.debug_frame` that Go's own linker writes."""

import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from flameherd_agent.elf.reader import ElfFile
from flameherd_agent.errors import ElfError
from flameherd_agent.kernel.abi import CfaKind, FpKind
from flameherd_agent.symbols.go_locate import find_go
from flameherd_agent.symbols.go_rows import GoRows, go_rows, sp_deltas
from flameherd_agent.symbols.gopclntab import GoTable
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.programs import go_symbols

pytestmark = pytest.mark.skipif(not go_symbols.go_available(), reason="no Go toolchain")


def _debug_frame(program: Path) -> list[tuple[int, int, int]]:
    """(from pc, to pc, CFA - SP) of all rows of `.debug_frame`, by readelf."""
    text = subprocess.run(
        ["readelf", "-wF", str(program)], capture_output=True, text=True, check=True, timeout=300
    ).stdout
    text = text[text.index("Contents of the .debug_frame") :]
    rows: list[tuple[int, int, int]] = []
    starts: list[tuple[int, int]] = []
    end = 0
    for line in [*text.splitlines(), "FDE pc=0..0"]:
        if "FDE" in line:
            ends = [start for start, _ in starts[1:]] + [end]
            rows += [(s, e, o) for (s, o), e in zip(starts, ends, strict=bool(starts)) if e > s]
            starts = []
            end = int(line.split("..")[1], 16)
        elif " rsp+" in line and end:
            pc, cfa = line.split()[:2]
            starts.append((int(pc, 16), int(cfa.removeprefix("rsp+"))))
    return rows


def _rule(rows: GoRows, pc: int) -> np.void:
    rule: np.void = rows.rules[int(rows.pcs.searchsorted(np.uint64(pc), "right")) - 1]
    return rule


@pytest.mark.parametrize("variant", ["cgo", "pie"])
def test_equals_debug_frame(variant: str) -> None:
    program = go_symbols.build(variant)
    elf = ElfFile.open(go_symbols.build(variant, stripped=True))
    go = find_go(elf)
    assert go is not None
    rows = go_rows(elf)
    assert rows is not None
    deltas = sp_deltas(go.table)
    pcs = deltas.pc + go.table.text
    truth = _debug_frame(program)
    assert len(truth) > 5000
    by_fp = 0
    for start, end, cfa in truth:
        for pc in (start, end - 1):
            at = int(pcs.searchsorted(pc, "right")) - 1
            assert int(deltas.delta[at]) + 8 == cfa, hex(pc)
            rule = _rule(rows, pc)
            if rule["cfa"] == CfaKind.SP:
                assert rule["cfa_offset"] == cfa, hex(pc)
            elif rule["cfa"] == CfaKind.FP:
                assert cfa >= 16, hex(pc)
                by_fp += 1
            elif rule["cfa"] == CfaKind.SP_RA_REGISTER:
                assert (rule["cfa_offset"], rule["cfa_extra"]) == (cfa, 12), hex(pc)
            else:
                assert rule["cfa"] in (CfaKind.END, CfaKind.SIGNAL), hex(pc)
    assert by_fp > len(truth) / 4
    assert len(rows.pcs) < 1.2 * len(truth)


def test_rows_are_sorted_and_end_with_go_text() -> None:
    elf = ElfFile.open(go_symbols.build("pie", stripped=True))
    rows, go = go_rows(elf), find_go(elf)
    assert rows is not None
    assert go is not None
    assert (np.diff(rows.pcs.astype(np.int64)) > 0).all()
    assert int(rows.pcs[-1]) == go.table.text + go.table.end
    assert rows.rules[-1]["cfa"] == CfaKind.NONE
    for first, second in pairwise(rows.rules[:2000]):
        assert first != second


def test_where_stacks_end_and_change() -> None:
    program = go_symbols.build("cgo")
    at = {
        name.removesuffix(".abi0"): address
        for name, address in sorted(go_symbols.symbol_addresses(program).items())
    }
    rows = go_rows(ElfFile.open(program))
    assert rows is not None
    for name in ("runtime.goexit", "runtime.mstart", "runtime.rt0_go", "runtime.gogo"):
        assert _rule(rows, at[name])["cfa"] == CfaKind.END, name
    # on entry as everywhere; behind `push rbp; mov rbp, rsp` by rbp, whichever stack SP is in
    for name in ("runtime.systemstack", "runtime.asmcgocall", "runtime.cgocallback"):
        assert _rule(rows, at[name])["cfa"] == CfaKind.SP, name
        body = _rule(rows, at[name] + 16)
        assert (body["cfa"], body["cfa_offset"]) == (CfaKind.FP, 16), name
        assert (body["fp"], body["fp_offset"]) == (FpKind.CFA, -16), name
    vfork = rows.rules[np.isin(rows.rules["cfa"], CfaKind.SP_RA_REGISTER)]
    assert vfork.tolist() == [(CfaKind.SP_RA_REGISTER, 0, 0, 0, 0, 12)]
    trampoline = at["runtime.sigreturn__sigaction"]
    assert _rule(rows, trampoline)["cfa"] == CfaKind.SIGNAL
    assert _rule(rows, trampoline - 1)["cfa"] == CfaKind.SIGNAL
    assert _rule(rows, at["runtime.sigtramp"])["cfa"] == CfaKind.SP


def test_no_go_no_rows() -> None:
    assert go_rows(ElfFile.open("/bin/true")) is None


@pytest.fixture(scope="module")
def table_bytes() -> bytes:
    go = find_go(ElfFile.open(go_symbols.build("pie", stripped=True)))
    assert go is not None
    return bytes(go.pclntab)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_tables_never_crash(table_bytes: bytes, data: st.DataObject) -> None:
    damaged = bytearray(table_bytes)
    for _ in range(data.draw(st.integers(1, 40))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        deltas = sp_deltas(GoTable(memoryview(damaged), 0, memoryview(b""), 0))
    except ElfError:
        return
    assert (np.diff(deltas.pc) >= 0).all()
