"""The flat-scan builder against a plain interpreter of the same byte code, on random programs."""

import struct
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from flameherd_agent.elf.reader import SHF_COMPRESSED, ElfFile
from flameherd_agent.kernel.abi import CfaKind, FpKind, Rule
from flameherd_agent.unwind.build import build_table
from flameherd_agent.unwind.rules import MAX_TABLE_RULES, RA_REGISTERS, RuleSet
from flameherd_agent.unwind.table import UnwindTable
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.elf_files import (
    EH_FRAME,
    INITIAL,
    TEXT,
    Part,
    cie,
    eh_frame_file,
    elf_file,
    fde,
    record,
    sleb,
    uleb,
)

# A rule as readelf thinks of it: (cfa register, cfa offset), rbp, ra; each of the latter two is
# None (unchanged), "undefined", or an offset from the CFA.
Where = int | str | None
Rules = tuple[int, int, Where, Where]
START: Rules = (7, 8, None, -8)
Step = tuple[str, int, int]


def encode(steps: list[Step]) -> bytes:
    """Instructions for steps of (name, first operand, second operand)."""
    out = bytearray()
    for name, a, b in steps:
        coders: dict[str, Callable[[int, int], bytes]] = {
            "advance": lambda a, b: bytes([0x40 | a % 64]),
            "advance1": lambda a, b: bytes([0x02, a % 256]),
            "advance2": lambda a, b: b"\x03" + struct.pack("<H", a),
            "def_cfa": lambda a, b: b"\x0c" + uleb(b) + uleb(a),
            "def_cfa_sf": lambda a, b: b"\x12" + uleb(b) + sleb(-a),
            "def_register": lambda a, b: b"\x0d" + uleb(b),
            "def_offset": lambda a, b: b"\x0e" + uleb(a),
            "offset": lambda a, b: bytes([0x80 | b]) + uleb(a),
            "offset_extended": lambda a, b: b"\x05" + uleb(b) + uleb(a),
            "offset_sf": lambda a, b: b"\x11" + uleb(b) + sleb(-a),
            "restore": lambda a, b: bytes([0xC0 | b]),
            "restore_extended": lambda a, b: b"\x06" + uleb(b),
            "register": lambda a, b: b"\x09" + uleb(b) + uleb(a % 16),
            "undefined": lambda a, b: b"\x07" + uleb(b),
            "same": lambda a, b: b"\x08" + uleb(b),
            "remember": lambda a, b: b"\x0a",
            "restore_state": lambda a, b: b"\x0b",
            "nop": lambda a, b: b"\0",
            "args_size": lambda a, b: b"\x2e" + uleb(a),
        }
        out += coders[name](a, b)
    return bytes(out)


def interpret(steps: list[Step], begin: int, size: int) -> dict[int, Rules]:
    """Address → rules, by running one instruction after the other."""
    state, stack, address = START, [], begin
    rows: dict[int, Rules] = {begin: state}
    for name, a, b in steps:
        register, offset, fp, ra = state
        if name.startswith("advance"):
            address += a % 64 if name == "advance" else a % 256 if name == "advance1" else a
        elif name == "def_cfa":
            state = (b, a, fp, ra)
        elif name == "def_cfa_sf":
            state = (b, a * 8, fp, ra)
        elif name == "def_register":
            state = (b, offset, fp, ra)
        elif name == "def_offset":
            state = (register, a, fp, ra)
        elif name == "remember":
            stack.append(state)
        elif name == "restore_state":
            state = stack.pop() if stack else state
        elif name not in ("nop", "args_size") and b in (6, 16):
            in_register = f"register {a % 16}"
            value: Where = {
                "undefined": "undefined", "same": None, "register": in_register
            }.get(name)  # fmt: skip
            if name in ("offset", "offset_extended"):
                value = -8 * a
            elif name == "offset_sf":
                value = 8 * a
            elif name.startswith("restore"):
                value = START[2] if b == 6 else START[3]
            state = (register, offset, value, ra) if b == 6 else (register, offset, fp, value)
        if address < begin + size:
            rows[address] = state
    return rows


