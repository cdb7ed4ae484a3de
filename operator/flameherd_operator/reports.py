"""The latest report of every node, and what they come to for each policy.

Reports are kept as rows of numpy arrays, 60 bytes for a policy on a node: 5,000 nodes with 30
policies each are 10 MB, and are summed up within a tenth of a second. `Reports` is filled by the
receiver; `aggregate` is pure.

A node that has been silent for three minutes does not count; after ten it is forgotten.
"""

import threading
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np
from flameherd_policy.report import BudgetState, ExportState, PolicyDelta, StatusDelta
from numpy.typing import NDArray

STALE_S: Final = 180.0
FORGET_S: Final = 600.0
SETTLE_S: Final = 90.0
"""After its start the operator waits so long for every node before it says that one is silent."""
MAX_NODES: Final = 20_000
"""Tokens name nodes that exist or existed: this bounds memory all the same."""

_SUMS: Final = (
    *("pods_matched", "pods_profiled"),
    *("containers_matched", "containers_profiled", "containers_overlapped"),
)
_RATES: Final = ("samples", "complete", "truncated", "lost", "unsymbolized")
"""Per second."""
ROW: Final = np.dtype(
    [
        ("policy", "<u4"),
        ("node", "<u4"),
        ("hz", "<u4"),
        *((name, "<u4") for name in _SUMS),
        *((name, "<f4") for name in (*_RATES, "cpu", "bytes", "errors")),
        ("failing", "?"),
        ("sending", "?"),
        ("lowered", "?"),
        ("floor", "?"),
    ]
)
"""`cpu` in CPUs; `bytes` and `errors` per second."""


class _Node(msgspec.Struct):
    """What one node said last."""

    at: float
    """Seconds since the epoch."""
    flips: int
    """Hash of what conditions depend on."""
    shards: Mapping[str, str]
    notices: tuple[str, ...]
    rows: NDArray[Any]
    errors: dict[int, str]
    """Index of a policy → why sending fails."""


class Snapshot(msgspec.Struct, frozen=True):
    """All reports at one moment. `rows["node"]` is an index into `nodes`, `at` and `shards`."""

    names: tuple[str, ...]
    """Of policies, by index."""
    nodes: tuple[str, ...]
    at: NDArray[np.float64]
    shards: tuple[Mapping[str, str], ...]
    notices: Mapping[str, tuple[str, ...]]
    rows: NDArray[Any]
    errors: tuple[Mapping[int, str], ...]
    """Of each node: index of a policy → why sending fails."""
    settling: bool
    """The operator has just begun: nodes are still to report."""


class Reports:
    """Written by the receiver's thread, read by the reconciler's. `began`: the operator's start,
    seconds since the epoch.
    """

    def __init__(self, began: float = 0.0) -> None:
        self._began = began
        self._lock = threading.Lock()
        self._nodes: dict[str, _Node] = {}
        self._index: dict[str, int] = {}
        self._interned: dict[str, str] = {}
        self._known: frozenset[str] | None = None

    @property
    def open(self) -> bool:
        """Whether the policies are known, so that reports can be taken."""
        return self._known is not None

    def __len__(self) -> int:
        return len(self._nodes)

    def know(self, names: frozenset[str]) -> None:
        """The policies that there are: what is said of others is not kept."""
        with self._lock:
            self._known = names
            gone = sum(name not in names for name in self._index)
            if gone > 1000 + len(names):
                self._renumber(names)

    def _renumber(self, names: frozenset[str]) -> None:
        old = [name for name in self._index if name in names]
        numbers = np.full(len(self._index), -1, np.int64)
        numbers[[self._index[name] for name in old]] = np.arange(len(old))
        for node in self._nodes.values():
            moved = numbers[node.rows["policy"]]
            node.rows = node.rows[moved >= 0]
            node.rows["policy"] = moved[moved >= 0]
            node.errors = {
                int(numbers[policy]): text
                for policy, text in node.errors.items()
                if numbers[policy] >= 0
            }
        self._index = {name: number for number, name in enumerate(old)}

    def put(self, node: str, report: StatusDelta, now: float) -> bool:
        """Takes the place of what the node said before. True if a condition may depend on it."""
        flips = hash(report.flips())
        with self._lock:
            known = self._known or frozenset()
            policies = [one for one in report.policies if one.name in known]
            before = self._nodes.get(node)
            if before is None and len(self._nodes) >= MAX_NODES:
                raise ValueError(f"{MAX_NODES} nodes report already")
            numbers = [self._index.setdefault(one.name, len(self._index)) for one in policies]
            # 5,000 nodes have the same few versions and errors: each text is kept once.
            shards = {self._once(name): self._once(text) for name, text in report.shards.items()}
            self._nodes[node] = _Node(
                at=now,
                flips=flips,
                shards=shards,
                notices=report.notices,
                rows=_rows(numbers, policies, report.seconds),
                errors={
                    number: self._once(one.export_error)
                    for number, one in zip(numbers, policies, strict=True)
                    if one.export_error
                },
            )
            return before is None or before.flips != flips

    def _once(self, text: str) -> str:
        if len(self._interned) > 10_000:
            self._interned.clear()
        return self._interned.setdefault(text, text)

    def snapshot(self, now: float) -> Snapshot:
        """All that is not too old to be told of."""
        with self._lock:
            self._nodes = {n: node for n, node in self._nodes.items() if now - node.at < FORGET_S}
            nodes = tuple(self._nodes)
            kept = tuple(self._nodes.values())
            rows = np.concatenate([node.rows for node in kept]) if kept else np.zeros(0, ROW)
            rows["node"] = np.repeat(np.arange(len(kept)), [len(node.rows) for node in kept])
            return Snapshot(
                names=tuple(self._index),
                nodes=nodes,
                at=np.array([node.at for node in kept]),
                shards=tuple(node.shards for node in kept),
                notices={n: k.notices for n, k in zip(nodes, kept, strict=True) if k.notices},
                rows=rows,
                errors=tuple(node.errors for node in kept),
                settling=now - self._began < SETTLE_S,
            )


def _rows(numbers: list[int], policies: list[PolicyDelta], seconds: float) -> NDArray[Any]:
    return np.array(
        [
            (
                number,
                0,
                one.frequency_hz,
                *(getattr(one, name) for name in _SUMS),
                *(getattr(one, name) / seconds for name in _RATES),
                (one.kernel_ns + one.agent_ns) / seconds / 1e9,
                one.sent_bytes / seconds,
                one.export_errors / seconds,
                one.export is ExportState.FAILING,
                one.export is ExportState.SENDING,
                one.budget is BudgetState.LOWERED,
                one.budget is BudgetState.FLOOR,
            )
            for number, one in zip(numbers, policies, strict=True)
        ],
        ROW,
    )
