"""Call frame information by the book: one instruction after the other, to judge `unwind/cfi.py` by.

DWARF 5 sections 6.4.1, 6.4.2 and 7.24, LSB 5.0 section 10.6.1. Its branches also tell a fuzzer what
the flat scans of the builder do not: which instructions it has reached. Expressions become rules by
the builder's own `unwind/rules.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from flameherd_agent.kernel.abi import CfaKind, FpKind
from flameherd_agent.unwind.rules import RA_REGISTERS, cfa_expression, register_expression

Rule = tuple[int, int, int, int, int, int]
"""As `struct fh_rule`: cfa, fp, ra_offset, cfa_offset, fp_offset, cfa_extra."""
NOTHING: Rule = (0, 0, 0, 0, 0, 0)
MAX_RECORD_BYTES = 128 << 10
MAX_CIE_BYTES = 1024
_LONG_LEB = 1 << 40
_POINTERS = {0x00: 8, 0x02: 2, 0x03: 4, 0x04: 8, 0x0A: 2, 0x0B: 4, 0x0C: 8, 0x08: 8}
_PADDING = 16

Where = tuple[str, int]
"""(kind, offset) of a saved register: unsaved, cfa, undefined, other, sp, fp; (register, its number)."""
UNSAVED: Where = ("unsaved", 0)


class Unjudged(Exception):
    """What only a broken file holds, and the builder may take either way."""


class _Broken(Exception):
    """The record ends inside, or makes no sense."""


@dataclass(frozen=True)
class State:
    """Rules in force. `register` is a number, an expression, or None: no CFA."""

    register: int | bytes | None = None
    offset: int = 0
    fp: Where = UNSAVED
    ra: Where = UNSAVED
    bx: int = 0
    """rbx is saved at CFA + this; 0: it is not."""


@dataclass(frozen=True)
class Cie:
    """A common record, and the state after its instructions."""

    code_align: int
    data_align: int
    ra_register: int
    encoding: int
    augmented: bool
    signal: bool
    state: State


@dataclass(frozen=True)
class Function:
    """A function's rows: from an address on, a rule. `end` is one past its last address."""

    begin: int
    end: int
    rows: tuple[tuple[int, Rule], ...]

    def rule(self, address: int) -> Rule:
        """The rule at an address behind its begin."""
        return [rule for at, rule in self.rows if at <= address][-1]


