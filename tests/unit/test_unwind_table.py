"""Rules, their numbers, saved tables."""

from pathlib import Path

import numpy as np
import pytest
from flameherd_agent.elf.reader import ElfFile
from flameherd_agent.errors import ElfError
from flameherd_agent.kernel.abi import CfaKind, Rule
from flameherd_agent.unwind.build import RowSource, build_table
from flameherd_agent.unwind.rules import (
    MAX_TABLE_RULES,
    NO_EXPRESSION,
    Expression,
    RuleSet,
    cfa_expression,
    make_rules,
)
from flameherd_agent.unwind.table import UnwindTable

from tests.unit.elf_files import TEXT, eh_frame_file

LIBC = Path("/lib/x86_64-linux-gnu/libc.so.6")


@pytest.mark.parametrize(
    ("code", "rule"),
    [
        (bytes([0x77, 0x10]), Expression(CfaKind.SP, 16, 0)),
        (bytes([0x76, 0x10]), Expression(CfaKind.FP, 16, 0)),
        (bytes([0x7A, 0x00]), Expression(CfaKind.REGISTER, 0, 10)),
        (bytes([0x76, 0x78, 0x06]), Expression(CfaKind.FP_DEREF, -8, 0)),
        (bytes([0x77, 0x08, 0x06, 0x23, 0x08]), Expression(CfaKind.SP_DEREF, 8, 8)),
        (bytes([0x77, 0x08, 0x06, 0x38, 0x22]), Expression(CfaKind.SP_DEREF, 8, 8)),
        (bytes([0x7A, 0x00, 0x06]), NO_EXPRESSION),
        (b"", NO_EXPRESSION),
        (b"\x77", NO_EXPRESSION),
        (b"\x77" + b"\xff" * 12, NO_EXPRESSION),
    ],
)
def test_cfa_expressions(code: bytes, rule: Expression) -> None:
    assert cfa_expression(code, 7, 6) == rule


def rules_of(offsets: list[int]) -> "np.ndarray[tuple[int], np.dtype[np.void]]":
    rules = np.zeros(len(offsets), Rule)
    rules["cfa"] = 1
    rules["cfa_offset"] = offsets
    return rules


def test_rules_are_numbered_once_and_capped() -> None:
    numbers = RuleSet()
    assert numbers.number(rules_of([8, 16, 8, 24])).tolist() == [1, 2, 1, 3]
    assert numbers.number(rules_of([24, 32])).tolist() == [3, 4]
    assert numbers.number(np.zeros(2, Rule)).tolist() == [0, 0]
    assert numbers.table()["cfa_offset"].tolist() == [0, 8, 16, 24, 32]
    many = numbers.number(rules_of(list(range(MAX_TABLE_RULES + 50))))
    assert len(numbers) == MAX_TABLE_RULES
    assert many[-1] == 0


def test_rules_that_do_not_fit_are_no_information() -> None:
    one = np.ones(1, np.int64)
    fits = make_rules(one, 0 * one, -8 * one, 8 * one, 0 * one, 0 * one)
    assert fits["cfa"].tolist() == [1]
    for bad in ({"ra": 1 << 15}, {"cfa": 1 << 31}):
        rules = make_rules(
            one, one, bad.get("ra", -8) * one, bad.get("cfa", 8) * one, 0 * one, 0 * one
        )
        assert rules[0] == np.zeros(1, Rule)[0]


def test_saved_tables_load_as_they_were(tmp_path: Path) -> None:
    table = build_table(ElfFile.open(LIBC))
    path = tmp_path / "t"
    table.save(path)
    loaded = UnwindTable.load(path)
    assert loaded.base == table.base
    assert np.array_equal(loaded.pcs, table.pcs)
    assert np.array_equal(loaded.rules, table.rules)
    assert np.array_equal(loaded.rule_table, table.rule_table)
    loaded.shed()
    assert loaded.lookup(table.base + int(table.pcs[5])) == table.rule_table[table.rules[5]]
    assert loaded.row(table.base - 1) == -1
    for far in (table.base + (1 << 32), (1 << 64) - 1):
        assert loaded.row(far) == len(table) - 1


def test_damaged_tables_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    build_table(ElfFile(eh_frame_file([(TEXT, 64, b"\x41\x0e\x10")]))).save(path)
    good = path.read_bytes()
    UnwindTable.load(path)
    wrong_rule = bytearray(good)
    wrong_rule[-2:] = b"\xff\xff"
    damaged = [b"", good[:20], good[:-1], good + b"x", b"X" + good[1:], bytes(wrong_rule)]
    for at in range(40):
        damaged.append(good[:at] + bytes([good[at] ^ 32]) + good[at + 1 :])
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(ElfError):
            UnwindTable.load(path)


def test_rows_of_a_caller_fill_gaps() -> None:
    elf = ElfFile(eh_frame_file([(TEXT + 32, 32, b"\x0e\x10")]))
    extra = RowSource(np.array([TEXT, TEXT + 100], np.uint64), rules_of([99, 0]))
    extra.rules[1] = np.zeros(1, Rule)[0]
    table = build_table(elf, [extra])
    found = [int(table.lookup(TEXT + i)["cfa_offset"]) for i in (0, 40, 70, 101)]
    assert found == [99, 16, 99, 0]


def test_a_file_without_code_is_refused() -> None:
    data = bytearray(eh_frame_file([]))
    data[64 + 4] = 4  # the code segment's flags: readable only
    with pytest.raises(ElfError, match="no executable segment"):
        build_table(ElfFile(bytes(data)))
