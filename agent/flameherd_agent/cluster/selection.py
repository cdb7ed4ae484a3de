"""Which slot samples which cgroup: policies × pods × cgroups. Pure.

A pod whose first policy takes all of its containers is selected as a whole, by the pod's own cgroup:
whatever starts in it later, init, sidecar and ephemeral containers and `kubectl exec` too, is
sampled from its first moment, before the API server names it. Where policies tell containers apart
(`containerNames`), each container is selected once its name is known, and until then nobody samples
it: it might be another policy's.

The kernel side takes the nearest cgroup upwards that is named here; a cgroup of slot None is
nobody's, whatever is above it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from flameherd_policy.agent_config import PolicySlot

from flameherd_agent.cluster.cgroup_tree import MONITOR
from flameherd_agent.cluster.pods import Pod

_NOT_THERE: Final = ""
"""No policy has this name: the pod has no cgroup of its own."""

Cgroups = Mapping[int, str | None]
"""{cgroup id: container id, or None for the cgroup of the pod itself}"""


@dataclass(slots=True)
class Coverage:
    """How one policy fares on this node."""

    pods_matched: int = 0
    """Pods that its selectors select."""
    pods_profiled: int = 0
    """Of these, pods with a container that it samples."""
    containers_matched: int = 0
    """Running containers of these pods that `containerNames` lets through."""
    containers_profiled: int = 0
    """Of these, containers that it samples."""
    containers_overlapped: int = 0
    """Of these, containers that another policy samples instead."""


@dataclass(slots=True)
class Choice:
    """What every cgroup's slot is."""

    cgroups: dict[int, str | None] = field(default_factory=dict)
    """{cgroup id: name of the policy, None = nobody}"""
    coverage: dict[str, Coverage] = field(default_factory=dict)
    """{policy: how it fares}; policies that match no pod here are not in it."""


def matching(policies: Iterable[PolicySlot], pod: Pod) -> tuple[PolicySlot, ...]:
    """The policies whose selectors select the pod, in their order."""
    return tuple(
        policy
        for policy in policies
        if policy.selector.namespace == pod.namespace
        and policy.selector.pod_selector.matches(pod.labels)
    )


def choose(
    pods: Iterable[tuple[Pod, Sequence[PolicySlot]]],
    cgroups: Mapping[str, Cgroups],
    host: str | None,
) -> Choice:
    """`pods`: each with the policies that match it, in order of precedence. `cgroups`: by a pod's
    `cgroup_uid`. `host`: the policy of the nodes' own processes, which takes what no other takes.
    """
    choice = Choice()
    for pod, policies in pods:
        if pod.ended or not policies:
            continue
        there = cgroups.get(pod.cgroup_uid, {})
        if policies[0].selector.container_names:
            chosen = _by_name(pod, policies, there, host)
        else:
            chosen = {
                cgroup: host if container == MONITOR else policies[0].name
                for cgroup, container in there.items()
            }
        own = next((c for cgroup, c in chosen.items() if there[cgroup] is None), _NOT_THERE)
        # What the pod's own cgroup says need not be said again: the kernel's map has bounds.
        choice.cgroups |= {
            cgroup: taker
            for cgroup, taker in chosen.items()
            if taker != own or there[cgroup] is None
        }
        _count(choice.coverage, pod, policies, there, chosen)
    return choice


def _by_name(
    pod: Pod, policies: Sequence[PolicySlot], there: Cgroups, host: str | None
) -> dict[int, str | None]:
    chosen: dict[int, str | None] = {}
    for cgroup, container in there.items():
        if container == MONITOR:
            chosen[cgroup] = host
            continue
        name = pod.containers.get(container) if container is not None else None
        if name is None:
            chosen[cgroup] = None  # the pod itself: containers that are not known yet inherit it
            continue
        taker = next((p for p in policies if _takes(p, name)), None)
        chosen[cgroup] = taker.name if taker is not None else host
    return chosen


def _takes(policy: PolicySlot, container: str) -> bool:
    names = policy.selector.container_names
    return not names or container in names


def _count(
    coverage: dict[str, Coverage],
    pod: Pod,
    policies: Sequence[PolicySlot],
    there: Cgroups,
    chosen: Mapping[int, str | None],
) -> None:
    running = {
        pod.containers[container]: chosen[cgroup]
        for cgroup, container in there.items()
        if container is not None and container in pod.containers
    }
    for policy in policies:
        its = coverage.setdefault(policy.name, Coverage())
        takers = [taker for name, taker in running.items() if _takes(policy, name)]
        own = sum(taker == policy.name for taker in takers)
        its.pods_matched += 1
        its.pods_profiled += own > 0
        its.containers_matched += len(takers)
        its.containers_profiled += own
        its.containers_overlapped += len(takers) - own


def samplers(policies: Sequence[PolicySlot]) -> tuple[PolicySlot, ...]:
    """Of the policies that match a pod, those that can get a container of it: up to the first that
    takes all.
    """
    for index, policy in enumerate(policies):
        if not policy.selector.container_names:
            return tuple(policies[: index + 1])
    return tuple(policies)
