"""`fh_mix` of `bpf/core.bpf.c`: what tags of functions are made by, on both sides of the border."""

from typing import Final

_FACTOR: Final = 0x9FB21C651E98DF25
_MASK: Final = (1 << 64) - 1


def mix(value: int, word: int) -> int:
    """One step of the hash, 64 bits."""
    value = (value ^ word) * _FACTOR & _MASK
    return value ^ value >> 28
