"""Reads a Method out of a process: its class, name, file and lines.

Method → ConstMethod → ConstantPool → Symbol; the class's name from the pool's holder. They live in the metaspace: no
garbage collector moves them, and they stay while their class is loaded.
"""

import struct
from bisect import bisect_right
from typing import Final

from flameherd_agent.interpreters.base import TornRead
from flameherd_agent.interpreters.hotspot.compressed import line_table
from flameherd_agent.interpreters.hotspot.layout import Layout
from flameherd_agent.interpreters.memory import ProcessMemory
from flameherd_agent.interpreters.mix import mix
from flameherd_agent.types import Line

MAX_SYMBOL: Final = 512
"""Bytes of a name that are read."""
MAX_TABLE_BYTES: Final = 64 << 10
MAX_METHODS: Final = 8_000
"""Of one JVM."""
_HAS_LINES: Final = 1
"""ConstMethod's flag _has_linenumber_table: the lowest bit in every version."""
_FIRST_READ: Final = 96
_NO_ZERO_BYTES: Final = 20
"""From this version on compressed numbers have none."""


def tag(one: int, other: int) -> int:
    """`fh_hotspot_tag`."""
    return mix(mix(one, other), 1) >> 32


class Method:
    """One method of a class."""

    __slots__ = ("_bcis", "_lines", "file", "name", "tag")

    def __init__(self, name: str, file: str, lines: dict[int, int], tag_: int) -> None:
        self.name = name
        self.file = file
        self.tag = tag_
        """Of frames of the interpreter."""
        self._bcis = sorted(lines)
        self._lines = [lines[bci] for bci in self._bcis]

    def line(self, bci: int) -> Line:
        """The line of a bytecode; 0 = native, or compiled without lines."""
        at = bisect_right(self._bcis, max(bci, 0))
        return Line(self.name, file=self.file, line=self._lines[at - 1] if at else 0)


def read_method(memory: ProcessMemory, layout: Layout, address: int) -> Method:
    """The Method at an address, from the JVM's cache if it is known there. Raises TornRead, MemoryGone."""
    vm = layout.vm
    constant = memory.word(address + vm.offset("Method", "_constMethod"))
    known = layout.methods.get((address, constant))
    if isinstance(known, Method):
        return known
    size = vm.size("ConstMethod")
    head = memory.read(constant, size)

    def number(name: str, form: str) -> int:
        return int(struct.unpack_from(form, head, vm.offset("ConstMethod", name))[0])

    pool = number("_constants", "<Q")
    name_index = number("_name_index", "<H")
    code_size = number("_code_size", "<H")
    flags_at = vm.offset("ConstMethod", "_flags", "_flags._flags")
    whole = 8 * number("_constMethod_size", "<I")
    name = read_symbol(memory, layout, _pool_word(memory, layout, pool, name_index))
    holder, file = _holder(memory, layout, pool)
    lines: dict[int, int] = {}
    if head[flags_at] & _HAS_LINES:
        start = size + code_size
        bytes_ = min(whole - start, MAX_TABLE_BYTES)
        if bytes_ <= 0:
            raise TornRead(f"process {memory.pid}: no method at {address:#x}")
        data = memory.read(constant + start, bytes_)
        lines = dict(line_table(data, layout.version >= _NO_ZERO_BYTES))
    word_at = vm.offset("ConstMethod", "_name_index") & ~7
    method = Method(
        f"{holder}.{name}",
        file,
        lines,
        tag(constant, pool ^ struct.unpack_from("<Q", head, word_at)[0]),
    )
    if len(layout.methods) >= MAX_METHODS:
        for old in list(layout.methods)[: MAX_METHODS // 2]:
            del layout.methods[old]
    layout.methods[address, constant] = method
    return method


def read_symbol(memory: ProcessMemory, layout: Layout, address: int) -> str:
    """A Symbol's text, up to MAX_SYMBOL bytes. Raises TornRead, MemoryGone."""
    length_at = layout.vm.offset("Symbol", "_length")
    body_at = layout.vm.offset("Symbol", "_body[0]", "_body")
    data = memory.read_some(address, _FIRST_READ)
    if len(data) < body_at:
        raise TornRead(f"process {memory.pid}: no symbol at {address:#x}")
    length = min(int(struct.unpack_from("<H", data, length_at)[0]), MAX_SYMBOL)
    if body_at + length > len(data):
        data = memory.read(address, body_at + length)
    return data[body_at : body_at + length].decode("utf-8", "replace")


def class_name(symbol: str) -> str:
    """A class's name as Java prints it: hidden classes have a suffix of their own."""
    name, plus, address = symbol.replace("/", ".").rpartition("+")
    return f"{name}/{address}" if plus else address


def _pool_word(memory: ProcessMemory, layout: Layout, pool: int, index: int) -> int:
    # JDK 8 marks what is not resolved in the lowest bit.
    return memory.word(pool + layout.vm.size("ConstantPool") + 8 * index) & ~1


def _holder(memory: ProcessMemory, layout: Layout, pool: int) -> tuple[str, str]:
    """(class, source file) of a constant pool."""
    vm = layout.vm
    klass = memory.word(pool + vm.offset("ConstantPool", "_pool_holder"))
    name = class_name(read_symbol(memory, layout, memory.word(klass + vm.offset("Klass", "_name"))))
    file_at = vm.find("ConstantPool", "_source_file_name_index")
    if file_at is not None:
        data = memory.read(pool + file_at, 2)
    else:
        data = memory.read(klass + vm.offset("InstanceKlass", "_source_file_name_index"), 2)
    index = int(struct.unpack("<H", data)[0])
    if not index:
        return name, ""
    return name, read_symbol(memory, layout, _pool_word(memory, layout, pool, index))
