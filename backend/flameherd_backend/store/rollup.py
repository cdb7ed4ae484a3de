"""Keeps `timeline`, the sums by minute, equal to the samples that they are sums of.

A materialized view writes them behind each insert, and the two are not one step: a full disk, a memory
cap or a kill in between leaves samples without their sums. (The engine stores a table's rows before
it runs the views on them.) So after a failed insert, and at the start for what was written last,
the sums are compared, and what is missing is inserted as a difference, which needs no rewriting:
`timeline` adds up what has one key.

For the embedded engine, where this process is the only one that writes.
"""

import logging
from typing import Final

from flameherd_backend.store.database import Database, QueryLimits
from flameherd_backend.store.retention import SAMPLE_TABLES

log = logging.getLogger(__name__)

_LIMITS: Final = QueryLimits(120.0, 1 << 30)
_LAST_S: Final = 60
"""Partitions that were written to within so long of the last write may hold what was cut short."""
_COLUMNS: Final = (
    "type, unit, cluster, namespace, workload, pod, container, node, service, instance, executable"
)

_WRITTEN_LAST: Final = """
SELECT DISTINCT toUnixTimestamp(toDateTime(partition, 'UTC')) AS begins
FROM system.parts
WHERE active AND database = currentDatabase() AND table IN {tables:Array(String)}
  AND modification_time >= (
    SELECT max(modification_time) FROM system.parts
    WHERE active AND database = currentDatabase() AND table IN {tables:Array(String)}
  ) - {last_s:UInt32}
"""
_OF_PARTITIONS: Final = "toStartOfInterval({time}, INTERVAL 6 HOUR) IN arrayMap(t -> toDateTime(t, 'UTC'), {{begins:Array(UInt32)}})"
_DIFFERENT: Final = """
SELECT toUnixTimestamp(m) AS minute
FROM (
    SELECT toStartOfMinute(ts) AS m, sum(samples.value) AS v, sum(samples.count) AS c
    FROM samples WHERE {of_samples} GROUP BY m
    UNION ALL
    SELECT timeline.minute AS m, -sum(timeline.value) AS v, -sum(timeline.count) AS c
    FROM timeline WHERE {of_timeline} GROUP BY m
)
GROUP BY m
HAVING sum(v) != 0 OR sum(c) != 0
"""
_MEND: Final = """
INSERT INTO timeline (minute, {columns}, value, count)
SELECT m, {columns}, sum(v), sum(c)
FROM (
    SELECT toStartOfMinute(ts) AS m, {columns}, samples.value AS v, samples.count AS c
    FROM samples WHERE toStartOfMinute(ts) IN arrayMap(t -> toDateTime(t, 'UTC'), {{minutes:Array(UInt32)}})
    UNION ALL
    SELECT timeline.minute AS m, {columns}, -timeline.value AS v, -timeline.count AS c
    FROM timeline WHERE timeline.minute IN arrayMap(t -> toDateTime(t, 'UTC'), {{minutes:Array(UInt32)}})
)
GROUP BY m, {columns}
HAVING sum(v) != 0 OR sum(c) != 0
"""


def mend(database: Database) -> int:
    """Compares what was written last and adds what is missing; how many minutes. Raises `StoreError`."""
    written = database.query(
        _WRITTEN_LAST, {"tables": list(SAMPLE_TABLES), "last_s": _LAST_S}, _LIMITS
    )
    begins = [int(begin) for begin in written.get("begins", [])]
    if not begins:
        return 0
    different = _DIFFERENT.format(
        of_samples=_OF_PARTITIONS.format(time="ts"),
        of_timeline=_OF_PARTITIONS.format(time="timeline.minute"),
    )
    found = database.query(different, {"begins": begins}, _LIMITS)
    minutes = [int(minute) for minute in found.get("minute", [])]
    if minutes:
        database.execute(_MEND.format(columns=_COLUMNS), {"minutes": minutes})
        log.warning(
            "the sums of %d minutes were not those of their samples, and were mended", len(minutes)
        )
    return len(minutes)
