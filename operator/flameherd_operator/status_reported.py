"""What agents report of a policy → its conditions and the counts in its status. Pure.

Numbers are rounded to two digits, so that a status whose numbers only tremble is not written anew.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from math import floor, log10
from typing import Any, Final

from flameherd_policy.quantities import Quantity
from flameherd_policy.status import (
    Containers,
    Cost,
    Coverage,
    ExportErrors,
    Pods,
    PolicyNodes,
)

from flameherd_operator.aggregate import Reported
from flameherd_operator.verdict import Outcome

REPORTS: Final = "Profiling", "Exporting", "Overlapped", "BudgetExceeded"
_PARTS: Final = (
    *("nodes", "pods", "containers", "cost", "coverage"),
    *("exportErrors", "worstNodes", "lastReportTime"),
)
_SILENT: Final = Outcome(None, "NoReports", "no agent has reported in the last three minutes")
_MAX_ERROR: Final = 512


def ready(reported: Reported, desired: int) -> Outcome:
    """Of a policy that is in the configuration: whether agents carry it out."""
    if not reported.reporting:
        if not desired:
            return Outcome(False, "NoAgents", "no node runs an agent: look at the AgentPools")
        said = f"none of {desired} agents has reported in the last three minutes"
        return Outcome(False, "NoReports", said)
    if reported.programmed < reported.reporting:
        said = f"{reported.programmed} of {reported.reporting} agents that report carry it out"
        return Outcome(False, "Programming", said)
    return Outcome(True, "Programmed", f"carried out by {reported.programmed} agents")


def conditions(reported: Reported, host: bool) -> dict[str, Outcome]:
    """Those that depend on what agents report."""
    if not reported.reporting:
        return dict.fromkeys(REPORTS, _SILENT)
    return {
        "Profiling": _profiling(reported, host),
        "Exporting": _exporting(reported),
        "Overlapped": _overlapped(reported),
        "BudgetExceeded": _budget(reported),
    }


def _profiling(reported: Reported, host: bool) -> Outcome:
    if reported.samples > 0:
        if host:
            return Outcome(True, "Profiling", "the nodes' own processes are sampled")
        said = f"{reported.pods_profiled} of {reported.pods_matched} pods are sampled"
        return Outcome(True, "Profiling", said)
    if not host and not reported.pods_matched:
        said = (
            "the selector matches no running pod on any node that reports: compare it with "
            "`kubectl get pods --show-labels`"
        )
        return Outcome(False, "NothingMatched", said)
    if reported.containers_matched and not reported.containers_profiled:
        return Outcome(False, "Overlapped", _others(reported))
    return Outcome(False, "Idle", "nothing that it selects has used a CPU in the last minute")


def _others(reported: Reported) -> str:
    return (
        f"{reported.containers_overlapped} of {reported.containers_matched} containers are sampled "
        "by policies that take precedence: of two on one container the one with the higher "
        "priority, then the older, samples it"
    )


def _exporting(reported: Reported) -> Outcome:
    if reported.failing:
        said = f"sending fails on {reported.failing} nodes; {reported.error or 'no text'}"
        return Outcome(False, "ExportFailing", said)
    if reported.sending:
        return Outcome(True, "Exporting", f"{reported.sending} nodes send")
    return Outcome(None, "NothingSent", "nothing has been sent yet")


def _overlapped(reported: Reported) -> Outcome:
    if reported.containers_overlapped:
        return Outcome(True, "Overlapped", _others(reported))
    return Outcome(False, "NotOverlapped", "no other policy takes one of its containers")


def _budget(reported: Reported) -> Outcome:
    if reported.floor:
        said = (
            f"on {reported.floor} nodes it takes more than its budget even at "
            f"{reported.lowest_hz} Hz: raise budget.cpuPerNode, or select fewer pods"
        )
        return Outcome(True, "OverBudget", said)
    if reported.lowered:
        said = (
            f"on {reported.lowered} nodes the rate is lowered to keep budget.cpuPerNode, to "
            f"{reported.lowest_hz} Hz where it is lowest"
        )
        return Outcome(True, "RateLowered", said)
    return Outcome(False, "WithinBudget", "the rate is what the policy asks for, on every node")


def parts(reported: Reported, desired: int, host: bool) -> dict[str, Any]:
    """Arguments of the status's model."""
    made: dict[str, Any] = {
        # A node that reports should run an agent, whatever a DaemonSet's status says so far.
        "nodes": PolicyNodes(
            desired=max(desired, reported.reporting), programmed=reported.programmed
        ),
        "worst_nodes": reported.worst,
    }
    if reported.last:
        at = datetime.fromtimestamp(int(reported.last), UTC)
        made["last_report_time"] = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    if reported.errors:
        count = max(1, two_digits(60 * reported.errors))
        made["export_errors"] = ExportErrors(count=count, last=reported.error[:_MAX_ERROR])
    if reported.samples:
        made["cost"] = _cost(reported)
        made["coverage"] = _coverage(reported)
    if not host:
        made["pods"] = Pods(matched=reported.pods_matched, profiled=reported.pods_profiled)
        made["containers"] = Containers(
            matched=reported.containers_matched,
            profiled=reported.containers_profiled,
            overlapped=reported.containers_overlapped,
        )
    return made


def _cost(reported: Reported) -> Cost:
    return Cost(
        cpu_per_node_mean=cpus(reported.cpu_mean),
        cpu_per_node_max=cpus(reported.cpu_max),
        samples_per_minute=two_digits(60 * reported.samples),
        bytes_per_minute=two_digits(60 * reported.bytes),
    )


def _coverage(reported: Reported) -> Coverage:
    def percent(part: float) -> int:
        return min(100, round(100 * part / reported.samples))

    return Coverage(
        complete_percent=percent(reported.complete),
        truncated_percent=percent(reported.truncated),
        unsymbolized_percent=percent(reported.unsymbolized),
        lost_percent=percent(reported.lost),
    )


def unheard(reported: Reported, status: Mapping[str, Any]) -> bool:
    """Whether fewer nodes have reported to an operator that has just begun than did before."""
    nodes = status.get("nodes") or {}
    return reported.settling and reported.reporting < int(nodes.get("programmed") or 0)


def as_it_was(status: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that depend on what agents report."""
    return {name: status[name] for name in _PARTS if name in status}


def outcomes_of(status: Mapping[str, Any], kinds: Iterable[str]) -> dict[str, Outcome]:
    """Conditions as they are written in a status."""
    good = {"True": True, "False": False}
    found = {c.get("type"): c for c in status.get("conditions", ()) if isinstance(c, Mapping)}
    return {
        kind: Outcome(
            good.get(str(found[kind].get("status"))),
            str(found[kind].get("reason", "")),
            str(found[kind].get("message", "")),
        )
        for kind in kinds
        if kind in found
    }


def two_digits(value: float) -> int:
    """1234 → 1200."""
    if value < 1:
        return round(value)
    return int(round(value, 1 - floor(log10(value))))


def cpus(value: float) -> Quantity:
    """CPUs as Kubernetes writes them: `1.2m`, to two digits; `350u` below a thousandth."""
    micro = two_digits(value * 1e6)
    if micro < 1000:
        return Quantity.parse(f"{micro}u")
    return Quantity.parse(f"{micro / 1000:g}m")


def flips(status: Mapping[str, Any]) -> tuple[object, ...]:
    """What must be written at once when it changes."""
    found = status.get("conditions", ())
    return (
        status.get("observedGeneration"),
        status.get("effective"),
        [
            (c.get("type"), c.get("status"), c.get("reason"))
            for c in found
            if isinstance(c, Mapping)
        ],
    )
