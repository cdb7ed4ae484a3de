"""Policy slots on this node: from an AgentConfig to slot numbers, rates and what each slot selects.

Slot numbers are given once per policy name and kept while the policy is there, so that an edit of a rate is a new
epoch of the same slot and nothing else moves. A number that came free rests for a while: counts of its former policy
may still be on their way.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from flameherd_policy.agent_config import AgentConfig, PolicySlot

from flameherd_agent.kernel.abi import Limit
from flameherd_agent.metadata.cgroup import container_of_path
from flameherd_agent.metadata.hierarchy import PidsHierarchy
from flameherd_agent.pipeline.assemble import SlotLabels
from flameherd_agent.types import Pid, SlotId

REST_NS: Final = 60_000_000_000


@dataclass(frozen=True, slots=True)
class ActiveSlot:
    """A policy that this node carries out."""

    slot: SlotId
    policy: PolicySlot
    labels: SlotLabels
    frequency_hz: int
    cpus: float | None = None
    """CPU budget; None = there is none."""


class SlotNumbers:
    """Names to numbers, with rest for numbers that came free."""

    def __init__(self) -> None:
        self._numbers: dict[str, SlotId] = {}
        self._resting: dict[SlotId, int] = {}

    def assign(self, names: Iterable[str]) -> dict[str, SlotId]:
        """Numbers of `names`; those of other names come free."""
        wanted = list(names)
        now = time.monotonic_ns()
        for name in set(self._numbers) - set(wanted):
            self._resting[self._numbers.pop(name)] = now
        self._resting = {
            slot: since for slot, since in self._resting.items() if now - since < REST_NS
        }
        taken = set(self._numbers.values()) | set(self._resting)
        free = (SlotId(number) for number in range(1, int(Limit.MAX_SLOTS)) if number not in taken)
        for name in wanted:
            if name not in self._numbers:
                number = next(free, None)
                if number is None:
                    break  # more policies at once than slots: the rest wait for the next change
                self._numbers[name] = number
        return {name: self._numbers[name] for name in wanted if name in self._numbers}


def active_slots(config: AgentConfig, numbers: SlotNumbers) -> list[ActiveSlot]:
    """The config's policies by precedence, with ceilings applied once more."""
    order = config.in_order()
    assigned = numbers.assign(policy.name for policy in order)
    budgets = {policy.name: config.ceilings.budget(policy.cpu_per_node) for policy in order}
    return [
        ActiveSlot(
            assigned[policy.name],
            policy,
            SlotLabels(
                policy.name,
                policy.attributes,
                config.ceilings.allowed_env(policy.attributes.env),
            ),
            min(policy.frequency_hz, config.ceilings.max_frequency_hz),
            float(budget.value) if (budget := budgets[policy.name]) is not None else None,
        )
        for policy in order
        if policy.name in assigned
    ]


@dataclass(frozen=True, slots=True)
class Selected:
    """What the slots select on this node now."""

    cgroups: dict[int, SlotId]
    processes: dict[Pid, SlotId]


def select(slots: Iterable[ActiveSlot], hierarchy: PidsHierarchy) -> Selected:
    """Evaluate every slot's selector. Pods come with the operator's issue: `namespace` selects nothing yet."""
    cgroups: dict[int, SlotId] = {}
    processes: dict[Pid, SlotId] = {}
    containers: dict[int, str] | None = None
    for active in slots:
        selector = active.policy.selector
        if selector.host:
            cgroups.setdefault(hierarchy.root_id(), active.slot)
        for pid in selector.pids:
            processes.setdefault(Pid(pid), active.slot)
        if selector.container_ids:
            if containers is None:
                containers = {
                    cgroup: container.container_id
                    for cgroup, path in hierarchy.walk()
                    if (container := container_of_path(path)) is not None
                }
            for cgroup, container_id in containers.items():
                if container_id.startswith(tuple(selector.container_ids)):
                    cgroups.setdefault(cgroup, active.slot)
    return Selected(cgroups, processes)
