"""V8's tables of positions: real ones, with what V8's own disassembler prints of them (`--print-opt-code`), and any bytes."""

import numpy as np
import pytest
from flameherd_agent.interpreters.base import NotSupported
from flameherd_agent.interpreters.v8.detect import CONSTANTS, FIELDS
from flameherd_agent.interpreters.v8.exits import (
    Exit,
    Modes,
    checks,
    exits,
    positions,
    returns,
    safepoints_bytes,
)
from flameherd_agent.interpreters.v8.layouts import complete, versions
from flameherd_agent.interpreters.v8.positions import (
    Place,
    PositionTable,
    baseline_offsets,
    inlinings,
    place,
)
from flameherd_agent.interpreters.v8.scripts import Script, _ends
from hypothesis import given
from hypothesis import strategies as st

TURBOFAN = bytes.fromhex(
    "03f0034fb4feffff0f3b3315348101ccfeffff0f19bbfeffff0f1b4317affdffff0f190c435b5d80feffff0f"
)
"""Of `outer`, into which `hot` and `add` are inlined; Node.js 20."""
PRINTED = (
    (0x00, 123), (0x27, 72), (0x44, 59), (0x4E, 72), (0x8E, 27), (0x9A, 76), (0xA7, 59), (0xB2, 143), (0xBE, 146),
    (0xDF, 123), (0x10D, 59),
)  # fmt: skip
MODES = Modes(17, 18, 19, 20, 22)
RELOCATION = bytes.fromhex(
    "3b1c5b036c3b124c3b125b013b12471048000000"
    "4b00000000004f0029530000000000"
    "47041b0000004b00020000004f0035530001000000"
    "47043b0000004b00000000004f0035530002000000"
    "47048f0000004b00ffffffff4f0035530003000000"
    "47047b0000004b00ffffffff4f003c530004000000"
    "47043b0000004b00000000004f003c530005000000"
    "47043b0000004b00000000004f003c530006000000"
)[::-1]
"""Of the same in Maglev's code; Node.js 24."""
SAFEPOINTS = bytes.fromhex(
    "0800000004000000a100000000000000200005a101000d0106a50102320107a90105840100000001"
)


def test_positions_are_those_that_v8_prints() -> None:
    table = PositionTable(TURBOFAN)
    for at, (offset, position) in enumerate(PRINTED):
        assert table.at(offset).offset == position
        following = PRINTED[at + 1][0] if at + 1 < len(PRINTED) else offset + 9
        assert table.at(following - 1).offset == position
    assert [table.at(offset).inlined for offset in (0, 0x44, 0x8E, 0x9A, 0xB2)] == [-1, 0, 1, 0, -1]
    assert PositionTable(b"").at(7) == Place(-1, -1)


def test_positions_outside_of_scripts_are_none() -> None:
    assert place(1 | 5 << 1) == Place(-1, -1)


def test_inlinings() -> None:
    table = (2 * 73 | 2 << 31).to_bytes(8, "little") + (3).to_bytes(4, "little") + bytes(4)
    assert inlinings(table + b"torn") == [(Place(72, 1), 3)]


def test_exits_of_maglev_are_those_that_v8_prints() -> None:
    found = exits(RELOCATION, MODES)
    assert found == {
        0x190: Exit(0, 0), 0x194: Exit(1, 2), 0x198: Exit(2, 0), 0x19C: Exit(3, -1), 0x1A0: Exit(4, -1),
        0x1A4: Exit(5, 0), 0x1A8: Exit(6, 0),
    }  # fmt: skip
    assert returns(SAFEPOINTS) == {0x20: 0x1A0, 0x10D: 0x1A4, 0x132: 0x1A8}
    assert safepoints_bytes(SAFEPOINTS[:16]) == 40


def test_checks_lead_to_exits() -> None:
    code = bytearray(0x1AC)
    code[0x30:0x36] = b"\x0f\x80" + (0x194 - 0x36).to_bytes(4, "little")
    code[0x50:0x56] = b"\x0f\x85" + (0x100 - 0x56).to_bytes(4, "little")
    found = exits(RELOCATION, MODES)
    assert checks(bytes(code), found) == {0x30: 0x194}
    assert positions(RELOCATION, SAFEPOINTS, bytes(code), MODES)[:2] == [
        (0x1F, Exit(4, -1)),
        (0x30, Exit(1, 2)),
    ]


def test_baseline_code_belongs_to_its_bytecode() -> None:
    """`based` of Node.js 20: LdaImmutableCurrentContextSlot, Star, LdaSmi, Star, CallUndefinedReceiver2, Return."""
    sizes = bytearray(b"\x01" * 198)
    sizes[0x17], sizes[0x0D], sizes[0x63] = 2, 2, 5
    bytecode = bytes.fromhex("1702c40d01c263fa03f800a9")
    ends, offsets = baseline_offsets(bytes.fromhex("1708040a041b11"), bytecode, (bytes(sizes),) * 3)
    assert ends == [23, 31, 35, 45, 49, 76, 93]
    assert offsets == [-1, 0, 2, 3, 5, 6, 11]


def test_line_ends() -> None:
    assert _ends(np.frombuffer(b"a\nb\r\nc\rd", "u1")).tolist() == [1, 4, 6]
    wide = "a\u2028b\U0001f525\n".encode("utf-16-le")
    assert _ends(np.frombuffer(wide, "<u2")).tolist() == [1, 5]
    script = Script("x.js", 0, np.array([1, 4], np.uint32))
    assert [script.line(offset) for offset in (-1, 0, 1, 2, 4, 5)] == [0, 1, 1, 2, 2, 3]
    assert Script("x.js", 0, None).line(3) == 0


def test_what_v8_does_not_export_is_refused() -> None:
    exported = {f"{name}.{part}": 16 for name, parts in FIELDS.items() for part in parts}
    exported |= {
        f"type.{n[5:].partition('__')[0]}" if n.startswith("type_") else n: 1 for n in CONSTANTS
    }
    exported |= {"TaggedSize": 8, "SmiShiftSize": 31, "off_fp_context": -8, "off_fp_function": -16}
    exported |= {"off_fp_bytecode_array": -32, "off_fp_bytecode_offset": -40}
    for version in versions():
        assert complete(version, exported)["shared.script"] == 16
    for change, reason in (
        ({"TaggedSize": 4}, "pointer-compression"),
        ({"SmiShiftSize": 0}, "tags"),
        ({"off_fp_function": -24}, "frames"),
        ({"JSFunction.shared": 1 << 30}, "symbols"),
    ):
        with pytest.raises(NotSupported) as refused:
            complete((11, 3), exported | change)
        assert refused.value.reason == reason
    with pytest.raises(NotSupported):
        complete((9, 0), exported)
    del exported["ThinString.actual"]
    with pytest.raises(NotSupported):
        complete((11, 3), exported)


@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 1 << 40))
def test_any_bytes_give_a_result(table: bytes, code: bytes, offset: int) -> None:
    PositionTable(table).at(offset)
    inlinings(table)
    positions(table, code, code + table, MODES)
    baseline_offsets(table, code, (bytes(range(1, 200)),) * 3)
    baseline_offsets(table, code, ())
