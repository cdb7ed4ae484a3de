"""Words of an object's bytes, and the tag by which a function is known again."""

import struct
from typing import Final

_WORD: Final = struct.Struct("<Q")
_MASK: Final = (1 << 64) - 1


def word_at(data: bytes, offset: int) -> int:
    """The 64-bit word at an offset."""
    return int(_WORD.unpack_from(data, offset)[0])


def mix(value: int, word: int) -> int:
    """`fh_mix`."""
    value = (value ^ word) * 0x9FB21C651E98DF25 & _MASK
    return value ^ value >> 28
