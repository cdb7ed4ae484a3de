"""Call frame instructions of thousands of functions at once, in numpy.

DWARF 5, section 6.4.2, is a little byte code: each function's program says how the rules change
from one address to the next. Running it function by function costs microseconds an instruction in
Python; here all programs of a piece of `.eh_frame` run together:

1. For *every byte* of the piece: where would the next instruction begin if one began here? Then all
   programs step along in lockstep, one gather a step, which marks where instructions do begin.
2. Everything else is a flat scan over the marked instructions in their order. The address after an
   instruction is a cumulative sum. Which instruction set the CFA's register, its offset, the frame
   pointer's and the return address's rule last is a running maximum over the setters' indexes.
   `remember_state` and `restore_state` pair up by depth, and the latter sets everything to what its
   partner saw. `restore` sets what the CIE said, which stands in a row before each program.

Registers other than the frame pointer, the return address and rbx are not followed: the kernel side
needs no more. Every program is bounded by its record; an unknown or cut instruction poisons the
rest of its function to "no information", and no other.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from flameherd_agent.kernel.abi import FpKind
from flameherd_agent.unwind.rules import ExpressionSet, register_expression

I64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
_Bool = npt.NDArray[np.bool_]

SLACK = 16
"""Zero bytes that must follow the instructions in the buffer, so that gathers need no bounds."""
_OFFSET_LIMIT = np.int64(1 << 40)
_FEW = 12
"""So few programs are stepped one after the other: a step of all costs as much as 20 of one."""

# What rules a register's caller value follows. For the frame pointer: FpKind.
RA_UNSAVED = 0
RA_CFA = 1
RA_UNDEFINED = 2
RA_OTHER = 3
RA_SP_EXPRESSION = 4
_FP_EXPRESSION = 5
RA_REGISTER = 6
"""In another register, whose number stands in the offset's place."""
_FP_KINDS = np.array(
    [FpKind.SAME, FpKind.CFA, FpKind.SAME, FpKind.SAME, FpKind.SP, FpKind.FP, FpKind.SAME],
    np.int64,
)

NO_CFA = -1
"""`State.cfa_register` without a rule; numbers below it are expressions, -2 - number."""

# DWARF 5, table 7.29; the primary opcodes carry an operand in their low six bits.
_ADVANCE, _OFFSET, _RESTORE = 0x40, 0x80, 0xC0
_SET_LOC, _ADVANCE1, _ADVANCE2, _ADVANCE4 = 0x01, 0x02, 0x03, 0x04
_OFFSET_EXTENDED, _RESTORE_EXTENDED, _UNDEFINED, _SAME, _REGISTER = 0x05, 0x06, 0x07, 0x08, 0x09
_REMEMBER, _RESTORE_STATE = 0x0A, 0x0B
_DEF_CFA, _DEF_CFA_REGISTER, _DEF_CFA_OFFSET, _DEF_CFA_EXPRESSION = 0x0C, 0x0D, 0x0E, 0x0F
_EXPRESSION, _OFFSET_SF, _DEF_CFA_SF, _DEF_CFA_OFFSET_SF = 0x10, 0x11, 0x12, 0x13
_VAL_OFFSET, _VAL_OFFSET_SF, _VAL_EXPRESSION = 0x14, 0x15, 0x16
_MIPS_ADVANCE8, _NEGATE_RA_STATE, _ARGS_SIZE, _NEGATIVE_OFFSET = 0x1D, 0x2D, 0x2E, 0x2F

# Shapes of instructions by opcode: how long they are.
_INVALID, _PLAIN, _ONE, _TWO, _BLOCK, _ONE_BLOCK, _POINTER = range(7)


def _shapes() -> tuple[Bytes, Bytes]:
    """(shape, length where the shape is PLAIN) by opcode."""
    shape = np.full(256, _INVALID, np.uint8)
    length = np.ones(256, np.uint8)
    shape[[0x00, _REMEMBER, _RESTORE_STATE, _NEGATE_RA_STATE]] = _PLAIN
    for op, size in ((_ADVANCE1, 2), (_ADVANCE2, 3), (_ADVANCE4, 5), (_MIPS_ADVANCE8, 9)):
        shape[op] = _PLAIN
        length[op] = size
    one = [_RESTORE_EXTENDED, _UNDEFINED, _SAME, _DEF_CFA_REGISTER, _DEF_CFA_OFFSET]
    shape[[*one, _DEF_CFA_OFFSET_SF, _ARGS_SIZE]] = _ONE
    two = [_OFFSET_EXTENDED, _REGISTER, _DEF_CFA, _OFFSET_SF, _DEF_CFA_SF, _VAL_OFFSET]
    shape[[*two, _VAL_OFFSET_SF, _NEGATIVE_OFFSET]] = _TWO
    shape[_DEF_CFA_EXPRESSION] = _BLOCK
    shape[[_EXPRESSION, _VAL_EXPRESSION]] = _ONE_BLOCK
    shape[_SET_LOC] = _POINTER
    shape[_ADVANCE:_OFFSET] = _PLAIN
    shape[_OFFSET:_RESTORE] = _ONE
    shape[_RESTORE:] = _PLAIN
    return shape, length


