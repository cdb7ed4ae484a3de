"""Unwinding a copied stack in user space, with the same rows and rules as the kernel side.

A process that is too new for its tables sends its registers and the top of its stack; when the tables are there,
the stack is unwound here. What differs from `bpf/lib/unwind.h` is only where memory comes from: the copied bytes.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from flameherd_agent.kernel.abi import CfaKind, FpKind, FrameKind, Limit, Outcome
from flameherd_agent.types import ExecutableId
from flameherd_agent.unwind.table import UnwindTable

_WORD = struct.Struct("<Q")
_MASK: Final = (1 << 64) - 1
_UCONTEXT_RBP: Final = 120
_UCONTEXT_RSP: Final = 160
_UCONTEXT_RIP: Final = 168
_RBX: Final = 3
# DWARF number -> field of struct fh_registers.
_LEAF_REGISTERS: Final = {
    3: "rbx", 5: "rdi", 10: "r10", 12: "r12", 13: "r13", 14: "r14", 15: "r15"
}  # fmt: skip

_UCONTEXT_REGISTERS: Final = {3: 128, 5: 104, 10: 56, 12: 72, 13: 80, 14: 88, 15: 96}
"""DWARF number -> offset from sp in a signal frame."""


class Span(Protocol):
    """An executable mapping of the process."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def bias(self) -> int: ...
    @property
    def executable(self) -> ExecutableId: ...
    @property
    def table(self) -> UnwindTable | None: ...


class _OutsideCopy(Exception):
    """The stack goes on beyond the copied bytes."""


@dataclass(slots=True)
class CopiedStack:
    """Stack bytes from address `at` on."""

    at: int
    data: bytes

    def word(self, address: int) -> int:
        offset = (address & _MASK) - self.at
        if offset < 0 or offset + 8 > len(self.data):
            raise _OutsideCopy
        return int(_WORD.unpack_from(self.data, offset)[0])


def find_span(spans: Sequence[Span], pc: int) -> Span | None:
    """The span that holds `pc`; spans are sorted by start."""
    low, high = 0, len(spans)
    while low < high:
        middle = (low + high) // 2
        if spans[middle].start <= pc:
            low = middle + 1
        else:
            high = middle
    span = spans[low - 1] if low else None
    return span if span is not None and pc < span.end else None


