"""What passes between the server and a decoding worker: frames of a JSON head and raw parts.

`<u4 head bytes><u4 number of parts><u8 bytes of each part…><head><parts>`. One request is answered by
one response, in order. Both ends are ours; sizes are still checked, since a worker may have been
broken by what it read.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

PREFIX: Final = struct.Struct("<II")
MAX_HEAD: Final = 1 << 20
MAX_PARTS: Final = 16
MAX_PART: Final = 4 << 30


def pack(head: Mapping[str, Any], parts: Sequence[bytes]) -> list[bytes]:
    """The pieces of a frame, to be written one after the other."""
    text = json.dumps(head, separators=(",", ":")).encode()
    sizes = struct.pack(f"<{len(parts)}Q", *map(len, parts))
    return [PREFIX.pack(len(text), len(parts)), sizes, text, *parts]


def unpack_prefix(data: bytes) -> tuple[int, int]:
    """Bytes of the head and number of parts. Raises ValueError for what cannot be."""
    head, parts = PREFIX.unpack(data)
    if head > MAX_HEAD or parts > MAX_PARTS:
        raise ValueError(f"a frame with a head of {head} bytes and {parts} parts")
    return head, parts


def unpack_sizes(data: bytes) -> tuple[int, ...]:
    """Sizes of the parts."""
    sizes = struct.unpack(f"<{len(data) // 8}Q", data)
    if any(size > MAX_PART for size in sizes):
        raise ValueError(f"a part of {max(sizes)} bytes")
    return sizes