_SHAPE, _LENGTH = _shapes()
_OP = np.arange(256, dtype=np.uint8)
_OP[_ADVANCE:_OFFSET] = _ADVANCE
_OP[_OFFSET:_RESTORE] = _OFFSET
_OP[_RESTORE:] = _RESTORE
_REGISTER_OPS = np.zeros(256, bool)
_REGISTER_OPS[[_OFFSET, _OFFSET_EXTENDED, _OFFSET_SF, _NEGATIVE_OFFSET]] = True
_REGISTER_OPS[[_RESTORE, _RESTORE_EXTENDED, _UNDEFINED, _SAME, _REGISTER]] = True
_REGISTER_OPS[[_EXPRESSION, _VAL_EXPRESSION, _VAL_OFFSET, _VAL_OFFSET_SF]] = True


class State(NamedTuple):
    """Rules in force, as columns of int64[n]."""

    cfa_register: I64
    """DWARF register number; `NO_CFA`; or -2 - number of a CFA expression."""
    cfa_offset: I64
    fp_kind: I64
    """`FpKind`."""
    fp_offset: I64
    ra_kind: I64
    """RA_*."""
    ra_offset: I64
    bx_offset: I64
    """rbx is saved at CFA + this; 0: it is not."""

    def take(self, at: I64) -> "State":
        """The rows `at` of every column."""
        return State(*(column[at] for column in self))


class Programs(NamedTuple):
    """n instruction streams in one buffer, in order, and what their CIEs say. int64[n] each.

    The byte before each start must belong to the same record: it stands for the initial state.
    """

    start: I64
    end: I64
    address: I64
    code_align: I64
    data_align: I64
    ra_register: I64
    initial: State


class Rows(NamedTuple):
    """State changes: of program `owner`, from `address` on, `state` holds. In program order."""

    owner: I64
    address: I64
    state: State


class Lebs:
    """LEB128 numbers at many places of a buffer."""

    def __init__(self, buffer: Bytes) -> None:
        self.buffer = buffer
        size = len(buffer)
        index = np.arange(size, dtype=np.int32)
        last = np.where(buffer < 0x80, index, np.int32(size - 1))
        # For each byte, the offset after the number that begins there.
        self.after = np.minimum.accumulate(last[::-1])[::-1] + np.int32(1)

    def unsigned(self, at: npt.NDArray[np.integer]) -> I64:
        """Values, capped at `_OFFSET_LIMIT`."""
        value: I64 = (self.buffer[at] & np.uint8(0x7F)).astype(np.int64)
        length = self.after[at] - at
        more = np.flatnonzero(length > 1)
        for byte in range(1, 6):
            if not len(more):
                return value
            value[more] |= (self.buffer[at[more] + byte] & np.int64(0x7F)) << np.int64(7 * byte)
            more = more[length[more] > byte + 1]
        value[more] = _OFFSET_LIMIT
        return value

    def signed(self, at: npt.NDArray[np.integer]) -> I64:
        """Values, capped at ± `_OFFSET_LIMIT`."""
        value = self.unsigned(at)
        bits = np.minimum(7 * (self.after[at] - at).astype(np.int64), 42)
        negative = (value >> (bits - 1)) & 1 == 1
        value[negative] -= np.int64(1) << bits[negative]
        return value


