"""The unwinder of the kernel side in user space: known stacks, and the same answers as `unwind.copied`."""

import ctypes
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from flameherd_agent.kernel.abi import (
    CfaKind,
    FpKind,
    FrameKind,
    Mapping,
    Outcome,
    Registers,
    Rule,
    Table,
    TableFlag,
    Words,
)
from flameherd_agent.types import ExecutableId
from flameherd_agent.unwind.copied import CopiedStack
from flameherd_agent.unwind.copied import unwind as unwind_copied
from flameherd_agent.unwind.packed import PAGE_BITS, pack, pages_up_to
from flameherd_agent.unwind.table import UnwindTable
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.unwinder.harness import library, unwind

CODE = 0x10000
CODE_BYTES = 0x1000
BIAS = 0x7F0000000000
STACK = 0x7FFC00000000


@dataclass(frozen=True)
class Span:
    start: int
    end: int
    bias: int
    executable: ExecutableId
    table: UnwindTable | None


def rule(
    cfa: CfaKind, offset: int = 0, *, fp: FpKind = FpKind.SAME, fp_offset: int = 0, extra: int = 0
) -> Any:
    record = np.zeros(1, Rule)
    record["cfa"], record["cfa_offset"], record["cfa_extra"] = cfa, offset, extra
    record["fp"], record["fp_offset"], record["ra_offset"] = fp, fp_offset, -8
    return record[0].item()


class Program:
    """Code at BIAS + CODE with one row for each rule, 16 bytes apart."""

    def __init__(self, *rules: Any) -> None:
        self.rules: NDArray[Any] = np.concatenate([np.zeros(1, Rule), np.array(list(rules), Rule)])
        count = len(rules)
        self.table = UnwindTable(
            CODE,
            (np.arange(count) * 16).astype(np.uint32),
            np.arange(1, count + 1).astype(np.uint16),
            self.rules,
        )
        self.words = pack(self.table.pcs, self.table.rules, 1).view(Words)
        self.tables = np.zeros(4, Table)
        self.tables[0]["flags"] = TableFlag.NO_ROWS
        self.tables[3] = (CODE, 0, 0, 1, TableFlag.READY, 0, 0)
        self.mappings = np.zeros(1, Mapping)
        self.mappings[0] = (BIAS + CODE, BIAS + CODE + CODE_BYTES, BIAS, 7, 3)

    def pc(self, rule_number: int, offset: int = 8) -> int:
        return BIAS + CODE + 16 * rule_number + offset

    def both(self, registers: dict[str, int], stack: bytes) -> tuple[list[int], Outcome]:
        """Unwind in C and in Python: they must agree but for what "outside the copy" is called."""
        c_words, c_outcome = unwind(
            self.mappings, self.tables, self.rules, self.words, registers, STACK, stack
        )
        record = np.zeros(1, Registers)
        for name, value in registers.items():
            record[name] = value
        span = Span(BIAS + CODE, BIAS + CODE + CODE_BYTES, BIAS, ExecutableId(7), self.table)
        words, outcome = unwind_copied([span], record[0], CopiedStack(STACK, stack))
        assert words == c_words
        if outcome is not Outcome.TRUNCATED:
            assert outcome is c_outcome
        return c_words, c_outcome


def word(address: int) -> int:
    return FrameKind.NATIVE << 60 | 7 << 40 | (address - BIAS)


def stack_of(*words: int) -> bytes:
    return struct.pack(f"<{len(words)}Q", *words)


def test_stack_pointer_frames_end_at_the_root() -> None:
    program = Program(rule(CfaKind.SP, 16), rule(CfaKind.SP, 8), rule(CfaKind.END))
    leaf, middle, root = program.pc(0), program.pc(1), program.pc(2)
    words, outcome = program.both({"pc": leaf, "sp": STACK}, stack_of(0, middle, root))
    assert outcome is Outcome.COMPLETE
    assert words == [word(leaf), word(middle - 1), word(root - 1)]


def test_frame_pointer_is_restored_from_its_slot() -> None:
    program = Program(
        rule(CfaKind.FP, 16, fp=FpKind.CFA, fp_offset=-16), rule(CfaKind.FP, 16), rule(CfaKind.END)
    )
    stack = stack_of(STACK + 32, program.pc(1), 0, 0, 0, program.pc(2))
    words, outcome = program.both({"pc": program.pc(0), "sp": STACK, "fp": STACK}, stack)
    assert outcome is Outcome.COMPLETE
    assert len(words) == 3