def unwind(spans: Sequence[Span], registers: Any, stack: CopiedStack) -> tuple[list[int], Outcome]:
    """Frame words (struct fh_frame_kind), leaf first, and the outcome.

    `registers` is a record of dtype `Registers`. TRUNCATED also stands for "deeper than the copied bytes".
    """
    pc, sp, fp = int(registers["pc"]), int(registers["sp"]), int(registers["fp"])
    leaf_registers = {number: int(registers[name]) for number, name in _LEAF_REGISTERS.items()}
    rbx_at: int | None = None
    """Where the frame's rbx is saved; None: in `leaf_registers`, if it has one."""
    exact = True
    words: list[int] = []
    while len(words) < Limit.MAX_USER_FRAMES:
        lookup = pc if exact else pc - 1
        span = find_span(spans, lookup)
        if span is None:
            return words, Outcome.NO_MAPPING
        words.append(_frame_word(span, lookup))
        rule = _rule(span, lookup)
        kind = CfaKind.NONE if rule is None else CfaKind(int(rule["cfa"]))
        try:
            if kind == CfaKind.END:
                return words, Outcome.COMPLETE
            if kind == CfaKind.SIGNAL:
                at = sp
                sp, pc = stack.word(at + _UCONTEXT_RSP), stack.word(at + _UCONTEXT_RIP)
                fp = stack.word(at + _UCONTEXT_RBP)
                leaf_registers = {
                    number: stack.word(at + offset)
                    for number, offset in _UCONTEXT_REGISTERS.items()
                }
                rbx_at = None
                exact = True
                continue
            if kind == CfaKind.REGISTER and rbx_at is not None and int(rule["cfa_extra"]) == _RBX:
                leaf_registers[_RBX], rbx_at = stack.word(rbx_at), None
            if (
                rule is None
                or kind == CfaKind.NONE
                or (kind == CfaKind.REGISTER and not exact and int(rule["cfa_extra"]) != _RBX)
                or (kind == CfaKind.SP_RA_REGISTER and not exact)
                or (kind == CfaKind.REGISTER and not exact and _RBX not in leaf_registers)
            ):
                leaf_registers.pop(_RBX, None)
                rbx_at = None
                if fp == 0:
                    return words, Outcome.COMPLETE
                if fp < sp:
                    return words, Outcome.NO_RULE
                sp, fp, pc = (fp + 16) & _MASK, stack.word(fp), stack.word(fp + 8)
            elif kind == CfaKind.SP_RA_REGISTER:
                cfa = (sp + int(rule["cfa_offset"])) & _MASK
                if cfa < sp:
                    return words, Outcome.BAD_FRAME
                sp, pc = cfa, leaf_registers.get(int(rule["cfa_extra"]), 0)
            else:
                cfa = _cfa(rule, kind, pc, sp, fp, leaf_registers, stack) & _MASK
                if cfa <= sp and kind != CfaKind.FP:
                    return words, Outcome.BAD_FRAME
                if kind in (CfaKind.SP, CfaKind.FP):
                    saved_at = cfa + int(rule["cfa_extra"])
                    if saved_at != cfa and saved_at & _MASK >= sp:
                        rbx_at = saved_at
                elif kind != CfaKind.PLT:
                    leaf_registers.pop(_RBX, None)
                    rbx_at = None
                caller = stack.word(cfa + int(rule["ra_offset"]))
                fp_kind, fp_offset = int(rule["fp"]), int(rule["fp_offset"])
                if fp_kind != FpKind.SAME:
                    base = {FpKind.CFA: cfa, FpKind.FP: fp, FpKind.SP: sp}[FpKind(fp_kind)]
                    # A slot below sp was popped by an epilogue: rbp is restored already. Not so where the CFA is by
                    # rbp: below sp is another stack then.
                    if (
                        fp_kind != FpKind.CFA
                        or kind == CfaKind.FP
                        or (base + fp_offset) & _MASK >= sp
                    ):
                        fp = stack.word(base + fp_offset)
                sp, pc = cfa, caller
        except _OutsideCopy:
            return words, Outcome.TRUNCATED
        if exact:
            # Of those that the caller may have changed only rbx is followed.
            rbx = leaf_registers.get(_RBX)
            leaf_registers = {} if rbx is None else {_RBX: rbx}
        exact = False
        if pc == 0:
            return words, Outcome.COMPLETE
    return words, Outcome.TRUNCATED


def _rule(span: Span, pc: int) -> Any:
    """The rule that holds at a virtual address, or None where the file has none."""
    return None if span.table is None else span.table.lookup((pc - span.bias) & _MASK)


def _cfa(
    rule: Any,
    kind: CfaKind,
    pc: int,
    sp: int,
    fp: int,
    leaf_registers: dict[int, int],
    stack: CopiedStack,
) -> int:
    """May lie outside 64 bits: the caller wraps it."""
    offset, extra = int(rule["cfa_offset"]), int(rule["cfa_extra"])
    if kind == CfaKind.SP:
        return sp + offset
    if kind == CfaKind.FP:
        return fp + offset
    if kind == CfaKind.PLT:
        return sp + 8 + (extra if (pc & 15) >= offset else 0)
    if kind == CfaKind.SP_DEREF:
        return stack.word(sp + offset) + extra
    if kind == CfaKind.FP_DEREF:
        return stack.word(fp + offset) + extra
    return leaf_registers.get(extra, 0) + offset


def _frame_word(span: Span, pc: int) -> int:
    if not span.executable:
        return (FrameKind.RAW << 60) | (pc & ((1 << 56) - 1))
    return (FrameKind.NATIVE << 60) | (span.executable << 40) | ((pc - span.bias) & ((1 << 40) - 1))
