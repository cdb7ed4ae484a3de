"""The tables in which HotSpot describes its own structures, read out of a process.

They exist for debuggers that look at a JVM from outside ("vmStructs", `src/hotspot/share/runtime/vmStructs.hpp`):
entries of (type, field, static or offset, address), and of (type, size). Where in an entry is what is exported as
numbers too, so that one reader fits JDK 8 to 26.
"""

import struct
from dataclasses import dataclass
from typing import Final

from flameherd_agent.interpreters.base import NotReady, NotSupported, RuntimeFile
from flameherd_agent.interpreters.memory import MemoryGone, ProcessMemory

MAX_ENTRIES: Final = 16_384
MAX_STRIDE: Final = 256
MAX_NAME: Final = 128
_PAGE: Final = 4096
_MASK: Final = (1 << 64) - 1
_BATCH: Final = 512

Field = tuple[str, str]
"""(type, field)"""


@dataclass(frozen=True, slots=True)
class VmStructs:
    """What one JVM says of itself."""

    offsets: dict[Field, int]
    """Of fields, in bytes."""
    statics: dict[Field, int]
    """Addresses of static fields."""
    sizes: dict[str, int]
    """Of types, in bytes."""

    def offset(self, type_: str, *names: str) -> int:
        """The offset of the first of several fields that there is. Raises NotSupported."""
        found = self.find(type_, *names)
        if found is None:
            raise NotSupported("layout", f"vmStructs: no {type_}::{' or '.join(names)}")
        return found

    def find(self, type_: str, *names: str) -> int | None:
        """The same, or None."""
        return next((self.offsets[type_, n] for n in names if (type_, n) in self.offsets), None)

    def static(self, type_: str, name: str) -> int:
        """The address of a static field. Raises NotSupported."""
        if (type_, name) not in self.statics:
            raise NotSupported("layout", f"vmStructs: no static {type_}::{name}")
        return self.statics[type_, name]

    def size(self, type_: str) -> int:
        """Bytes of a type. Raises NotSupported."""
        if type_ not in self.sizes:
            raise NotSupported("layout", f"vmStructs: no type {type_}")
        return self.sizes[type_]


def read_tables(memory: ProcessMemory, file: RuntimeFile, bias: int) -> VmStructs:
    """The tables of the HotSpot in `file`, mapped at `bias`. Raises NotReady, NotSupported, MemoryGone."""
    strings = _Strings(memory)

    def told(name: str) -> int:
        return memory.word((file.symbols[name] + bias) & _MASK)

    def entries(table: str, entry: str, fields: tuple[str, ...]) -> list[tuple[int, ...]]:
        at, stride = told(table), told(f"{entry}ArrayStride")
        places = [told(f"{entry}{field}Offset") for field in fields]
        if not at or not stride:
            raise NotReady(f"process {memory.pid}: {table} is not there yet")
        if stride > MAX_STRIDE or any(place + 8 > stride for place in places):
            raise NotSupported("layout", f"{table}: entries of {stride} bytes make no sense")
        found: list[tuple[int, ...]] = []
        while len(found) < MAX_ENTRIES:
            data = memory.read_some(at + len(found) * stride, _BATCH * stride)
            for start in range(0, len(data) - stride + 1, stride):
                values = tuple(struct.unpack_from("<Q", data, start + p)[0] for p in places)
                if not values[0]:
                    return found
                found.append(values)
            if len(data) < stride:
                break
        raise NotSupported("layout", f"{table} does not end")

    offsets: dict[Field, int] = {}
    statics: dict[Field, int] = {}
    names = ("TypeName", "FieldName", "IsStatic", "Offset", "Address")
    for type_, name, static, offset, address in entries(
        "gHotSpotVMStructs", "gHotSpotVMStructEntry", names
    ):
        field = strings.read(type_), strings.read(name)
        if static & 0xFFFFFFFF:
            statics[field] = address
        else:
            offsets[field] = offset
    sizes = {
        strings.read(type_): size
        for type_, size in entries("gHotSpotVMTypes", "gHotSpotVMTypeEntry", ("TypeName", "Size"))
    }
    return VmStructs(offsets, statics, sizes)


class _Strings:
    """Names in read-only data, read by pages: they lie close together."""

    def __init__(self, memory: ProcessMemory) -> None:
        self._memory = memory
        self._pages: dict[int, bytes] = {}
        self._known: dict[int, str] = {}

    def read(self, address: int) -> str:
        known = self._known.get(address)
        if known is None:
            number, start = divmod(address, _PAGE)
            data = self._page(number)[start:]
            if b"\0" not in data[:MAX_NAME]:
                data += self._page(number + 1)
            name, end, _ = data[:MAX_NAME].partition(b"\0")
            if not end:
                raise MemoryGone(f"process {self._memory.pid}: no name at {address:#x}")
            known = self._known[address] = name.decode(errors="replace")
        return known

    def _page(self, number: int) -> bytes:
        if number not in self._pages:
            self._pages[number] = self._memory.read(number * _PAGE, _PAGE)
        return self._pages[number]
