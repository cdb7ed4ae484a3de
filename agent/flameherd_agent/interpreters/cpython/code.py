"""Reads a code object out of a process: the function's name, its file, its lines.

What the sample saw of the object (`fh_cpython_tag` in `bpf/interpreters/cpython.h`) is compared with what is there
now: an object that was freed and replaced meanwhile is torn, not named.
"""

import struct
from typing import Final

from flameherd_agent.interpreters.base import Layout as AnyLayout
from flameherd_agent.interpreters.base import TornRead
from flameherd_agent.interpreters.cpython.layouts import Layout
from flameherd_agent.interpreters.cpython.lines import LineTable
from flameherd_agent.interpreters.memory import ProcessMemory
from flameherd_agent.interpreters.mix import mix
from flameherd_agent.types import Line

MAX_NAME: Final = 1024
"""Characters of a name or a path that are read."""
MAX_TABLE_BYTES: Final = 256 << 10
_LENGTH, _STATE = 16, 32  # PyASCIIObject: length, state
_BYTES_SIZE, _BYTES_DATA = 16, 32  # PyBytesObject
_WIDTHS: Final = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}
_FIRST_READ: Final = 192
"""Most names lie whole in so many bytes of their object."""


def tag(filename: int, name: int, line: int) -> int:
    """`fh_cpython_tag`."""
    return mix(mix(filename, name), line) >> 32


class CpythonCode:
    """One code object."""

    __slots__ = ("_file", "_lines", "_name", "_unit")

    def __init__(self, name: str, file: str, lines: LineTable, unit: int) -> None:
        self._name = name
        self._file = file
        self._lines = lines
        self._unit = unit

    def lines(self, position: int) -> tuple[Line, ...]:
        """The line at `position`: bits 0-31 of a frame's second word, in the version's own units."""
        signed = position - (1 << 32) if position >> 31 else position
        number = self._lines.line(signed * self._unit if signed > 0 else signed)
        return (Line(self._name, file=self._file, line=number),)

    def arrive(self, memory: ProcessMemory, position: int) -> None:
        """Nothing: the line table was read with the code object."""


def read_code(memory: ProcessMemory, layout: AnyLayout, address: int, second: int) -> CpythonCode:
    """The code object at `address`. `second` is the second word of a frame of it.

    Raises TornRead if it is not the one that the frame had, MemoryGone if it cannot be read.
    """
    assert isinstance(layout, Layout)
    names = ("code.line", "code.filename", "code.name", "code.qualname", "code.lines")
    places = {name: at for name in names if (at := layout.get(name)) is not None}
    data = memory.read(address, max(places.values()) + 8)
    line = struct.unpack_from("<I", data, places.pop("code.line"))[0]
    pointers = {name: struct.unpack_from("<Q", data, at)[0] for name, at in places.items()}
    filename, name = pointers["code.filename"], pointers["code.name"]
    if tag(filename, name, line) != second >> 32:
        raise TornRead(f"process {memory.pid}: {address:#x} holds another code object by now")
    return CpythonCode(
        read_text(memory, layout, pointers.get("code.qualname", name)),
        read_text(memory, layout, filename),
        LineTable(layout.lines, _read_bytes(memory, pointers["code.lines"]), line),
        layout.unit,
    )


def read_text(memory: ProcessMemory, layout: Layout, address: int) -> str:
    """A str object, up to MAX_NAME characters. Raises TornRead if it is none."""
    data = memory.read_some(address, _FIRST_READ)
    if len(data) < layout["text.ascii"]:
        raise TornRead(f"process {memory.pid}: no str at {address:#x}")
    length, state = struct.unpack_from("<Q8xI", data, _LENGTH)
    width, compact, ascii_only = state >> 2 & 7, state >> 5 & 1, state >> 6 & 1
    if not compact or width not in _WIDTHS or length >= 1 << 32:
        raise TornRead(f"process {memory.pid}: no str at {address:#x}")
    start = layout["text.ascii"] if ascii_only else layout["text.compact"]
    size = min(length, MAX_NAME) * width
    if start + size > len(data):
        data = memory.read(address, start + size)
    return data[start : start + size].decode(_WIDTHS[width], "replace")


def _read_bytes(memory: ProcessMemory, address: int) -> bytes:
    data = memory.read_some(address, _FIRST_READ)
    size = struct.unpack_from("<Q", data, _BYTES_SIZE)[0] if len(data) >= _BYTES_DATA else 1 << 63
    if size > MAX_TABLE_BYTES:
        raise TornRead(f"process {memory.pid}: no line table at {address:#x}")
    if _BYTES_DATA + size > len(data):
        data = memory.read(address, _BYTES_DATA + size)
    return data[_BYTES_DATA : _BYTES_DATA + size]
