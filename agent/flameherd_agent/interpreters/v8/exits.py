"""Positions in Maglev's code, which has no table of them: from the places where it may be left for the interpreter.

Each such exit is a call at the end of the code; the relocation information says its number and which inlined function it
belongs to, the deoptimization data at which bytecode. (The source position that is there as well is out of date in copies
that Maglev makes of loops.) What leads to it is known: for calls, the table of safepoints says to which exit the function goes if it is deoptimised during the call; checks
jump to their exit. So a return address has its exact position; between two checks that of the one before holds.

Formats: V8's src/codegen/reloc-info.cc, src/maglev/maglev-safepoint-table.cc. The tables are untrusted: a damaged one
ends where it stops to make sense.
"""

import struct
from typing import Final, NamedTuple

import numpy as np

_SAFEPOINTS: Final = struct.Struct("<4xIII")
"""Stack slots, entries, their configuration, tagged slots."""
MOST_SAFEPOINTS: Final = 1 << 16
_JUMP_BYTES: Final = 6
"""Of a conditional jump with a 32-bit distance: 0f 80 to 0f 8f."""


class Exit(NamedTuple):
    """Where code may be left."""

    number: int
    """Among the code's exits: the deoptimization data say at which bytecode."""
    inlined: int
    """Which inlining it belongs to; -1: the function itself."""


class Modes(NamedTuple):
    """RelocInfo::Mode of a version."""

    offset: int
    """DEOPT_SCRIPT_OFFSET; the others of deoptimization have similar names."""
    inlining: int
    reason: int
    id: int
    jump: int
    """PC_JUMP"""


def exits(relocation: bytes, modes: Modes) -> dict[int, Exit]:
    """{offset of an exit in the code: which it is}. The information is written backward."""
    found: dict[int, Exit] = {}
    data = relocation[::-1]
    pc = at = 0
    inlined = -1
    while at + 1 < len(data):
        tag, high = data[at] & 3, data[at] >> 2
        at += 1
        if tag != 3:
            pc += high
            continue
        if high == modes.jump:
            value = shift = 0
            while at < len(data) and shift < 35:
                value |= (data[at] & 0x7F) << shift
                shift += 7
                at += 1
                if not data[at - 1] & 0x80:
                    break
            pc += value << 6
            continue
        pc += data[at]
        at += 1
        if high in (modes.offset, modes.inlining, modes.id):
            number = int.from_bytes(data[at : at + 4], "little", signed=True)
            at += 4
            if high == modes.inlining:
                inlined = number
            elif high == modes.id:
                found[pc] = Exit(number, inlined)
        elif high == modes.reason:
            at += 1
    return found


def safepoints_bytes(head: bytes) -> int:
    """How long a table of safepoints is, from its first 16 bytes; 0 if it makes no sense."""
    count, configuration, _ = _SAFEPOINTS.unpack_from(head)
    return 16 + count * _entry_bytes(configuration) if count <= MOST_SAFEPOINTS else 0


def _entry_bytes(configuration: int) -> int:
    registers, pc, index = configuration >> 1 & 7, configuration >> 4 & 7, configuration >> 7 & 7
    return pc + (index + pc if configuration & 1 else 0) + 1 + registers


def returns(table: bytes) -> dict[int, int]:
    """{offset behind a call: offset of its exit}."""
    if len(table) < _SAFEPOINTS.size:
        return {}
    count, configuration, _ = _SAFEPOINTS.unpack_from(table)
    size = _entry_bytes(configuration)
    pc, index = configuration >> 4 & 7, configuration >> 7 & 7
    found: dict[int, int] = {}
    for at in range(16, min(16 + count * size, len(table) - size + 1), size):
        if configuration & 1 and any(table[at + pc : at + pc + index]):
            leaves = table[at + pc + index : at + pc + index + pc]
            found[int.from_bytes(table[at : at + pc], "little")] = (
                int.from_bytes(leaves, "little") - 1
            )
    return found


def checks(code: bytes, leaves: dict[int, Exit]) -> dict[int, int]:
    """{offset of a conditional jump to an exit: offset of the exit}. Chance hits would have to hit an exit exactly."""
    if len(code) < _JUMP_BYTES:
        return {}
    units = np.frombuffer(code, "u1")
    at = np.flatnonzero((units[:-5] == 0x0F) & (units[1:-4] & 0xF0 == 0x80))
    return {
        int(jump): target
        for jump in at
        if (target := int(jump) + _JUMP_BYTES + _distance(code, int(jump))) in leaves
    }


def _distance(code: bytes, jump: int) -> int:
    return int(struct.unpack_from("<i", code, jump + 2)[0])


def positions(relocation: bytes, table: bytes, code: bytes, modes: Modes) -> list[tuple[int, Exit]]:
    """[(offset in the code, the exit whose position holds from there on)], ascending."""
    leaves = exits(relocation, modes)
    found = {jump: leaves[leave] for jump, leave in checks(code, leaves).items()}
    found |= {end - 1: leaves[leave] for end, leave in returns(table).items() if leave in leaves}
    return sorted(found.items())
