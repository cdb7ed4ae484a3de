"""Verdicts and what agents report → `status` of the custom resources. Pure.

A condition's time changes only with its status, so that an unchanged object is not written again. A
status whose conditions flip is written at once, one whose numbers change once a minute, and one
where nothing but the time of the last report is new every ten minutes.

An operator that has just begun has heard of few nodes: until as many report as did before, or long
enough to be sure, what was said of reports stays as it is.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from flameherd_policy.base import to_wire
from flameherd_policy.status import (
    AgentPoolStatus,
    ClusterProfilingPolicyStatus,
    Condition,
    ConditionStatus,
    PoolNodes,
    ProfilingPolicyStatus,
)

from flameherd_operator import status_reported
from flameherd_operator.aggregate import Reported
from flameherd_operator.observed import Anything, Owned
from flameherd_operator.verdict import Outcome, Verdict

MAX_MESSAGE: Final = 2048
_ROLLING: Final = "Rolling"
NUMBERS_S: Final = 60.0
"""Numbers are written at most this often."""
TIME_S: Final = 600.0
"""And the time of the last report, where nothing else is new."""


def status_of(
    seen: Anything,
    verdict: Verdict,
    now: str,
    daemonset: Owned | None = None,
    reported: Reported | None = None,
    desired: int = 0,
) -> dict[str, Any]:
    """What `status` should be; `now` is an RFC 3339 time for conditions that change.

    `reported` is None where agents do not report, `desired` counts nodes that should run an agent.
    """
    kind = seen.resource.kind
    outcomes = {
        "Accepted": _with_unknown(verdict.accepted, seen.unknown),
        "Programmed": verdict.programmed,
    }
    if kind == "AgentPool":
        return to_wire(_pool(seen, verdict, outcomes, now, daemonset))
    outcomes |= {"ResolvedRefs": verdict.resolved, "Ready": verdict.ready}
    host = kind == "ClusterProfilingPolicy"
    model = ClusterProfilingPolicyStatus if host else ProfilingPolicyStatus
    parts: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    # What has no effect (a ClusterProfilingPolicy without `host`) is carried out by nobody.
    if reported is not None and verdict.programmed.good and verdict.effective is not None:
        if verdict.ready.good:
            outcomes["Ready"] = status_reported.ready(reported, desired)
        if status_reported.unheard(reported, seen.status):
            kept = status_reported.as_it_was(seen.status)
            if verdict.ready.good and seen.status.get("observedGeneration") == seen.generation:
                outcomes |= status_reported.outcomes_of(seen.status, ["Ready"])
            outcomes |= status_reported.outcomes_of(seen.status, status_reported.REPORTS)
        else:
            outcomes |= status_reported.conditions(reported, host)
            parts = status_reported.parts(reported, desired, host)
    made = model(
        observed_generation=seen.generation,
        conditions=_conditions(seen, outcomes, now),
        effective=verdict.effective,
        **parts,
    )
    return to_wire(made) | kept


def _pool(
    seen: Anything,
    verdict: Verdict,
    outcomes: dict[str, Outcome],
    now: str,
    daemonset: Owned | None,
) -> AgentPoolStatus:
    counts = daemonset.status if daemonset is not None else {}
    nodes = PoolNodes(
        desired=int(counts.get("desiredNumberScheduled", 0)),
        ready=int(counts.get("numberReady", 0)),
    )
    ready = verdict.ready
    if ready.good and nodes.ready < nodes.desired:
        said = f"{nodes.ready} of {nodes.desired} nodes have an agent that samples"
        ready = Outcome(False, _ROLLING, said)
    return AgentPoolStatus(
        observed_generation=seen.generation,
        conditions=_conditions(seen, outcomes | {"Ready": ready}, now),
        nodes=nodes,
    )


def _with_unknown(outcome: Outcome, unknown: tuple[str, ...]) -> Outcome:
    """A field that this version does not know is not an error, but it is told."""
    if not outcome.good or not unknown:
        return outcome
    shown = ", ".join(unknown[:10])
    said = f"fields that this version does not know are ignored: {shown}"
    return msgspec.structs.replace(outcome, reason="UnknownFields", message=said)


_STATUS: Final = {
    True: ConditionStatus.TRUE,
    False: ConditionStatus.FALSE,
    None: ConditionStatus.UNKNOWN,
}


def _conditions(seen: Anything, outcomes: Mapping[str, Outcome], now: str) -> tuple[Condition, ...]:
    before = {c.get("type"): c for c in seen.status.get("conditions", ()) if isinstance(c, Mapping)}
    made = []
    for name, outcome in sorted(outcomes.items()):
        status = _STATUS[outcome.good]
        old = before.get(name, {})
        same = old.get("status") == status.value and old.get("lastTransitionTime")
        made.append(
            Condition(
                type=name,
                status=status,
                observed_generation=seen.generation,
                last_transition_time=str(old["lastTransitionTime"]) if same else now,
                reason=outcome.reason,
                message=outcome.message[:MAX_MESSAGE],
            )
        )
    return tuple(made)


def differs(status: Mapping[str, Any], seen: Anything) -> bool:
    """Whether it is not what is there. Fields of later versions that are there stay as they are."""
    return any(seen.status.get(name) != status.get(name) for name in _OURS[seen.resource.kind])


def due(status: Mapping[str, Any], seen: Anything, since_s: float) -> bool:
    """Whether it must be written now; `since_s` is the time since this object's was last written."""
    if not differs(status, seen):
        return False
    if status_reported.flips(status) != status_reported.flips(seen.status):
        return True
    only_time = dict(status) | {"lastReportTime": seen.status.get("lastReportTime")}
    return since_s >= (NUMBERS_S if differs(only_time, seen) else TIME_S)


_OURS: Final = {
    model.__name__.removesuffix("Status"): [
        field.encode_name for field in msgspec.structs.fields(model)
    ]
    for model in (ProfilingPolicyStatus, ClusterProfilingPolicyStatus, AgentPoolStatus)
}
"""Kind → the fields of its status that we write."""
