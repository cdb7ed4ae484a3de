"""Blocks of ClickHouse's `Native` format: columns as they lie in memory, so that the store copies them.

A block is: varint number of columns, varint number of rows, and for each column its name, its type
and its data (https://clickhouse.com/docs/interfaces/formats/Native). Several blocks may follow each
other in one insert, which is how the rows of many messages become one part of a table.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

_LC_VERSION: Final = (1).to_bytes(8, "little")
_LC_ADDITIONAL_KEYS: Final = 1 << 9
_LC_WIDTHS: Final = ((1 << 8, 0, np.uint8), (1 << 16, 1, np.uint16), (1 << 32, 2, np.uint32))

Column = tuple[str, str, bytes]
"""(name, type, data)"""


def varint(number: int) -> bytes:
    """LEB128."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


_SHORT: Final = tuple(varint(n) for n in range(1 << 14))


def text(value: bytes) -> bytes:
    """One string with its length."""
    size = len(value)
    return (_SHORT[size] if size < len(_SHORT) else varint(size)) + value


def strings(values: Iterable[bytes]) -> bytes:
    """A String column."""
    return b"".join([text(value) for value in values])


def numbers(values: NDArray[np.generic] | Sequence[int], dtype: str) -> bytes:
    """A column of fixed width, little-endian."""
    return np.ascontiguousarray(values, dtype=np.dtype(dtype).newbyteorder("<")).tobytes()


def offsets(lengths: Iterable[int]) -> bytes:
    """The ends of each row's elements in an Array or Map column."""
    return numbers(list(accumulate(lengths)), "u8")


def codes(keys: Sequence[bytes], rows: NDArray[np.integer]) -> bytes:
    """A LowCardinality(String) column: distinct texts, and for each row which one it is."""
    if not rows.size:
        return b""
    width, dtype = next((code, dtype) for limit, code, dtype in _LC_WIDTHS if len(keys) <= limit)
    return b"".join(
        (
            _LC_VERSION,
            (width | _LC_ADDITIONAL_KEYS).to_bytes(8, "little"),
            len(keys).to_bytes(8, "little"),
            strings(keys),
            len(rows).to_bytes(8, "little"),
            rows.astype(dtype).tobytes(),
        )
    )


def maps(rows: Sequence[Sequence[tuple[bytes, bytes]]]) -> bytes:
    """A Map(String, String) column."""
    return b"".join(
        (
            offsets(len(row) for row in rows),
            strings(key for row in rows for key, _ in row),
            strings(value for row in rows for _, value in row),
        )
    )


def block(rows: int, columns: Sequence[Column]) -> bytes:
    """A block of `rows` rows."""
    parts = [varint(len(columns)), varint(rows)]
    for name, kind, data in columns:
        parts += (text(name.encode()), text(kind.encode()), data)
    return b"".join(parts)


def rows_of(made: bytes) -> int:
    """How many rows a block has."""
    at = 0
    while made[at] & 128:
        at += 1
    rows = shift = 0
    for byte in made[at + 1 :]:
        rows |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    return rows
