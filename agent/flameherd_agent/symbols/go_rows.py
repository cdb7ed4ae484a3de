"""Unwind rows for Go code, from the pcsp tables of its pclntab; x86-64.

Go writes no `.eh_frame`. Its pclntab tells for every pc by how much the stack pointer differs from
function entry, which is the CFA, and its compiled code keeps rbp as a frame pointer. From both:

- before the frame is set up, and after it is torn down: SP + delta + 8;
- in compiled functions once `push rbp; mov rbp, rsp` is done: rbp + 16, whatever the delta. That
  is one row for the whole body, and right where the delta cannot be: where stacks are switched;
- in assembly functions: SP + delta + 8 throughout, since these may use rbp for something else.
  Assembly that sets SP from memory (flag SPWRITE: systemstack, asmcgocall, cgocallback,
  nanotime1) goes by rbp like compiled code: it still points into the caller's stack;
- top frames (flag TOPFRAME: goexit, mstart, rt0_go) end the stack. So do gogo, morestack, and
  mcall behind its switch: the runtime clears rbp there, for what runs next may be on behalf of
  another goroutine or of none;
- vfork's wrapper holds its return address in r12 during the system call;
- the signal return trampoline is a signal frame, one byte early, since callers are looked up by
  return address - 1.

That rbp is really saved is read from the prologue's bytes: `push rbp` (Go ≥ 1.21), or
`sub rsp, N; mov [rsp+N-8], rbp; lea rbp, [rsp+N-8]` (before).

All numpy: pc-value tables of many functions are decoded in lockstep, each distinct table once.
Meaning of flags and deltas: internal/abi/symtab.go, runtime/stack.go and
cmd/internal/obj/x86/obj6.go of Go.
"""

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from flameherd_agent.elf.reader import EM_X86_64, ElfFile
from flameherd_agent.errors import ElfError
from flameherd_agent.kernel.abi import CfaKind, FpKind, Rule
from flameherd_agent.symbols.go_locate import field, find_go, record_offsets
from flameherd_agent.symbols.gopclntab import NAME_OFF, PCSP, GoTable

MAX_STEPS = 1 << 14
"""Pairs decoded of one table. The longest of real programs have some thousand."""
MAX_ROWS = 16_000_000
MIN_DELTA = -8
"""vfork's wrapper takes the return address off the stack."""
UNKNOWN = -1
"""Not a delta: these are multiples of 8."""
MAX_DELTA = (1 << 31) - 64
"""A rule's offset has 32 bits. reflect.call has frames of 1 GiB."""

_FLAG_TOPFRAME, _FLAG_SPWRITE, _FLAG_ASM = 1, 2, 4
_TOP = ("_rt0_amd64", "_rt0_amd64_linux", "runtime.gogo", "gogo", "runtime.morestack")
"""Stacks end there although Go does not flag it."""
_MCALL = ("runtime.mcall",)
_MCALL_SWITCHED = 16
"""mcall's delta once it has pushed its argument on the new stack."""
_VFORK = ("syscall.rawVforkSyscall",)
_VFORK_RETURN = 12
"""DWARF number of the register that it keeps its return address in, r12: the child overwrites the stack."""
_SIGNAL_ENTRY = ("runtime.sigtramp",)
_SIGNAL_RETURN = ("runtime.sigreturn__sigaction", "runtime.sigreturn")
_PUSH_RBP = 0x55

_FP_RULE = np.array([(CfaKind.FP, FpKind.CFA, -8, 16, -16, 0)], Rule)
_END_RULE = np.array([(CfaKind.END, 0, 0, 0, 0, 0)], Rule)
_SIGNAL_RULE = np.array([(CfaKind.SIGNAL, 0, 0, 0, 0, 0)], Rule)

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class GoRows(NamedTuple):
    """Unwind rows: from file address `pcs[i]` on, `rules[i]` holds. Sorted, strictly rising."""

    pcs: npt.NDArray[np.uint64]
    rules: npt.NDArray[np.void]
    """dtype `flameherd_agent.kernel.abi.Rule`; all zero = no information."""


class Deltas(NamedTuple):
    """What pcsp says: from text offset `pc[i]` on, SP is `delta[i]` bytes below function entry's.

    `UNKNOWN` where it cannot be. Sorted by pc within a function and by function.
    """

    pc: I64
    delta: I64
    function: I64
    """Index of the function."""
    is_first: Bools
    """True at a function's first row."""


def go_rows(elf: ElfFile) -> GoRows | None:
    """The rows of a Go program, or None where there are none to make (no Go ≥ 1.18, not x86-64).

    Raises `ElfError` when the tables are damaged as a whole; damaged functions get no information.
    """
    if elf.machine != EM_X86_64:
        return None
    program = find_go(elf)
    if program is None:
        return None
    table = program.table
    deltas = sp_deltas(table)
    code = _text(elf, table)
    return _rows(table, deltas, code)