def _next_instruction(buffer: Bytes, lebs: Lebs, pointer_size: int) -> npt.NDArray[np.int32]:
    """For each byte, where an instruction that began there would end; past all for unknown ones."""
    size = np.int32(len(buffer))
    shape = _SHAPE[buffer]
    following = np.arange(len(buffer), dtype=np.int32) + _LENGTH[buffer]

    def places(*wanted: int) -> tuple[I64, npt.NDArray[np.int32]]:
        mask = shape == wanted[0]
        for other in wanted[1:]:
            mask |= shape == other
        at = np.flatnonzero(mask[:-SLACK])
        return at, (at + 1).astype(np.int32)

    at, operand = places(_ONE)
    following[at] = lebs.after[operand]
    at, operand = places(_TWO)
    following[at] = lebs.after[np.minimum(lebs.after[operand], size - 1)]
    at, operand = places(_BLOCK)
    following[at] = np.minimum(lebs.after[operand] + lebs.unsigned(operand), size)
    at, operand = places(_ONE_BLOCK)
    operand = np.minimum(lebs.after[operand], size - 1)
    following[at] = np.minimum(lebs.after[operand] + lebs.unsigned(operand), size)
    if pointer_size:
        at, operand = places(_POINTER)
        following[at] = operand + np.int32(pointer_size)
    else:
        following[shape == _POINTER] = size
    following[shape == _INVALID] = size
    np.minimum(following, size - 1, out=following)
    return following


class _Events(NamedTuple):
    """The instructions that matter, in order; a program's first one stands for its CIE's state."""

    position: I64
    op: Bytes
    """Opcode without the operand in its low bits; 0 for a program's first event and a cut one."""
    low: I64
    """The low six bits of the opcode."""
    owner: I64
    """Index of the program."""
    first: I64
    """int64[programs]: the event of the initial state."""
    cut: I64
    """Events whose instruction is unknown or runs over its record's end."""

    def of(self, *codes: int) -> I64:
        """Indexes of the events with one of these opcodes."""
        mask = self.op == codes[0]
        for code in codes[1:]:
            mask |= self.op == code
        return np.flatnonzero(mask)


def run(
    buffer: Bytes,
    programs: Programs,
    expressions: ExpressionSet,
    set_loc: Callable[[I64], I64] | None = None,
    pointer_size: int = 0,
) -> Rows:
    """Runs the programs; gives the last state at each address of each program, in order.

    `buffer` ends in `SLACK` zero bytes. `set_loc` decodes the pointers at given offsets of the
    buffer, `pointer_size` is their size in bytes; 0: `DW_CFA_set_loc` is not understood.
    """
    lebs = Lebs(buffer)
    following = _next_instruction(buffer, lebs, pointer_size)
    events = _find_events(buffer, following, programs, expressions)
    size = len(events.position)
    columns = State(*(np.zeros(size, np.int64) for _ in State._fields))
    for column, initial in zip(columns, programs.initial, strict=True):
        column[events.first] = initial
    sets_register, sets_offset = _cfa_rules(
        buffer, lebs, following, events, programs, expressions, columns
    )
    fp, ra, bx = _register_rules(buffer, lebs, following, events, programs, expressions, columns)
    address = _addresses(buffer, events, programs, set_loc)
    last = np.ones(size, bool)
    last[:-1] = (address[1:] != address[:-1]) | (events.owner[1:] != events.owner[:-1])
    wanted = np.flatnonzero(last)
    history = _History(events)
    by_register = history.setter(wanted, sets_register)
    by_offset = history.setter(wanted, sets_offset)
    by_fp = history.setter(wanted, fp.events, fp.restores)
    by_ra = history.setter(wanted, ra.events, ra.restores)
    by_bx = history.setter(wanted, bx.events, bx.restores)
    state = State(
        columns.cfa_register[by_register],
        columns.cfa_offset[by_offset],
        columns.fp_kind[by_fp],
        columns.fp_offset[by_fp],
        columns.ra_kind[by_ra],
        columns.ra_offset[by_ra],
        columns.bx_offset[by_bx],
    )
    return Rows(events.owner[wanted], address[wanted], state)


def _find_events(
    buffer: Bytes,
    following: npt.NDArray[np.int32],
    programs: Programs,
    expressions: ExpressionSet,
) -> _Events:
    """Steps all programs along in lockstep and keeps the instructions that matter."""
    begins = np.zeros(len(buffer), bool)
    live = programs.start < programs.end
    at, end = programs.start[live].astype(np.int32), programs.end[live].astype(np.int32)
    while len(at) > _FEW:
        begins[at] = True
        at = following[at]
        going = at < end
        at, end = at[going], end[going]
    step = memoryview(following.data)
    for place, stop in zip(at.tolist(), end.tolist(), strict=True):
        while place < stop:
            begins[place] = True
            place = step[place]
    relevant = np.ones(256, bool)
    relevant[[0x00, _ARGS_SIZE, _NEGATE_RA_STATE]] = False
    followed = {expressions.fp, expressions.bx, *np.unique(programs.ra_register).tolist()}
    for register in range(64):
        if register not in followed:
            relevant[[_OFFSET | register, _RESTORE | register]] = False
    begins &= relevant[buffer]
    begins[programs.start - 1] = True
    position = np.flatnonzero(begins)
    first = np.searchsorted(position, programs.start - 1)
    marks = np.zeros(len(position), np.int64)
    marks[first[1:]] = 1
    raw = buffer[position]
    op = _OP[raw]
    owner = np.cumsum(marks)
    cut = following[position] > programs.end[owner]
    cut[first] = False
    op[first] = 0
    op[cut] = 0
    low = (raw & np.uint8(0x3F)).astype(np.int64)
    return _Events(position, op, low, owner, first, np.flatnonzero(cut))


