"""Reports of nodes → what a policy's status says: against sums made by hand."""

import random
from typing import Any

import pytest
from flameherd_operator import reports as module
from flameherd_operator.aggregate import NOTHING, Reported, aggregate
from flameherd_operator.reports import FORGET_S, STALE_S, Reports
from flameherd_operator.status import due, status_of
from flameherd_operator.status_reported import cpus, two_digits
from flameherd_operator.verdict import Outcome, Verdict
from flameherd_policy.decode import decode
from flameherd_policy.report import BudgetState, ExportState, PolicyDelta, StatusDelta
from flameherd_policy.status import Effective, EffectiveCpu, ProfilingPolicyStatus

from tests.unit.test_operator_status import NOW, condition, seen

AT = 1_000_000.0
WANTED = {"shop/a": ("cm-1", "v1"), "bank/b": ("cm-2", "v2")}
GOOD = Verdict(
    programmed=Outcome(True, "Programmed"),
    effective=Effective(cpu=EffectiveCpu(frequency_hz=19)),
)


def delta(name: str = "shop/a", **fields: Any) -> PolicyDelta:
    return PolicyDelta(name=name, **fields)


def report(*policies: PolicyDelta, shards: Any = None, **fields: Any) -> StatusDelta:
    versions = {"cm-1": "v1", "cm-2": "v2"} if shards is None else shards
    return StatusDelta(**({"seconds": 60.0} | fields), shards=versions, policies=policies)


def reports(**nodes: StatusDelta) -> Reports:
    made = Reports()
    made.know(frozenset(WANTED))
    for node, one in nodes.items():
        made.put(node, one, AT)
    return made


def sums(made: Reports, now: float = AT) -> dict[str, Reported]:
    return aggregate(made.snapshot(now), WANTED, now)


def test_counts_add_up_over_nodes() -> None:
    rng = random.Random(1)
    nodes = {}
    expected = {
        name: dict.fromkeys(("pods_matched", "samples", "sent_bytes"), 0) for name in WANTED
    }
    for number in range(50):
        policies = []
        for name in rng.sample(sorted(WANTED), rng.randrange(3)):
            counts = {key: rng.randrange(1000) for key in expected[name]}
            for key, value in counts.items():
                expected[name][key] += value
            policies.append(delta(name, **counts))
        nodes[f"n{number}"] = report(*policies)
    found = sums(reports(**nodes))
    for name, counts in expected.items():
        assert found[name].pods_matched == counts["pods_matched"]
        assert found[name].samples == pytest.approx(counts["samples"] / 60, rel=1e-5)
        assert found[name].bytes == pytest.approx(counts["sent_bytes"] / 60, rel=1e-5)
        assert (found[name].reporting, found[name].programmed) == (50, 50)


def test_cost_is_of_nodes_where_something_is_sampled() -> None:
    found = sums(
        reports(
            a=report(delta(samples=60, kernel_ns=60_000_000, agent_ns=60_000_000)),
            b=report(delta(samples=60, kernel_ns=240_000_000)),
            idle=report(delta(pods_matched=1)),
        )
    )["shop/a"]
    assert found.cpu_mean == pytest.approx(0.003)
    assert found.cpu_max == pytest.approx(0.004)


def test_a_later_report_takes_the_place_of_the_one_before() -> None:
    made = reports(a=report(delta(pods_matched=3)))
    assert not made.put("a", report(delta(pods_matched=5, samples=9)), AT)
    assert sums(made)["shop/a"].pods_matched == 5
    assert made.put("a", report(delta(pods_matched=5, pods_profiled=1)), AT)


def test_versions_say_who_carries_a_policy_out() -> None:
    found = sums(
        reports(
            new=report(),
            old=report(shards={"cm-1": "v0", "cm-2": "v2"}, notices=("a field is not known",)),
        )
    )
    assert (found["shop/a"].reporting, found["shop/a"].programmed) == (2, 1)
    (worst,) = found["shop/a"].worst
    assert (worst.name, worst.reason) == ("old", "NotProgrammed")
    assert "a field is not known" in worst.message
    assert found["bank/b"].programmed == 2
    assert found["bank/b"].worst == ()


