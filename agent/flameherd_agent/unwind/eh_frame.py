"""`.eh_frame` and `.debug_frame` → rows of an unwind table.

Layouts: Linux Standard Base Core 5.0, section 10.6 (`.eh_frame`, `.eh_frame_hdr`), DWARF 5, section
6.4.1 (`.debug_frame`), DWARF 5 section 7.4 (records). A section is a chain of records: common ones
(CIE) and one per function (FDE). It is walked in pieces of some 100 KB, so that memory does not
grow with the file; the programs of each piece run at once (`cfi.py`).

Overlaps, which only broken or hostile files have, are resolved by order: the function that begins
first keeps its whole range, of two that begin together the one that comes first in the file.

Records in the 64-bit DWARF format are skipped: no linker writes them for these machines.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from flameherd_agent.elf.reader import EM_AARCH64, PT_GNU_EH_FRAME, PT_LOAD, ElfFile
from flameherd_agent.errors import ElfError
from flameherd_agent.kernel.abi import CfaKind, FpKind
from flameherd_agent.unwind import cfi
from flameherd_agent.unwind.cfi import I64, Bytes, Programs, Rows, State
from flameherd_agent.unwind.rules import RA_REGISTERS, ExpressionSet, RuleSet, leb128, make_rules

PIECE_BYTES = 96 << 10
MAX_RECORD_BYTES = 128 << 10
"""A longer record is skipped; the longest seen in a real file is some 10 KB."""
MAX_FRAME_BYTES = 128 << 20
"""Of `.eh_frame`; the largest browsers have some 20 MB."""
MAX_DEBUG_FRAME_BYTES = 64 << 20
"""Of `.debug_frame` after decompression: a few KB of zeros inflate to that."""
MAX_CIE_BYTES = 1024
"""Of one common record, most of which have 20. They may overlap in a hostile file, and each is copied."""
PADDING_BYTES = 16
"""Gaps between functions up to this are alignment and keep the rule before them."""

_DWARF64 = 0xFFFFFFFF

# DW_EH_PE_*: low four bits the format, next three the base, the top bit an indirection.
_FORMATS = {0x00: ("<u8", 8), 0x02: ("<u2", 2), 0x03: ("<u4", 4), 0x04: ("<u8", 8)}
_FORMATS |= {0x08: ("<i8", 8), 0x0A: ("<i2", 2), 0x0B: ("<i4", 4), 0x0C: ("<i8", 8)}
_ULEB128, _SLEB128 = 0x01, 0x09
_UNSIGNED = {0x00: 0x00, 0x01: 0x01, 0x02: 0x02, 0x03: 0x03, 0x04: 0x04}
_UNSIGNED |= {0x08: 0x04, 0x09: 0x01, 0x0A: 0x02, 0x0B: 0x03, 0x0C: 0x04}
_PCREL, _TEXTREL, _DATAREL = 0x10, 0x20, 0x30
_OMIT = 0xFF
_DT_PLTGOT = 3

# Columns of the CIEs: the numbers of `_Cie`, then the state after its instructions.
_CODE_ALIGN, _DATA_ALIGN, _RA, _ENCODING, _AUGMENTED, _SIGNAL, _STATE = range(7)
_CIE_COLUMNS = _STATE + len(State._fields)
_MAX_CIES = 65536

# __restore_rt of glibc and musl: the stack pointer points at a ucontext (Linux x86-64 ABI).
_UCONTEXT_RSP, _UCONTEXT_RIP = 160, 168


class FrameSection(NamedTuple):
    """Where call frame information lies."""

    data: memoryview | bytes
    address: int
    is_eh: bool
    """`.eh_frame`, not `.debug_frame`: the two differ in ids and pointers."""
    bounded: bool
    """The size is known: a zero terminator ends only the contribution of one object file."""


class FrameRows(NamedTuple):
    """What one section says: from `pcs[i]` on, rule number `rules[i]` holds; pcs rise strictly."""

    pcs: npt.NDArray[np.uint32]
    """Relative to the base that the caller gave."""
    rules: npt.NDArray[np.uint16]


class _Cie(NamedTuple):
    """A common record: its initial instructions, and numbers in the order of the columns."""

    code: bytes
    code_align: int
    data_align: int
    ra_register: int
    encoding: int
    augmented: bool
    signal: bool


def eh_frame_section(elf: ElfFile) -> FrameSection | None:
    """`.eh_frame` by its name (its type varies) or through PT_GNU_EH_FRAME; None without one."""
    section = elf.section(".eh_frame")
    if section is not None:
        data = elf.section_data(section, MAX_FRAME_BYTES)
        return FrameSection(data, section.addr, True, True) if len(data) else None
    for segment in elf.segments:
        if segment.type == PT_GNU_EH_FRAME:
            head = bytes(elf.bytes_at(segment.offset, min(segment.filesz, 16), "PT_GNU_EH_FRAME"))
            address = _eh_frame_pointer(head, segment.vaddr)
            for load in elf.segments:
                if load.type == PT_LOAD and load.vaddr <= address < load.vaddr + load.filesz:
                    size = min(load.vaddr + load.filesz - address, MAX_FRAME_BYTES)
                    return FrameSection(elf.vaddr_data(address, size), address, True, False)
            raise ElfError(f"PT_GNU_EH_FRAME points to {address:#x}, which is not loaded")
    return None


def debug_frame_section(elf: ElfFile) -> FrameSection | None:
    """`.debug_frame`, decompressed; None without one."""
    section = elf.section(".debug_frame") or elf.section(".zdebug_frame")
    if section is None:
        return None
    data = elf.section_data(section, MAX_DEBUG_FRAME_BYTES)
    return FrameSection(data, 0, False, True) if len(data) else None


def _eh_frame_pointer(head: bytes, address: int) -> int:
    """The address in `.eh_frame_hdr`: version 1, three encodings, then the encoded pointer."""
    if len(head) < 12 or head[0] != 1 or head[1] & 0x0F not in _FORMATS or head[1] & 0x80:
        raise ElfError("PT_GNU_EH_FRAME has no readable pointer to .eh_frame")
    format_, size = _FORMATS[head[1] & 0x0F]
    value = int(np.frombuffer(head[4 : 4 + size], format_)[0])
    base = {0x00: 0, _PCREL: address + 4, _DATAREL: address}.get(head[1] & 0x70)
    if base is None:
        raise ElfError(f"PT_GNU_EH_FRAME has pointer encoding {head[1]:#x}")
    return (value + base) % (1 << 64)


def frame_rows(
    elf: ElfFile, section: FrameSection, rules: RuleSet, base: int, limit: int
) -> FrameRows:
    """The rows of one section; their rules are numbered by `rules`.

    `base` is the address that rows are relative to, `limit` the end of the code; functions that
    begin outside [base, limit) are left out (the linker's leftovers of dropped functions).
    A malformed record costs its function, a broken chain the rest of the section.
    """
    builder = _SectionBuilder(elf, section, rules, base, limit)
    parts = [part for piece in _pieces(section) for part in builder.functions(piece)]
    return _assemble(parts, base)


class _Piece(NamedTuple):
    """Some records: a copy of their bytes, with the slack that `cfi.run` wants."""

    begin: int
    """Section offset of the copy, as are the following."""
    buffer: Bytes
    bodies: I64
    """Where the records begin, after the length."""
    ends: I64


class _Functions(NamedTuple):
    """Functions in file order, and their rows: `counts[i]` rows belong to function i."""

    begin: I64
    end: I64
    counts: I64
    pcs: npt.NDArray[np.uint32]
    rules: npt.NDArray[np.uint16]


def _pieces(section: FrameSection) -> Iterator[_Piece]:
    """Walks the chain of records by their lengths."""
    data = memoryview(section.data)
    size = len(data)
    words = data[: size & ~3].cast("I")  # records of all linkers are aligned, but need not be
    bodies: list[int] = []
    at = flush = 0
    while at + 4 <= size:
        length = words[at >> 2] if not at & 3 else int.from_bytes(data[at : at + 4], "little")
        if 8 <= length <= MAX_RECORD_BYTES:
            if at > flush or not bodies:
                if bodies:
                    yield _piece(data, bodies)
                    bodies = []
                flush = at + PIECE_BYTES
            at += 4
            if at + length > size:
                break
            bodies.append(at)
            at += length
        elif length == 0:
            if not section.bounded:
                break
            at += 4
        elif length == _DWARF64:
            at += 12 + int.from_bytes(data[at + 4 : at + 12], "little")
        else:
            at += 4 + length
    if bodies:
        yield _piece(data, bodies)


def _piece(data: memoryview, bodies: list[int]) -> _Piece:
    at = np.array(bodies, np.int64)
    begin = bodies[0] - 4
    last = bodies[-1] + int.from_bytes(data[bodies[-1] - 4 : bodies[-1]], "little")
    buffer = np.zeros(last - begin + cfi.SLACK, np.uint8)
    buffer[: last - begin] = np.frombuffer(data, np.uint8, last - begin, begin)
    return _Piece(begin, buffer, at, at + _numbers(buffer, at - 4 - begin, "<u4"))


def _numbers(buffer: Bytes, at: I64, format_: str) -> I64:
    """Little-endian numbers at any offsets, as int64 (u8 wraps)."""
    width = np.dtype(format_).itemsize
    view: npt.NDArray[np.generic] = np.ndarray(
        (len(buffer) - width + 1,), format_, buffer, strides=(1,)
    )
    return view[at].astype(np.int64)


class _SectionBuilder:
    """Holds what the pieces of one section share: its CIEs and expressions."""

    def __init__(
        self, elf: ElfFile, section: FrameSection, rules: RuleSet, base: int, limit: int
    ) -> None:
        self._section = section
        self._rules = rules
        self._base = base
        self._limit = min(limit, base + (1 << 32) - 2 * PADDING_BYTES)
        arm = elf.machine == EM_AARCH64
        self._expressions = ExpressionSet(*((31, 29, -1) if arm else (7, 6, 3)))
        self._ra_in_register = arm
        self._ra_registers = () if arm else RA_REGISTERS
        self._last_register = 31 if arm else 15
        text = elf.section(".text")
        got = next((value for tag, value in elf.dynamic() if tag == _DT_PLTGOT), 0)
        self._bases = {0: 0, _TEXTREL: text.addr if text else 0, _DATAREL: got}
        self._cies: dict[int, int] = {}
        self._columns: I64 = np.zeros((0, _CIE_COLUMNS), np.int64)

    def functions(self, piece: _Piece) -> Iterator[_Functions]:
        """The functions of one piece, grouped by their pointers' encoding (nearly always one)."""
        begin, buffer, bodies, ends = piece
        ids = _numbers(buffer, bodies - begin, "<u4")
        fdes = np.flatnonzero(ids != (0 if self._section.is_eh else _DWARF64))
        bodies, ends, ids = bodies[fdes], ends[fdes], ids[fdes]
        starts, which = np.unique(bodies - ids if self._section.is_eh else ids, return_inverse=True)
        self._load_cies(starts.tolist())
        cies = np.array([self._cies.get(start, -1) for start in starts.tolist()], np.int64)[which]
        encodings = np.full(len(fdes), -1, np.int64)
        readable = cies >= 0
        encodings[readable] = self._columns[cies[readable], _ENCODING]
        for encoding in np.unique(encodings).tolist():
            if encoding >= 0:
                chosen = np.flatnonzero(encodings == encoding)
                yield self._group(
                    buffer,
                    begin,
                    bodies[chosen] - begin,
                    ends[chosen] - begin,
                    self._columns[cies[chosen]],
                    encoding,
                )

    def _group(
        self, buffer: Bytes, begin: int, bodies: I64, ends: I64, cies: I64, encoding: int
    ) -> _Functions:
        """Functions whose CIEs (one row of columns each) have one pointer encoding."""
        lebs = cfi.Lebs(buffer)
        address, at = self._pointers(buffer, lebs, bodies + 4, begin, encoding)
        size, at = self._pointers(buffer, lebs, at, begin, _UNSIGNED[encoding & 0x0F])
        augmented = cies[:, _AUGMENTED] != 0
        at = np.minimum(at, ends)
        skip = lebs.after[at] + lebs.unsigned(at)
        at = np.where(augmented, skip, at)
        keep = (at <= ends) & (address >= self._base) & (address < self._limit) & (size > 0)
        address, size, at, ends, cies = (c[keep] for c in (address, size, at, ends, cies))
        end = address + np.minimum(size, self._limit - address)
        state = State(*(cies[:, _STATE + i] for i in range(len(State._fields))))
        programs = Programs(
            at, ends, address, cies[:, _CODE_ALIGN], cies[:, _DATA_ALIGN], cies[:, _RA], state
        )
        rows = cfi.run(
            buffer,
            programs,
            self._expressions,
            lambda places: self._pointers(buffer, lebs, places, begin, encoding)[0],
            _FORMATS[encoding & 0x0F][1] if encoding & 0x0F in _FORMATS else 0,
        )
        owner = rows.owner
        numbers = self._rules.number(self._to_rules(rows, cies[:, _SIGNAL] != 0))
        keep = (rows.address >= address[owner]) & (rows.address < end[owner])
        keep[1:] &= (numbers[1:] != numbers[:-1]) | (owner[1:] != owner[:-1]) | ~keep[:-1]
        pcs = (rows.address[keep] - self._base).astype(np.uint32)
        counts = np.bincount(owner[keep], minlength=len(address)).astype(np.int64)
        return _Functions(address, end, counts, pcs, numbers[keep])

    def _to_rules(self, rows: Rows, signal: npt.NDArray[np.bool_]) -> npt.NDArray[np.void]:
        """States → RULE_DTYPE[n]; `signal` by program."""
        state = rows.state
        register = state.cfa_register
        kind = np.full(len(register), CfaKind.REGISTER, np.int64)
        kind[register == self._expressions.sp] = CfaKind.SP
        kind[register == self._expressions.fp] = CfaKind.FP
        kind[(register == cfi.NO_CFA) | (register > self._last_register)] = CfaKind.NONE
        offset = state.cfa_offset.copy()
        plain = (kind == CfaKind.SP) | (kind == CfaKind.FP)
        extra = np.where(kind == CfaKind.REGISTER, register, np.where(plain, state.bx_offset, 0))
        by_expression = np.flatnonzero(register <= -2)
        if len(by_expression):
            columns = self._expressions.columns()[-2 - register[by_expression]]
            kind[by_expression], offset[by_expression] = columns[:, 0], columns[:, 1]
            extra[by_expression] = columns[:, 2]
        handler = signal[rows.owner] & (kind == CfaKind.SP_DEREF) & (offset == _UCONTEXT_RSP)
        handler &= (state.ra_kind == cfi.RA_SP_EXPRESSION) & (state.ra_offset == _UCONTEXT_RIP)
        in_register = (state.ra_kind == cfi.RA_REGISTER) & (kind == CfaKind.SP)
        in_register &= np.isin(state.ra_offset, self._ra_registers)
        in_register &= state.fp_kind == FpKind.SAME
        kind[in_register] = CfaKind.SP_RA_REGISTER
        extra[in_register] = state.ra_offset[in_register]
        readable = (state.ra_kind == cfi.RA_CFA) | handler | in_register
        if self._ra_in_register:
            readable |= state.ra_kind == cfi.RA_UNSAVED
        kind[~readable] = CfaKind.NONE
        kind[handler] = CfaKind.SIGNAL
        kind[state.ra_kind == cfi.RA_UNDEFINED] = CfaKind.END
        ra_offset = np.where(state.ra_kind == cfi.RA_REGISTER, 0, state.ra_offset)
        return make_rules(kind, state.fp_kind, ra_offset, offset, state.fp_offset, extra)

    def _pointers(
        self, buffer: Bytes, lebs: cfi.Lebs, at: I64, begin: int, encoding: int
    ) -> tuple[I64, I64]:
        """(addresses, offsets after them) of pointers; `begin`: section offset of buffer."""
        at = np.minimum(at, len(buffer) - cfi.SLACK)
        format_ = encoding & 0x0F
        if format_ in _FORMATS:
            code, size = _FORMATS[format_]
            value, after = _numbers(buffer, at, code), at + size
        else:
            value = lebs.signed(at) if format_ == _SLEB128 else lebs.unsigned(at)
            after = lebs.after[at].astype(np.int64)
        base = encoding & 0x70
        if base == _PCREL:
            return value + (at + begin + self._section.address), after
        return value + self._bases[base], after

    def _load_cies(self, starts: list[int]) -> None:
        """Parses the CIEs that are new, runs their programs together, appends their columns."""
        new: list[tuple[int, _Cie]] = []
        for start in starts:
            if start not in self._cies and len(self._cies) < _MAX_CIES:
                cie = _parse_cie(self._section, start)
                self._cies[start] = -1 if cie is None else len(self._columns) + len(new)
                if cie is not None:
                    new.append((start, cie))
        if not new:
            return
        # One byte before each program stands for the state before it.
        code = b"".join(b"\0" + cie.code for _, cie in new)
        buffer = np.zeros(len(code) + cfi.SLACK, np.uint8)
        buffer[: len(code)] = np.frombuffer(code, np.uint8)
        end = np.cumsum([len(cie.code) + 1 for _, cie in new])
        start_ = end - [len(cie.code) for _, cie in new]
        count = len(new)
        zero = np.zeros(count, np.int64)
        initial = State(zero + cfi.NO_CFA, *(zero for _ in State._fields[1:]))
        fixed = np.array([cie[1:] for _, cie in new], np.int64)
        rows = cfi.run(
            buffer,
            Programs(start_, end, zero, fixed[:, 0], fixed[:, 1], fixed[:, 2], initial),
            self._expressions,
        )
        last = np.searchsorted(rows.owner, np.arange(count), "right") - 1
        final = np.stack(rows.state.take(last), axis=1)
        self._columns = np.concatenate([self._columns, np.concatenate([fixed, final], axis=1)])


def _parse_cie(section: FrameSection, start: int) -> _Cie | None:
    """The CIE whose record begins at `start`; None if there is no readable one."""
    data = section.data
    if not 0 <= start <= len(data) - 8:
        return None
    length, id_ = struct.unpack_from("<II", data, start)
    if id_ != (0 if section.is_eh else _DWARF64) or not 8 <= length <= MAX_CIE_BYTES:
        return None
    body = bytes(data[start + 8 : start + 4 + length])
    try:
        return _parse_cie_body(body)
    except (IndexError, ValueError):
        return None


def _parse_cie_body(body: bytes) -> _Cie | None:
    """The part after the id: version, augmentation, alignments, return address column, code."""
    version = body[0]
    if version not in (1, 3, 4):
        return None
    end = body.index(b"\0", 1)
    augmentation = body[1:end].decode("latin-1")
    at = end + 1
    if version == 4:
        if body[at] != 8 or body[at + 1] != 0:  # size of an address, of a segment selector
            return None
        at += 2
    if augmentation.startswith("eh"):  # gcc 2: a pointer follows
        augmentation, at = augmentation[2:], at + 8
    code_align, at = leb128(body, at)
    data_align, at = leb128(body, at, signed=True)
    if version == 1:
        register, at = body[at], at + 1
    else:
        register, at = leb128(body, at)
    encoding = 0
    signal = False
    augmented = augmentation.startswith("z")
    if augmented:
        size, at = leb128(body, at)
        after = at + size
        for letter in augmentation[1:]:
            if letter == "R":
                encoding, at = body[at], at + 1
            elif letter == "L":
                at += 1
            elif letter == "P":
                at = _skip_pointer(body, at)
            elif letter == "S":
                signal = True
            elif letter not in "BG":  # arm64: signed return addresses, memory tagging
                break
        at = after
    elif augmentation:
        return None
    known = encoding & 0x0F in _UNSIGNED and encoding & 0xF0 in (0, _PCREL, _TEXTREL, _DATAREL)
    if not known or register > 255 or at > len(body):
        return None
    if not (0 < code_align <= 64 and -1024 <= data_align <= 1024):
        return None
    return _Cie(body[at:], code_align, data_align, register, encoding, augmented, signal)


def _skip_pointer(body: bytes, at: int) -> int:
    """The offset after an encoding byte and the pointer that it describes."""
    encoding = body[at]
    at += 1
    if encoding == _OMIT:
        return at
    if encoding & 0x0F in _FORMATS:
        return at + _FORMATS[encoding & 0x0F][1]
    return leb128(body, at)[1]


def _assemble(parts: list[_Functions], base: int) -> FrameRows:
    """Sorts functions by address, clips overlaps, fills gaps with "no information", merges."""
    if not parts:
        return FrameRows(np.zeros(0, np.uint32), np.zeros(0, np.uint16))
    begin, end, counts = (np.concatenate([part[i] for part in parts]) for i in range(3))
    order = np.argsort(begin, kind="stable")
    first = np.zeros(len(order), np.int64)
    first[order] = np.cumsum(counts[order]) - counts[order]
    pcs = np.zeros(int(counts.sum()), np.uint32)
    rules = np.zeros(len(pcs), np.uint16)
    function = 0
    for part in parts:
        shift = first[function : function + len(part.begin)]
        shift = shift - (np.cumsum(part.counts) - part.counts)
        places = np.repeat(shift, part.counts) + np.arange(len(part.pcs))
        pcs[places], rules[places] = part.pcs, part.rules
        function += len(part.begin)
    parts.clear()
    begin, end, counts = begin[order], end[order], counts[order]
    reach = np.maximum.accumulate(end)
    overlaps = np.flatnonzero(begin[1:] < reach[:-1]) + 1
    if len(overlaps):
        begin[overlaps] = reach[overlaps - 1]
        kept = begin < end
        owner = np.repeat(np.arange(len(counts)), counts)
        keep = kept[owner]
        pcs = np.maximum(pcs[keep], (begin - base)[owner[keep]].astype(np.uint32))
        rules = rules[keep]
        begin, end = begin[kept], end[kept]
    if (pcs[1:] < pcs[:-1]).any():  # a DW_CFA_set_loc backwards
        by_pc = np.argsort(pcs, kind="stable")
        pcs, rules = pcs[by_pc], rules[by_pc]
    gaps = np.ones(len(end), bool)
    gaps[:-1] = begin[1:] - end[:-1] > PADDING_BYTES
    gap_pcs = (end[gaps] - base).astype(np.uint32)
    # Of several rows at one address the last counts; a rule that is there already needs no row.
    keep = np.ones(len(pcs), bool)
    keep[:-1] = pcs[1:] != pcs[:-1]
    if not keep.all():
        pcs, rules = pcs[keep], rules[keep]
    places = np.searchsorted(pcs, gap_pcs)
    pcs = np.insert(pcs, places, gap_pcs)
    rules = np.insert(rules, places, np.uint16(0))
    keep = np.ones(len(pcs), bool)
    keep[1:] = rules[1:] != rules[:-1]
    return FrameRows(pcs[keep], rules[keep])
