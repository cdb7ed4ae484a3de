"""HotSpot's compressed numbers and what is written in them: debug information of compiled code, line tables.

UNSIGNED5 (`src/hotspot/share/utilities/unsigned5.hpp`): up to five bytes, the least first, each of which but the last
is at least 192. From JDK 20 on no byte is zero, so each counts one less. All input is untrusted: what ends too early
raises `TornRead`.
"""

from collections.abc import Iterator
from typing import Final

from flameherd_agent.interpreters.base import TornRead

_LAST_BELOW: Final = 192
_MOST_BYTES: Final = 5
_BITS: Final = 6
_MAX_LINES: Final = 65_536


class Numbers:
    """Reads numbers from bytes, one after another."""

    def __init__(self, data: bytes, excludes_zero: bool, at: int = 0) -> None:
        self._data = data
        self._less = int(excludes_zero)
        self.at = at

    def byte(self) -> int:
        """A byte as it is. Raises TornRead."""
        if not 0 <= self.at < len(self._data):
            raise TornRead("compressed numbers end too early")
        value = self._data[self.at]
        self.at += 1
        return value

    def unsigned(self) -> int:
        """A 32-bit number. Raises TornRead."""
        value = 0
        for place in range(_MOST_BYTES):
            byte = self.byte()
            if byte < self._less:
                raise TornRead("a compressed number has a zero byte")
            value += byte - self._less << _BITS * place
            if byte < _LAST_BELOW:
                break
        return value & 0xFFFFFFFF

    def signed(self) -> int:
        """A number whose lowest bit is its sign. Raises TornRead."""
        value = self.unsigned()
        return -(value >> 1) - 1 if value & 1 else value >> 1


def line_table(data: bytes, excludes_zero: bool) -> Iterator[tuple[int, int]]:
    """(index of the bytecode, line) pairs of a method's compressed line table. Raises TornRead.

    Pairs of steps: in one byte where they are small, 5 bits and 3 bits; behind 0xFF as two signed numbers; 0 ends.
    """
    numbers = Numbers(data, excludes_zero)
    bci = line = 0
    for _ in range(_MAX_LINES):
        step = numbers.byte()
        if step == 0:
            return
        if step == 0xFF:
            bci += numbers.signed()
            line += numbers.signed()
        else:
            bci += step >> 3
            line += step & 7
        yield bci, line
    raise TornRead("a line table does not end")
