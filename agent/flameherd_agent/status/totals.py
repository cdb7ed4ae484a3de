"""What each policy has cost and got on this node since the agent began. Single-threaded.

Brought up to date when an interval ends, so that samples and what became of them belong together.
Meters of the kernel belong to slots, which policies come to and go from: what a slot had before is
taken off.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Self

from flameherd_agent.kernel.sampler import SlotMeter
from flameherd_agent.model import ResourceProfiles, Sample
from flameherd_agent.pipeline.export.exporter import EndpointStats
from flameherd_agent.types import SlotId


@dataclass(slots=True)
class Total:
    """Sums since the start."""

    samples: int = 0
    whole: int = 0
    """Stacks that reach their root."""
    truncated: int = 0
    unnamed: int = 0
    """Stacks whose innermost function has no name."""
    kernel_ns: int = 0
    agent_ns: float = 0.0
    sent_bytes: float = 0.0
    export_errors: int = 0

    def less(self, other: Self) -> Self:
        """What has come since; never negative."""
        return type(self)(
            *(max(0, getattr(self, f.name) - getattr(other, f.name)) for f in fields(self))
        )

    def copy(self) -> Self:
        return type(self)(*(getattr(self, f.name) for f in fields(self)))


@dataclass(slots=True)
class _Endpoint:
    """What was last counted of an exporter."""

    identity: int
    sent_bytes: int = 0
    errors: int = 0


class Totals:
    """By policy. A policy that comes back goes on where it was."""

    def __init__(self) -> None:
        self.by_policy: dict[str, Total] = {}
        self._slots: dict[str, tuple[SlotId, SlotMeter]] = {}
        """Policy → its slot, and the slot's meters as they were last counted."""
        self._endpoints: dict[str, _Endpoint] = {}
        self._shares: dict[str, int] = {}
        """Samples of the interval that ended last."""

    def begin(self, policy: str, slot: SlotId, meter: SlotMeter) -> None:
        """A policy has been given a slot, whose meters stand at `meter`."""
        if self._slots.get(policy, (None, None))[0] != slot:
            self._slots[policy] = (slot, meter)
        self.by_policy.setdefault(policy, Total())

    def carried_out(self, kept: Iterable[str]) -> None:
        """Only these have a slot now: what others' former slots count is somebody else's."""
        names = set(kept)
        self._slots = {name: slot for name, slot in self._slots.items() if name in names}

    def forget(self, kept: Iterable[str]) -> None:
        """Drop all policies but these."""
        names = set(kept)
        self.carried_out(names)
        self.by_policy = {name: total for name, total in self.by_policy.items() if name in names}

    def interval(
        self,
        meters: Mapping[str, SlotMeter],
        profiles: Iterable[ResourceProfiles],
        agent_ns: int,
    ) -> dict[str, tuple[float, int]]:
        """An interval has ended: meters of policies after it, and what came of it.

        Returns, for each policy with samples, (its share of `agent_ns`, its samples).
        """
        shares: dict[str, int] = {}
        for name, meter in meters.items():
            if name in self._slots:
                slot, before = self._slots[name]
                self._slots[name] = (slot, meter)
                total = self.by_policy[name]
                total.samples += meter.samples - before.samples
                total.kernel_ns += meter.run_ns - before.run_ns
        for resource in profiles:
            known = self.by_policy.get(resource.policy)
            if known is None:
                continue
            count = sum(_add(known, each.samples) for each in resource.profiles)
            shares[resource.policy] = shares.get(resource.policy, 0) + count
        everything = sum(shares.values())
        found = {}
        for name, count in shares.items():
            share = agent_ns * count / everything
            self.by_policy[name].agent_ns += share
            found[name] = (share, count)
        self._shares = shares
        return found

    def endpoint(
        self, name: str, identity: int, stats: EndpointStats, policies: Iterable[str]
    ) -> None:
        """Count what an endpoint has sent, to the policies of the interval that has just ended."""
        known = self._endpoints.get(name)
        if known is None or known.identity != identity:
            known = self._endpoints[name] = _Endpoint(identity)
        errors = stats.retries + sum(
            count for reason, count in stats.dropped_batches.items() if reason != "shutdown"
        )
        users = [policy for policy in policies if policy in self.by_policy]
        for policy in users:
            self.by_policy[policy].export_errors += errors - known.errors
        known.errors = errors
        shares = {policy: self._shares.get(policy, 0) for policy in users}
        everything = sum(shares.values())
        if everything:  # else it waits for an interval with samples
            sent = stats.sent_bytes - known.sent_bytes
            known.sent_bytes = stats.sent_bytes
            for policy, count in shares.items():
                self.by_policy[policy].sent_bytes += sent * count / everything


def _add(total: Total, samples: Iterable[Sample]) -> int:
    count = 0
    for sample in samples:
        count += sample.value
        if sample.truncated:
            total.truncated += sample.value
        else:
            total.whole += sample.value
        if sample.stack and not sample.stack[0].lines:
            total.unnamed += sample.value
    return count
