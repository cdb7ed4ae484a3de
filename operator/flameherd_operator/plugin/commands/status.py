"""Who is profiled, at what cost, and what is wrong: from the statuses that the operator writes.

kubectl flameherd status             the current namespace
kubectl flameherd status -A          every namespace, the nodes' own processes, the agents
"""

import argparse
from collections.abc import Sequence
from typing import Any

from flameherd_policy.base import to_wire

from flameherd_operator.plugin.cluster import Cluster, Existing, in_order
from flameherd_operator.plugin.commands import Answer
from flameherd_operator.plugin.output import amount, cpus, table

_HEADER = (
    "NAMESPACE", "POLICY", "HZ", "PODS", "CONTAINERS", "NODES", "CPU/NODE", "MAX", "SAMPLES/MIN",
    "BYTES/MIN", "COMPLETE", "STATE",
)  # fmt: skip


def add(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="every namespace")


def run(cluster: Cluster, arguments: argparse.Namespace) -> Answer:
    """Raises `ApiFailure`."""
    everywhere = arguments.all_namespaces
    namespace = "" if everywhere else arguments.namespace or cluster.reader.namespace()
    policies = in_order(cluster.existing("ProfilingPolicy", namespace))
    policies.sort(key=lambda one: one.seen.namespace)
    hosts: Sequence[Existing] = ()
    pools: Sequence[Existing] = ()
    if everywhere:
        found = cluster.permitted("ClusterProfilingPolicy", "the nodes' own processes are left out")
        hosts = found or ()
        pools = cluster.permitted("AgentPool", "the agents are left out") or ()
    data = {
        "policies": [_plain(one) for one in policies],
        "clusterPolicies": [_plain(one) for one in hosts],
        "agentPools": [_plain(one) for one in pools],
    }
    return Answer(data, _text(namespace, policies, hosts, pools), tuple(cluster.notes))


def _plain(one: Existing) -> dict[str, Any]:
    state, message = one.state()
    made = {"name": one.seen.name, "state": state, "message": message}
    place = {"namespace": one.seen.namespace} if one.seen.namespace else {}
    status = to_wire(one.status)
    status.pop("conditions", None)
    return place | made | status


def _text(
    namespace: str,
    policies: Sequence[Existing],
    hosts: Sequence[Existing],
    pools: Sequence[Existing],
) -> str:
    sampling = [one for one in hosts if one.status.effective is not None]
    rows = [_row(one) for one in (*policies, *sampling)]
    parts = []
    if rows:
        parts.append(table(_HEADER, rows))
        parts.append(_total((*policies, *sampling)))
    else:
        parts.append(f"No ProfilingPolicy in {namespace or 'any namespace'}: nothing is profiled.")
    if pools:
        parts.append(table(("POOL", "NODES", "SAMPLING", "STATE"), [_pool(one) for one in pools]))
    wrong = [line for one in (*policies, *hosts, *pools) for line in _wrong(one)]
    return "\n\n".join([*(part for part in parts if part), *(["\n".join(wrong)] if wrong else [])])


def _row(one: Existing) -> tuple[str, ...]:
    status = one.status
    effective = status.effective
    pods, containers = getattr(status, "pods", None), getattr(status, "containers", None)
    cost, nodes, coverage = status.cost, status.nodes, status.coverage
    return (
        one.seen.namespace or "(nodes)",
        one.seen.name,
        str(effective.cpu.frequency_hz) if effective and effective.cpu else "",
        f"{pods.profiled}/{pods.matched}" if pods else "",
        f"{containers.profiled}/{containers.matched}" if containers else "",
        f"{nodes.programmed}/{nodes.desired}" if nodes else "",
        str(cost.cpu_per_node_mean) if cost else "",
        str(cost.cpu_per_node_max) if cost else "",
        amount(cost.samples_per_minute) if cost else "",
        amount(cost.bytes_per_minute) if cost else "",
        f"{coverage.complete_percent}%" if coverage else "",
        one.state()[0],
    )


def _total(policies: Sequence[Existing]) -> str:
    costs = [one.status.cost for one in policies if one.status.cost is not None]
    if not costs:
        return ""
    samples = amount(sum(cost.samples_per_minute for cost in costs))
    sent = amount(sum(cost.bytes_per_minute for cost in costs), "B")
    # Policies may be on different nodes: the sum is what a node with all of them would take.
    mean = cpus(float(sum(cost.cpu_per_node_mean.value for cost in costs)))
    return (
        f"In all {samples} samples and {sent} a minute; at most {mean} CPU on an average node that "
        "has something of every policy."
    )


def _pool(one: Existing) -> tuple[str, ...]:
    nodes = one.status.nodes
    counts = (str(nodes.desired), str(nodes.ready)) if nodes else ("", "")
    return (one.seen.name, *counts, one.state()[0])


def _wrong(one: Existing) -> list[str]:
    state, message = one.state()
    if not message:
        return []
    lines = [f"{one.seen.key}: {state}: {message}"]
    for node in getattr(one.status, "worst_nodes", ()):
        lines.append(f"  {node.name}: {node.reason}: {node.message}")
    return lines
