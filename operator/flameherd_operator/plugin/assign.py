"""Which policy samples which container. Pure.

Slots come from the operator's own plan, in order of precedence; the first that takes a container
samples it. What no slot of its namespace takes belongs to the node, which a cluster policy's `host`
may sample.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from flameherd_policy.agent_config import PolicySlot
from flameherd_policy.selectors import LabelSelector

Json = Mapping[str, Any]


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """What matters of a pod."""

    namespace: str
    name: str
    node: str
    """"" = it has none yet."""
    labels: Mapping[str, str]
    containers: tuple[str, ...]
    """Init and ephemeral ones too."""
    ended: bool


def pod_of(body: Json) -> Pod:
    """A pod as the API gives it."""
    meta, spec = body["metadata"], body.get("spec") or {}
    kinds = ("initContainers", "containers", "ephemeralContainers")
    return Pod(
        namespace=meta["namespace"],
        name=meta["name"],
        node=spec.get("nodeName") or "",
        labels=meta.get("labels") or {},
        containers=tuple(c["name"] for kind in kinds for c in spec.get(kind) or ()),
        ended=(body.get("status") or {}).get("phase") in ("Succeeded", "Failed"),
    )


def takers(slots: Sequence[PolicySlot], pod: Pod) -> dict[str, PolicySlot | None]:
    """Container → the slot that samples it."""
    own = [slot for slot in slots if slot.selector.selects(pod.namespace, pod.labels)]
    host = next((slot for slot in slots if slot.selector.host), None)
    return {
        container: next((slot for slot in own if slot.selector.takes(container)), host)
        for container in pod.containers
    }


def shares(
    slots: Sequence[PolicySlot], pods: Iterable[Pod]
) -> Iterator[tuple[Pod, str, PolicySlot | None]]:
    """(pod, container, who samples it) of every container of pods that have not ended."""
    for pod in pods:
        if not pod.ended:
            for container, slot in takers(slots, pod).items():
                yield pod, container, slot


def mismatch(selector: LabelSelector, labels: Mapping[str, str]) -> str:
    """The first condition of a selector that labels do not meet, in words; "" = they meet all."""
    for key, value in selector.match_labels.items():
        if labels.get(key) != value:
            has = f"it is {labels[key]}" if key in labels else "there is no such label"
            return f"podSelector wants {key}={value}: {has}"
    for requirement in selector.match_expressions:
        if not requirement.matches(labels):
            values = f" ({', '.join(requirement.values)})" if requirement.values else ""
            has = (
                f"it is {labels[requirement.key]}" if requirement.key in labels else "there is none"
            )
            return (
                f"podSelector wants {requirement.key} {requirement.operator.value}{values}: {has}"
            )
    return ""
