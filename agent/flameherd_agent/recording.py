"""A recording: profile processes, containers or the machine for a while, and keep everything.

What `flameherd record` runs, and what the tests judge the agent by.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from flameherd_agent.app import Engine, EngineOptions
from flameherd_agent.errors import UsageError
from flameherd_agent.kernel.abi import Limit
from flameherd_agent.kernel.perf import online_cpus
from flameherd_agent.kernel.sampler import MAX_FREQUENCY_HZ
from flameherd_agent.metadata.cgroup import container_of_path
from flameherd_agent.model import Profile, ResourceProfiles, Sample
from flameherd_agent.pipeline.assemble import SlotLabels
from flameherd_agent.types import Pid, SlotId

SETTLE_S: Final = 20.0
"""How long cold samples may wait for their executables at the end."""
_LONGEST_INTERVAL_S: Final = 5.0


@dataclass(slots=True)
class RecordingResult:
    """What was recorded."""

    profiles: list[ResourceProfiles] = field(default_factory=list)
    outcomes: dict[str, int] = field(default_factory=dict)
    """{name of the outcome: samples}"""
    samples: int = 0
    """Accepted by the kernel side."""
    lost: int = 0
    """Of these, in no profile."""

    def collected(self) -> int:
        """Samples in the profiles."""
        return sum(
            sample.value
            for resource in self.profiles
            for profile in resource.profiles
            for sample in profile.samples
        )

    def unnamed_leaves(self) -> int:
        """Samples whose leaf has no name."""
        return sum(
            sample.value
            for resource in self.profiles
            for profile in resource.profiles
            for sample in profile.samples
            if not sample.stack or not sample.stack[0].lines
        )


class Recording:
    """Use as a context manager; sampling begins on entry.

    `pids`: these processes and what they fork. `containers`: ids or their first digits. `everything`: the whole
    machine. `slots`: (pid, frequency) pairs, each in a slot of its own, instead of `pids`.
    """

    def __init__(
        self,
        pids: Sequence[int] = (),
        *,
        frequency_hz: int = 97,
        containers: Sequence[str] = (),
        everything: bool = False,
        slots: Sequence[tuple[int, int]] = (),
        options: EngineOptions | None = None,
    ) -> None:
        for frequency in (frequency_hz, *(hz for _, hz in slots)):
            if not 1 <= frequency <= MAX_FREQUENCY_HZ:
                raise UsageError(
                    f"frequency: {frequency} is not between 1 and {MAX_FREQUENCY_HZ} Hz"
                )
        self._pids = pids
        self._frequency_hz = frequency_hz
        self._containers = containers
        self._everything = everything
        self._slots = slots
        self._options = options
        self._merged = _Merged()

    def __enter__(self) -> "Recording":
        self.engine = Engine(self._options)
        try:
            self._select()
        except BaseException:
            self.engine.close()
            raise
        self._flip_at = time.monotonic() + self._interval_s
        return self

    def __exit__(self, *exc: object) -> None:
        self.engine.close()

    def _select(self) -> None:
        engine = self.engine
        first = SlotId(1)
        highest = max((hz for _, hz in self._slots), default=self._frequency_hz)
        rate = max(highest, self._frequency_hz) * len(online_cpus())
        self._interval_s = min(_LONGEST_INTERVAL_S, 0.5 * Limit.MAX_COUNTS / rate)
        if self._slots:
            for number, (pid, frequency_hz) in enumerate(self._slots, start=1):
                engine.set_slot(SlotId(number), SlotLabels(f"record/{pid}"), frequency_hz)
                engine.select_process(Pid(pid), SlotId(number))
            return
        engine.set_slot(first, SlotLabels("record"), self._frequency_hz)
        for pid in self._pids:
            engine.select_process(Pid(pid), first)
        cgroups = self._container_cgroups()
        if self._everything:
            cgroups[engine.hierarchy.root_id()] = first
        if cgroups:
            engine.sampler.select_cgroups(cgroups)

    def _container_cgroups(self) -> dict[int, SlotId]:
        found: dict[int, SlotId] = {}
        for wanted in self._containers:
            before = len(found)
            for cgroup, path in self.engine.hierarchy.walk():
                container = container_of_path(path)
                if container is not None and container.container_id.startswith(wanted):
                    found[cgroup] = SlotId(1)
            if len(found) == before:
                raise UsageError(
                    f"--container {wanted}: no container of this machine has an id that begins so; "
                    "`crictl ps` or `docker ps` lists them"
                )
        return found

    def run(self, seconds: float, tick: Callable[[float], bool] | None = None) -> None:
        """Record for a while. `tick(elapsed)` is called about five times a second; False ends it early."""
        started = time.monotonic()
        while (elapsed := time.monotonic() - started) < seconds:
            if tick is not None and not tick(elapsed):
                break
            self.engine.step(min(0.2, seconds - elapsed))
            if time.monotonic() >= self._flip_at:
                self._flip()

    def _flip(self) -> None:
        self._merged.add(self.engine.profiles(self.engine.take()))
        self._flip_at = time.monotonic() + self._interval_s

    def result(self) -> RecordingResult:
        """Stop sampling, let what is in flight arrive, and return everything."""
        engine = self.engine
        for slot in range(1, max(1, len(self._slots)) + 1):
            engine.clear_slot(SlotId(slot))
        engine.settle(SETTLE_S)
        self._flip()
        self._flip()
        summary = engine.summary()
        result = RecordingResult(
            self._merged.profiles(), dict(summary.outcomes), summary.samples, 0
        )
        result.lost = max(0, result.samples - result.collected())
        return result


class _Merged:
    """Profiles of several intervals as one: equal stacks with equal attributes add up."""

    def __init__(self) -> None:
        self._resources: dict[tuple[object, ...], ResourceProfiles] = {}
        self._samples: dict[tuple[object, ...], dict[tuple[object, ...], Sample]] = {}
        self._profiles: dict[tuple[object, ...], Profile] = {}

    def add(self, resources: Iterable[ResourceProfiles]) -> None:
        for resource in resources:
            where = (resource.attributes, resource.policy)
            self._resources.setdefault(
                where, ResourceProfiles(resource.attributes, [], resource.policy)
            )
            for profile in resource.profiles:
                key = (*where, profile.period_ns)
                known = self._profiles.get(key)
                if known is None:
                    known = self._profiles[key] = replace(profile, samples=[])
                    self._resources[where].profiles.append(known)
                end = profile.time_unix_ns + profile.duration_ns
                known.duration_ns = max(known.duration_ns, end - known.time_unix_ns)
                samples = self._samples.setdefault(key, {})
                for sample in profile.samples:
                    # Locations are interned and kept alive by the samples: their identity is their value.
                    same = (
                        tuple(map(id, sample.stack)),
                        sample.attributes,
                        sample.truncated,
                    )
                    before = samples.get(same)
                    samples[same] = (
                        sample
                        if before is None
                        else replace(before, value=before.value + sample.value)
                    )

    def profiles(self) -> list[ResourceProfiles]:
        for key, profile in self._profiles.items():
            profile.samples = list(self._samples[key].values())
        return list(self._resources.values())
