"""What the backend tells of itself, in Prometheus' text format: every message and row ends in one of these counts."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from flameherd_backend.decode.pool import DecoderPool
from flameherd_backend.receive.intake import Intake
from flameherd_backend.store.writer import Writer

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Metric(NamedTuple):
    """One family; `values` by their label text, "" = none."""

    name: str
    kind: str
    text: str
    values: Mapping[str, float]


def collect(intake: Intake, pool: DecoderPool, writer: Writer) -> Iterator[Metric]:
    """All of them."""
    took, decoded, wrote = intake.stats, pool.stats, writer.stats
    messages = {
        "stored": took.messages,
        "refused": took.refused,
        "sent_away": took.busy,
        "store_error": took.store_errors,
    }
    yield Metric(
        "flameherd_backend_messages_total",
        "counter",
        "Messages by what became of them",
        {f'{{outcome="{name}"}}': count for name, count in messages.items()},
    )
    yield Metric(
        "flameherd_backend_profiles_total",
        "counter",
        "Profiles of stored messages",
        {
            '{outcome="stored"}': took.profiles - took.rejected_profiles,
            '{outcome="rejected"}': took.rejected_profiles,
        },
    )
    yield Metric(
        "flameherd_backend_rows_total", "counter", "Rows of samples stored", {"": took.rows}
    )
    yield Metric(
        "flameherd_backend_waiting_bytes",
        "gauge",
        "Bytes of messages that are not stored yet",
        {"": intake.waiting_bytes},
    )
    yield Metric(
        "flameherd_backend_waiting_messages",
        "gauge",
        "Messages that are not stored yet",
        {"": intake.waiting},
    )
    yield Metric(
        "flameherd_backend_worker_deaths_total",
        "counter",
        "Decoding workers that died or were stopped",
        {"": decoded.died},
    )
    yield Metric(
        "flameherd_backend_inserts_total",
        "counter",
        "Inserts, one for each table of a commit",
        {"": wrote.inserts},
    )
    yield Metric(
        "flameherd_backend_insert_failures_total",
        "counter",
        "Commits that failed",
        {"": wrote.failures},
    )
    yield Metric(
        "flameherd_backend_inserted_bytes_total",
        "counter",
        "Bytes of blocks inserted",
        {"": wrote.bytes},
    )
    yield Metric(
        "flameherd_backend_resident_bytes",
        "gauge",
        "Resident memory of this process",
        {"": _resident()},
    )


def _resident() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * 4096


def text(metrics: Iterator[Metric]) -> str:
    """As Prometheus reads it."""
    lines = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {metric.text}", f"# TYPE {metric.name} {metric.kind}"]
        lines += [
            f"{metric.name}{labels} {value:g}"
            if value % 1
            else f"{metric.name}{labels} {int(value)}"
            for labels, value in metric.values.items()
        ]
    return "\n".join([*lines, ""])