def test_silent_nodes_do_not_count_and_are_forgotten() -> None:
    made = reports(a=report(delta(pods_matched=1)))
    made.put("b", report(delta(pods_matched=1)), AT + STALE_S)
    found = sums(made, AT + STALE_S)["shop/a"]
    assert (found.reporting, found.pods_matched) == (1, 1)
    (worst,) = found.worst
    assert (worst.name, worst.reason) == ("a", "NotReporting")
    assert [node.name for node in sums(made, AT + FORGET_S)["shop/a"].worst] == ["b"]
    assert sums(made, AT + 2 * FORGET_S)["shop/a"] == NOTHING


def test_the_five_worst_nodes_the_gravest_first() -> None:
    full: dict[str, Any] = {"samples": 600, "complete": 600}
    found = sums(
        reports(
            good=report(delta(**full)),
            unnamed=report(delta(**full, unsymbolized=400)),
            cut=report(delta(samples=600, truncated=300)),
            lost=report(delta(samples=600, lost=100)),
            worse=report(delta(samples=600, lost=200)),
            lowered=report(delta(frequency_hz=4, budget=BudgetState.LOWERED)),
            floor=report(delta(frequency_hz=1, budget=BudgetState.FLOOR)),
            failing=report(
                delta(export=ExportState.FAILING, export_errors=3, export_error="refused")
            ),
        )
    )["shop/a"]
    assert [(n.name, n.reason) for n in found.worst] == [
        ("failing", "ExportFailing"),
        ("floor", "OverBudget"),
        ("lowered", "RateLowered"),
        ("worse", "SamplesLost"),
        ("lost", "SamplesLost"),
    ]
    assert found.worst[0].message == "refused"
    assert "33%" in found.worst[3].message
    assert found.error == "failing: refused"
    assert (found.failing, found.lowered, found.floor, found.lowest_hz) == (1, 1, 1, 1)


def test_policies_that_nobody_knows_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = reports(a=report(delta(), delta("shop/unknown")))
    assert made.snapshot(AT).names == ("shop/a",)
    for number in range(2200):  # policies come and go
        name = f"shop/p{number}"
        made.know(frozenset({"bank/b", name}))
        made.put("a", report(delta("bank/b", pods_matched=7), delta(name)), AT)
    snapshot = made.snapshot(AT)
    assert len(snapshot.names) < 1100
    assert aggregate(snapshot, WANTED, AT)["bank/b"].pods_matched == 7
    monkeypatch.setattr(module, "MAX_NODES", 1)
    with pytest.raises(ValueError, match="1 nodes"):
        made.put("another", report(), AT)


# Status


def said(reported: Reported, desired: int = 2, status: Any = None) -> dict[str, Any]:
    return status_of(seen(status=status), GOOD, NOW, None, reported, desired)


def found(**fields: Any) -> Reported:
    return Reported(**({"reporting": 2, "programmed": 2, "last": AT} | fields))


@pytest.mark.parametrize(
    ("reported", "kind", "status", "reason"),
    [
        (NOTHING, "Ready", "False", "NoReports"),
        (NOTHING, "Profiling", "Unknown", "NoReports"),
        (found(programmed=1), "Ready", "False", "Programming"),
        (found(), "Ready", "True", "Programmed"),
        (found(), "Profiling", "False", "NothingMatched"),
        (found(pods_matched=1), "Profiling", "False", "Idle"),
        (
            found(pods_matched=1, containers_matched=1, containers_overlapped=1),
            *("Profiling", "False", "Overlapped"),
        ),
        (found(pods_matched=1, pods_profiled=1, samples=1.0), "Profiling", "True", "Profiling"),
        (found(), "Exporting", "Unknown", "NothingSent"),
        (found(sending=1), "Exporting", "True", "Exporting"),
        (found(sending=1, failing=1, error="n: away"), "Exporting", "False", "ExportFailing"),
        (found(), "Overlapped", "False", "NotOverlapped"),
        (found(containers_overlapped=1), "Overlapped", "True", "Overlapped"),
        (found(), "BudgetExceeded", "False", "WithinBudget"),
        (found(lowered=1, lowest_hz=3), "BudgetExceeded", "True", "RateLowered"),
        (found(lowered=1, floor=1, lowest_hz=1), "BudgetExceeded", "True", "OverBudget"),
    ],
)
def test_conditions(reported: Reported, kind: str, status: str, reason: str) -> None:
    one = condition(said(reported), kind)
    assert (one["status"], one["reason"]) == (status, reason)
    assert one["message"]


