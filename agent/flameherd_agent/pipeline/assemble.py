"""An interval's raw samples → profiles: one resource per container or executable, one profile per (slot, epoch).

A profile carries the period of its own rate epoch, so that samples times period is CPU time whatever happened to
the rate in between.
"""

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class SlotLabels:
    """What a slot adds to its resources."""

    policy: str
    wanted: WantedAttributes = field(default_factory=WantedAttributes)
    env: tuple[str, ...] = ()


class Assembler:
    """Names and labels intervals. Single-threaded."""

    def __init__(self, namer: Namer, labeler: ResourceLabeler, processes: ProcessTable) -> None:
        self._namer = namer
        self._labeler = labeler
        self._processes = processes

    def assemble(
        self,
        interval: Interval,
        periods_ns: Mapping[tuple[SlotId, int], int],
        labels: Mapping[SlotId, SlotLabels],
    ) -> list[ResourceProfiles]:
        """Profiles of every slot. Samples of a slot that is gone from `labels` are labelled with no policy."""
        # CLOCK_MONOTONIC → wall clock, once for the interval.
        to_unix = time.time_ns() - time.monotonic_ns()
        resources: dict[tuple[SlotId, Attributes], dict[int, Profile]] = defaultdict(dict)
        seen: dict[tuple[int, int, int, SlotId], tuple[Resource, Attributes]] = {}
        for key, count in interval.samples():
            identity = (key.pid, key.cookie, key.cgroup, key.slot)
            if identity not in seen:
                seen[identity] = self._label(key, labels.get(key.slot, SlotLabels("")))
            resource, process = seen[identity]
            profiles = resources[key.slot, resource.attributes]
            profile = profiles.get(key.epoch)
            if profile is None:
                profile = profiles[key.epoch] = Profile(
                    samples=[],
                    period_ns=periods_ns[key.slot, key.epoch],
                    time_unix_ns=interval.started_ns + to_unix,
                    duration_ns=interval.ended_ns - interval.started_ns,
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
