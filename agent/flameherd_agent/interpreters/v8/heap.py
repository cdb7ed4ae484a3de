"""V8's heap objects, read out of a process: tagged pointers, small integers, strings.

A pointer to an object ends in the bits 01, a small integer (Smi) has its value in the upper half. The first word of
an object is its map, which says its type; while the collector moves objects, it is the new place instead, untagged.
"""

import struct
from typing import Final

from flameherd_agent.interpreters.base import TornRead
from flameherd_agent.interpreters.memory import MAX_READ, ProcessMemory
from flameherd_agent.interpreters.v8.layouts import Layout

MAX_NAME: Final = 1024
"""Characters of a name or a path that are read."""
MAX_TABLE: Final = 1 << 20
"""Bytes of a table that are read."""
MAX_TEXT: Final = 16 << 20
"""Bytes of a source text that are read: beyond that, lines are not known."""
_MOST_PARTS: Final = 64
"""Strings that one string may be put together from."""
_LENGTH: Final = 8  # FixedArrayBase: length
_ELEMENTS: Final = 16
_UNCACHED: Final = 0x10  # kUncachedExternalStringMask
_WORD: Final = struct.Struct("<Q")


def is_pointer(word: int) -> bool:
    """Whether a word refers to an object, strongly."""
    return word & 3 == 1


def smi(word: int) -> int:
    """The value of a Smi."""
    value = word >> 32
    return value - (1 << 32) if value >> 31 else value


class Heap:
    """The objects of one process."""

    def __init__(self, memory: ProcessMemory, layout: Layout) -> None:
        self.memory = memory
        self.layout = layout

    def body(self, tagged: int, size: int) -> tuple[int, bytes]:
        """(tagged pointer to where an object is by now, its first `size` bytes). Raises TornRead, MemoryGone."""
        if not is_pointer(tagged):
            raise TornRead(f"process {self.memory.pid}: {tagged:#x} is no object")
        data = self.memory.read(tagged - 1, max(size, 8))
        (map_word,) = _WORD.unpack_from(data)
        if not map_word & 1:
            tagged = map_word + 1
            data = self.memory.read(map_word, max(size, 8))
            (map_word,) = _WORD.unpack_from(data)
        if not is_pointer(map_word):
            raise TornRead(f"process {self.memory.pid}: no object at {tagged:#x}")
        return tagged, data

    def type_of(self, body: bytes) -> int:
        """The instance type of an object."""
        (map_word,) = _WORD.unpack_from(body)
        at = map_word - 1 + self.layout["Map.instance_type"]
        return int(struct.unpack("<H", self.memory.read(at, 2))[0])

    def typed(self, tagged: int, size: int, name: str) -> tuple[int, bytes]:
        """`body` of an object that must be of a type. Raises TornRead, MemoryGone."""
        tagged, data = self.body(tagged, size)
        found = self.type_of(data)
        if found != self.layout[f"type.{name}"]:
            raise TornRead(
                f"process {self.memory.pid}: {tagged:#x} is no {name}, but of type {found}"
            )
        return tagged, data

    def bytes_of(self, tagged: int) -> bytes:
        """The contents of a byte array."""
        tagged, head = self.body(tagged, _ELEMENTS)
        size = smi(_WORD.unpack_from(head, _LENGTH)[0])
        if not 0 <= size <= MAX_TABLE:
            raise TornRead(f"process {self.memory.pid}: a table of {size} bytes at {tagged:#x}")
        return self.memory.read(tagged - 1 + _ELEMENTS, size) if size else b""

    def elements(self, tagged: int, most: int) -> tuple[int, ...]:
        """The words of a fixed array, `most` at most."""
        tagged, head = self.body(tagged, _ELEMENTS)
        count = min(smi(_WORD.unpack_from(head, _LENGTH)[0]), most)
        if count <= 0:
            return ()
        return struct.unpack(f"<{count}Q", self.memory.read(tagged - 1 + _ELEMENTS, 8 * count))

    def is_string(self, tagged: int) -> bool:
        return (
            is_pointer(tagged)
            and self.type_of(self.body(tagged, 8)[1]) < self.layout["FirstNonstringType"]
        )

    def text(self, tagged: int, most: int = MAX_NAME) -> str:
        """A string, up to `most` characters. Raises TornRead if it is none."""
        parts = [
            data.decode("utf-16-le" if wide else "latin-1", "replace")
            for data, wide in self._parts(tagged, most)
        ]
        return "".join(parts)[:most]

    def source(self, tagged: int) -> tuple[list[tuple[bytes, bool]], bool]:
        """([(bytes, two bytes a character)], whether it is whole) of a long string."""
        most = MAX_TEXT // 2
        parts = list(self._parts(tagged, most))
        read = sum(len(data) // (2 if wide else 1) for data, wide in parts)
        return parts, read == self._length(tagged)

    def _length(self, tagged: int) -> int:
        at = self.layout["String.length"]
        return int(struct.unpack_from("<I", self.body(tagged, at + 4)[1], at)[0])

    def _parts(self, tagged: int, most: int) -> list[tuple[bytes, bool]]:
        """Pieces of a string in their order, each with its width; `most` characters in all."""
        layout = self.layout
        pending: list[tuple[int, int, int]] = [
            (tagged, 0, most)
        ]  # string, first character, how many at most
        found: list[tuple[bytes, bool]] = []
        for _ in range(_MOST_PARTS):
            if not pending or most <= 0:
                break
            string, skip, limit = pending.pop()
            string, head = self.body(string, 40)
            kind = self.type_of(head)
            if kind >= layout["FirstNonstringType"]:
                raise TornRead(f"process {self.memory.pid}: {string:#x} is no string")
            length = struct.unpack_from("<I", head, layout["String.length"])[0]
            count = min(limit, length - skip, most)
            if count <= 0:
                continue
            shape = kind & layout["StringRepresentationMask"]

            def word(name: str, head: bytes = head) -> int:
                return int(_WORD.unpack_from(head, layout[name])[0])

            if shape == layout["ConsStringTag"]:
                first = word("ConsString.first")
                inside = max(0, self._length(first) - skip)
                pending.append(
                    (
                        word("ConsString.second"),
                        max(0, skip - self._length(first)),
                        count - min(count, inside),
                    )
                )
                if inside:
                    pending.append((first, skip, min(count, inside)))
                continue
            if shape == layout["ThinStringTag"]:
                pending.append((word("ThinString.actual"), skip, count))
                continue
            if shape == layout["SlicedStringTag"]:
                pending.append(
                    (word("SlicedString.parent"), skip + smi(word("SlicedString.offset")), count)
                )
                continue
            wide = kind & layout["StringEncodingMask"] != layout["OneByteStringTag"]
            if shape == layout["ExternalStringTag"]:
                if kind & _UNCACHED:
                    raise TornRead(f"process {self.memory.pid}: {string:#x} has its text elsewhere")
                start = int(_WORD.unpack_from(head, layout["ExternalString.resource"] + 8)[0])
            else:
                start = (
                    string
                    - 1
                    + layout["SeqTwoByteString.chars" if wide else "SeqOneByteString.chars"]
                )
            size = 2 if wide else 1
            found.append((self._long(start + skip * size, count * size), wide))
            most -= count
        return found

    def _long(self, address: int, size: int) -> bytes:
        return b"".join(
            self.memory.read(address + at, min(MAX_READ, size - at))
            for at in range(0, size, MAX_READ)
        )