def read(table: UnwindTable, address: int) -> Rules | str:
    """The rule at an address in the interpreter's words."""
    rule = table.lookup(address)
    kind = CfaKind(rule["cfa"])
    if kind in (CfaKind.NONE, CfaKind.END):
        return kind.name
    if kind == CfaKind.SP_RA_REGISTER:
        return 7, int(rule["cfa_offset"]), None, f"register {rule['cfa_extra']}"
    register = {CfaKind.SP: 7, CfaKind.FP: 6, CfaKind.REGISTER: int(rule["cfa_extra"])}[kind]
    fp: Where = int(rule["fp_offset"]) if rule["fp"] == FpKind.CFA else None
    return register, int(rule["cfa_offset"]), fp, int(rule["ra_offset"])


def expected(rules: Rules) -> Rules | str:
    """What the rule table can say of them."""
    register, offset, fp, ra = rules
    if ra == "undefined":
        return "END"
    if isinstance(ra, str):
        has_rule = int(ra.split()[1]) in RA_REGISTERS and register == 7 and not isinstance(fp, int)
        return (register, offset, None, ra) if has_rule else "NONE"
    if not isinstance(ra, int) or register > 15:
        return "NONE"
    return register, offset, fp if isinstance(fp, int) else None, ra


NAMES = ["advance", "advance", "def_offset", "def_register", "def_cfa", "offset", "restore"]
NAMES += ["remember", "restore_state", "advance1", "advance2", "def_cfa_sf", "offset_extended"]
NAMES += ["offset_sf", "restore_extended", "undefined", "register", "same", "nop", "args_size"]
steps_of_a_function = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.one_of(st.integers(0, 40), st.integers(120, 4000)),
        st.sampled_from([6, 6, 7, 16, 3, 10]),
    ),
    max_size=25,
)


@settings(max_examples=100, deadline=None)
@given(st.lists(steps_of_a_function, min_size=1, max_size=6))
def test_random_programs_equal_a_plain_interpreter(functions: list[list[Step]]) -> None:
    size = 160
    layout = [(TEXT + i * size, size, encode(steps)) for i, steps in enumerate(functions)]
    table = build_table(ElfFile(eh_frame_file(layout)))
    for (begin, _, _), steps in zip(layout, functions, strict=True):
        rows = interpret(steps, begin, size)
        current = START
        for address in range(begin, begin + size):
            current = rows.get(address, current)
            assert read(table, address) == expected(current), hex(address)
    assert read(table, TEXT + size * len(functions)) == "NONE"


def one(code: bytes, size: int = 64, common: bytes | None = None) -> UnwindTable:
    return build_table(ElfFile(eh_frame_file([(TEXT, size, code)], common)))


def test_restore_goes_back_to_the_cies_state_not_to_unsaved() -> None:
    saved_in_cie = cie(INITIAL + bytes([0x86, 2]))
    table = one(bytes([0x41, 0x86, 4, 0x41, 0xC6]), common=saved_in_cie)
    assert [read(table, TEXT + i) for i in range(3)] == [
        (7, 8, -16, -8),
        (7, 8, -32, -8),
        (7, 8, -16, -8),
    ]


def test_signal_frame_of_glibc() -> None:
    code = bytes([0x0F, 4, 0x77, 0xA0, 0x01, 0x06])  # CFA = *(rsp + 160)
    code += bytes([0x10, 16, 3, 0x77, 0xA8, 0x01])  # rip at rsp + 168
    signal = cie(b"", augmentation=b"zRS")
    assert one(code, common=signal).lookup(TEXT)["cfa"] == CfaKind.SIGNAL
    assert one(code).lookup(TEXT)["cfa"] == CfaKind.NONE


