"""Reports of all nodes → what they come to for each policy. Pure.

A node is bad for a policy for one reason, the gravest; the five worst of them are told of.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np
from flameherd_policy.status import WorstNode
from numpy.typing import NDArray

from flameherd_operator.reports import STALE_S, Snapshot

WORST: Final = 5
LOST_SHARE: Final = 0.05
TRUNCATED_SHARE: Final = 0.10
UNNAMED_SHARE: Final = 0.50
_LEAST_SAMPLES: Final = 1.0
"""A second: shares of fewer say nothing."""
_MAX_TEXT: Final = 400

NOT_REPORTING, FAILING, NOT_PROGRAMMED, FLOOR, LOWERED, LOST, TRUNCATED, UNNAMED = range(8, 0, -1)
_REASONS: Final = {
    NOT_REPORTING: "NotReporting",
    FAILING: "ExportFailing",
    NOT_PROGRAMMED: "NotProgrammed",
    FLOOR: "OverBudget",
    LOWERED: "RateLowered",
    LOST: "SamplesLost",
    TRUNCATED: "StacksTruncated",
    UNNAMED: "NotSymbolized",
}


class Reported(msgspec.Struct, frozen=True, kw_only=True):
    """What all nodes say of one policy. Counts are of nodes that report."""

    reporting: int = 0
    """Nodes that report at all."""
    programmed: int = 0
    """Of these: carry out what the policy says now."""
    pods_matched: int = 0
    pods_profiled: int = 0
    containers_matched: int = 0
    containers_profiled: int = 0
    containers_overlapped: int = 0
    samples: float = 0.0
    """A second; the next four are parts of it."""
    complete: float = 0.0
    truncated: float = 0.0
    lost: float = 0.0
    unsymbolized: float = 0.0
    cpu_mean: float = 0.0
    """CPUs, over the nodes where something is sampled."""
    cpu_max: float = 0.0
    bytes: float = 0.0
    """A second."""
    errors: float = 0.0
    """A second."""
    error: str = ""
    failing: int = 0
    """Nodes where the latest attempt to send failed."""
    sending: int = 0
    lowered: int = 0
    """Nodes where the rate is lowered."""
    floor: int = 0
    """Nodes where even the lowest rate is over the budget."""
    lowest_hz: int = 0
    """The lowest rate of such a node."""
    worst: tuple[WorstNode, ...] = ()
    settling: bool = False
    """The operator has just begun: nodes are still to report."""
    last: float = 0.0
    """When a node last reported; seconds since the epoch."""


NOTHING: Final = Reported()


def aggregate(
    snapshot: Snapshot, wanted: Mapping[str, tuple[str, str]], now: float
) -> dict[str, Reported]:
    """`wanted`: policy → (its ConfigMap, the version of it that should be carried out)."""
    fresh = now - snapshot.at < STALE_S
    reporting = int(fresh.sum())
    shards = {place: _behind(snapshot, fresh, place) for place in set(wanted.values())}
    overall = float(snapshot.at.max(initial=0.0))
    numbers = {name: number for number, name in enumerate(snapshot.names)}
    rows = snapshot.rows
    sums = _sums(snapshot, rows[fresh[rows["node"]]])
    grave, share = _gravity(rows, fresh)
    bad = _worst(rows, grave, share)
    found = {}
    for name, place in wanted.items():
        behind = shards[place]
        number = numbers.get(name)
        values = {} if number is None else {key: each[number] for key, each in sums.items()}
        mine = bad.get(-1 if number is None else number, [])
        last = values.pop("last", 0.0)
        found[name] = Reported(
            reporting=reporting,
            programmed=reporting - len(behind),
            settling=snapshot.settling,
            last=last or overall,
            worst=_worst_nodes(snapshot, mine, behind, now),
            error=_error(snapshot, mine),
            **values,
        )
    return found


def _behind(snapshot: Snapshot, fresh: NDArray[np.bool_], place: tuple[str, str]) -> list[int]:
    """Nodes that report and carry out another version of this ConfigMap."""
    shard, version = place
    return [
        number
        for number, versions in enumerate(snapshot.shards)
        if fresh[number] and versions.get(shard) != version
    ]


def _sums(snapshot: Snapshot, rows: NDArray[Any]) -> dict[str, list[Any]]:
    """Everything that adds up, by index of the policy."""
    policy = rows["policy"]
    count = len(snapshot.names)

    def total(values: NDArray[Any]) -> NDArray[np.float64]:
        return np.bincount(policy, weights=values, minlength=count).astype(np.float64)

    sums: dict[str, list[Any]] = {
        name: total(rows[name]).astype(np.int64).tolist()
        for name in (
            *("pods_matched", "pods_profiled", "containers_matched", "containers_profiled"),
            *("containers_overlapped", "failing", "sending", "lowered", "floor"),
        )
    }
    for name in ("samples", "complete", "truncated", "lost", "unsymbolized", "bytes", "errors"):
        sums[name] = total(rows[name]).tolist()
    sampled = total(rows["samples"] > 0)
    sums["cpu_mean"] = (total(rows["cpu"]) / np.maximum(sampled, 1)).tolist()
    most = np.zeros(count)
    np.maximum.at(most, policy, rows["cpu"])
    sums["cpu_max"] = most.tolist()
    low = rows[rows["lowered"] | rows["floor"]]
    lowest = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(lowest, low["policy"], low["hz"].astype(np.int64))
    sums["lowest_hz"] = np.where(lowest == np.iinfo(np.int64).max, 0, lowest).tolist()
    last = np.zeros(count)
    np.maximum.at(last, policy, snapshot.at[rows["node"]])
    sums["last"] = last.tolist()
    return sums


def _gravity(
    rows: NDArray[Any], fresh: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """What is gravest in each row (0 = nothing), and the share of samples that it concerns."""
    samples = np.maximum(rows["samples"].astype(np.float64), 1e-9)
    enough = rows["samples"] >= _LEAST_SAMPLES
    grave = np.zeros(len(rows), np.int64)
    share = np.zeros(len(rows))
    for level, part, limit in (
        (UNNAMED, rows["unsymbolized"] / samples, UNNAMED_SHARE),
        (TRUNCATED, rows["truncated"] / samples, TRUNCATED_SHARE),
        (LOST, rows["lost"] / samples, LOST_SHARE),
    ):
        over = enough & (part > limit)
        grave[over] = level
        share[over] = part[over]
    grave[rows["lowered"]] = LOWERED
    grave[rows["floor"]] = FLOOR
    grave[rows["failing"]] = FAILING
    grave[~fresh[rows["node"]]] = NOT_REPORTING
    return grave, share


def _worst(
    rows: NDArray[Any], grave: NDArray[np.int64], share: NDArray[np.float64]
) -> dict[int, list[tuple[int, Any, float]]]:
    """The worst rows of each policy: (how grave, row, share)."""
    bad = np.flatnonzero(grave)
    order = bad[np.lexsort((rows["node"][bad], -share[bad], -grave[bad], rows["policy"][bad]))]
    policy = rows["policy"][order]
    first = np.searchsorted(policy, policy)
    found: dict[int, list[tuple[int, Any, float]]] = {}
    for index in order[np.arange(len(order)) - first < WORST].tolist():
        row = rows[index]
        found.setdefault(int(row["policy"]), []).append(
            (int(grave[index]), row, float(share[index]))
        )
    return found


def _worst_nodes(
    snapshot: Snapshot, mine: list[tuple[int, Any, float]], behind: list[int], now: float
) -> tuple[WorstNode, ...]:
    told: dict[str, tuple[int, str]] = {}
    for grave, row, share in mine:
        told[snapshot.nodes[int(row["node"])]] = (grave, _message(snapshot, grave, row, share, now))
    for number in behind[:WORST]:
        node = snapshot.nodes[number]
        if told.get(node, (0, ""))[0] < NOT_PROGRAMMED:
            notices = "; ".join(snapshot.notices.get(node, ()))
            said = "its agent does not carry out the present configuration yet"
            told[node] = (NOT_PROGRAMMED, f"{said}: {notices}" if notices else said)
    order = sorted(told.items(), key=lambda item: -item[1][0])[:WORST]
    return tuple(
        WorstNode(name=node, reason=_REASONS[grave], message=said[:_MAX_TEXT])
        for node, (grave, said) in order
    )


def _message(snapshot: Snapshot, grave: int, row: Any, share: float, now: float) -> str:
    if grave == NOT_REPORTING:
        minutes = (now - float(snapshot.at[int(row["node"])])) / 60
        return f"no report for {minutes:.0f} minutes"
    if grave == FAILING:
        return snapshot.errors[int(row["node"])].get(int(row["policy"]), "sending fails")
    if grave == FLOOR:
        return f"over the budget even at {row['hz']} Hz"
    if grave == LOWERED:
        return f"sampled at {row['hz']} Hz to keep the budget"
    what = {
        LOST: "of the samples are lost",
        TRUNCATED: "of the stacks do not reach their root",
        UNNAMED: "of the stacks have an innermost function without a name",
    }
    return f"{share:.0%} {what[grave]}"


def _error(snapshot: Snapshot, mine: list[tuple[int, Any, float]]) -> str:
    """One error, with its node."""
    for grave, row, _ in mine:
        text = snapshot.errors[int(row["node"])].get(int(row["policy"]))
        if grave == FAILING and text:
            return f"{snapshot.nodes[int(row['node'])]}: {text}"
    return ""