def sp_deltas(table: GoTable) -> Deltas:
    """Decodes the pcsp tables of all functions of a pclntab. `ElfError` when it is damaged."""
    entries, records = record_offsets(table)
    starts = entries[:-1].astype(np.int64)
    distinct, which = np.unique(field(table, records, PCSP), return_inverse=True)
    first, count, relative, value = _decode(table, distinct.astype(np.int64))
    rows = int(count[which].sum())
    if rows > MAX_ROWS:
        raise ElfError(f"pclntab: {rows} unwind rows are over the limit of {MAX_ROWS}")
    function = np.repeat(np.arange(len(starts)), count[which])
    row_first = np.cumsum(count[which]) - count[which]
    within = np.arange(rows) - row_first[function]
    source = first[which][function] + within
    pc = starts[function] + relative[source]
    delta = value[source]
    # a table that runs over its function's end, or stands still, is cut there
    inside = pc < entries[1:].astype(np.int64)[function]
    inside[:-1] &= (pc[1:] > pc[:-1]) | (function[1:] != function[:-1])
    pc, delta, function = pc[inside], delta[inside], function[inside]
    delta = np.where((delta < MIN_DELTA) | (delta > MAX_DELTA), UNKNOWN, delta)
    is_first = np.ones(len(pc), np.bool_)
    is_first[1:] = function[1:] != function[:-1]
    return Deltas(pc, delta, function, is_first)


def _decode(table: GoTable, offsets: I64) -> tuple[I64, I64, I64, I64]:
    """Decodes pc-value tables in lockstep.

    Returns (first, count) of each table's rows in the flat arrays (start relative to the
    function's entry, value). A table that is damaged ends where it is.
    """
    end = table.functab_at
    data = np.frombuffer(table.data, np.uint8, end)
    at = offsets + table.pctab_at
    active = np.flatnonzero((offsets > 0) & (at < end))
    at = at[active]
    relative = np.zeros(len(active), np.int64)
    value = np.full(len(active), -1, np.int64)
    tables: list[I64] = []
    starts: list[I64] = []
    values: list[I64] = []
    for step in range(MAX_STEPS):
        step_value, at = _varint(data, at)
        going = step_value > 0 if step else step_value >= 0
        going &= at < end
        active, at, relative = active[going], at[going], relative[going]
        step_value = step_value[going]
        value = value[going] + np.where(step_value & 1, -(step_value >> 1) - 1, step_value >> 1)
        if not len(active):
            break
        tables.append(active)
        starts.append(relative)
        values.append(value)
        advance, at = _varint(data, at)
        relative = relative + np.maximum(advance, 0) * table.quantum
        alive = at < end
        active, at, relative, value = active[alive], at[alive], relative[alive], value[alive]
    if not tables:
        zero = np.zeros(len(offsets), np.int64)
        return zero, zero, zero[:0], zero[:0]
    owner = np.concatenate(tables)
    order = np.argsort(owner, kind="stable")
    count = np.bincount(owner, minlength=len(offsets))
    first = np.cumsum(count) - count
    return first, count, np.concatenate(starts)[order], np.concatenate(values)[order]


def _varint(data: npt.NDArray[np.uint8], at: I64) -> tuple[I64, I64]:
    """(values, positions behind) of the varints at positions; at most 35 bits are read."""
    last = len(data) - 1
    value = np.zeros(len(at), np.int64)
    more = np.arange(len(at))
    at = at.copy()
    for shift in (0, 7, 14, 21, 28):
        byte = data[np.minimum(at[more], last)].astype(np.int64)
        value[more] |= (byte & 0x7F) << shift
        at[more] += 1
        more = more[byte >= 0x80]
        if not len(more):
            break
    return value & 0xFFFF_FFFF, at


def _text(elf: ElfFile, table: GoTable) -> npt.NDArray[np.uint8]:
    """Go's code; index = text offset. Cut at the end of its segment."""
    offset = elf.vaddr_to_offset(table.text)
    if offset is None:
        raise ElfError(f"Go's text at {table.text:#x} is in no loaded segment")
    size = min(table.end, elf.size - offset)
    return np.frombuffer(elf.bytes_at(offset, size, "Go's text"), np.uint8)


