"""Rows as blocks of the store's tables, in its `Native` format. Column names are those of the migrations."""

from typing import Any, Final

import numpy as np

from flameherd_backend.decode import native
from flameherd_backend.decode.attributes import COLUMNS, Attributes
from flameherd_backend.decode.dictionary import NewRows
from flameherd_backend.decode.flatten import Flat

TABLES: Final = ("resources", "functions", "frames", "stacks", "samples")
"""In the order in which they are written: samples last, so that what they refer to is there."""
_LC: Final = "LowCardinality(String)"
_OWN_COLUMNS: Final = frozenset(
    (b"process.executable.name", b"thread.name", b"process.pid", b"thread.id")
)
_MAX_U32: Final = (1 << 32) - 1


class _Texts:
    """Distinct texts of one column, "" first."""

    def __init__(self) -> None:
        self._codes: dict[bytes, int] = {b"": 0}

    def code(self, text: bytes) -> int:
        return self._codes.setdefault(text, len(self._codes))

    def column(self, name: str, rows: np.ndarray[Any, Any]) -> native.Column:
        return name, _LC, native.codes(list(self._codes), rows)


def _number(text: bytes) -> int:
    return min(int(text), _MAX_U32) if text.isdigit() and len(text) < 11 else 0


def sample_block(flat: Flat) -> bytes:
    """The block of `samples`, or nothing if there are no rows."""
    rows = flat.rows
    count = len(rows.profile)
    if not count:
        return b""
    columns: list[native.Column] = [
        ("ts", "DateTime64(9, 'UTC')", native.numbers(rows.ts, "i8")),
        ("stack_id", "UInt64", native.numbers(rows.stack, "u8")),
        ("value", "Int64", native.numbers(rows.value, "i8")),
        ("count", "Int64", native.numbers(rows.count, "i8")),
        ("duration_ns", "UInt64", native.numbers(rows.duration, "u8")),
    ]
    heads = [head if not head.error else None for head in flat.heads]

    def of_profile(name: str, kind: str, dtype: str, numbers: list[int]) -> None:
        columns.append((name, kind, native.numbers(np.array(numbers, dtype)[rows.profile], dtype)))

    def of_text(name: str, values: list[bytes]) -> None:
        texts = _Texts()
        codes = np.array([texts.code(value) for value in values])
        columns.append(texts.column(name, codes[rows.profile]))

    of_profile("period", "UInt64", "u8", [head.period if head else 0 for head in heads])
    of_profile("resource_id", "UInt64", "u8", [head.origin.id if head else 0 for head in heads])
    of_text("type", [head.type if head else b"" for head in heads])
    of_text("unit", [head.unit if head else b"" for head in heads])
    of_text("sample_type", [head.sample_type if head else b"" for head in heads])
    of_text("sample_unit", [head.sample_unit if head else b"" for head in heads])
    for index, name in enumerate(COLUMNS):
        of_text(name, [head.origin.columns[index] if head else b"" for head in heads])
    columns += _columns_of_sets(flat)
    trace = b"".join(trace for trace, _ in flat.links)
    span = b"".join(span for _, span in flat.links)
    for name, data, width in (("trace_id", trace, 16), ("span_id", span, 8)):
        table = np.frombuffer(data, np.uint8).reshape(-1, width)
        columns.append((name, f"FixedString({width})", table[rows.link].tobytes()))
    return native.block(count, columns)


