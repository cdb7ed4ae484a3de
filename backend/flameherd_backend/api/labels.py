"""Views of labels and time: status, profile types, labels, their values, the timeline."""

import math
from dataclasses import replace
from typing import Any, Final

from flameherd_backend import __version__
from flameherd_backend.access import Identity, Namespaces
from flameherd_backend.api.parameters import Given, wrong
from flameherd_backend.api.reader import Reader
from flameherd_backend.api.selection import (
    COLUMNS,
    NUMBERS,
    ROLLED_UP,
    Condition,
    Selection,
    condition_of,
    label_of,
    seen_by,
    window_of,
)
from flameherd_backend.errors import Problem
from flameherd_backend.store import sql
from flameherd_backend.store.results import Table

Answer = dict[str, Any]

TITLES: Final = {"cpu": "CPU time", "off_cpu": "Off-CPU time", "lock_wait": "Lock wait"}
_STEPS_MS: Final = (
    10_000, 15_000, 20_000, 30_000, 60_000, 120_000, 300_000, 600_000, 900_000, 1_800_000, 3_600_000,
    7_200_000, 14_400_000, 21_600_000, 43_200_000, 86_400_000, 4 * 86_400_000,
)  # fmt: skip
_MINUTE_MS: Final = 60_000
_ROLLED_UP_FROM_MS: Final = 3_600_000
"""Windows over an hour take label values from the sums by minute."""


def status(
    reader: Reader, given: Given, identity: Identity, visible: Namespaces, retention_s: float
) -> Answer:
    """What is stored."""
    condition = Condition()
    seen_by(condition, visible)
    found = reader.query(sql.load("status", where=str(condition)), condition.parameters)
    samples = int(found["samples"][0])
    return {
        "version": __version__,
        "now": given.now_ms,
        "newest": int(found["newest"][0]) if samples else None,
        "oldest": int(found["oldest"][0]) if samples else None,
        "samples": samples,
        "retention_ms": round(retention_s * 1000),
        "viewer": {
            "name": identity.name,
            "namespaces": None if visible is None else sorted(visible),
        },
    }


def profile_types(reader: Reader, given: Given, visible: Namespaces) -> Answer:
    """Types with samples in the window."""
    from_ms, to_ms = window_of(given)
    selection = Selection("", from_ms, to_ms, (), (), visible)
    condition = condition_of(selection, minutes=True)
    found = reader.query(sql.load("profile_types", where=str(condition)), condition.parameters)
    columns = (found.get(name, []) for name in ("type", "unit", "total"))
    types = [
        {
            "id": kind,
            "title": TITLES.get(kind, kind.replace("_", " ")),
            "unit": unit,
            "total": int(total),
        }
        for kind, unit, total in zip(*columns, strict=True)
    ]
    return {"window": selection.window(), "types": types}


def labels(reader: Reader, given: Given, selection: Selection, base: Selection | None) -> Answer:
    """Labels with how many values each has."""
    del given, base
    minutes = selection.is_rolled_up() and selection.to_ms - selection.from_ms > _ROLLED_UP_FROM_MS
    condition = condition_of(selection, minutes=minutes)
    names = [name for name in COLUMNS if not minutes or name in ROLLED_UP]
    table = "timeline" if minutes else "samples"
    counts = ", ".join(f"uniqExactIf({name}, {name} != '') AS {name}_" for name in names)
    if not minutes:
        counts += ", uniqExactIf(pid, pid != 0) AS pid_, uniqExactIf(tid, tid != 0) AS tid_"
    found = reader.query(
        sql.load("label_counts", counts=counts, table=table, where=str(condition)),
        condition.parameters,
    )
    out = {name: int(found[f"{name}_"][0]) for name in names}
    if not minutes:
        out |= {name: int(found[f"{column}_"][0]) for name, column in NUMBERS.items()}
    exact = condition_of(selection)
    more = reader.query(sql.load("attribute_counts", where=str(exact)), exact.parameters)
    for name, number in zip(more.get("name", []), more.get("number", []), strict=True):
        out.setdefault(name, int(number))
    shown = [{"name": name, "values": number} for name, number in out.items() if number]
    return {"window": selection.window(), "labels": shown}


def label_values(
    reader: Reader, given: Given, selection: Selection, base: Selection | None, label: str
) -> Answer:
    """Values of a label, whatever the selection says of that label itself."""
    del base
    limit = given.number("limit", 100, 1, 1000)
    free = selection.without(label)
    if label not in COLUMNS and label not in NUMBERS and not _exists(reader, free, label):
        raise Problem(
            404,
            f"there is no label {label[:64]!r} in the selection: /labels has those that there are",
        )
    found = _values(reader, free, label, given.text("search"), limit + 1)
    values = [{"value": value, "total": total} for value, total in found]
    return {
        "window": selection.window(),
        "label": label,
        "values": values[:limit],
        "more": len(values) > limit,
    }


def _exists(reader: Reader, selection: Selection, label: str) -> bool:
    condition = condition_of(selection)
    found = reader.query(sql.load("attribute_counts", where=str(condition)), condition.parameters)
    return label in found.get("name", [])