def _rows(table: GoTable, deltas: Deltas, code: npt.NDArray[np.uint8]) -> GoRows:
    """Turns deltas into rules; see the module's docstring."""
    _, records = record_offsets(table)
    flags = (field(table, records, table.layout.func_id) >> np.uint32(8)) & np.uint32(0xFF)
    names = field(table, records, NAME_OFF)
    frame_at, body_at = _prologues(deltas, code, len(records))
    is_top = ((flags & _FLAG_TOPFRAME) != 0) & ~_named(table, names, _SIGNAL_ENTRY)
    is_top |= _named(table, names, _TOP)
    by_fp = ((flags & _FLAG_ASM) == 0) | ((flags & _FLAG_SPWRITE) != 0)
    by_fp &= (body_at >= 0) & ~is_top

    of, pc, delta = deltas.function, deltas.pc, deltas.delta
    rules = np.zeros(len(of), Rule)
    known = delta != UNKNOWN
    rules["cfa"][known] = CfaKind.SP
    rules["ra_offset"][known] = -8
    rules["cfa_offset"][known] = delta[known] + 8
    grown = delta >= 8
    saved = grown & (frame_at[of] >= 0) & (pc >= frame_at[of])
    rules["fp"][saved] = FpKind.CFA
    rules["fp_offset"][saved] = -16
    rules[grown & by_fp[of] & (pc >= body_at[of])] = _FP_RULE
    rules[_named(table, names, _MCALL)[of] & (delta >= _MCALL_SWITCHED)] = _END_RULE
    rules[is_top[of]] = _END_RULE
    vfork = _named(table, names, _VFORK)[of] & (delta == MIN_DELTA)
    rules[vfork] = np.array([(CfaKind.SP_RA_REGISTER, 0, 0, 0, 0, _VFORK_RETURN)], Rule)
    returns = _named(table, names, _SIGNAL_RETURN)[of]
    rules[returns] = _SIGNAL_RULE

    # the row in which `mov rbp, rsp` ends is split there; a signal frame begins a byte early
    body = body_at[by_fp]
    early = pc[returns & deltas.is_first] - 1
    early = early[early >= 0]
    pcs = np.concatenate((early, pc, body, [table.end]))
    priority = np.repeat(np.arange(4), (len(early), len(pc), len(body), 1))
    added = (_SIGNAL_RULE, len(early)), (_FP_RULE, len(body)), (np.zeros(1, Rule), 1)
    before, middle, last = (np.repeat(rule, count) for rule, count in added)
    order = np.lexsort((priority, pcs))
    return _merged(pcs[order], np.concatenate((before, rules, middle, last))[order], table.text)


def _prologues(deltas: Deltas, code: npt.NDArray[np.uint8], functions: int) -> tuple[I64, I64]:
    """Text offsets from which rbp is saved at CFA - 16, and is CFA - 16; -1 = never."""
    frame_at = np.full(functions, -1, np.int64)
    body_at = np.full(functions, -1, np.int64)
    grown = np.flatnonzero(deltas.delta > 0)
    of = deltas.function[grown]
    first = np.ones(len(grown), np.bool_)
    first[1:] = of[1:] != of[:-1]
    grown, of = grown[first], of[first]
    pc = deltas.pc[grown]
    keep = (pc > 0) & (pc + 16 <= len(code))
    grown, of, pc = grown[keep], of[keep], pc[keep]
    if not len(pc):
        return frame_at, body_at

    def byte(at: int) -> I64:
        return code[pc + at].astype(np.int64)

    def is_at(at: int, *values: int) -> Bools:
        match = np.ones(len(pc), np.bool_)
        for index, value in enumerate(values):
            match &= byte(at + index) == value
        return match

    pushed = (byte(-1) == _PUSH_RBP) & (deltas.delta[grown] == 8)
    frame_at[of[pushed]] = pc[pushed]
    moved = pushed & is_at(0, 0x48, 0x89, 0xE5)  # mov rbp, rsp
    body_at[of[moved]] = pc[moved] + 3
    # mov [rsp+disp], rbp; lea rbp, [rsp+disp] with no, 8-bit and 32-bit displacement
    for modrm, length in ((0x2C, 4), (0x6C, 5), (0xAC, 8)):
        stored = is_at(0, 0x48, 0x89, modrm, 0x24)
        stored &= is_at(length, 0x48, 0x8D, modrm, 0x24)
        frame_at[of[stored]] = pc[stored] + length
        body_at[of[stored]] = pc[stored] + 2 * length
    return frame_at, body_at


def _named(table: GoTable, names: npt.NDArray[np.uint32], wanted: tuple[str, ...]) -> Bools:
    """Which functions have one of these names."""
    area = table.data[table.names_at : table.cutab_at]
    alternatives = b"|".join(re.escape(name.encode()) for name in wanted)
    hits = [m.start() for m in re.finditer(b"(?<![^\0])(?:" + alternatives + b")(?=\0)", area)]
    return np.isin(names, np.array(hits, np.uint32))


def _merged(pcs: I64, rules: npt.NDArray[np.void], text: int) -> GoRows:
    """Keeps the last row of each pc, then the first of each run of equal rules."""
    last = np.ones(len(pcs), np.bool_)
    last[:-1] = pcs[1:] != pcs[:-1]
    pcs, rules = pcs[last], rules[last]
    words = rules.view(np.uint64).reshape(-1, 2)
    changes = np.ones(len(pcs), np.bool_)
    changes[1:] = (words[1:] != words[:-1]).any(axis=1)
    return GoRows(pcs[changes].astype(np.uint64) + np.uint64(text), rules[changes])
