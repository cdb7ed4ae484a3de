"""Go's own symbol table: names, files, lines and inlined calls for every pc, in stripped files too.

Every Go program carries a *pclntab* that its runtime uses for tracebacks; `strip` cannot remove it.
This reads the tables of Go 1.18 to 1.26 (magic 0xfffffff0 and 0xfffffff1) in place: nothing is
expanded, one pc costs some 20 µs, and recent answers are kept.

Layout (Go's runtime/symtab.go, runtime/runtime2.go, runtime/symtabinl.go, internal/abi/symtab.go):
a header with offsets of five tables — function names, file offsets by compilation unit (cutab),
file names, pc-value tables (pctab), and functab followed by `_func` records. A pc-value table is
pairs of varints (zigzag value delta, pc delta), ended by a zero value delta. Inlined calls are
records in read-only data (`go:func.*`), found by FUNCDATA 3, selected by PCDATA 2.

Input is hostile: every offset is checked, every loop has a bound, and damage gives no name (`()`)
or `ElfError` from the constructor. Finding the table in a file is `go_locate.py`; unwind rows from
the same table are `go_rows.py`. Go before 1.18 (March 2022) stored absolute addresses and is not
read."""

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from flameherd_agent.errors import ElfError
from flameherd_agent.types import Line

MAGIC_118 = 0xFFFFFFF0
MAGIC_120 = 0xFFFFFFF1
HEADER_BYTES = 8 + 8 * 8
MAX_FUNCTIONS = 4_000_000
MAX_STEPS = 1 << 16
"""Pairs of pc-value tables that one lookup decodes before it gives up, some 20 ms: the agent itself
looks up. The longest table of Kubernetes' control plane has 5,108."""
MAX_INLINE_DEPTH = 128
MAX_NAME_BYTES = 4096
CACHED_PCS = 2048

PCDATA_INL_TREE_INDEX = 2
FUNCDATA_INL_TREE = 3
NO_FUNCDATA = 0xFFFFFFFF

_U32 = struct.Struct("<I")
_PAIR = struct.Struct("<II")


class Layout(NamedTuple):
    """Where the fields of a `_func` and of an inlined call lie; offsets in bytes."""

    func_bytes: int
    """Size of the fixed part of `_func`; pcdata offsets follow, then funcdata offsets."""
    func_id: int
    """`funcID`, `flag`, a pad byte and `nfuncdata` are four bytes from here."""
    inline_bytes: int
    inline_name: int
    inline_parent_pc: int


LAYOUTS = {
    MAGIC_118: Layout(40, 36, 20, 12, 16),
    MAGIC_120: Layout(44, 40, 16, 4, 8),
}
# The fields of `_func` that no version has moved.
NAME_OFF, PCSP, PCFILE, PCLN, NPCDATA, CU_OFFSET = 4, 16, 20, 24, 28, 32


class Function(NamedTuple):
    """A function's record. Offsets are into the tables of its `GoTable`."""

    entry: int
    """Offset from the start of Go's text."""
    at: int
    """Offset of the `_func` record in the pclntab."""
    name_off: int
    pcfile: int
    pcln: int
    npcdata: int
    nfuncdata: int
    cu_offset: int


