"""When to report, and what: the agent's totals as a report of the time since the last one that was
taken.

A report is due about once a minute, with jitter so that nodes do not speak in chorus, and seconds
after something flips (a pod is sampled, sending fails, the budget is reached, a configuration is
carried out). Counts go on adding up until the operator has taken them.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from flameherd_policy.report import (
    MAX_ERROR,
    BudgetState,
    ExportState,
    PolicyDelta,
    StatusDelta,
)

from flameherd_agent import __version__
from flameherd_agent.observe.logs import Log
from flameherd_agent.observe.metrics import Family, counter, labels
from flameherd_agent.pipeline.export.exporter import EndpointStats
from flameherd_agent.status.totals import Total, Totals

log = Log(__name__)

INTERVAL_S: Final = 60.0
MAX_INTERVAL_S: Final = 600.0
JITTER: Final = 0.1
FLIP_S: Final = 2.0
"""Flips are looked for this often: it takes half a millisecond with 30 policies."""
_RETRY_S: Final = 5.0
_RETRY_MOST_S: Final = 60.0
"""An operator that has just begun waits a little longer than that before it calls a node silent."""
_MAX_NOTICES: Final = 16


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a report."""

    taken: bool
    error: str = ""
    retry_s: float = 0.0
    """How long the operator asks us to wait."""
    interval_s: float = 0.0
    """How often it wants to hear of us."""


class Pusher(Protocol):
    """Who sends (`push.Pusher`): one report at a time."""

    def send(self, report: StatusDelta) -> None: ...

    def outcome(self) -> Outcome | None: ...


class Fares(Protocol):
    """How a policy fares here (`cluster.selection.Coverage`)."""

    pods_matched: int
    pods_profiled: int
    containers_matched: int
    containers_profiled: int
    containers_overlapped: int


class Node(Protocol):
    """What the node knows of pods and configuration (`cluster.node.NodeView`)."""

    def coverage(self) -> Mapping[str, Fares]: ...

    def versions(self) -> Mapping[str, str]: ...

    def problems(self) -> Iterator[str]: ...


@dataclass(frozen=True, slots=True)
class Now:
    """Gauges of this moment."""

    rates: Mapping[str, tuple[int, BudgetState]]
    """Policy → (rate in Hz, what its budget does); every policy that is carried out."""
    coverage: Mapping[str, Fares]
    endpoints: Mapping[str, tuple[EndpointStats, tuple[str, ...]]]
    """Endpoint → (its counters, the policies that send there)."""
    versions: Mapping[str, str]
    notices: tuple[str, ...]


class Reporter:
    """Call `step` often from the agent's loop; it never waits."""

    def __init__(
        self,
        pusher: Pusher,
        totals: Totals,
        now: Callable[[], Now],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pusher = pusher
        self._totals = totals
        self._now = now
        self._clock = clock
        self._taken: dict[str, Total] = {}
        """Totals as of the last report that was taken."""
        self._taken_at = clock()
        self._sent: tuple[float, dict[str, Total], int] | None = None
        """Of the report that is under way: its time, its totals, its flips."""
        self._flips = 0
        """Hash of what conditions depend on, as it was last taken."""
        self._looked_at = float("-inf")
        # The first one soon: a policy is not Ready before its agents have spoken.
        self._due = clock() + random.uniform(0.0, FLIP_S)  # noqa: S311 spreads nodes, no secret
        self._not_before = float("-inf")
        self._failures = 0
        self._interval_s = INTERVAL_S
        self.taken = 0
        self.failed = 0
        self.error = ""

    def step(self) -> None:
        """Send when it is time."""
        self._finish()
        now = self._clock()
        if self._sent is not None or now < self._not_before or now - self._looked_at < FLIP_S:
            return
        self._looked_at = now
        report = self._report(self._now(), now)
        flips = hash(report.flips())
        if now < self._due and flips == self._flips:
            return
        totals = {name: total.copy() for name, total in self._totals.by_policy.items()}
        self._sent = (now, totals, flips)
        self._pusher.send(report)

    def _finish(self) -> None:
        """See what became of the report that is under way."""
        outcome = self._pusher.outcome()
        if outcome is None or self._sent is None:
            return
        at, totals, flips = self._sent
        self._sent = None
        now = self._clock()
        if outcome.taken:
            self._taken, self._taken_at, self._flips = totals, at, flips
            self._failures = 0
            self._interval_s = min(MAX_INTERVAL_S, max(INTERVAL_S, outcome.interval_s))
            self._due = at + self._jittered(self._interval_s)
            self._not_before = now
            self.taken += 1
            self.error = ""
            return
        log.once("refused", "the operator has not taken a report", error=outcome.error)
        self.failed += 1
        self._failures += 1
        self.error = outcome.error
        wait = min(_RETRY_MOST_S, _RETRY_S * 2 ** min(self._failures - 1, 8))
        self._not_before = now + max(outcome.retry_s, self._jittered(wait))
        self._due = now  # as soon as it may

    def families(self) -> list[Family]:
        """Metrics."""
        counts = {"taken": self.taken, "failed": self.failed}
        return [
            counter(
                "flameherd_status_reports_total",
                "Reports to the operator by what became of them; what failed is told again",
                {labels(outcome=what): count for what, count in counts.items()},
            )
        ]

    @staticmethod
    def _jittered(seconds: float) -> float:
        return seconds * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311

    def _report(self, now: Now, at: float) -> StatusDelta:
        names = sorted(set(now.coverage) | set(now.rates))
        made = (self._policy(name, now) for name in names)
        return StatusDelta(
            seconds=min(86400.0, max(0.001, at - self._taken_at)),
            agent_version=__version__,
            shards=dict(now.versions),
            notices=tuple(text[:MAX_ERROR] for text in now.notices[:_MAX_NOTICES]),
            policies=tuple(one for one in made if _matters(one)),
        )

    def _policy(self, name: str, now: Now) -> PolicyDelta:
        total = self._totals.by_policy.get(name, Total())
        new = total.less(self._taken.get(name, Total()))
        hertz, budget = now.rates.get(name, (0, BudgetState.KEPT))
        its = now.coverage.get(name)
        state, error = _export(name, now)
        return PolicyDelta(
            name=name,
            frequency_hz=hertz,
            pods_matched=its.pods_matched if its else 0,
            pods_profiled=its.pods_profiled if its else 0,
            containers_matched=its.containers_matched if its else 0,
            containers_profiled=its.containers_profiled if its else 0,
            containers_overlapped=its.containers_overlapped if its else 0,
            samples=new.samples,
            complete=new.whole,
            truncated=new.truncated,
            lost=max(0, new.samples - new.whole - new.truncated),
            unsymbolized=new.unnamed,
            kernel_ns=new.kernel_ns,
            agent_ns=round(new.agent_ns),
            sent_bytes=round(new.sent_bytes),
            export=state,
            export_errors=new.export_errors,
            export_error=error,
            budget=budget,
        )


def _export(name: str, now: Now) -> tuple[ExportState, str]:
    for stats, policies in now.endpoints.values():
        if name in policies:
            if stats.failing:
                return ExportState.FAILING, stats.last_error[:MAX_ERROR]
            return (ExportState.SENDING if stats.sent_batches else ExportState.IDLE), ""
    return ExportState.IDLE, ""


def _matters(one: PolicyDelta) -> bool:
    """Whether the policy has anything here: what is idle everywhere need not be told."""
    return bool(
        one.pods_matched
        or one.samples
        or one.export_errors
        or one.export is not ExportState.IDLE
        or one.budget is not BudgetState.KEPT
    )
