"""What a policy would match, take from others and cost, before it is applied.

  kubectl flameherd dry-run -f policy.yaml

Nothing is written. The file is read as strictly as the API server reads it; ceilings and defaults
are those of the cluster's ClusterProfilingPolicies; the cost follows from what policies measure now.
"""

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from flameherd_policy.agent_config import PolicySlot
from flameherd_policy.base import to_document, to_wire
from flameherd_policy.errors import PolicyError, Problem
from flameherd_policy.load import load_file
from flameherd_policy.policies import ProfilingPolicy
from flameherd_policy.status import ProfilingPolicyStatus

from flameherd_operator.observed import Inputs, see
from flameherd_operator.plugin.assign import Pod, shares
from flameherd_operator.plugin.cluster import Cluster, Existing, in_order, slots, without_secrets
from flameherd_operator.plugin.commands import Answer
from flameherd_operator.plugin.estimate import Estimate, Measured, estimate
from flameherd_operator.plugin.output import amount, count, cpus, table
from flameherd_operator.render.slots import plan
from flameherd_operator.verdict import Verdict

_MAX_ROWS = 50


def add(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument(
        "-f", "--filename", type=Path, required=True, metavar="FILE", help="ProfilingPolicies"
    )


def run(cluster: Cluster, arguments: argparse.Namespace) -> Answer:
    """Raises `ApiFailure`, `PolicyError`."""
    path = arguments.filename
    found = load_file(path)
    policies = [model for model in found if isinstance(model, ProfilingPolicy)]
    if len(policies) < len(found) or not policies:
        said = "holds something else than ProfilingPolicies: only these are tried"
        raise PolicyError([Problem("", said if found else "holds no document", str(path))])
    meaning = "the built-in ceilings and no defaults are assumed"
    hosts = cluster.permitted("ClusterProfilingPolicy", meaning)
    tried = []
    for policy in policies:
        namespace = policy.metadata.namespace or arguments.namespace or cluster.reader.namespace()
        tried.append(_Try(cluster, policy, namespace, hosts).answer())
    data = [data for data, _ in tried]
    text = "\n\n\n".join(text for _, text in tried)
    failed = any(not one["accepted"] for one in data)
    notes = tuple(dict.fromkeys(cluster.notes))
    return Answer(data[0] if len(data) == 1 else data, text, notes, 1 if failed else 0)


class _Try:
    """One policy against the cluster as it is."""

    def __init__(
        self,
        cluster: Cluster,
        policy: ProfilingPolicy,
        namespace: str,
        hosts: list[Existing] | None,
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._key = f"{namespace}/{policy.metadata.name}"
        others = in_order(cluster.existing("ProfilingPolicy", namespace))
        self._before = next((one for one in others if one.seen.key == self._key), None)
        self._others = [one for one in others if one is not self._before]
        self._hosts = hosts or []
        self._seen = self._as_applied(policy)
        self._verdict, self._slot = self._planned(hosts is None)
        self._pods = cluster.pods(namespace)

    def _as_applied(self, policy: ProfilingPolicy) -> Any:
        """The policy as the API server would show it: its age decides between equals."""
        created = "~"  # the newest
        if self._before is not None:
            created = self._before.seen.created
        meta = msgspec.structs.replace(
            policy.metadata, namespace=self._namespace, creation_timestamp=created, uid="dry-run"
        )
        return see("ProfilingPolicy", to_document(msgspec.structs.replace(policy, metadata=meta)))

    def _planned(self, blind: bool) -> tuple[Verdict, PolicySlot | None]:
        """By the operator's own plan."""
        export = self._seen.value.spec.export
        if export is not None and (export.headers_secret_ref or export.tls):
            self._cluster.notes.append(
                "the Secrets that export names are not looked at: the operator reads them"
            )
        if blind and export is None:
            self._cluster.notes.append(
                "there is no export, and whether there is a default is not known"
            )
        clusters = tuple(without_secrets(one.seen) for one in self._hosts)
        inputs = Inputs(
            policies=(without_secrets(self._seen),),
            clusters=clusters,
            namespaces={self._namespace: self._cluster.namespace_labels(self._namespace)},
        )
        planned = plan(inputs, system_namespace="")
        slot = next((s.slot for s in planned.slots if s.slot.name == self._key), None)
        return planned.verdicts[self._seen.uid], slot

    def answer(self) -> tuple[dict[str, Any], str]:
        """Plain data and text."""
        now = list(slots(self._others + ([self._before] if self._before else []), self._hosts))
        mine: dict[str, list[str]] = {}
        lost: Counter[str] = Counter()
        matched, per_node = [], Counter[str]()
        overlapped: Counter[str] = Counter()
        if self._slot is not None:
            after = self._after(self._slot)
            before = {(p.name, c): s for p, c, s in shares(now, self._pods)}
            for pod, container, slot in shares(after, self._pods):
                selector = self._slot.selector
                if not selector.selects(pod.namespace, pod.labels) or not selector.takes(container):
                    continue
                was = before.get((pod.name, container))
                if slot is self._slot:
                    mine.setdefault(pod.name, []).append(container)
                    per_node[pod.node] += 1
                    if was is not None and was.name != self._key:
                        lost[was.name] += 1
                elif slot is not None:
                    overlapped[slot.name] += 1
            matched = [
                pod
                for pod in self._pods
                if not pod.ended and self._slot.selector.selects(pod.namespace, pod.labels)
            ]
        outcome = self._verdict.ready
        cost = self._estimate(now, {node: n for node, n in per_node.items() if node})
        effective = self._verdict.effective
        data = {
            "policy": self._key,
            "exists": self._before is not None,
            "accepted": self._verdict.accepted.good is True,
            "state": "Accepted" if self._slot is not None else outcome.reason,
            "message": outcome.message,
            "effective": to_wire(effective) if effective is not None else None,
            "pods": [
                {"pod": pod.name, "node": pod.node or None, "containers": mine.get(pod.name, [])}
                for pod in matched
            ],
            "nodes": dict(sorted(per_node.items())),
            "takesFrom": dict(sorted(lost.items())),
            "overlappedBy": dict(sorted(overlapped.items())),
            "estimate": cost.plain() if cost is not None else None,
        }
        return data, self._text(data, matched, mine, cost)

    def _after(self, slot: PolicySlot) -> list[PolicySlot]:
        """All slots with this one in its place."""
        tried = Existing(seen=self._seen, status=ProfilingPolicyStatus())
        made: list[PolicySlot] = []
        for one in in_order([*self._others, tried]):
            other = slot if one is tried else one.slot()
            made += [other] if other is not None else []
        return [*made, *slots((), self._hosts)]

    def _estimate(self, now: Sequence[PolicySlot], per_node: Mapping[str, int]) -> Estimate | None:
        if self._slot is None:
            return None
        here = self._others + ([self._before] if self._before else [])
        local = _measured(here, list(shares(now, self._pods)))
        hertz = self._slot.frequency_hz
        found = estimate(hertz, per_node, local, "measured in this namespace by")
        return found or estimate(hertz, per_node, self._elsewhere(), "measured elsewhere by")

    def _elsewhere(self) -> list[Measured]:
        """Policies of other namespaces, as far as they may be read; how many nodes have something
        of them is then only known as the number that carries them out.
        """
        everywhere = self._cluster.permitted_everywhere()
        return [m for one in everywhere if (m := _measure(one, None)) is not None]

    def _text(
        self,
        data: Mapping[str, Any],
        matched: Sequence[Pod],
        mine: Mapping[str, Sequence[str]],
        cost: Estimate | None,
    ) -> str:
        change = "would change" if data["exists"] else "would be new"
        lines = [f"{self._key} {change}."]
        if self._slot is None:
            return "\n".join(
                [*lines, f"It would profile nothing: {data['state']}: {data['message']}"]
            )
        lines.append(f"Rate: {self._slot.frequency_hz} Hz" + _because(self._slot.clipped_by))
        budget = data["effective"].get("budget")
        if budget:
            lines.append(f"Budget: {budget['cpuPerNode']} CPU on each node, by lowering the rate")
        sampled = sum(len(containers) for containers in mine.values())
        lines.append(
            f"Matches {count(len(matched), 'pod')}; samples {count(sampled, 'container')} of "
            f"{count(len(mine), 'pod')} on {count(len([n for n in data['nodes'] if n]), 'node')}."
        )
        for key, word in (("takesFrom", "Takes"), ("overlappedBy", "Leaves")):
            for name, number in data[key].items():
                direction = "from" if key == "takesFrom" else "to"
                lines.append(f"{word} {count(number, 'container')} {direction} {name}.")
        if not matched:
            lines.append("No pod has these labels: compare with `kubectl get pods --show-labels`.")
        lines.append(_cost_text(cost, sampled))
        parts = ["\n".join(lines)]
        if matched:
            rows = [
                (pod.name, pod.node, ", ".join(mine.get(pod.name, ())))
                for pod in matched[:_MAX_ROWS]
            ]
            more = len(matched) - len(rows)
            shown = table(("POD", "NODE", "CONTAINERS"), rows)
            parts.append(shown + (f"\n… and {more} more" if more else ""))
        return "\n\n".join(parts)


def _because(clipped: Sequence[str]) -> str:
    return f" ({'; '.join(clipped)})" if clipped else ""


def _cost_text(cost: Estimate | None, sampled: int) -> str:
    if not sampled:
        return "Cost: nothing, as long as it samples nothing."
    if cost is None:
        return "Cost: not known: no policy that you may read measures anything yet."
    return (
        f"Cost: about {cpus(cost.cpu_per_node_mean)} CPU a node, {cpus(cost.cpu_per_node_max)} on "
        f"the fullest; {amount(cost.samples_per_minute)} samples and "
        f"{amount(cost.bytes_per_minute, 'B')} a minute ({cost.basis})."
    )


def _measured(
    policies: Sequence[Existing], now: Sequence[tuple[Pod, str, PolicySlot | None]]
) -> list[Measured]:
    nodes: dict[str, set[str]] = {}
    for pod, _, slot in now:
        if slot is not None:
            nodes.setdefault(slot.name, set()).add(pod.node)
    found = [_measure(one, len(nodes.get(one.seen.key, ()))) for one in policies]
    return [one for one in found if one is not None]


def _measure(one: Existing, nodes: int | None) -> Measured | None:
    status, slot = one.status, one.slot()
    if slot is None or status.cost is None or status.containers is None:
        return None
    return Measured(
        name=one.seen.key,
        frequency_hz=slot.frequency_hz,
        containers=status.containers.profiled,
        nodes=nodes if nodes is not None else min(status.nodes.programmed, status.pods.profiled),
        samples_per_minute=status.cost.samples_per_minute,
        bytes_per_minute=status.cost.bytes_per_minute,
        cpu_per_node=float(status.cost.cpu_per_node_mean.value),
    )