class Reader:
    """Numbers from a piece of bytes, none of them beyond `end`."""

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self.data, self.at, self.end = data, at, end

    def take(self, size: int) -> bytes:
        """The next bytes."""
        if self.at + size > self.end:
            raise _Broken
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, size: int, signed: bool = False) -> int:
        """Little-endian."""
        return int.from_bytes(self.take(size), "little", signed=signed)

    def leb(self, signed: bool = False) -> int:
        """LEB128; over six bytes it is a large number, whatever it is."""
        value = shift = 0
        while True:
            byte = self.number(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if shift > 42:
            return _LONG_LEB
        return value - (1 << shift) if signed and byte & 0x40 else value


class Section:
    """`.eh_frame` of x86-64 with section headers, at an address, for code in [base, limit)."""

    def __init__(self, data: bytes, address: int, base: int, limit: int) -> None:
        self.data, self.address, self.base, self.limit = data, address, base, limit

    def records(self) -> Iterator[tuple[int, int]]:
        """(offset behind the length, end) of each record of a length that is read."""
        at = 0
        while at + 4 <= len(self.data):
            length = int.from_bytes(self.data[at : at + 4], "little")
            if length == 0xFFFFFFFF:
                at += 12 + int.from_bytes(self.data[at + 4 : at + 12], "little")
                continue
            if 8 <= length <= MAX_RECORD_BYTES:
                if at + 4 + length > len(self.data):
                    return
                yield at + 4, at + 4 + length
            at += 4 + length

    def functions(self) -> list[Function]:
        """The functions of the code, in file order."""
        found: list[Function] = []
        encodings: dict[int, int] = {}
        for body, end in self.records():
            cie_pointer = int.from_bytes(self.data[body : body + 4], "little")
            cie = self.cie(body - cie_pointer) if cie_pointer else None
            if cie is None:
                continue
            try:
                function = self.function(Reader(self.data, body + 4, end), cie)
            except _Broken:
                continue
            if function is not None:
                if encodings.setdefault(function.begin, cie.encoding) != cie.encoding:
                    raise Unjudged("two functions of different encodings begin together")
                found.append(function)
        return found

    def function(self, reader: Reader, cie: Cie) -> Function | None:
        """One function; None where it is not in the code."""
        begin = self.pointer(reader, cie.encoding)
        size = self.pointer(
            reader, cie.encoding & 0x07 if cie.encoding & 8 else cie.encoding & 0x0F
        )
        if cie.augmented:
            reader.take(reader.leb())
        if not self.base <= begin < self.limit or size <= 0 or size >= 1 << 63:
            return None
        rows = self.run(reader, cie, begin)
        merged: dict[int, State] = {}
        last = begin
        for address, state in rows:
            if address < last:
                raise Unjudged("DW_CFA_set_loc backwards")
            last = address
            merged[address] = state
        rules = tuple((at, self.rule(state, cie)) for at, state in merged.items())
        return Function(begin, min(begin + size, self.limit), rules)

    def pointer(self, reader: Reader, encoding: int) -> int:
        """An encoded pointer (LSB 10.5.1)."""
        place, format_ = reader.at, encoding & 0x0F
        if format_ in _POINTERS:
            value = reader.number(_POINTERS[format_], signed=bool(format_ & 8))
        else:
            value = reader.leb(signed=format_ == 9)
        if value >= 1 << 63:
            value -= 1 << 64
        return value + self.address + place if encoding & 0x70 == 0x10 else value

    def cie(self, start: int) -> Cie | None:
        """The common record at an offset."""
        if not 0 <= start <= len(self.data) - 8:
            return None
        head = Reader(self.data, start, len(self.data))
        length, zero = head.number(4), head.number(4)
        if zero or not 8 <= length <= MAX_CIE_BYTES:
            return None
        try:
            return self.cie_body(
                Reader(self.data, head.at, min(start + 4 + length, len(self.data)))
            )
        except _Broken:
            return None

    def cie_body(self, reader: Reader) -> Cie | None:
        """Version, augmentation, alignments, column of the return address, instructions."""
        version = reader.number(1)
        letters = bytearray()
        while letter := reader.take(1)[0]:
            letters.append(letter)
        if version not in (1, 3, 4) or (version == 4 and reader.take(2) != b"\x08\0"):
            return None
        if letters.startswith(b"eh"):
            letters = letters[2:]
            reader.at += 8
        numbers = [reader.leb(), reader.leb(signed=True)]
        numbers.append(reader.number(1) if version == 1 else reader.leb())
        if max(map(abs, numbers)) >= _LONG_LEB:
            raise Unjudged("a long number in a common record")
        code_align, data_align, ra_register = numbers
        encoding, signal, augmented = 0, False, letters.startswith(b"z")
        if letters and not augmented:
            return None
        if augmented:
            size = reader.leb()
            after = reader.at + size
            for letter in letters[1:]:
                if letter == ord("R"):
                    encoding = reader.number(1)
                elif letter == ord("L"):
                    reader.at += 1
                elif letter == ord("P"):
                    self.skip_pointer(reader)
                elif letter == ord("S"):
                    signal = True
                elif letter not in b"BG":
                    break
            if size >= _LONG_LEB:
                raise Unjudged("a long number in a common record")
            reader.at = after
        known = encoding & 0x0F in {**_POINTERS, 1: 0, 9: 0} and encoding & 0xF0 <= 0x30
        if not known or ra_register > 255 or reader.at > reader.end:
            return None
        if not (0 < code_align <= 64 and -1024 <= data_align <= 1024):
            return None
        cie = Cie(code_align, data_align, ra_register, encoding, augmented, signal, State())
        return replace(cie, state=list(self.run(reader, cie, 0, in_cie=True))[-1][1])

    def skip_pointer(self, reader: Reader) -> None:
        """A personality routine."""
        encoding = reader.number(1)
        if encoding != 0xFF:
            if encoding & 0x0F in _POINTERS:
                reader.at += _POINTERS[encoding & 0x0F]
            else:
                reader.leb()

    def run(
        self, reader: Reader, cie: Cie, address: int, in_cie: bool = False
    ) -> Iterator[tuple[int, State]]:
        """(address, state) after each instruction; what is unknown or cut ends in no CFA."""
        state, remembered = cie.state, []
        yield address, state
        while reader.at < reader.end:
            op = reader.number(1)
            try:
                if op == 0x01 and not in_cie and cie.encoding & 0x0F in _POINTERS:
                    address = self.pointer(reader, cie.encoding)
                elif op >> 6 == 1:
                    address += (op & 63) * cie.code_align
                elif op in (0x02, 0x03, 0x04, 0x1D):
                    size = {0x02: 1, 0x03: 2, 0x04: 4, 0x1D: 8}[op]
                    step = reader.number(size) & 0xFF_FFFF_FFFF  # MIPS_advance_loc8: 5 are read
                    address += step * cie.code_align
                elif op == 0x0A:
                    remembered.append(state)
                elif op == 0x0B:
                    state = remembered.pop() if remembered else state
                else:
                    state = _changed(state, op, reader, cie)
            except _Broken:
                if op == 0x2E:  # GNU_args_size, which changes nothing here, whole or cut
                    return
                if op >> 6 == 2 and op & 63 not in (3, 6, cie.ra_register):
                    raise Unjudged("the rule of a register that is not followed is cut") from None
                yield address, replace(state, register=None)
                return
            yield address, state

    def rule(self, state: State, cie: Cie) -> Rule:
        """What the kernel side gets."""
        kind, offset, extra = CfaKind.REGISTER, state.offset, 0
        if isinstance(state.register, bytes):
            kind, offset, extra = cfa_expression(state.register, 7, 6)
            if not all(-(1 << 31) <= n < 1 << 31 for n in (offset, extra)):
                kind, offset, extra = CfaKind.NONE, 0, 0
        elif state.register is None or state.register > 15:
            kind = CfaKind.NONE
        elif state.register in (6, 7):
            kind = CfaKind.FP if state.register == 6 else CfaKind.SP
            extra = state.bx
        else:
            extra = state.register
        handler = cie.signal and (kind, offset) == (CfaKind.SP_DEREF, 160)
        handler = handler and state.ra == ("sp", 168)
        if abs(offset) >= 1 << 31 or abs(extra) >= 1 << 31 or abs(state.ra[1]) >= 1 << 15:
            return NOTHING
        if state.ra[0] == "undefined":
            return (CfaKind.END, 0, 0, 0, 0, 0)
        if handler:
            return (CfaKind.SIGNAL, 0, 0, 0, 0, 0)
        if state.ra[0] == "register" and state.ra[1] in RA_REGISTERS and kind == CfaKind.SP:
            if state.fp[0] in ("cfa", "sp", "fp"):
                return NOTHING
            return (CfaKind.SP_RA_REGISTER, 0, 0, offset, 0, state.ra[1])
        if state.ra[0] != "cfa" or kind == CfaKind.NONE:
            return NOTHING
        fp = {"cfa": FpKind.CFA, "sp": FpKind.SP, "fp": FpKind.FP}.get(state.fp[0], FpKind.SAME)
        fp_offset = state.fp[1]
        if fp == FpKind.SAME or abs(fp_offset) >= 1 << 31:
            fp, fp_offset = FpKind.SAME, 0
        return (kind, fp, state.ra[1], offset, fp_offset, extra)


def _changed(state: State, op: int, reader: Reader, cie: Cie) -> State:
    """The state after an instruction that moves no address."""
    align = cie.data_align
    if op == 0x00 or op == 0x2D:
        return state
    if op == 0x2E:
        reader.leb()
        return state
    if op == 0x0C:
        return replace(state, register=reader.leb(), offset=reader.leb())
    if op == 0x12:
        return replace(state, register=reader.leb(), offset=reader.leb(signed=True) * align)
    if op == 0x0D:
        return replace(state, register=reader.leb())
    if op == 0x0E:
        return replace(state, offset=reader.leb())
    if op == 0x13:
        return replace(state, offset=reader.leb(signed=True) * align)
    if op == 0x0F:
        return replace(state, register=reader.take(reader.leb()))
    register = op & 63 if op >= 0x80 else None
    if register is None:
        if op not in (5, 6, 7, 8, 9, 0x10, 0x11, 0x14, 0x15, 0x16, 0x2F):
            raise _Broken
        register = reader.leb()
    found: Where = ("other", 0)
    if op >> 6 == 3 or op == 6:
        saved = cie.state
        state = replace(state, fp=saved.fp) if register == 6 else state
        state = replace(state, bx=saved.bx) if register == 3 else state
        return replace(state, ra=saved.ra) if register == cie.ra_register else state
    if op >> 6 == 2 or op == 5:
        found = ("cfa", reader.leb() * align)
    elif op == 0x11:
        found = ("cfa", reader.leb(signed=True) * align)
    elif op == 0x2F:
        found = ("cfa", -reader.leb() * align)
    elif op in (7, 8):
        found = ("undefined", 0) if op == 7 else UNSAVED
    elif op == 9:
        found = ("register", reader.leb())
    elif op in (0x14, 0x15):
        reader.leb(signed=True)
    else:
        based = register_expression(reader.take(reader.leb()))
        if op == 0x10 and based is not None and based[0] in (6, 7) and abs(based[1]) < _LONG_LEB:
            found = ("fp" if based[0] == 6 else "sp", based[1])
    if register == 6:
        state = replace(state, fp=found)
    if register == 3:
        state = replace(state, bx=found[1] if found[0] == "cfa" else 0)
    if register == cie.ra_register:
        state = replace(state, ra=("other", found[1]) if found[0] == "fp" else found)
    return state


def rule_at(functions: list[Function], address: int) -> Rule:
    """The rule at an address: of functions that overlap, the one that begins first has it."""
    ordered = sorted(functions, key=lambda function: function.begin)
    before: Function | None = None
    following = min((f.begin for f in ordered if f.begin > address), default=None)
    for function in ordered:
        if function.begin <= address < function.end:
            return function.rule(address)
        if function.end <= address and (before is None or function.end > before.end):
            before = function
    if before is None or following is None or following - before.end > _PADDING:
        return NOTHING
    return before.rule(before.end - 1)
