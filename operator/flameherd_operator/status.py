"""Verdicts → `status` of the custom resources. Pure.

A condition's time changes only with its status, so that an unchanged object is not written again.
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

from flameherd_operator.observed import Anything, Owned
from flameherd_operator.verdict import Outcome, Verdict

MAX_MESSAGE: Final = 2048
_ROLLING: Final = "Rolling"


def status_of(
    seen: Anything, verdict: Verdict, now: str, daemonset: Owned | None = None
) -> dict[str, Any]:
    """What `status` should be; `now` is an RFC 3339 time for conditions that change."""
    kind = seen.resource.kind
    outcomes = {
        "Accepted": _with_unknown(verdict.accepted, seen.unknown),
        "Programmed": verdict.programmed,
    }
    if kind == "AgentPool":
        return to_wire(_pool(seen, verdict, outcomes, now, daemonset))
    outcomes |= {"ResolvedRefs": verdict.resolved, "Ready": verdict.ready}
    model = ProfilingPolicyStatus if kind == "ProfilingPolicy" else ClusterProfilingPolicyStatus
    return to_wire(
        model(
            observed_generation=seen.generation,
            conditions=_conditions(seen, outcomes, now),
            effective=verdict.effective,
        )
    )


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


def _conditions(seen: Anything, outcomes: Mapping[str, Outcome], now: str) -> tuple[Condition, ...]:
    before = {c.get("type"): c for c in seen.status.get("conditions", ()) if isinstance(c, Mapping)}
    made = []
    for name, outcome in sorted(outcomes.items()):
        status = ConditionStatus.TRUE if outcome.good else ConditionStatus.FALSE
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
    """Whether it must be written. Fields of later versions that are there stay as they are."""
    return any(seen.status.get(name) != value for name, value in status.items()) or (
        "effective" in seen.status and "effective" not in status
    )
