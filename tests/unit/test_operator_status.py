"""Conditions: what they say, and that they change only when something changed."""

from typing import Any

from flameherd_operator.observed import Owned, Seen, see
from flameherd_operator.status import MAX_MESSAGE, differs, status_of
from flameherd_operator.verdict import RESOLVED, Outcome, Verdict
from flameherd_policy.decode import decode
from flameherd_policy.status import (
    AgentPoolStatus,
    Effective,
    EffectiveCpu,
    ProfilingPolicyStatus,
)

NOW, LATER = "2026-11-01T00:00:00Z", "2026-11-01T00:01:00Z"
GOOD = Verdict(
    programmed=Outcome(True, "Programmed"),
    effective=Effective(cpu=EffectiveCpu(frequency_hz=19), clipped_by=("a",)),
)
BAD = Verdict(accepted=Outcome(False, "Invalid", "x" * 9999), resolved=RESOLVED)


def seen(kind: str = "ProfilingPolicy", status: Any = None, **spec: Any) -> Seen[Any]:
    meta = {"name": "p", "uid": "u", "generation": 4}
    base: dict[str, Any] = {"podSelector": {}} if kind == "ProfilingPolicy" else {}
    return see(kind, {"metadata": meta, "spec": base | spec, "status": status})


def condition(status: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [c for c in status["conditions"] if c["type"] == name]
    return dict(found)


def test_a_good_policy() -> None:
    status = status_of(seen(), GOOD, NOW)
    assert status["observedGeneration"] == 4
    assert status["effective"] == {"cpu": {"frequencyHz": 19}, "clippedBy": ["a"]}
    assert [c["type"] for c in status["conditions"]] == [
        *("Accepted", "Programmed", "Ready", "ResolvedRefs")
    ]
    assert {c["status"] for c in status["conditions"]} == {"True"}
    assert decode(ProfilingPolicyStatus, status).unknown == ()


def test_the_first_thing_that_is_missing_is_the_reason() -> None:
    status = status_of(seen(), BAD, NOW)
    ready = condition(status, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "Invalid")
    assert len(ready["message"]) == MAX_MESSAGE
    assert condition(status, "ResolvedRefs")["status"] == "True"


def test_a_time_changes_with_the_status_only() -> None:
    first = status_of(seen(), GOOD, NOW)
    again = status_of(seen(status=first), GOOD, LATER)
    assert again == first
    assert not differs(again, seen(status=first))
    worse = status_of(seen(status=first), BAD, LATER)
    assert differs(worse, seen(status=first))
    assert condition(worse, "Ready")["lastTransitionTime"] == LATER
    assert condition(worse, "ResolvedRefs")["lastTransitionTime"] == NOW
    assert "effective" not in worse


def test_a_status_that_someone_spoiled_is_written_again() -> None:
    good = status_of(seen(), GOOD, NOW)
    for spoiled in ({}, None, good | {"conditions": ["x"]}, good | {"effective": {}}):
        assert differs(status_of(seen(status=spoiled), GOOD, NOW), seen(status=spoiled))
    # What a later version wrote besides stays.
    more = good | {"later": {"desired": 3}}
    assert not differs(status_of(seen(status=more), GOOD, NOW), seen(status=more))


def test_fields_that_are_not_known_are_told() -> None:
    status = status_of(seen(offCPU={}), GOOD, NOW)
    accepted = condition(status, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("True", "UnknownFields")
    assert "spec.offCPU" in accepted["message"]


def test_a_pool_counts_its_nodes() -> None:
    made = seen("AgentPool")
    counts = {"desiredNumberScheduled": 5, "numberReady": 4}
    daemonset = Owned("DaemonSet", "flameherd-agent-p", "d", "1", counts)
    status = status_of(made, GOOD, NOW, daemonset)
    assert status["nodes"] == {"desired": 5, "ready": 4}
    ready = condition(status, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "Rolling")
    assert "4 of 5" in ready["message"]
    assert decode(AgentPoolStatus, status).unknown == ()
    counts["numberReady"] = 5
    assert condition(status_of(made, GOOD, NOW, daemonset), "Ready")["status"] == "True"
