"""Compressed numbers and line tables, against an encoder written from their description; and regions of code."""

import pytest
from flameherd_agent.interpreters.base import TornRead
from flameherd_agent.interpreters.hotspot.compressed import Numbers, line_table
from flameherd_agent.interpreters.hotspot.method import class_name
from flameherd_agent.interpreters.hotspot.regions import entry, leaves, merge
from flameherd_agent.kernel.abi import HotspotRule
from hypothesis import given
from hypothesis import strategies as st

U32 = st.integers(0, (1 << 32) - 1)
OLD_AND_NEW = pytest.mark.parametrize("excludes_zero", [False, True])


def encode(value: int, excludes_zero: bool) -> bytes:
    """UNSIGNED5: six bits of each byte but the last, which is below 192; a fifth byte takes all that is left."""
    less = int(excludes_zero)
    out = bytearray()
    for place in range(5):
        if place == 4 or value < 192 - less:
            out.append(value + less)
            return bytes(out)
        value -= 192 - less
        out.append(192 + value % 64)
        value //= 64
    raise AssertionError


def encode_signed(value: int, excludes_zero: bool) -> bytes:
    return encode(value << 1 if value >= 0 else (-value - 1) << 1 | 1, excludes_zero)


@OLD_AND_NEW
@given(values=st.lists(U32, max_size=20))
def test_numbers_come_back(excludes_zero: bool, values: list[int]) -> None:
    data = b"".join(encode(value, excludes_zero) for value in values)
    assert not excludes_zero or 0 not in data
    numbers = Numbers(data, excludes_zero)
    assert [numbers.unsigned() for _ in values] == values
    assert numbers.at == len(data)


@OLD_AND_NEW
@given(rows=st.lists(st.tuples(st.integers(0, 300), st.integers(-900, 900)), max_size=30))
def test_line_tables_come_back(excludes_zero: bool, rows: list[tuple[int, int]]) -> None:
    data = bytearray()
    expected = []
    bci = line = 0
    for step, lines in rows:
        bci, line = bci + step, line + lines
        expected.append((bci, line))
        if step < 31 and 0 <= lines < 8 and (step or lines):
            data.append(step << 3 | lines)
        else:
            data += b"\xff" + encode_signed(step, excludes_zero)
            data += encode_signed(lines, excludes_zero)
    assert list(line_table(bytes(data) + b"\0", excludes_zero)) == expected


@OLD_AND_NEW
@given(data=st.binary(max_size=200))
def test_any_bytes_end(excludes_zero: bool, data: bytes) -> None:
    try:
        rows = list(line_table(data, excludes_zero))
    except TornRead:
        return
    assert len(rows) <= len(data)


def test_names_of_hidden_classes() -> None:
    assert class_name("java/lang/String") == "java.lang.String"
    assert class_name("Main$$Lambda+0x00000008000c0a18") == "Main$$Lambda/0x00000008000c0a18"


ENTRY = bytes.fromhex(
    "90909090 58 4c8d74cc f8 85d2 7e09 50 55 488bec 4155 6800000000 53 4155 6800000000 90"
)
RETURN = bytes.fromhex("90 c9 415d 488be3 41ffe5 90")


def test_an_entry_makes_its_frame() -> None:
    """Instruction by instruction, what holds before it is executed."""
    rules = dict(entry(ENTRY, 0, len(ENTRY)))
    assert rules == {
        0: HotspotRule.ENTRY,  # ... pop rax
        5: HotspotRule.ENTRY_RAX,  # lea, loop, push rax
        15: HotspotRule.ENTRY,  # push rbp
        16: HotspotRule.PUSHED,  # mov rbp, rsp; push r13
        21: HotspotRule.FIXING,
        34: HotspotRule.FRAME,
        len(ENTRY): HotspotRule.FRAME,
    }


def test_a_return_leaves_it() -> None:
    assert list(leaves(RETURN, 0, len(RETURN))) == [
        (2, HotspotRule.LEFT),  # pop r13
        (4, HotspotRule.LEFT_R13),  # mov rsp, rbx
        (7, HotspotRule.LEFT_JUMP),  # jmp r13
        (10, HotspotRule.FRAME),
    ]


@given(st.binary(max_size=400), st.lists(st.sampled_from([ENTRY, RETURN]), max_size=3))
def test_regions_of_any_code_are_in_order(code: bytes, parts: list[bytes]) -> None:
    text = code.join([b"", *parts, b""])
    regions = merge([*entry(text, 0, len(text)), *leaves(text, 0, len(text))])
    starts = [start for start, _ in regions]
    assert starts == sorted(set(starts))
    assert all(0 <= start <= len(text) for start in starts)
