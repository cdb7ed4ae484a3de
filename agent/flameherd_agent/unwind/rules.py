"""Unwind rules: DWARF expressions become rules, equal rules become one number.

A rule is `struct fh_rule` of `bpf/abi.h`. All executables of a machine together have a few thousand
distinct ones, so a row of a table holds a rule's number. `RuleSet` numbers them by a direct-mapped
cache in numpy, which costs no sort; a miss goes through a dictionary.

Of the DWARF expressions only those are rules that compilers, linkers and glibc emit: a register
plus an offset, the same dereferenced (realigned stacks), and the PLT's. Others are "no
information".
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from flameherd_agent.kernel.abi import CfaKind, FpKind, Rule

MAX_TABLE_RULES = 16384
"""Distinct rules of one table. Large libraries have some 600; rules over it become rule 0."""
MAX_EXPRESSIONS = 65536
MAX_EXPRESSION_BYTES = 64

RA_REGISTERS = (3, 5, 10, 12, 13, 14, 15)
"""DWARF numbers of the registers of x86-64 where the kernel side finds a return address: all of `struct
fh_registers` but rbp and rsp."""

_I64 = npt.NDArray[np.int64]
_U64 = npt.NDArray[np.uint64]

_OP_DEREF = 0x06
_OP_PLUS = 0x22
_OP_PLUS_UCONST = 0x23
_OP_LIT0 = 0x30
_OP_BREG0 = 0x70


class Expression(NamedTuple):
    """A CFA expression as a rule: `kind`, `offset` and `extra` as in `struct fh_rule`."""

    kind: CfaKind
    offset: int
    extra: int


NO_EXPRESSION = Expression(CfaKind.NONE, 0, 0)


def leb128(data: bytes, at: int, signed: bool = False) -> tuple[int, int]:
    """(value, offset after it). `IndexError` at the end of `data`, `ValueError` over 64 bits."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if signed and byte & 0x40:
                value -= 1 << shift
            return value, at
        if shift > 63:
            raise ValueError("a LEB128 number exceeds 64 bits")


def register_expression(data: bytes) -> tuple[int, int] | None:
    """(register, offset) of an expression that is one `DW_OP_bregN offset`, else None."""
    try:
        if _OP_BREG0 <= data[0] <= _OP_BREG0 + 31:
            offset, at = leb128(data, 1, signed=True)
            if at == len(data):
                return data[0] - _OP_BREG0, offset
    except (IndexError, ValueError):
        pass
    return None


def cfa_expression(data: bytes, sp: int, fp: int) -> Expression:
    """The rule for a `DW_CFA_def_cfa_expression`; `sp` and `fp` are DWARF register numbers.

    | expression | rule |
    | --- | --- |
    | breg R off | R + off |
    | breg sp/fp off; deref; optional plus_uconst n, or lit n; plus | DEREF, extra n |
    | breg7 8; breg16 0; lit15; and; lit N; ge; lit K; shl; plus | PLT, offset N, extra 1 << K |
    """
    try:
        if not _OP_BREG0 <= data[0] <= _OP_BREG0 + 31:
            return NO_EXPRESSION
        register = data[0] - _OP_BREG0
        offset, at = leb128(data, 1, signed=True)
        rest = data[at:]
        if not rest:
            if register == sp:
                return Expression(CfaKind.SP, offset, 0)
            if register == fp:
                return Expression(CfaKind.FP, offset, 0)
            return Expression(CfaKind.REGISTER, offset, register)
        if rest[0] == _OP_DEREF and register in (sp, fp):
            kind = CfaKind.SP_DEREF if register == sp else CfaKind.FP_DEREF
            if len(rest) == 1:
                return Expression(kind, offset, 0)
            if rest[1] == _OP_PLUS_UCONST:
                extra, end = leb128(rest, 2)
                if end == len(rest):
                    return Expression(kind, offset, extra)
            elif _OP_LIT0 <= rest[1] <= _OP_LIT0 + 31 and rest[2:] == bytes([_OP_PLUS]):
                return Expression(kind, offset, rest[1] - _OP_LIT0)
        plt = data[:6] == b"\x77\x08\x80\x00\x3f\x1a" and len(data) == 11
        if plt and data[7] == 0x2A and data[9:] == b"\x24\x22":
            limit, shift = data[6] - _OP_LIT0, data[8] - _OP_LIT0
            if 0 <= limit <= 15 and 0 <= shift <= 8:
                return Expression(CfaKind.PLT, limit, 1 << shift)
    except (IndexError, ValueError):
        pass
    return NO_EXPRESSION


