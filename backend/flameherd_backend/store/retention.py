"""Old data goes, by age and by bytes, in whole partitions of six hours: a directory is removed, nothing is rewritten.

Definitions (functions, frames, stacks, resources) are partitioned by the day on which they were
written. Each day writes again what it uses, so a day's definitions serve the samples that arrived
on that day, and go when those are gone. The clock of senders may be an hour ahead: a day more is kept.
"""

import time
from dataclasses import dataclass
from typing import Final

from flameherd_backend.store.database import Database

SAMPLE_TABLES: Final = ("samples", "timeline")
SIDE_TABLES: Final = ("functions", "frames", "stacks", "resources")
_PARTITION_S: Final = 6 * 3600
_DAY_S: Final = 86_400

_PARTITIONS: Final = """
SELECT table, partition, min(partition_id) AS id, sum(bytes_on_disk) AS bytes, sum(rows) AS rows
FROM system.parts
WHERE active AND database = currentDatabase() AND table IN {tables:Array(String)}
GROUP BY table, partition
"""


@dataclass(frozen=True, slots=True)
class Retention:
    """`max_age_s`: of samples; `max_bytes`: of all tables on the disk, 0 = no cap."""

    max_age_s: float
    max_bytes: int = 0


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """`begins`: seconds since 1970."""

    begins: int
    table: str
    name: str
    """As `DROP PARTITION` takes it."""
    bytes: int
    rows: int


def partitions(database: Database) -> list[Partition]:
    """All partitions of the dropping kind, the oldest first."""
    found = database.query(_PARTITIONS, {"tables": [*SAMPLE_TABLES, *SIDE_TABLES]})
    out = []
    columns = (found.get(name, []) for name in ("table", "partition", "bytes", "rows"))
    for table, name, size, rows in zip(*columns, strict=True):
        form = "%Y-%m-%d" if len(name) == len("2026-01-31") else "%Y-%m-%d %H:%M:%S"
        begins = int(time.mktime(time.strptime(name + " UTC", form + " %Z"))) - time.timezone
        out.append(Partition(begins, table, name, int(size), int(rows)))
    return sorted(out)


def choose(found: list[Partition], retention: Retention, now: float) -> list[Partition]:
    """Which partitions to drop: those that are wholly over the age, and the oldest while over the bytes.

    The newest partition of samples stays, however large: it is what is written to.
    """
    oldest = now - retention.max_age_s
    samples = [part for part in found if part.table in SAMPLE_TABLES]
    newest = max((part.begins for part in samples), default=0)
    dropped = {part for part in samples if part.begins + _PARTITION_S <= oldest}
    used = sum(part.bytes for part in found if part not in dropped)
    for part in samples:
        if not retention.max_bytes or used <= retention.max_bytes:
            break
        if part not in dropped and part.begins < newest:
            same_time = {
                other for other in samples if other.begins == part.begins and other not in dropped
            }
            dropped |= same_time
            used -= sum(other.bytes for other in same_time)
    kept_from = min((part.begins for part in samples if part not in dropped), default=int(oldest))
    for part in found:
        if part.table in SIDE_TABLES and part.begins + 2 * _DAY_S <= min(kept_from, now - _DAY_S):
            dropped.add(part)
    return sorted(dropped)


def enforce(database: Database, retention: Retention, now: float) -> list[Partition]:
    """Drops what `choose` says; returns it. Raises `StoreError`."""
    dropped = choose(partitions(database), retention, now)
    for part in dropped:
        database.execute(f"ALTER TABLE {part.table} DROP PARTITION '{part.name}'")
    return dropped
