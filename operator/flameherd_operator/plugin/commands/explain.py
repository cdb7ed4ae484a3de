"""Which policy samples a pod's containers, and why no other does.

kubectl flameherd explain pod/checkout-5d8f9 -n shop
"""

import argparse
from collections.abc import Sequence
from typing import Any

from flameherd_policy.agent_config import PolicySlot

from flameherd_operator.errors import ApiFailure
from flameherd_operator.plugin.assign import Pod, mismatch, takers
from flameherd_operator.plugin.cluster import Cluster, Existing, in_order, slots
from flameherd_operator.plugin.commands import Answer
from flameherd_operator.plugin.output import NOTHING, table


def add(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("pod", metavar="pod/NAME", help="the pod; its name alone works too")


def run(cluster: Cluster, arguments: argparse.Namespace) -> Answer:
    """Raises `ApiFailure`."""
    kind, _, name = arguments.pod.rpartition("/")
    if kind not in ("", "pod", "pods", "po") or not name:
        raise ApiFailure(0, arguments.pod, "only pods are explained: pod/NAME")
    namespace = arguments.namespace or cluster.reader.namespace()
    pod = cluster.pod(namespace, name)
    policies = in_order(cluster.existing("ProfilingPolicy", namespace))
    meaning = "whether the node's own policy samples what no other does is not known"
    hosts = in_order(cluster.permitted("ClusterProfilingPolicy", meaning) or ())
    told = list(slots(policies, hosts))
    taken = takers(told, pod)
    containers = [
        {
            "container": container,
            "policy": slot.name if slot else None,
            "frequencyHz": slot.frequency_hz if slot else None,
            "why": _why(slot, told, pod, container),
        }
        for container, slot in taken.items()
    ]
    verdicts = [_verdict(one, pod, taken) for one in (*policies, *hosts) if _concerns(one)]
    data = {
        "namespace": namespace,
        "pod": name,
        "node": pod.node or None,
        "ended": pod.ended,
        "containers": [] if pod.ended else containers,
        "policies": verdicts,
    }
    return Answer(data, _text(pod, containers, verdicts), tuple(cluster.notes))


def _concerns(one: Existing) -> bool:
    """A cluster policy without `host` samples nothing."""
    policy = one.seen.value
    return bool(one.seen.resource.namespaced or policy is None or policy.spec.host is not None)


def _why(slot: PolicySlot | None, told: Sequence[PolicySlot], pod: Pod, container: str) -> str:
    if slot is None:
        return "no policy that agents are told of takes it"
    if slot.selector.host:
        return "no policy of its namespace takes it, so it counts as the node's own"
    others = [
        other.name
        for other in told
        if other is not slot
        and other.selector.selects(pod.namespace, pod.labels)
        and other.selector.takes(container)
    ]
    if not others:
        return "the only policy that takes it"
    return f"before {', '.join(others)}: higher priority, else older, else smaller name"


def _verdict(one: Existing, pod: Pod, taken: dict[str, PolicySlot | None]) -> dict[str, Any]:
    policy, slot = one.seen.value, one.slot()
    own = [container for container, taker in taken.items() if taker and taker.name == one.seen.key]
    state, message = one.state()
    made: dict[str, Any] = {
        "policy": one.seen.key,
        "priority": policy.spec.priority if policy is not None else None,
        "selects": False,
        "samples": own,
        "clippedBy": list(slot.clipped_by) if slot else [],
    }
    if policy is None:
        return made | {"why": f"{state}: {message}"}
    if one.seen.resource.namespaced:
        differs = mismatch(policy.spec.pod_selector, pod.labels)
        if differs:
            return made | {"why": differs}
    made["selects"] = True
    if slot is None:
        return made | {"why": f"agents are not told of it: {state}: {message}"}
    if own:
        return made | {"why": f"samples {', '.join(own)} at {slot.frequency_hz} Hz"}
    if slot.selector.host:
        return made | {"why": "policies of the namespace take every container"}
    wanted = [container for container in taken if slot.selector.takes(container)]
    if not wanted:
        names = ", ".join(slot.selector.container_names)
        return made | {"why": f"containerNames lets only {names} through"}
    winners = sorted({taker.name for c in wanted if (taker := taken[c]) is not None})
    return made | {"why": f"{', '.join(winners)} takes precedence on {', '.join(wanted)}"}


def _text(pod: Pod, containers: list[dict[str, Any]], verdicts: list[dict[str, Any]]) -> str:
    labels = ", ".join(f"{key}={value}" for key, value in sorted(pod.labels.items())) or "none"
    head = f"pod/{pod.name} in {pod.namespace}, on {pod.node or 'no node yet'}; labels: {labels}"
    if pod.ended:
        return f"{head}\n\nIt has ended: nothing of it is sampled."
    rows = [
        (c["container"], c["policy"] or NOTHING, str(c["frequencyHz"] or NOTHING), c["why"])
        for c in containers
    ]
    parts = [head, table(("CONTAINER", "SAMPLED BY", "HZ", "WHY"), rows)]
    if verdicts:
        rows = [
            (
                v["policy"],
                str(v["priority"]) if v["priority"] is not None else "",
                "yes" if v["selects"] else "no",
                "; ".join([v["why"], *v["clippedBy"]]),
            )
            for v in verdicts
        ]
        parts.append(table(("POLICY", "PRIORITY", "SELECTS", "WHY"), rows))
    else:
        parts.append(f"There is no ProfilingPolicy in {pod.namespace}.")
    return "\n\n".join(parts)