class GoTable:
    """A pclntab in memory, and the inline trees that belong to it.

    `text` is the address of Go's first instruction (`moduledata.text`, in `p_vaddr` space; the
    header's own textStart is 0 from Go 1.26 on). `inline` is a piece of `go:func.*` that starts
    `inline_offset` bytes behind `moduledata.gofunc`.

    Raises `ElfError` when the header is not that of a 64-bit little-endian pclntab of Go ≥ 1.18 or
    its tables do not lie in `data`."""

    def __init__(self, data: memoryview, text: int, inline: memoryview, inline_offset: int) -> None:
        if len(data) < HEADER_BYTES:
            raise ElfError(f"pclntab: {len(data)} bytes are too few for a header")
        self.data = data
        self.text = text
        self._inline = inline
        self._inline_offset = inline_offset
        self._steps_left = 0
        magic, zero, quantum, pointer = struct.unpack_from("<IHBB", data)
        layout = LAYOUTS.get(magic)
        if layout is None or zero or quantum not in (1, 2, 4) or pointer != 8:
            raise ElfError(f"pclntab: header {bytes(data[:8]).hex()} is of no Go from 1.18 on")
        self.magic: int = magic
        self.layout = layout
        self.quantum: int = quantum
        words = struct.unpack_from("<8Q", data, 8)
        self.count: int = words[0]
        self.names_at, self.cutab_at, self.files_at, self.pctab_at, self.functab_at = words[3:8]
        if not 0 < self.count <= MAX_FUNCTIONS:
            raise ElfError(f"pclntab: {self.count} functions are not plausible")
        if not HEADER_BYTES <= self.names_at <= self.cutab_at <= self.files_at <= self.pctab_at:
            raise ElfError("pclntab: its tables are not in the known order")
        if not self.pctab_at <= self.functab_at <= len(data) - self.functab_bytes:
            raise ElfError("pclntab: its function table lies outside of it")
        self.first: int = _U32.unpack_from(data, self.functab_at)[0]
        self.end: int = _U32.unpack_from(data, self.functab_at + 8 * self.count)[0]
        self.lookup: Callable[[int], tuple[Line, ...]] = lru_cache(CACHED_PCS)(self._lookup)
        """The functions at an address, innermost inlined first, the physical last; () = none."""

    @property
    def functab_bytes(self) -> int:
        """Size of functab: (entry offset, record offset) per function and the end's offset."""
        return 8 * self.count + 4

    def contains(self, address: int) -> bool:
        """True when `address` is in Go's text."""
        return self.first <= address - self.text < self.end

    def _lookup(self, address: int) -> tuple[Line, ...]:
        offset = address - self.text
        self._steps_left = MAX_STEPS
        if not self.first <= offset < self.end:
            return ()
        try:
            function = self._function(offset)
            if function is None:
                return ()
            lines = self._chain(function, offset)
            return lines if self._steps_left > 0 else ()
        except (struct.error, IndexError):  # an offset beyond the data
            return ()

    def _function(self, offset: int) -> Function | None:
        """The function whose range holds a text offset."""
        data, base = self.data, self.functab_at
        low, high = 0, self.count  # the entry at `low` is <= offset, the one at `high` is not
        while high - low > 1:
            middle = (low + high) // 2
            if _U32.unpack_from(data, base + 8 * middle)[0] <= offset:
                low = middle
            else:
                high = middle
        entry, record = _PAIR.unpack_from(data, base + 8 * low)
        at = base + record
        if entry > offset or at + self.layout.func_bytes > len(data):
            return None
        name_off = _U32.unpack_from(data, at + NAME_OFF)[0]
        pcfile, pcln, npcdata, cu_offset = struct.unpack_from("<4I", data, at + PCFILE)
        nfuncdata = data[at + self.layout.func_id + 3]
        return Function(entry, at, name_off, pcfile, pcln, npcdata, nfuncdata, cu_offset)

    def _chain(self, function: Function, offset: int) -> tuple[Line, ...]:
        """Walks from the innermost inlined call to the function itself."""
        lines: list[Line] = []
        tree = self._inline_tree(function)
        for _ in range(MAX_INLINE_DEPTH):
            call = self._inlined_call(function, tree, offset) if tree is not None else None
            name_off = function.name_off if call is None else call[0]
            line = self._line(function, name_off, offset)
            if not line.function:
                return ()
            lines.append(line)
            if call is None:
                return tuple(lines)
            offset = function.entry + call[1]
        return tuple(lines)

    def _inline_tree(self, function: Function) -> int | None:
        """Position in `_inline` of the function's inline records, or None when it has none."""
        if function.nfuncdata <= FUNCDATA_INL_TREE or function.npcdata <= PCDATA_INL_TREE_INDEX:
            return None
        at = function.at + self.layout.func_bytes + 4 * (function.npcdata + FUNCDATA_INL_TREE)
        offset = _U32.unpack_from(self.data, at)[0]
        if offset == NO_FUNCDATA or offset < self._inline_offset:
            return None
        position: int = offset - self._inline_offset
        return position

    def _inlined_call(self, function: Function, tree: int, offset: int) -> tuple[int, int] | None:
        """(name offset, parent pc) of the inlined call at a text offset; None in the function
        itself."""
        at = function.at + self.layout.func_bytes + 4 * PCDATA_INL_TREE_INDEX
        index = self._value(_U32.unpack_from(self.data, at)[0], function.entry, offset)
        if index < 0:
            return None
        record = tree + index * self.layout.inline_bytes
        if record + self.layout.inline_bytes > len(self._inline):
            return None
        name_off: int = _U32.unpack_from(self._inline, record + self.layout.inline_name)[0]
        parent: int = _U32.unpack_from(self._inline, record + self.layout.inline_parent_pc)[0]
        return name_off, parent

    def _line(self, function: Function, name_off: int, offset: int) -> Line:
        name = self._string(self.names_at + name_off, self.cutab_at)
        file_number = self._value(function.pcfile, function.entry, offset)
        line = self._value(function.pcln, function.entry, offset)
        file = ""
        if file_number >= 0 and line >= 0:
            at = self.cutab_at + 4 * (function.cu_offset + file_number)
            if at + 4 <= self.files_at:
                file_off = _U32.unpack_from(self.data, at)[0]
                if file_off != NO_FUNCDATA:
                    file = self._string(self.files_at + file_off, self.pctab_at)
        shown = printed_name(name)
        return Line(shown, "" if shown == name else name, file, line if file else 0)

    def _string(self, at: int, end: int) -> str:
        """The zero-terminated string at `at`, which ends before `end`."""
        for size in (128, MAX_NAME_BYTES):
            raw = bytes(self.data[at : min(at + size, end)])
            stop = raw.find(0)
            if stop >= 0:
                return raw[:stop].decode("utf-8", "replace")
        return ""

    def _value(self, table: int, entry: int, target: int) -> int:
        """The value of a pc-value table at text offset `target`; -1 where there is none.

        `table` is an offset in pctab, `entry` the function's text offset, at which the table
        starts."""
        at, end = self.pctab_at + table, self.functab_at
        if table == 0 or at >= end:
            return -1
        data, quantum = self.data, self.quantum
        pc: int = entry
        value: int = -1
        left = self._steps_left
        self._steps_left = 0
        for step in range(left):
            byte = data[at]
            at += 1
            delta = byte
            if byte & 0x80:
                delta &= 0x7F
                for shift in (7, 14, 21, 28):
                    byte = data[at]
                    at += 1
                    delta |= (byte & 0x7F) << shift
                    if not byte & 0x80:
                        break
            elif byte == 0 and step:
                break
            value += -(delta >> 1) - 1 if delta & 1 else delta >> 1
            byte = data[at]
            at += 1
            advance = byte
            if byte & 0x80:
                advance &= 0x7F
                for shift in (7, 14, 21, 28):
                    byte = data[at]
                    at += 1
                    advance |= (byte & 0x7F) << shift
                    if not byte & 0x80:
                        break
            pc += advance * quantum
            if target < pc:
                self._steps_left = left - step - 1
                return value
            if at >= end:
                break
        else:
            return -1
        self._steps_left = left - step - 1
        return -1


def printed_name(name: str) -> str:
    """A name as Go prints it: type arguments of generic functions become `[...]`."""
    first, last = name.find("["), name.rfind("]")
    return f"{name[:first]}[...]{name[last + 1 :]}" if 0 <= first < last else name


def parse(data: bytes, text: int = 0x400000) -> GoTable:
    """A pclntab without inline trees: the entry of fuzzers and of tests."""
    return GoTable(memoryview(data), text, memoryview(b""), 0)
