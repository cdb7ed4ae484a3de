"""Reads a stopped backend's store back into the tuples of `tests.otlp_reader`, from its tables."""

from collections import Counter
from pathlib import Path
from typing import Any

from flameherd_backend.store.database import EmbeddedDatabase, QueryLimits
from flameherd_backend.store.results import Table

from tests.otlp_reader import Observed

LIMITS = QueryLimits(60.0, 4 << 30)


def rows(table: Table) -> list[dict[str, Any]]:
    """A table by rows."""
    columns = {
        name: column.rows() if hasattr(column, "rows") else list(column)
        for name, column in table.items()
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


class StoredTables:
    """All rows of a store's tables, in memory."""

    def __init__(self, folder: Path) -> None:
        database = EmbeddedDatabase(folder, readers=1)
        try:
            self.samples = rows(database.query("SELECT * FROM samples", limits=LIMITS))
            self.stacks = {
                row["stack_id"]: row
                for row in rows(database.query("SELECT * FROM stacks", limits=LIMITS))
            }
            self.frames = {
                row["frame_id"]: row
                for row in rows(database.query("SELECT * FROM frames", limits=LIMITS))
            }
            self.functions = {
                row["function_id"]: row
                for row in rows(database.query("SELECT * FROM functions", limits=LIMITS))
            }
            self.resources = {
                row["resource_id"]: row["attributes"]
                for row in rows(database.query("SELECT * FROM resources", limits=LIMITS))
            }
        finally:
            database.close()

    def location(self, frame_id: int) -> Observed:
        """As `tests.otlp_reader` gives it."""
        frame = self.frames[frame_id]
        named = len(frame["lines"])
        functions = [self.functions[number] for number in frame["functions"]][:named]
        ids = (("gnu", "gnu_build_id"), ("go", "go_build_id"), ("htlhash", "htlhash"))
        return (
            int(frame["address"]),
            frame["kind"],
            frame["mapping"],
            tuple(
                (f"process.executable.build_id.{kind}", frame[key])
                for kind, key in ids
                if frame[key]
            ),
            tuple(
                (function["name"], system, function["file"], int(line))
                for function, system, line in zip(
                    functions, frame["system_names"], frame["lines"], strict=True
                )
            ),
        )

    def observed(self) -> list[Observed]:
        """Every sample, equal ones added up; attributes as text, those of resource, scope and profile together."""
        sums: Counter[Observed] = Counter()
        for row in self.samples:
            stack = tuple(
                self.location(number) for number in self.stacks[row["stack_id"]]["frames"].tolist()
            )
            own = {
                "process.executable.name": row["executable"],
                "process.pid": str(row["pid"]),
                "thread.id": str(row["tid"]),
                "thread.name": row["thread"],
                **row["attributes"],
            }
            head = (
                row["sample_type"],
                row["sample_unit"],
                int(row["period"]),
                int(row["ts"]),
                int(row["duration_ns"]),
            )
            shared = tuple(sorted(self.resources[row["resource_id"]].items()))
            sums[shared, head, stack, tuple(sorted(own.items()))] += int(row["value"])
        return sorted((*key, value) for key, value in sums.items())


def as_stored(observed: list[Observed]) -> list[Observed]:
    """What `tests.otlp_reader.expected` says, in the shape of `StoredTables.observed`."""
    sums: Counter[Observed] = Counter()
    for resource, scope, head, stack, attributes, value in observed:
        sample_type, unit, period_type, _, period, time_ns, duration_ns, comments = head
        shared = dict(
            [*resource, ("otel.scope.name", scope), ("otel.scope.version", "0.1.0"), *comments]
        )
        scale = period if unit == "count" and period_type else 1
        plain = tuple(sorted((key, str(text)) for key, text in attributes))
        key = (
            tuple(sorted(shared.items())),
            (sample_type, unit, period, time_ns, duration_ns),
            stack,
            plain,
        )
        sums[key] += value * scale
    return sorted((*key, value) for key, value in sums.items())
