"""Copied stacks: `unwind/copied.py` and `bpf/lib` (by `tests/unwinder/harness.py`) must agree.

Input: the number of rules, the rules (struct fh_rule), the registers, and the rest is the stack. A
word whose top byte is 0xc0 stands for an address in the code, 0x50 for one in the stack. The same
seeds in the layout of `unwinder.c` start libFuzzer.
"""

import struct
from dataclasses import dataclass

import numpy as np
from flameherd_agent.kernel.abi import (
    CfaKind,
    FpKind,
    Mapping,
    Outcome,
    Registers,
    Rule,
    Table,
    TableFlag,
    Words,
)
from flameherd_agent.types import ExecutableId
from flameherd_agent.unwind.copied import CopiedStack, unwind
from flameherd_agent.unwind.packed import pack
from flameherd_agent.unwind.table import UnwindTable

from tests.fuzz.target import must
from tests.unwinder.harness import unwind as unwind_in_c

CODE = 0x7F0000010000
CODE_BYTES = 0x1000
STACK = 0x7FFC00000000
_BASE = 0x1000
_ROW_BYTES = 16
_MAX_RULES = 15


@dataclass(frozen=True)
class _Span:
    start: int
    end: int
    bias: int
    executable: ExecutableId
    table: UnwindTable | None


def placed(word: int) -> int:
    """A word of the input as an address; see the module's docstring."""
    if word >> 56 == 0xC0:
        return CODE + (word & 0xFFF)
    return STACK + (word & 0xFFF) if word >> 56 == 0x50 else word


