"""An interval's raw samples → profiles: one resource per container or executable, one profile per (slot, epoch).

A profile carries the period of its own rate epoch, so that samples times period is CPU time whatever happened to
the rate in between.

Samples of a container whose pod, or whose name, the cluster has not told yet are held for one interval: a new container
runs before its status says so. Then they go out as they are, and are counted.
"""

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from flameherd_policy.policies import Attributes as WantedAttributes

from flameherd_agent.kernel.abi import Outcome
from flameherd_agent.metadata.resource import Resource, ResourceLabeler
from flameherd_agent.model import Attributes, Location, Profile, ResourceProfiles, Sample
from flameherd_agent.pipeline.drain import Interval, SampleKey
from flameherd_agent.pipeline.naming import Namer
from flameherd_agent.process.table import ProcessTable
from flameherd_agent.types import SlotId

WHOLE: Final = frozenset((Outcome.COMPLETE, Outcome.KERNEL_THREAD))
"""Outcomes whose stack reaches the root."""


MAX_HELD: Final = 20_000
"""Distinct samples that are held; beyond it they go out at once, counted like those that waited in vain."""


@dataclass(frozen=True, slots=True)
class SlotLabels:
    """What a slot adds to its resources."""

    policy: str
    wanted: WantedAttributes = field(default_factory=WantedAttributes)
    env: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Times:
    """When an interval was: wall clock, nanoseconds."""

    time_unix_ns: int
    duration_ns: int


class Assembler:
    """Names and labels intervals. Single-threaded."""

    def __init__(self, namer: Namer, labeler: ResourceLabeler, processes: ProcessTable) -> None:
        self._namer = namer
        self._labeler = labeler
        self._processes = processes
        self._held: list[tuple[SampleKey, int, _Times]] = []
        self.unknown_pods = 0
        """Samples that went out without a pod or a container's name, since the start."""

    @property
    def held(self) -> int:
        """Samples that wait for the next interval."""
        return sum(count for _, count, _ in self._held)

    def assemble(
        self,
        interval: Interval,
        periods_ns: Mapping[tuple[SlotId, int], int],
        labels: Mapping[SlotId, SlotLabels],
        *,
        hold: bool = True,
    ) -> list[ResourceProfiles]:
        """Profiles of every slot. Samples of a slot that is gone from `labels` are labelled with no policy.

        Without `hold`, nothing is kept for the next interval: there will be none.
        """
        # CLOCK_MONOTONIC → wall clock, once for the interval.
        to_unix = time.time_ns() - time.monotonic_ns()
        now = _Times(interval.started_ns + to_unix, interval.ended_ns - interval.started_ns)
        waited, self._held = self._held, []
        resources: dict[tuple[SlotId, Attributes], dict[tuple[int, int], Profile]]
        resources = defaultdict(dict)
        seen: dict[tuple[int, int, int, SlotId], tuple[Resource, Attributes]] = {}
        late = ((key, count, times, False) for key, count, times in waited)
        fresh = ((key, count, now, hold) for key, count in interval.samples())
        for key, count, times, may_wait in chain(late, fresh):
            identity = (key.pid, key.cookie, key.cgroup, key.slot)
            if identity not in seen:
                seen[identity] = self._label(key, labels.get(key.slot, SlotLabels("")))
            resource, process = seen[identity]
            if resource.pod_pending:
                if may_wait and len(self._held) < MAX_HELD:
                    self._held.append((key, count, times))
                    continue
                self.unknown_pods += count
            profiles = resources[key.slot, resource.attributes]
            profile = profiles.get((key.epoch, times.time_unix_ns))
            if profile is None:
                profile = profiles[key.epoch, times.time_unix_ns] = Profile(
                    samples=[],
                    period_ns=periods_ns[key.slot, key.epoch],
                    time_unix_ns=times.time_unix_ns,
                    duration_ns=times.duration_ns,
                )
            profile.samples.append(self._sample(key, count, process))
        self._namer.shed()
        return [
            ResourceProfiles(
                attributes, list(profiles.values()), labels.get(slot, SlotLabels("")).policy
            )
            for (slot, attributes), profiles in resources.items()
        ]

    def _sample(self, key: SampleKey, count: int, process: Attributes) -> Sample:
        stack: tuple[Location, ...] = (
            *(self._namer.kernel(address) for address in key.stack.kernel),
            *self._namer.stack(key.stack.user, key.pid, key.cookie),
        )
        thread: Attributes = (("thread.id", key.tid), ("thread.name", key.comm))
        return Sample(stack, process + thread, count, key.outcome not in WHOLE)

    def _label(self, key: SampleKey, labels: SlotLabels) -> tuple[Resource, Attributes]:
        """The resource of a process, and the process's own attributes."""
        tracked = self._processes.find(key.cookie)
        program = tracked.program if tracked is not None else ""
        name = program.rsplit("/", 1)[-1] or key.comm
        resource = self._labeler.resource(
            key.pid, key.cookie, key.cgroup, wanted=labels.wanted, env=labels.env, comm=name
        )
        attributes: list[tuple[str, str | int]] = [("process.executable.name", name)]
        if program:
            attributes.append(("process.executable.path", program))
        attributes.append(("process.pid", key.pid))
        return resource, tuple(attributes)