def test_a_return_address_in_a_register() -> None:
    """As glibc's vfork says it; only in registers that the kernel side has, and with rbp as it was."""
    common = INITIAL + bytes([0x0E, 0])
    for number, kind in (
        (5, CfaKind.SP_RA_REGISTER),
        (12, CfaKind.SP_RA_REGISTER),
        (1, CfaKind.NONE),
    ):
        code = bytes([0x09, 16, number])
        rule = one(code, common=cie(common)).lookup(TEXT)
        extra = number if kind else 0
        assert rule.tolist() == (kind, 0, 0, 0, 0, extra)
        assert one(code + bytes([0x86, 2])).lookup(TEXT)["cfa"] == CfaKind.NONE
        assert one(code + bytes([0x0D, 6])).lookup(TEXT)["cfa"] == CfaKind.NONE
        restored = one(code + bytes([0xD0]), common=cie(common)).lookup(TEXT)
        assert restored.tolist() == (CfaKind.SP, 0, -8, 0, 0, 0)


def test_plt_and_realigned_stacks() -> None:
    plt = bytes([0x77, 8, 0x80, 0, 0x3F, 0x1A, 0x3B, 0x2A, 0x33, 0x24, 0x22])
    rule = one(b"\x0f" + uleb(len(plt)) + plt).lookup(TEXT)
    assert rule.tolist() == (CfaKind.PLT, 0, -8, 11, 0, 8)
    realigned = bytes([0x0F, 3, 0x76, 0x70, 0x06, 0x10, 6, 2, 0x76, 0])
    rule = one(realigned).lookup(TEXT)
    assert rule.tolist() == (CfaKind.FP_DEREF, FpKind.FP, -8, -16, 0, 0)


def test_a_broken_instruction_costs_the_rest_of_its_function_only() -> None:
    functions = [(TEXT, 32, bytes([0x44, 0x0E, 16, 0x44, 0x3F])), (TEXT + 32, 32, b"\x42\x0e\x20")]
    table = build_table(ElfFile(eh_frame_file(functions)))
    assert read(table, TEXT + 4) == (7, 16, None, -8)
    assert read(table, TEXT + 8) == "NONE"
    assert read(table, TEXT + 34) == (7, 32, None, -8)


def test_gaps_beyond_padding_hold_nothing() -> None:
    table = build_table(
        ElfFile(eh_frame_file([(TEXT, 16, b""), (TEXT + 32, 16, b""), (TEXT + 65, 8, b"")]))
    )
    assert read(table, TEXT + 20) == (7, 8, None, -8)  # 16 bytes: alignment
    assert read(table, TEXT + 50) == "NONE"
    assert read(table, TEXT + 65) == (7, 8, None, -8)
    assert read(table, TEXT + 73) == "NONE"
    assert table.row(TEXT - 1) == -1


def test_overlaps_go_to_the_function_that_begins_first() -> None:
    wide, inner, partly = b"", b"\x0e\x10", b"\x0e\x20"
    functions = [(TEXT + 8, 8, inner), (TEXT, 32, wide), (TEXT + 24, 32, partly)]
    table = build_table(ElfFile(eh_frame_file(functions)))
    assert read(table, TEXT + 10) == (7, 8, None, -8)
    assert read(table, TEXT + 28) == (7, 8, None, -8)
    assert read(table, TEXT + 40) == (7, 32, None, -8)


def test_functions_outside_the_code_are_left_out() -> None:
    table = build_table(ElfFile(eh_frame_file([(0, 64, b""), (TEXT, 64, b"\x41\x0e\x10")])))
    assert table.base == TEXT
    assert table.pcs.tolist() == [0, 1, 64]


def debug_frame(begin: int, size: int, code: bytes) -> bytes:
    common = record(
        struct.pack("<I", 0xFFFFFFFF) + b"\x01\0" + uleb(1) + sleb(-8) + b"\x10" + INITIAL
    )
    return common + record(struct.pack("<IQQ", 0, begin, size) + code)