def test_a_popped_frame_pointer_is_left_alone() -> None:
    """At the `ret` of an epilogue the CFI still says that rbp is saved, below the stack pointer."""
    program = Program(
        rule(CfaKind.SP, 8, fp=FpKind.CFA, fp_offset=-32), rule(CfaKind.FP, 16), rule(CfaKind.END)
    )
    stack = stack_of(program.pc(1), 0, 0, program.pc(2))
    words, outcome = program.both({"pc": program.pc(0), "sp": STACK, "fp": STACK + 16}, stack)
    assert outcome is Outcome.COMPLETE
    assert words[-1] == word(program.pc(2) - 1)


def test_signal_frame_continues_exactly_where_it_was_interrupted() -> None:
    program = Program(rule(CfaKind.SP, 8), rule(CfaKind.SIGNAL), rule(CfaKind.END))
    context = [0] * 40
    context[160 // 8], context[168 // 8], context[120 // 8] = STACK + 320, program.pc(2, 0), 0
    words, outcome = program.both(
        {"pc": program.pc(0), "sp": STACK}, stack_of(program.pc(1), *context, 0)
    )
    assert outcome is Outcome.COMPLETE
    assert words[-1] == word(program.pc(2, 0)), "not return address - 1"


def test_plt_entry_before_and_after_its_push() -> None:
    program = Program(rule(CfaKind.PLT, 11, extra=8), rule(CfaKind.END))
    for offset, stack in ((4, stack_of(program.pc(1))), (12, stack_of(0, program.pc(1)))):
        words, outcome = program.both({"pc": program.pc(0, offset), "sp": STACK}, stack)
        assert outcome is Outcome.COMPLETE
        assert words[-1] == word(program.pc(1) - 1)


def test_realigned_stack_by_register_and_by_dereference() -> None:
    program = Program(
        rule(CfaKind.REGISTER, 0, extra=10), rule(CfaKind.FP_DEREF, -8, extra=0), rule(CfaKind.END)
    )
    words, outcome = program.both(
        {"pc": program.pc(0), "sp": STACK, "fp": STACK + 24, "r10": STACK + 16},
        stack_of(0, program.pc(1), STACK + 40, 0, program.pc(2)),
    )
    assert outcome is Outcome.COMPLETE
    assert len(words) == 3


def test_a_return_address_in_a_register_of_the_leaf_only() -> None:
    program = Program(
        rule(CfaKind.SP_RA_REGISTER, 0, extra=5), rule(CfaKind.SP, 8), rule(CfaKind.END)
    )
    registers = {"pc": program.pc(0), "sp": STACK, "rdi": program.pc(1)}
    words, outcome = program.both(registers, stack_of(program.pc(2)))
    assert outcome is Outcome.COMPLETE
    assert words == [word(program.pc(0)), word(program.pc(1) - 1), word(program.pc(2) - 1)]
    registers = {"pc": program.pc(1), "sp": STACK, "fp": STACK + 8, "rdi": program.pc(1)}
    stack = stack_of(program.pc(0), 0, program.pc(2))
    words, outcome = program.both(registers, stack)
    assert outcome is Outcome.COMPLETE
    assert words[1:] == [word(program.pc(0) - 1), word(program.pc(2) - 1)], "by frame pointer"


def test_no_progress_is_a_bad_frame() -> None:
    program = Program(rule(CfaKind.SP, 0))
    _, outcome = program.both({"pc": program.pc(0), "sp": STACK}, stack_of(0, 0))
    assert outcome is Outcome.BAD_FRAME


def test_unknown_address_is_no_mapping() -> None:
    program = Program(rule(CfaKind.SP, 8))
    words, outcome = program.both({"pc": program.pc(0), "sp": STACK}, stack_of(0x1234))
    assert outcome is Outcome.NO_MAPPING
    assert len(words) == 1


def test_endless_recursion_is_truncated_at_the_cap() -> None:
    program = Program(rule(CfaKind.SP, 8))
    words, outcome = program.both(
        {"pc": program.pc(0), "sp": STACK}, stack_of(*[program.pc(0)] * 600)
    )
    assert outcome is Outcome.TRUNCATED
    assert len(words) == 512


def test_a_stack_pointer_that_wraps_is_a_bad_frame() -> None:
    program = Program(rule(CfaKind.SP, 8))
    _, outcome = program.both({"pc": program.pc(0), "sp": 2**64 - 1}, stack_of(0, 0))
    assert outcome is Outcome.BAD_FRAME


def test_a_signal_frame_restores_what_a_realigned_prologue_goes_by() -> None:
    """Where the interrupted function's CFA is by rbx, it is the rbx of the signal frame."""
    program = Program(
        rule(CfaKind.SP, 8),
        rule(CfaKind.SIGNAL),
        rule(CfaKind.REGISTER, extra=3),
        rule(CfaKind.END),
    )
    context = [0] * 40
    context[160 // 8], context[168 // 8] = STACK, program.pc(2, 0)
    context[128 // 8] = STACK + 8 * 42
    stack = stack_of(program.pc(1), *context, program.pc(3))
    words, outcome = program.both({"pc": program.pc(0), "sp": STACK}, stack)
    assert outcome is Outcome.COMPLETE
    assert len(words) == 4


_RULES = st.builds(
    rule,
    st.sampled_from(list(CfaKind)),
    st.integers(-64, 64),
    fp=st.sampled_from(list(FpKind)),
    fp_offset=st.integers(-64, 64),
    extra=st.integers(-16, 16),
)


@settings(max_examples=300, deadline=None)
@given(
    rules=st.lists(_RULES, min_size=1, max_size=6),
    stack=st.lists(
        st.one_of(
            st.integers(0, CODE_BYTES).map(lambda at: BIAS + CODE + at),
            st.integers(0, 600).map(lambda at: STACK + at),
            st.integers(0, 2**64 - 1),
        ),
        max_size=80,
    ),
    pc=st.integers(0, CODE_BYTES - 1),
    sp=st.integers(0, 100),
    fp=st.one_of(st.integers(0, 600).map(lambda at: STACK + at), st.integers(0, 2**64 - 1)),
)
def test_any_rules_on_any_stack_end_in_an_outcome(
    rules: list[Any], stack: list[int], pc: int, sp: int, fp: int
) -> None:
    """C and Python walk the same frames, whatever the rules and the stack say, and both end."""
    program = Program(*rules)
    registers = {"pc": BIAS + CODE + pc, "sp": STACK + sp, "fp": fp}
    words, _ = unwind(
        program.mappings,
        program.tables,
        program.rules,
        program.words,
        registers,
        STACK,
        stack_of(*stack),
    )
    assert len(words) <= 512


@settings(max_examples=200, deadline=None)
@given(
    pcs=st.sets(st.one_of(st.integers(0, 300), st.integers(0, 1 << 20)), min_size=1, max_size=40),
    first=st.integers(0, 9).map(lambda pair: 2 * pair),
    beyond=st.integers(0, 3),
    wanted=st.lists(st.integers(0, 1 << 20), max_size=20),
)
def test_packed_rows_say_what_the_table_says(
    pcs: set[int], first: int, beyond: int, wanted: list[int]
) -> None:
    """At every row's first and last address and anywhere else; pages without rows included."""
    table = UnwindTable(
        0,
        np.array(sorted(pcs), np.uint32),
        np.arange(1, len(pcs) + 1, dtype=np.uint16),
        np.zeros(len(pcs) + 1, Rule),
    )
    pages = pages_up_to(max(pcs)) + beyond
    words = np.concatenate([np.full(first, 0xFFFFFFFF), pack(table.pcs, table.rules, pages)])
    slab = np.ascontiguousarray(words, np.uint32)
    for pc in {*wanted, *pcs, *(pc - 1 for pc in pcs if pc), *(pc + 1 for pc in pcs)}:
        row = table.row(pc)
        expected = int(table.rules[row]) if row >= 0 and pc < pages << PAGE_BITS else 0
        found = library().find_rule(
            ctypes.c_void_p(slab.ctypes.data), len(slab) // 2, first, pages, pc
        )
        assert found == expected, hex(pc)