def copied(data: bytes) -> None:
    """Unwinds by both; the frames must be the same, and the outcome but for its name."""
    count = min((data[0] if data else 0) & _MAX_RULES, len(data[1:]) // Rule.itemsize)
    rules = np.zeros(count + 1, Rule)
    rules[1:] = np.frombuffer(data, Rule, count, 1) if count else rules[1:]
    rules["cfa"] %= len(CfaKind)
    rules["fp"] %= len(FpKind)
    rules["cfa_offset"][rules["cfa"] == CfaKind.PLT] &= 15  # all that `unwind/rules.py` makes
    rest = data[1 + count * Rule.itemsize :]
    words = [placed(word) for (word,) in struct.iter_unpack("<Q", rest[: len(rest) // 8 * 8])]
    names = Registers.names or ()
    registers = dict(zip(names, words, strict=False))
    stack = struct.pack(f"<{len(words[len(names) :])}Q", *words[len(names) :])

    table = UnwindTable(
        _BASE,
        (np.arange(count) * _ROW_BYTES).astype(np.uint32),
        np.arange(1, count + 1).astype(np.uint16),
        rules,
    )
    slab = pack(table.pcs, table.rules, 1).view(Words)
    tables = np.zeros(2, Table)
    tables[1] = (_BASE, 0, 0, 1, TableFlag.READY, 0, 0)
    mappings = np.zeros(1, Mapping)
    mappings[0] = (CODE, CODE + CODE_BYTES, CODE - _BASE, 7, 1)
    frames_c, outcome_c = unwind_in_c(mappings, tables, rules, slab, registers, STACK, stack)

    record = np.zeros(1, Registers)
    for name, value in registers.items():
        record[name] = value
    span = _Span(CODE, CODE + CODE_BYTES, CODE - _BASE, ExecutableId(7), table)
    frames, outcome = unwind([span], record[0], CopiedStack(STACK, stack))
    must(frames == frames_c, f"the same frames: {frames} in Python, {frames_c} in C")
    at_end = (Outcome.READ_FAULT, Outcome.NO_RULE)
    beyond = outcome is Outcome.TRUNCATED and outcome_c in at_end
    must(outcome is outcome_c or beyond, f"the same outcome: {outcome!r}, {outcome_c!r}")


def _programs() -> list[tuple[bytes, list[int], list[int]]]:
    """(rules, registers, stack words): a call, a frame pointer, a signal, realigned, PLT."""

    def code(rule: int, offset: int = 8) -> int:
        return 0xC0 << 56 | (_ROW_BYTES * rule + offset)

    def stack(at: int) -> int:
        return 0x50 << 56 | at

    def rule(cfa: CfaKind, offset: int = 0, fp: int = 0, fp_at: int = 0, extra: int = 0) -> bytes:
        return struct.pack("<BBhiii", cfa, fp, -8, offset, fp_at, extra)

    end = rule(CfaKind.END)
    context = [0] * 40
    context[15], context[20], context[21] = 0, stack(320), code(2, 0)
    return [
        (rule(CfaKind.SP, 16) + rule(CfaKind.SP, 8) + end, [code(0), stack(0)],
         [0, code(1), code(2)]),
        (rule(CfaKind.FP, 16, FpKind.CFA, -16) + rule(CfaKind.FP, 16) + end,
         [code(0), stack(0), stack(0)], [stack(32), code(1), 0, 0, 0, code(2)]),
        (rule(CfaKind.SP, 8) + rule(CfaKind.SIGNAL) + end, [code(0), stack(0)],
         [code(1), *context, 0]),
        (rule(CfaKind.REGISTER, 0, extra=10) + rule(CfaKind.FP_DEREF, -8, FpKind.FP, 0) + end,
         [code(0), stack(0), stack(24), stack(16)], [0, code(1), stack(40), 0, code(2)]),
        (rule(CfaKind.PLT, 11, extra=8) + rule(CfaKind.SP_DEREF, 0, FpKind.SP, 8) + end,
         [code(0, 12), stack(0)], [0, code(1), stack(32), 0, code(2)]),
        # rbx at the leaf, and rbx that the callee has saved below its return address
        (rule(CfaKind.REGISTER, 0, extra=3) + rule(CfaKind.REGISTER, 0, extra=13) + end,
         [code(0), stack(0), 0, 0, stack(16)], [0, code(2)]),
        (rule(CfaKind.SP, 16, extra=-16) + rule(CfaKind.REGISTER, 0, extra=3) + end,
         [code(0), stack(0)], [stack(32), code(1), 0, code(2)]),
        (rule(CfaKind.SP_RA_REGISTER, 0, extra=5) + rule(CfaKind.SP, 8) + end,
         [code(0), stack(0), *[0] * 8, code(1)], [code(2)]),
        (rule(CfaKind.NONE) + rule(CfaKind.NONE), [code(0), stack(0), stack(0)],
         [stack(16), code(1), 0, code(1)]),
    ]  # fmt: skip


def _bytes_of(words: list[int]) -> bytes:
    return struct.pack(f"<{len(words)}Q", *words)


def _padded(registers: list[int]) -> list[int]:
    return registers + [0] * (len(Registers.names or ()) - len(registers))


def seeds() -> list[bytes]:
    """For `copied`."""
    return [
        bytes([len(rules) // 16]) + rules + _bytes_of(_padded(registers) + stack)
        for rules, registers, stack in _programs()
    ]


def c_seeds() -> list[bytes]:
    """For `unwinder.c`: the same, with a mapping, a table and rows."""
    found = []
    for rules, registers, stack in _programs():
        count = len(rules) // 16
        mapping = struct.pack("<3Q2I", CODE, CODE + CODE_BYTES, CODE - _BASE, 7, 1)
        tables = bytes(32) + struct.pack("<Q6I", _BASE, 0, 0, 1, TableFlag.READY, 0, 0)
        pcs = (np.arange(count) * _ROW_BYTES).astype(np.uint32)
        rows = pack(pcs, np.arange(1, count + 1).astype(np.uint16), 1).tobytes()
        head = bytes([1, 2, count + 1, len(rows) // 8]) + _bytes_of(_padded(registers))
        found.append(head + mapping + tables + bytes(16) + rules + rows + _bytes_of(stack))
    return found