class ExpressionSet:
    """The distinct CFA expressions of one file, numbered; columns for lookups by number.

    Number 0 is "no information": unknown shapes and whatever is over `MAX_EXPRESSIONS`.
    """

    def __init__(self, sp: int, fp: int, bx: int) -> None:
        self.sp = sp
        self.fp = fp
        self.bx = bx
        """rbx, by which the dynamic loader's trampolines find their frame; -1 on other machines."""
        self._numbers: dict[bytes, int] = {}
        self._rules: list[Expression] = [NO_EXPRESSION]
        self._columns: _I64 | None = None

    def number(self, data: bytes) -> int:
        """The number of an expression given by its bytes."""
        number = self._numbers.get(data)
        if number is None:
            if len(data) > MAX_EXPRESSION_BYTES or len(self._rules) >= MAX_EXPRESSIONS:
                return 0
            number = self._numbers[data] = len(self._rules)
            self._rules.append(cfa_expression(data, self.sp, self.fp))
            self._columns = None
        return number

    def columns(self) -> _I64:
        """int64[n, 3]: kind, offset, extra by number."""
        if self._columns is None:
            clipped = [(k, o, e) if _fits(o) and _fits(e) else (0, 0, 0) for k, o, e in self._rules]
            self._columns = np.array(clipped, np.int64)
        return self._columns


def _fits(value: int) -> bool:
    return -(1 << 31) <= value < 1 << 31


class RuleSet:
    """Numbers rules in the order of their first use. Rule 0 is all zero: no information."""

    _SLOT_BITS = 15
    _FEW = 64
    """New rules of one call that are taken one by one; with more of them, that is quadratic."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {(0, 0): 0}
        self._words: _U64 = np.zeros((64, 2), np.uint64)
        self._cache: npt.NDArray[np.uint16] = np.zeros(1 << self._SLOT_BITS, np.uint16)

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, rules: npt.NDArray[np.void]) -> npt.NDArray[np.uint16]:
        """The numbers of rules (RULE_DTYPE[n]) as uint16[n]; new ones are added."""
        words: _U64 = np.ascontiguousarray(rules).view(np.uint64).reshape(-1, 2)
        first, second = words[:, 0], words[:, 1]
        mixed = first * np.uint64(0x9E3779B97F4A7C15) + second * np.uint64(0xC2B2AE3D27D4EB4F)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        slots = (mixed >> np.uint64(64 - self._SLOT_BITS)).astype(np.int64)
        numbers = self._cache[slots]
        known = self._words[numbers]
        missed = np.flatnonzero((known[:, 0] != first) | (known[:, 1] != second))
        for _ in range(self._FEW):
            # One new rule at a time, then all its rows: a file has few rules and many rows.
            if not len(missed):
                return numbers
            row = int(missed[0])
            key = (int(first[row]), int(second[row]))
            number = self._add(key)
            self._cache[slots[row]] = number
            same = (first[missed] == words[row, 0]) & (second[missed] == words[row, 1])
            numbers[missed[same]] = number
            missed = missed[~same]
        if len(missed):  # only hostile files have so many
            keys, first_row, which = np.unique(
                words[missed], axis=0, return_index=True, return_inverse=True
            )
            found = np.zeros(len(keys), np.uint16)
            for i in np.argsort(first_row).tolist():
                found[i] = self._add((int(keys[i, 0]), int(keys[i, 1])))
            numbers[missed] = found[which.ravel()]
        return numbers

    def _add(self, key: tuple[int, int]) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = len(self._numbers)
            if number >= MAX_TABLE_RULES:
                return 0
            self._numbers[key] = number
            if number == len(self._words):
                self._words = np.concatenate([self._words, np.zeros_like(self._words)])
            self._words[number] = key
        return number

    def table(self) -> npt.NDArray[np.void]:
        """The rules by number: RULE_DTYPE[k]."""
        return self._words[: len(self)].copy().view(Rule).reshape(-1)


def make_rules(
    cfa: _I64,
    fp: _I64,
    ra_offset: _I64,
    cfa_offset: _I64,
    fp_offset: _I64,
    cfa_extra: _I64,
) -> npt.NDArray[np.void]:
    """Columns → RULE_DTYPE[n]. Rules whose numbers do not fit the struct become rule 0.

    Fields that a kind does not use are zeroed, so that equal rules compare equal bytewise.
    """
    limit = np.int64(1 << 31)
    ok = (np.abs(ra_offset) < 1 << 15) & (np.abs(cfa_offset) < limit) & (np.abs(cfa_extra) < limit)
    bare = (cfa == CfaKind.END) | (cfa == CfaKind.SIGNAL)
    fp_ok = (np.abs(fp_offset) < limit) & (fp != FpKind.SAME) & ok & ~bare & (cfa != CfaKind.NONE)
    full = ok & ~bare & (cfa != CfaKind.NONE)
    rules = np.zeros(len(cfa), Rule)
    rules["cfa"] = np.where(ok, cfa, 0)
    rules["fp"] = np.where(fp_ok, fp, 0)
    rules["ra_offset"] = np.where(full, ra_offset, 0)
    rules["cfa_offset"] = np.where(full, cfa_offset, 0)
    rules["fp_offset"] = np.where(fp_ok, fp_offset, 0)
    rules["cfa_extra"] = np.where(full, cfa_extra, 0)
    return rules