def _columns_of_sets(flat: Flat) -> list[native.Column]:
    """Executable, thread, pid, tid, instance and what is left, from samples' attributes and origins."""
    rows = flat.rows
    known = [dict(attributes) for attributes in flat.attribute_sets]
    sets = len(known)
    pairs, place = np.unique(rows.profile * sets + rows.attribute_set, return_inverse=True)
    executables, threads, instances = _Texts(), _Texts(), _Texts()
    codes = np.zeros((3, len(pairs)), np.int64)
    numbers = np.zeros((2, len(pairs)), np.uint32)
    rest: list[Attributes] = []
    for index, pair in enumerate(pairs.tolist()):
        source = flat.heads[pair // sets].origin
        own = known[pair % sets]
        executable = own.get(b"process.executable.name", source.executable)
        pid = own.get(b"process.pid", b"")
        instance = source.instance or (b"%b[%b]" % (executable, pid) if executable or pid else b"")
        codes[:, index] = (
            executables.code(executable),
            threads.code(own.get(b"thread.name", b"")),
            instances.code(instance),
        )
        numbers[:, index] = _number(pid), _number(own.get(b"thread.id", b""))
        rest.append(tuple(item for item in own.items() if item[0] not in _OWN_COLUMNS))
    return [
        executables.column("executable", codes[0][place]),
        threads.column("thread", codes[1][place]),
        instances.column("instance", codes[2][place]),
        ("pid", "UInt32", native.numbers(numbers[0][place], "u4")),
        ("tid", "UInt32", native.numbers(numbers[1][place], "u4")),
        ("attributes", "Map(String, String)", _map_rows(rest, place)),
    ]


def _map_rows(rest: list[Attributes], place: np.ndarray[Any, Any]) -> bytes:
    if not any(rest):
        return bytes(8 * len(place))
    return native.maps([rest[index] for index in place.tolist()])


def _packed(rows: list[bytes]) -> bytes:
    """An Array(UInt64) column of rows that are packed already."""
    return native.offsets(len(row) // 8 for row in rows) + b"".join(rows)


def side_blocks(new: NewRows, day: int) -> dict[str, bytes]:
    """Blocks of the side tables; `day` = days since 1970 of now. Empty tables are left out."""
    blocks = {}

    def table(name: str, key: str, ids: list[int], columns: list[native.Column]) -> None:
        if ids:
            days = native.numbers(np.full(len(ids), day), "u2")
            head = [
                (key, "UInt64", native.numbers(np.array(ids, "u8"), "u8")),
                ("day", "Date", days),
            ]
            blocks[name] = native.block(len(ids), [*head, *columns])

    functions = new.functions
    names, files, mappings, kinds = (
        native.strings(texts)
        for texts in list(zip(*(row[1:5] for row in functions), strict=True)) or ((),) * 4
    )
    table(
        "functions",
        "function_id",
        [row[0] for row in functions],
        [
            ("name", "String", names),
            ("file", "String", files),
            ("mapping", "String", mappings),
            ("kind", "String", kinds),
            ("line", "UInt32", native.numbers([row[5] for row in functions], "u4")),
            ("unnamed", "UInt8", native.numbers([row[6] for row in functions], "u1")),
        ],
    )
    frames = new.frames

    def longs(at: int, dtype: str) -> bytes:
        lengths = native.offsets(len(row[at]) for row in frames)
        return lengths + native.numbers(
            np.array([n for row in frames for n in row[at]], dtype), dtype
        )

    table(
        "frames",
        "frame_id",
        [row[0] for row in frames],
        [
            ("kind", "String", native.strings(row[1] for row in frames)),
            ("address", "UInt64", native.numbers(np.array([row[2] for row in frames], "u8"), "u8")),
            *((name, "String", native.strings(row[at] for row in frames))
              for at, name in ((3, "mapping"), (4, "gnu_build_id"), (5, "go_build_id"), (6, "htlhash"))),
            ("functions", "Array(UInt64)", longs(7, "u8")),
            ("system_names", "Array(String)",
             native.offsets(len(row[8]) for row in frames) + native.strings(s for row in frames for s in row[8])),
            ("lines", "Array(Int64)", longs(9, "i8")),
            ("first_lines", "Array(UInt32)", longs(12, "u4")),
            ("columns", "Array(Int64)", longs(10, "i8")),
            ("attributes", "Map(String, String)", native.maps([row[11] for row in frames])),
        ],
    )  # fmt: skip
    stacks = new.stacks
    table(
        "stacks",
        "stack_id",
        [row[0] for row in stacks],
        [
            ("functions", "Array(UInt64)", _packed([row[1] for row in stacks])),
            ("frames", "Array(UInt64)", _packed([row[2] for row in stacks])),
        ],
    )
    table(
        "resources",
        "resource_id",
        [row[0] for row in new.resources],
        [("attributes", "Map(String, String)", native.maps([row[1] for row in new.resources]))],
    )
    return blocks