@pytest.mark.parametrize("compressed", [False, True])
def test_debug_frame_fills_what_eh_frame_leaves(compressed: bool) -> None:
    frames = debug_frame(TEXT, 128, b"\x0e\x30")
    flags = SHF_COMPRESSED if compressed else 0
    if compressed:
        frames = struct.pack("<IIQQ", 1, 0, len(frames), 1) + zlib.compress(frames)
    eh = cie()
    eh += fde(len(eh), 0, TEXT, 64, b"\x0e\x20")
    table = build_table(
        ElfFile(
            elf_file(
                [Part(".eh_frame", 1, 2, EH_FRAME, eh), Part(".debug_frame", 1, flags, 0, frames)]
            )
        )
    )
    assert read(table, TEXT + 10) == (7, 32, None, -8)
    assert read(table, TEXT + 100) == (7, 48, None, -8)


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        (0x00, lambda at, v: struct.pack("<Q", v)),
        (0x02, lambda at, v: struct.pack("<H", v)),
        (0x03, lambda at, v: struct.pack("<I", v)),
        (0x04, lambda at, v: struct.pack("<Q", v)),
        (0x0B, lambda at, v: struct.pack("<i", v)),
        (0x0C, lambda at, v: struct.pack("<q", v)),
        (0x1B, lambda at, v: struct.pack("<i", v - at)),
        (0x1C, lambda at, v: struct.pack("<q", v - at)),
        (0x01, lambda at, v: uleb(v)),
        (0x09, lambda at, v: sleb(v)),
    ],
)
def test_pointer_encodings(encoding: int, pack) -> None:  # type: ignore[no-untyped-def]
    section = cie(data=bytes([encoding]))
    at = len(section)
    body = struct.pack("<I", at + 4) + pack(EH_FRAME + at + 8, TEXT)
    plain = encoding & 0x0F
    size = {1: uleb(64), 9: uleb(64)}.get(plain) or pack(0, 64)
    section += record(body + size + b"\0" + b"\x41\x0e\x10")
    table = build_table(ElfFile(elf_file([Part(".eh_frame", 1, 2, EH_FRAME, section)])))
    assert table.pcs.tolist() == [0, 1, 64]


def test_set_loc_jumps_forward() -> None:
    section = cie()
    at = len(section)
    code_at = EH_FRAME + at + 4 + 4 + 8 + 1
    code = b"\x01" + struct.pack("<i", TEXT + 20 - (code_at + 1)) + b"\x0e\x10"
    section += fde(at, 0, TEXT, 64, code)
    table = build_table(ElfFile(elf_file([Part(".eh_frame", 1, 2, EH_FRAME, section)])))
    assert table.pcs.tolist() == [0, 20, 64]


def test_arm64_return_address_in_a_register() -> None:
    common = cie(bytes([0x0C, 31, 0]), register=30)
    code = bytes([0x44, 0x0E, 32, 0x9D, 4, 0x9E, 3])
    data = bytearray(eh_frame_file([(TEXT, 64, code)], common))
    data[18] = 183
    table = build_table(ElfFile(bytes(data)))
    leaf, saved = table.lookup(TEXT), table.lookup(TEXT + 4)
    assert leaf.tolist() == (CfaKind.SP, 0, 0, 0, 0, 0)
    assert saved.tolist() == (CfaKind.SP, FpKind.CFA, -24, 32, -32, 0)


def test_a_section_whose_every_cie_is_unreadable_gives_no_rows() -> None:
    broken = cie(code_align=0)
    assert len(one(b"\x41\x0e\x10", common=broken)) == 0


def test_an_overlong_cie_is_unreadable() -> None:
    """Many functions may each point to a CIE of their own in the same bytes."""
    assert len(one(b"", common=cie(INITIAL + bytes(900)))) == 2
    assert len(one(b"", common=cie(INITIAL + bytes(1024)))) == 0


def test_many_distinct_rules_are_numbered_by_first_use_up_to_the_cap() -> None:
    count = MAX_TABLE_RULES + 500
    rules = np.zeros(2 * count, Rule)
    rules["cfa"] = CfaKind.SP
    rules["cfa_offset"] = np.concatenate([np.arange(count, 0, -1), np.arange(1, count + 1)])
    numbers = RuleSet()
    got = numbers.number(rules)
    wanted = np.arange(1, count + 1)
    wanted[wanted >= MAX_TABLE_RULES] = 0
    assert got.tolist() == [*wanted.tolist(), *wanted[::-1].tolist()]
    assert numbers.number(rules).tolist() == got.tolist()
    table = numbers.table()
    assert table["cfa_offset"][1:].tolist() == list(range(count, 501, -1))
