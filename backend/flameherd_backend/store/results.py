"""Results of a query in ClickHouse's `Native` format, as columns: numbers as arrays, texts as lists."""

import re
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

_NUMBERS: Final = {
    "UInt8": "u1", "UInt16": "<u2", "UInt32": "<u4", "UInt64": "<u8",
    "Int8": "i1", "Int16": "<i2", "Int32": "<i4", "Int64": "<i8",
    "Float32": "<f4", "Float64": "<f8", "Date": "<u2", "DateTime": "<u4", "DateTime64": "<i8", "Bool": "u1",
}  # fmt: skip
_ARRAY: Final = re.compile(r"Array\((.*)\)")
_MAP: Final = re.compile(r"Map\((.+), (String)\)")
_LOW: Final = re.compile(r"LowCardinality\((.*)\)")
_CODES: Final = ("u1", "<u2", "<u4", "<u8")
_AGGREGATE: Final = re.compile(r"SimpleAggregateFunction\(\w+, (.*)\)")
_FIXED: Final = re.compile(r"FixedString\((\d+)\)")


class Lists(NamedTuple):
    """An Array column: row i is values[ends[i - 1]:ends[i]]."""

    values: Any
    """An array, or a list of texts."""
    ends: NDArray[np.int64]

    def starts(self) -> NDArray[np.int64]:
        """Where each row begins."""
        return (
            np.concatenate((np.zeros(1, np.int64), self.ends[:-1])) if len(self.ends) else self.ends
        )

    def rows(self) -> list[Any]:
        """A list or array for each row."""
        return [
            self.values[a:b]
            for a, b in zip(self.starts().tolist(), self.ends.tolist(), strict=True)
        ]


Table = dict[str, Any]
"""Column name → array (numbers), list of str (String), list of bytes (FixedString), `Lists`, or list of dict (Map)."""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def varint(self) -> int:
        number = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7

    def take(self, size: int) -> bytes:
        piece = self.data[self.at : self.at + size]
        if len(piece) != size:
            raise ValueError(f"the result ends {size - len(piece)} bytes too early")
        self.at += size
        return piece

    def texts(self, count: int) -> list[str]:
        out = []
        data, at = self.data, self.at
        for _ in range(count):
            size = data[at]
            at += 1
            if size > 127:
                self.at = at - 1
                size = self.varint()
                at = self.at
            out.append(data[at : at + size].decode("utf-8", "replace"))
            at += size
        self.at = at
        return out

    def column(self, kind: str, rows: int) -> Any:
        """A column: first the prefixes of its dictionaries, then the data."""
        if rows and "LowCardinality" in kind:
            self.take(8)
        return self._data(kind, rows)

    def _data(self, kind: str, rows: int) -> Any:
        if of := _AGGREGATE.fullmatch(kind):
            kind = of[1]
        base = kind.partition("(")[0]
        if base in _NUMBERS:
            dtype = np.dtype(_NUMBERS[base])
            return np.frombuffer(self.take(rows * dtype.itemsize), dtype)
        if kind == "String":
            return self.texts(rows)
        if fixed := _FIXED.fullmatch(kind):
            width = int(fixed[1])
            data = self.take(rows * width)
            return [data[i : i + width] for i in range(0, len(data), width)]
        if low := _LOW.fullmatch(kind):
            return self._coded(low[1], rows)
        if inner := _ARRAY.fullmatch(kind):
            ends = np.frombuffer(self.take(rows * 8), "<u8").astype(np.int64)
            return Lists(self._data(inner[1], int(ends[-1]) if rows else 0), ends)
        if pair := _MAP.fullmatch(kind):
            ends = np.frombuffer(self.take(rows * 8), "<u8").astype(np.int64)
            total = int(ends[-1]) if rows else 0
            keys, values = (
                Lists(self._data(pair[1], total), ends),
                Lists(self._data(pair[2], total), ends),
            )
            return [
                dict(zip(k, v, strict=True))
                for k, v in zip(keys.rows(), values.rows(), strict=True)
            ]
        raise ValueError(f"a column of type {kind}: cast it in the query")

    def _coded(self, kind: str, rows: int) -> Any:
        """LowCardinality: distinct values, then for each row which one it is."""
        if not rows:
            return self._data(kind, 0)
        width = int.from_bytes(self.take(8), "little") & 255
        keys = self._data(kind, int.from_bytes(self.take(8), "little"))
        count = int.from_bytes(self.take(8), "little")
        dtype = np.dtype(_CODES[width])
        which = np.frombuffer(self.take(count * dtype.itemsize), dtype)
        if isinstance(keys, np.ndarray):
            return keys[which]
        return [keys[index] for index in which.tolist()]


def _joined(parts: list[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    if isinstance(parts[0], Lists):
        values = _joined([part.values for part in parts])
        sizes = np.concatenate([np.diff(part.ends, prepend=0) for part in parts])
        return Lists(values, np.cumsum(sizes))
    return [item for part in parts for item in part]


def read(data: bytes) -> Table:
    """All blocks of a result as one table; {} if there is none."""
    reader = _Reader(data)
    parts: dict[str, list[Any]] = {}
    while reader.at < len(data):
        columns, rows = reader.varint(), reader.varint()
        for _ in range(columns):
            name, kind = reader.texts(1)[0], reader.texts(1)[0]
            parts.setdefault(name, []).append(reader.column(kind, rows))
    return {name: _joined(column) for name, column in parts.items()}