def _cfa_rules(
    buffer: Bytes,
    lebs: Lebs,
    following: npt.NDArray[np.int32],
    events: _Events,
    programs: Programs,
    expressions: ExpressionSet,
    columns: State,
) -> tuple[I64, I64]:
    """Fills the CFA's columns; gives the events that set its register and its offset."""
    position = events.position
    columns.cfa_register[events.cut] = NO_CFA
    registers = events.of(_DEF_CFA, _DEF_CFA_SF, _DEF_CFA_REGISTER)
    columns.cfa_register[registers] = lebs.unsigned(position[registers] + 1)
    plain = events.of(_DEF_CFA_OFFSET)
    columns.cfa_offset[plain] = lebs.unsigned(position[plain] + 1)
    both = events.of(_DEF_CFA)
    columns.cfa_offset[both] = lebs.unsigned(lebs.after[position[both] + 1])
    offsets = [plain, both]
    for at, skip in ((events.of(_DEF_CFA_OFFSET_SF), False), (events.of(_DEF_CFA_SF), True)):
        if len(at):
            operand = lebs.after[position[at] + 1] if skip else position[at] + 1
            columns.cfa_offset[at] = lebs.signed(operand) * programs.data_align[events.owner[at]]
            offsets.append(at)
    blocks = events.of(_DEF_CFA_EXPRESSION)
    for i in blocks.tolist():
        begin = lebs.after[position[i] + 1]
        block = buffer[begin : following[position[i]]].tobytes()
        columns.cfa_register[i] = -2 - expressions.number(block)
    return np.concatenate([events.cut, registers, blocks]), np.concatenate(offsets)


class _Setters(NamedTuple):
    """Events that set the rule of one register; those of them that restore the CIE's."""

    events: I64
    restores: I64


def _register_rules(
    buffer: Bytes,
    lebs: Lebs,
    following: npt.NDArray[np.int32],
    events: _Events,
    programs: Programs,
    expressions: ExpressionSet,
    columns: State,
) -> tuple[_Setters, _Setters, _Setters]:
    """Fills the columns of the frame pointer, the return address and rbx; gives their setters."""
    op, position = events.op, events.position
    at = np.flatnonzero(_REGISTER_OPS[op])
    short = (op[at] == _OFFSET) | (op[at] == _RESTORE)
    register = events.low[at]
    register[~short] = lebs.unsigned(position[at[~short]] + 1)
    is_fp = register == expressions.fp
    is_ra = register == programs.ra_register[events.owner[at]]
    is_bx = register == expressions.bx
    followed = is_fp | is_ra | is_bx
    at, is_fp, is_ra, short = at[followed], is_fp[followed], is_ra[followed], short[followed]
    is_bx = is_bx[followed]
    code = op[at]
    operand = np.where(short, position[at] + 1, lebs.after[position[at] + 1])
    kind = np.full(len(at), RA_OTHER, np.int64)
    offset = np.zeros(len(at), np.int64)
    align = programs.data_align[events.owner[at]]

    def saved(mask: _Bool, value: I64) -> None:
        kind[mask] = RA_CFA
        offset[mask] = value * align[mask]

    mask = (code == _OFFSET) | (code == _OFFSET_EXTENDED)
    saved(mask, lebs.unsigned(operand[mask]))
    mask = code == _OFFSET_SF
    saved(mask, lebs.signed(operand[mask]))
    mask = code == _NEGATIVE_OFFSET
    saved(mask, -lebs.unsigned(operand[mask]))
    mask = code == _REGISTER
    kind[mask] = RA_REGISTER
    offset[mask] = lebs.unsigned(operand[mask])
    kind[code == _UNDEFINED] = RA_UNDEFINED
    kind[code == _SAME] = RA_UNSAVED
    for i in np.flatnonzero(code == _EXPRESSION).tolist():
        block = buffer[lebs.after[operand[i]] : following[position[at[i]]]].tobytes()
        based = register_expression(block)
        if based is not None and abs(based[1]) < _OFFSET_LIMIT:
            if based[0] == expressions.sp:
                kind[i], offset[i] = RA_SP_EXPRESSION, based[1]
            elif based[0] == expressions.fp:
                kind[i], offset[i] = _FP_EXPRESSION, based[1]
    columns.fp_kind[at[is_fp]] = _FP_KINDS[kind[is_fp]]
    columns.fp_offset[at[is_fp]] = offset[is_fp]
    columns.ra_kind[at[is_ra]] = np.where(kind == _FP_EXPRESSION, RA_OTHER, kind)[is_ra]
    columns.ra_offset[at[is_ra]] = offset[is_ra]
    columns.bx_offset[at[is_bx]] = np.where(kind == RA_CFA, offset, 0)[is_bx]
    restores = (code == _RESTORE) | (code == _RESTORE_EXTENDED)
    return (
        _Setters(at[is_fp], at[is_fp & restores]),
        _Setters(at[is_ra], at[is_ra & restores]),
        _Setters(at[is_bx], at[is_bx & restores]),
    )


