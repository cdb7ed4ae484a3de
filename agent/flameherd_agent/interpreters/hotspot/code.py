"""What a HotSpot frame's words stand for: a method of the interpreter, a compiled one, or a stub.

What the sample saw of it (`fh_hotspot_tag` in `bpf/interpreters/hotspot.h`) is compared with what is there now.
"""

import struct
from typing import Final

from flameherd_agent.interpreters.base import Code, TornRead
from flameherd_agent.interpreters.base import Layout as AnyLayout
from flameherd_agent.interpreters.hotspot.layout import Layout
from flameherd_agent.interpreters.hotspot.method import Method, read_method, tag
from flameherd_agent.interpreters.hotspot.nmethod import CompiledCode, read_head
from flameherd_agent.interpreters.memory import ProcessMemory
from flameherd_agent.kernel.abi import HotspotFrame
from flameherd_agent.types import Line

_KIND_MASK: Final = 3
_NAME_BYTES: Final = 64
_CALL_STUB: Final = 1


class InterpretedCode:
    """A method that runs in the interpreter."""

    __slots__ = ("_method",)

    def __init__(self, method: Method) -> None:
        self._method = method

    def lines(self, position: int) -> tuple[Line, ...]:
        """`position`: index of the bytecode."""
        return (self._method.line(position),)

    def arrive(self, memory: ProcessMemory, position: int) -> None:
        """Nothing: lines were read with the method."""


class StubCode:
    """Code that belongs to no method."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def lines(self, position: int) -> tuple[Line, ...]:
        """Its name; the stub that calls Java from C++ has one of its own."""
        return (Line("call_stub" if position == _CALL_STUB else self._name),)

    def arrive(self, memory: ProcessMemory, position: int) -> None:
        """Nothing."""


def read_code(memory: ProcessMemory, layout: AnyLayout, address: int, second: int) -> Code:
    """What a frame is of. `second` is its second word.

    Raises TornRead if another thing lies there now, MemoryGone if it cannot be read.
    """
    assert isinstance(layout, Layout)
    kind, address = address & _KIND_MASK, address & ~_KIND_MASK
    code: Code
    if kind == HotspotFrame.INTERPRETED:
        method = read_method(memory, layout, address)
        found, code = method.tag, InterpretedCode(method)
    elif kind == HotspotFrame.COMPILED:
        head = read_head(memory, layout, address)
        found, code = head.tag, CompiledCode(layout, address, head)
    else:
        found, code = _stub(memory, layout, address)
    if found != second >> 32:
        raise TornRead(f"process {memory.pid}: {address:#x} holds something else by now")
    return code


def _stub(memory: ProcessMemory, layout: Layout, address: int) -> tuple[int, StubCode]:
    data = memory.read(address, layout.vm.size("CodeBlob"))
    name_at = struct.unpack_from("<Q", data, layout.vm.offset("CodeBlob", "_name"))[0]
    size = struct.unpack_from("<I", data, layout.vm.offset("CodeBlob", "_size"))[0]
    text = memory.read_some(name_at, _NAME_BYTES)
    first = struct.unpack("<Q", text[:8].ljust(8, b"\0"))[0]
    name = text.partition(b"\0")[0].decode(errors="replace")
    return tag(first, size), StubCode(name)