def test_an_operator_that_has_just_begun_waits_for_its_nodes() -> None:
    before = said(found(pods_matched=1, samples=1.0, failing=1, sending=1, error="n: x"))

    def then(reported: Reported, status: Any = before) -> dict[str, Any]:
        return status_of(seen(status=status), GOOD, "later", None, reported, 2)

    assert then(Reported(settling=True)) == before
    assert then(found(reporting=1, programmed=1, settling=True)) == before
    assert condition(then(found(settling=True)), "Exporting")["reason"] == "NothingSent"
    assert condition(then(Reported()), "Ready")["reason"] == "NoReports"
    assert condition(then(Reported(settling=True), None), "Ready")["reason"] == "NoReports"
    # What does not depend on reports is told at once.
    edited = then(Reported(settling=True), before | {"observedGeneration": 3})
    assert condition(edited, "Ready")["reason"] == "NoReports"
    assert condition(edited, "Exporting")["reason"] == "ExportFailing"
    off = Verdict(programmed=Outcome(False, "Suspended"))
    suspended = status_of(seen(status=before), off, NOW, None, Reported(settling=True), 2)
    assert condition(suspended, "Ready")["reason"] == "Suspended"
    assert "pods" not in suspended


def test_counts_are_in_the_status() -> None:
    status = said(
        found(
            pods_matched=3, pods_profiled=2, containers_matched=4, containers_profiled=2,
            containers_overlapped=1, samples=123.4, complete=120.0, truncated=3.4,
            unsymbolized=12.3, cpu_mean=0.00123, cpu_max=0.000456, bytes=1e6, errors=0.2, error="x",
        ),
        desired=5,
    )  # fmt: skip
    assert status["nodes"] == {"desired": 5, "programmed": 2}
    assert status["pods"] == {"matched": 3, "profiled": 2}
    assert status["containers"] == {"matched": 4, "profiled": 2, "overlapped": 1}
    assert status["cost"] == {
        "cpuPerNodeMean": "1.2m",
        "cpuPerNodeMax": "460u",
        "samplesPerMinute": 7400,
        "bytesPerMinute": 60_000_000,
    }
    assert status["coverage"] == {
        "completePercent": 97, "truncatedPercent": 3, "unsymbolizedPercent": 10, "lostPercent": 0,
    }  # fmt: skip
    assert status["exportErrors"] == {"count": 12, "last": "x"}
    assert status["lastReportTime"] == "1970-01-12T13:46:40Z"
    assert decode(ProfilingPolicyStatus, status).unknown == ()


def test_a_policy_that_is_not_carried_out_says_nothing_of_nodes() -> None:
    off = Verdict(programmed=Outcome(False, "Suspended"))
    status = status_of(seen(), off, NOW, None, found(pods_matched=3), 2)
    assert "nodes" not in status
    assert "pods" not in status
    assert condition(status, "Ready")["reason"] == "Suspended"
    assert {c["type"] for c in status["conditions"]} == {
        *("Accepted", "Programmed", "Ready", "ResolvedRefs")
    }


def test_when_a_status_is_written() -> None:
    first = said(found(pods_matched=1, samples=1.0))
    there = seen(status=first)
    for reported, after_s in (
        (found(pods_matched=1, samples=1.0), float("inf")),
        (found(pods_matched=1, samples=1.001), float("inf")),  # trembles
        (found(pods_matched=1, samples=2.0), 60.0),
        (found(pods_matched=1, samples=1.0, last=AT + 60), 600.0),
        (found(pods_matched=1, samples=1.0, failing=1), 0.0),
    ):
        status = said(reported, status=first)
        assert due(status, there, after_s) == (after_s < float("inf"))
        assert not after_s or not due(status, there, after_s - 1)


@pytest.mark.parametrize(
    ("value", "rounded"), [(0, 0), (0.4, 0), (7, 7), (99, 99), (1234, 1200), (99_900, 100_000)]
)
def test_two_digits(value: float, rounded: int) -> None:
    assert two_digits(value) == rounded


def test_cpus() -> None:
    assert [str(cpus(v)) for v in (0, 1e-6, 0.00035, 0.001, 0.0123, 1.5)] == [
        *("0u", "1u", "350u", "1m", "12m", "1500m")
    ]