def _addresses(
    buffer: Bytes,
    events: _Events,
    programs: Programs,
    set_loc: Callable[[I64], I64] | None,
) -> I64:
    """The address after each event: a cumulative sum, begun anew by each program and set_loc."""
    size = len(events.position)
    step = np.zeros(size, np.int64)
    at = events.of(_ADVANCE)
    step[at] = events.low[at]
    for code, width in ((_ADVANCE1, 1), (_ADVANCE2, 2), (_ADVANCE4, 4), (_MIPS_ADVANCE8, 5)):
        at = events.of(code)
        for byte in range(width):
            step[at] |= buffer[events.position[at] + 1 + byte].astype(np.int64) << (8 * byte)
    total = np.cumsum(step * programs.code_align[events.owner])
    address = np.zeros(size, np.int64)
    anchors = np.zeros(size, np.int64)
    address[events.first] = programs.address
    anchors[events.first] = events.first
    jumps = events.of(_SET_LOC)
    if len(jumps) and set_loc is not None:
        address[jumps] = set_loc(events.position[jumps] + 1)
        anchors[jumps] = jumps
    anchors = np.maximum.accumulate(anchors)
    return address[anchors] + total - total[anchors]


class _History:
    """Finds which event last set a field, through remember_state and restore_state."""

    def __init__(self, events: _Events) -> None:
        self._events = events
        self._index = np.arange(len(events.position), dtype=np.int64)
        self._remembered, self._restoring = _pairs(events)
        self._always = np.zeros(len(events.position), np.int64)
        self._always[events.first] = events.first
        self._always[self._restoring] = self._restoring

    def setter(self, wanted: I64, sets: I64, restores: I64 | None = None) -> I64:
        """For each event of `wanted`, the event whose column holds the field's value there.

        `sets`: events that set the field; `restores`: those of them that restore the CIE's value.
        """
        latest = self._always.copy()
        latest[sets] = sets
        latest = np.maximum.accumulate(latest)
        restoring = self._restoring
        if not len(restoring) and (restores is None or not len(restores)):
            return latest[wanted]
        source = self._index.copy()
        if restores is not None:
            source[restores] = self._events.first[self._events.owner[restores]]
        source[restoring] = latest[self._remembered]
        # What a partner saw may itself come from a restore_state: follow, twice as far each time.
        previous = source[restoring]
        while len(restoring):
            source[restoring] = source[previous]
            if np.array_equal(source[restoring], previous):
                break
            previous = source[restoring]
        return source[latest[wanted]]


def _pairs(events: _Events) -> tuple[I64, I64]:
    """(remember_state events, their restore_state events); a lone restore is left out."""
    at = events.of(_REMEMBER, _RESTORE_STATE)
    if not len(at):
        return at, at
    push = events.op[at] == _REMEMBER
    depth = np.cumsum(np.where(push, 1, -1))
    owner = events.owner[at]
    begin = np.searchsorted(owner, owner)  # each program counts its depth from 0
    depth -= np.where(begin > 0, depth[begin - 1], 0)
    level = np.where(push, depth, depth + 1)
    level -= level.min()
    order = np.argsort(owner * (level.max() + 1) + level, kind="stable")
    before, after = order[:-1], order[1:]
    partners = push[before] & ~push[after]
    partners &= (owner[before] == owner[after]) & (level[before] == level[after])
    return at[before[partners]], at[after[partners]]