def _values(
    reader: Reader, selection: Selection, label: str, search: str, limit: int
) -> list[tuple[str, int]]:
    wide = selection.to_ms - selection.from_ms > _ROLLED_UP_FROM_MS
    table = "timeline" if wide and label in ROLLED_UP and selection.is_rolled_up() else "samples"
    condition = condition_of(selection, minutes=table == "timeline")
    labelled = label_of(label, condition, table)
    text = sql.load(
        "label_values",
        label=labelled.expression,
        table=table,
        source=labelled.source,
        where=str(condition),
    )
    found = reader.query(text, {**condition.parameters, "search": search, "limit": limit})
    totals = [int(total) for total in found.get("total", [])]
    return list(zip(found.get("value", []), totals, strict=True))


def bucket_ms(from_ms: int, to_ms: int, points: int, step: int) -> int:
    """The width of a bucket: a round one of at least `step` with which there are at most `points`.

    Not below ten seconds unless asked: agents send that often.
    """
    least = max(step, math.ceil((to_ms - from_ms) / max(1, points - 1)))
    if step and step >= least:
        return step
    return next((width for width in _STEPS_MS if width >= least), least)


def timeline(reader: Reader, given: Given, selection: Selection, base: Selection | None) -> Answer:
    """Values over time, in all or by a label."""
    del base
    points = given.number("points", 240, 10, 1000)
    limit = given.number("limit", 8, 1, 20)
    step = bucket_ms(
        selection.from_ms, selection.to_ms, points, given.number("step", 0, 1, 31 * 86_400_000)
    )
    start = selection.from_ms - selection.from_ms % step
    buckets = math.ceil((selection.to_ms - start) / step)
    by = given.text("by")
    if given.has("by") and not by:
        raise wrong("by", "is empty: a label, or nothing")
    unit = reader.unit(selection)
    shown = [value for value, _ in _values(reader, selection, by, "", limit + 1)] if by else [""]
    rest = len(shown) > limit
    shown = shown[:limit]
    series = {value: [0] * buckets for value in shown}
    others = [0] * buckets
    total = 0
    for value, bucket, amount in _buckets(reader, selection, by, shown, start, step, buckets):
        place = min(max(bucket, 0), buckets - 1)
        series.get(value, others)[place] += amount
        total += amount
    return {
        "window": selection.window(),
        "type": selection.type,
        "unit": unit,
        "total": total,
        "start": start,
        "step": step,
        "series": [
            {"label": value, "total": sum(series[value]), "values": series[value]}
            for value in shown
        ],
        "rest": others if rest else None,
    }


Bucket = tuple[str, int, int]
"""(series or "\\0" for the rest, bucket, value)"""


def _buckets(
    reader: Reader,
    selection: Selection,
    by: str,
    shown: list[str],
    start: int,
    step: int,
    buckets: int,
) -> list[Bucket]:
    """In buckets of whole minutes a value counts where it begins: from the sums by minute where they tell it, else
    from samples. In smaller ones it is spread over its span."""
    if step % _MINUTE_MS:
        return _spread(reader, selection, by, shown, start, step, buckets)
    begin, end = (
        -(-selection.from_ms // _MINUTE_MS) * _MINUTE_MS,
        selection.to_ms // _MINUTE_MS * _MINUTE_MS,
    )
    if begin >= end or not selection.is_rolled_up() or (by and by not in ROLLED_UP):
        begin = end = selection.to_ms
    out: list[Bucket] = []
    edge, whole = "timeline_edges", "timeline_minutes"
    for query, from_ms, to_ms in (
        (edge, selection.from_ms, begin),
        (whole, begin, end),
        (edge, end, selection.to_ms),
    ):
        if from_ms < to_ms:
            part = replace(selection, from_ms=from_ms, to_ms=to_ms)
            condition = condition_of(part, minutes=query == whole)
            table = "timeline" if query == whole else "samples"
            series, source = _series(condition, by, shown, table)
            text = sql.load(query, series=series, source=source, where=str(condition))
            found = reader.query(text, {**condition.parameters, "start": start, "step": step})
            out += _read_buckets(found)
    return out


def _spread(
    reader: Reader,
    selection: Selection,
    by: str,
    shown: list[str],
    start: int,
    step: int,
    buckets: int,
) -> list[Bucket]:
    condition = condition_of(selection)
    series, source = _series(condition, by, shown, "samples")
    text = sql.load("timeline", series=series, source=source, where=str(condition))
    parameters = {
        **condition.parameters,
        "start_ns": start * 10**6,
        "step_ns": step * 10**6,
        "buckets": buckets,
        "window_ns": buckets * step * 10**6,
    }
    return _read_buckets(reader.query(text, parameters))


def _series(condition: Condition, by: str, shown: list[str], table: str) -> tuple[str, str]:
    """Which series a row belongs to, as an expression over a source."""
    if not by:
        return "''", table
    labelled = label_of(by, condition, table)
    wanted = condition.parameter(shown, "Array(String)")
    series = f"if({labelled.expression} IN {wanted}, {labelled.expression}, char(0))"
    return series, labelled.source


def _read_buckets(found: Table) -> list[Bucket]:
    columns = (found.get(name, []) for name in ("series", "bucket", "value"))
    return [
        (value, int(bucket), int(amount)) for value, bucket, amount in zip(*columns, strict=True)
    ]
