"""The long-running agent: carries out what its source tells, exports, and tells how it is doing.

One loop, the engine's. Profiles of a policy go to that policy's endpoint only; each endpoint has its own bounded queue
and thread, so that a dead one costs nobody else.

What a source tells comes in two steps. New slots and what is selected take effect at once, in whatever step of the loop:
a container's first second counts. Slots that go or change end the interval first, since what was taken so far belongs to
them as they were, and ending it may wait for names.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

import msgspec
from flameherd_policy.agent_config import AgentConfig, AgentEndpoint

from flameherd_agent.app import Engine
from flameherd_agent.configuration import Source
from flameherd_agent.engine_metrics import engine_families
from flameherd_agent.kernel.abi import Counter, Limit, Outcome
from flameherd_agent.kernel.perf import online_cpus
from flameherd_agent.kernel.sampler import SlotMeter
from flameherd_agent.kernel.ticks import TickBalance, throttled_above_hz
from flameherd_agent.model import ResourceProfiles
from flameherd_agent.observe.logs import Log
from flameherd_agent.observe.memory import give_back
from flameherd_agent.observe.metrics import Family, counter, gauge, labels
from flameherd_agent.observe.usage import usage_families
from flameherd_agent.pipeline.endpoints import endpoint_config
from flameherd_agent.pipeline.export import Exporter
from flameherd_agent.pipeline.slots import ActiveSlot, SlotNumbers, active_slots, select
from flameherd_agent.status.costs import Costs
from flameherd_agent.status.reporter import Node, Now, Pusher, Reporter
from flameherd_agent.types import NO_SLOT, Pid, SlotId

log = Log(__name__)

DEFAULT_INTERVAL_S: Final = 10.0
_SELECT_S: Final = 1.0
"""Containers that are selected by id are looked for this often."""
_FLUSH_S: Final = 5.0
_GIVE_BACK_S: Final = 60.0
"""Memory that is held and not used is given back this often, and after each of the first two intervals."""
_LATE_S: Final = 20.0
"""The end of an interval may wait 15 s for names."""
_MOST_CGROUPS: Final = int(Limit.CGROUP_CACHE) // 2
"""What is selected anew is in the kernel's map before what is not any more is taken out."""
QUEUES_BYTES: Final = 16 << 20
"""Of what waits for all endpoints together: a node with many policies may have many dead endpoints."""
_LEAST_QUEUE_BYTES: Final = 256 << 10
_MOST_QUEUE_BYTES: Final = 8 << 20
_WATCHED_INTERVAL_S: Final = 2.0
_MISSED_SHARE: Final = 0.05
"""Of the ticks of busy CPUs in an interval: more that are missed are told of."""
_MISSED_LEAST: Final = 20

ProfilesSink = Callable[[list[ResourceProfiles]], None]


def _used(config: AgentConfig) -> list[str]:
    """Names of the endpoints that slots export to."""
    return sorted({slot.endpoint for slot in config.policies if slot.endpoint is not None})


class Service:
    """Use as a context manager. `sink`, if given, also sees every interval's profiles."""

    def __init__(self, engine: Engine, source: Source, sink: ProfilesSink | None = None) -> None:
        self._engine = engine
        self._source = source
        self._sink = sink
        # Somebody watches: answer keys, and show new numbers soon.
        self._step_s = 0.1 if sink is not None else 1.0
        self._numbers = SlotNumbers()
        self._config = AgentConfig()
        self._slots: dict[str, ActiveSlot] = {}
        self._begins: dict[str, SlotMeter] = {}
        """Each slot's meter when it began."""
        self._exporters: dict[str, tuple[AgentEndpoint, Exporter]] = {}
        self._closing: list[threading.Thread] = []
        self._processes: dict[Pid, SlotId] = {}
        self._cgroups: dict[int, Any] = {}
        self._undefined = 0
        self._late = 0
        self._balance = TickBalance(0.0, 0.0, 0)
        self._costs = Costs(engine.sampler)
        self._reporter: Reporter | None = None
        self._started = time.time()
        self._last_interval = time.monotonic()
        self._give_back_at = 0.0
        self._families: list[Family] = []
        self._status: dict[str, Any] = {}
        self._apply()
        engine.each_step = self._follow

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *exc: object) -> None:
        for _, exporter in self._exporters.values():
            self._close(exporter)
        for thread in self._closing:
            thread.join()

    def _close(self, exporter: Exporter) -> None:
        """What is queued is sent within a deadline; nobody waits for it meanwhile."""
        self._closing = [thread for thread in self._closing if thread.is_alive()]
        thread = threading.Thread(target=exporter.close, args=(_FLUSH_S,), daemon=True)
        thread.start()
        self._closing.append(thread)

    # Configuration

    def _follow(self) -> None:
        """In every step of the engine, also while an interval waits for its names."""
        if self._source.refresh():
            self._admit()
            self._select()
            self._status = {**self._status, **self._told()}
        self._costs.step()
        if self._reporter is not None:
            self._reporter.step()

    def _told(self) -> dict[str, Any]:
        """What /status shows of the source."""
        return {"configError": self._source.error, **self._source.status()}

    def _admit(self) -> None:
        """Slots that are new begin now."""
        wanted = self._source.config
        new = {policy.name for policy in wanted.policies} - set(self._slots)
        if not new:
            return
        leaving = (slot.policy for slot in self._slots.values())
        policies = {policy.name: policy for policy in (*leaving, *wanted.policies)}
        both = msgspec.structs.replace(wanted, policies=tuple(policies.values()))
        for active in active_slots(both, self._numbers):
            policy = active.policy
            if policy.name not in new or not self._open_endpoint(policy.endpoint, wanted):
                continue
            self._engine.rouse()
            self._begins[policy.name] = self._engine.sampler.meter(active.slot)
            self._engine.set_slot(active.slot, active.labels, self._costs.begin(active))
            self._slots[policy.name] = active
            log.info("slot begins", policy=policy.name, hertz=active.frequency_hz)
        self._interval_s = self._shortest_interval()
        self._share_memory()

    def _open_endpoint(self, name: str | None, config: AgentConfig) -> bool:
        """Whether there is one like this now. One that changed has to wait for the interval's end."""
        if name is None:
            return True
        known = self._exporters.get(name)
        if known is None:
            self._exporters[name] = self._exporter(name, config.endpoints[name])
        return known is None or known[0] == config.endpoints[name]

    def _exporter(self, name: str, endpoint: AgentEndpoint) -> tuple[AgentEndpoint, Exporter]:
        return endpoint, Exporter(endpoint_config(name, endpoint, self._source.author))

    def _apply(self) -> None:
        """Carry out what the source tells, all of it."""
        kept = {policy.name for policy in self._source.config.policies}
        for name, slot in self._slots.items():
            if name not in kept:
                self._costs.leave(name)
                self._engine.clear_slot(slot.slot)
        if self._slots:
            # What was taken so far belongs to the policies and endpoints as they were.
            self._end_interval()
        # The source may have told more meanwhile.
        config = self._source.config
        exporters = self._open_endpoints(config)
        slots = {slot.policy.name: slot for slot in active_slots(config, self._numbers)}
        gone = {self._slots[name].slot for name in set(self._slots) - set(slots)}
        for slot_id in gone:
            self._engine.clear_slot(slot_id)
        self._processes = {pid: s for pid, s in self._processes.items() if s not in gone}
        if slots:
            self._engine.rouse()
        self._costs.keep(slots)
        self._begins = {
            name: self._begins.get(name) or self._engine.sampler.meter(active.slot)
            for name, active in slots.items()
        }
        for name, active in slots.items():
            self._engine.set_slot(active.slot, active.labels, self._costs.begin(active))
            for reason in active.policy.clipped_by:
                log.once(f"clipped {name}", "policy clipped", policy=name, by=reason)
        for name, (_, exporter) in self._exporters.items():
            if exporters.get(name, (None, None))[1] is not exporter:
                self._close(exporter)
        self._config, self._slots, self._exporters = config, slots, exporters
        self._interval_s = self._shortest_interval()
        self._share_memory()
        self._select()
        if not slots:
            self._engine.rest()
        self._observe()

    def _differs(self) -> bool:
        """Whether the source tells something else than what is carried out."""
        told = self._source.config
        if told is self._config:
            return False
        carried_out = {name: slot.policy for name, slot in self._slots.items()}
        endpoints = {name: endpoint for name, (endpoint, _) in self._exporters.items()}
        if (
            carried_out == {policy.name: policy for policy in told.policies}
            and endpoints == {name: told.endpoints[name] for name in _used(told)}
            and told.ceilings == self._config.ceilings
        ):
            self._config = told
            return False
        return True

    def _open_endpoints(self, config: AgentConfig) -> dict[str, tuple[AgentEndpoint, Exporter]]:
        """An exporter for each endpoint; those that did not change stay, with their queues."""
        result: dict[str, tuple[AgentEndpoint, Exporter]] = {}
        for name in _used(config):
            endpoint = config.endpoints[name]
            known = self._exporters.get(name)
            if known is not None and known[0] == endpoint:
                result[name] = known
            else:
                result[name] = self._exporter(name, endpoint)
        return result

    def _share_memory(self) -> None:
        """Every endpoint's queue gets its part."""
        share = QUEUES_BYTES // max(1, len(self._exporters))
        for _, exporter in self._exporters.values():
            exporter.limit(min(_MOST_QUEUE_BYTES, max(_LEAST_QUEUE_BYTES, share)))

    def _shortest_interval(self) -> float:
        """Seconds between drains: the shortest that an endpoint wants, and before the count maps could fill."""
        wanted = [endpoint.interval.seconds for endpoint, _ in self._exporters.values()]
        rate = sum(slot.frequency_hz for slot in self._slots.values()) * len(online_cpus())
        fills = 0.5 * Limit.MAX_COUNTS / max(1, rate)
        watched = [] if self._sink is None else [_WATCHED_INTERVAL_S]
        return max(1.0, min([*wanted, *watched, DEFAULT_INTERVAL_S, fills]))

    def _select(self) -> None:
        selected = select(self._slots.values(), self._engine.hierarchy)
        for cgroup, name in self._source.cgroups.items():
            active = self._slots.get(name or "")
            # One that has no slot yet is nobody's, whatever is above it.
            selected.cgroups[cgroup] = active.slot if active is not None else NO_SLOT
        cgroups = selected.cgroups
        if len(cgroups) > _MOST_CGROUPS:
            log.once("cgroups", "more pods than the kernel's map takes", cgroups=len(cgroups))
            cgroups = dict(islice(cgroups.items(), _MOST_CGROUPS))
        if cgroups != self._cgroups:
            self._engine.sampler.select_cgroups(cgroups)
            self._cgroups = dict(cgroups)
        for pid in set(self._processes) - set(selected.processes):
            self._engine.sampler.deselect_process(pid)
        for pid, slot in selected.processes.items():
            if self._processes.get(pid) != slot:
                self._engine.select_process(pid, slot)
        self._processes = dict(selected.processes)

    # The loop

    def run(self, stopped: Callable[[], bool]) -> None:
        """Until `stopped()` says so; then the last interval is exported too."""
        select_at = time.monotonic()
        while not stopped():
            now = time.monotonic()
            if self._differs():
                self._apply()
                log.info("configuration applied", version=self._config.version)
            if now >= select_at:
                select_at = now + _SELECT_S
                if any(slot.policy.selector.container_ids for slot in self._slots.values()):
                    self._select()
            due = self._last_interval + self._interval_s
            if now >= due:
                self._end_interval()
            self._engine.step(max(0.0, min(self._step_s, due - now)))
        self._end_interval(last=True)

    def _end_interval(self, *, last: bool = False) -> None:
        began_ns = time.thread_time_ns()
        interval = self._engine.take()
        self._last_interval = time.monotonic()
        self._undefined += interval.undefined
        profiles = self._engine.profiles(interval, hold=not last)
        by_endpoint: dict[str, list[ResourceProfiles]] = {}
        for resource in profiles:
            active = self._slots.get(resource.policy)
            if active is None:
                self._late += sum(s.value for each in resource.profiles for s in each.samples)
            elif active.policy.endpoint is not None:
                by_endpoint.setdefault(active.policy.endpoint, []).append(resource)
        for name, batch in by_endpoint.items():
            if name in self._exporters:
                self._exporters[name][1].submit(batch)
        if self._sink is not None:
            self._sink(profiles)
        self._engine.sampler.forget_epochs()
        used = {name: exporter for name, (_, exporter) in self._exporters.items()}
        self._costs.interval(profiles, used, time.thread_time_ns() - began_ns)
        self._observe()
        self._give_back()

    def _give_back(self) -> None:
        """The first interval ends the start; the second one has seen the first export."""
        now = time.monotonic()
        if now >= self._give_back_at:
            self._give_back_at = now + (_GIVE_BACK_S if self._give_back_at else 0.0)
            give_back()

    # Status, for the operator

    def report_to(self, pusher: Pusher, node: Node) -> None:
        """Tell the operator how this node fares, from now on."""
        versions: Mapping[str, str] = {}

        def now() -> Now:
            nonlocal versions
            if not self._differs():  # else the loop is about to carry out what was told
                versions = node.versions()
            return Now(
                rates=self._costs.rates(),
                coverage=node.coverage(),
                endpoints={
                    name: (exporter.stats(), self._costs.users(name))
                    for name, (_, exporter) in self._exporters.items()
                },
                versions=versions,
                notices=tuple(node.problems()),
            )

        self._reporter = Reporter(pusher, self._costs.totals, now)

    # Self-observation: a snapshot by the loop, read by the server's thread

    def collect(self) -> Iterator[Family]:
        """Metric families of the last snapshot, and what the process uses now."""
        yield from self._families
        yield from usage_families()

    def status(self) -> Mapping[str, Any]:
        """What /status shows."""
        return self._status

    def healthy(self) -> tuple[bool, str]:
        """Whether it samples, or there is nothing to sample on purpose."""
        late = time.monotonic() - self._last_interval
        if late > 3 * self._interval_s + _LATE_S:
            return False, f"no interval has ended for {late:.0f} s"
        return self._source.ready()

    def _tell_missed(self, now: TickBalance) -> None:
        """Say it when an interval shows too little, and why if the kernel tells."""
        before, self._balance = self._balance, now
        missed = now.missed - before.missed
        busy = now.due - now.idle - before.due + before.idle
        if missed < max(_MISSED_LEAST, _MISSED_SHARE * busy):
            return
        tick_hz, most_hz = self._engine.sampler.tick_hz, throttled_above_hz()
        if tick_hz > most_hz:
            why = (
                f"the kernel throttles ticks beyond {most_hz} Hz, and {tick_hz:.0f} Hz are wanted: raise "
                "the sysctl kernel.perf_event_max_sample_rate, or lower the policies' rates"
            )
        else:
            why = "system calls on BPF maps by any process keep programs from running meanwhile"
        log.once(
            "missed",
            f"ticks of busy CPUs are missed, profiles show too little: {why}",
            missed=round(missed),
            share=f"{missed / busy:.1%}",
        )

    def _observe(self) -> None:
        engine = self._engine
        counts = engine.sampler.counters()
        balance = engine.sampler.tick_balance()
        self._tell_missed(balance)
        meters = {
            name: engine.sampler.meter(slot.slot).since(self._begins[name])
            for name, slot in self._slots.items()
        }
        endpoints = {name: exporter.stats() for name, (_, exporter) in self._exporters.items()}
        families = engine_families(engine, counts, balance)
        families += [
            counter("flameherd_stacks_undefined_total", "Samples without a stack", self._undefined),
            counter(
                "flameherd_samples_late_total",
                "Samples that were unwound when their policy was gone: not exported",
                self._late,
            ),
            counter(
                "flameherd_slot_samples_total",
                "Samples of a policy",
                {labels(policy=name): meter.samples for name, meter in meters.items()},
            ),
            counter(
                "flameherd_slot_run_nanoseconds_total",
                "BPF run time of a policy's samples",
                {labels(policy=name): meter.run_ns for name, meter in meters.items()},
            ),
            gauge(
                "flameherd_export_queue_bytes",
                "Bytes that wait for an endpoint",
                {labels(endpoint=name): each.queued_bytes for name, each in endpoints.items()},
            ),
            counter(
                "flameherd_export_sent_bytes_total",
                "Bytes sent to an endpoint",
                {labels(endpoint=name): each.sent_bytes for name, each in endpoints.items()},
            ),
            counter(
                "flameherd_export_dropped_batches_total",
                "Batches that did not reach an endpoint",
                {
                    labels(endpoint=name, reason=why): count
                    for name, each in endpoints.items()
                    for why, count in each.dropped_batches.items()
                },
            ),
        ]
        families += self._costs.families()
        if self._reporter is not None:
            families += self._reporter.families()
        rates = self._costs.rates()
        self._families = [*families, *self._source.families()]
        self._status = {
            "configVersion": self._config.version,
            **self._told(),
            "startedUnixSeconds": self._started,
            "intervalSeconds": self._interval_s,
            "ticks": {"due": balance.due, "idle": balance.idle, "seen": balance.seen},
            "counters": {name.name: counts[name] for name in (*Outcome, *Counter)},
            "policies": {
                name: {
                    "frequencyHz": rates[name][0],
                    "budget": rates[name][1],
                    "clippedBy": list(slot.policy.clipped_by),
                    "endpoint": slot.policy.endpoint,
                    "samples": meters[name].samples,
                    "bpfNanoseconds": meters[name].run_ns,
                }
                for name, slot in self._slots.items()
            },
            "endpoints": {
                name: {
                    "sentBatches": each.sent_batches,
                    "queuedBytes": each.queued_bytes,
                    "failing": each.failing,
                    "lastError": each.last_error,
                }
                for name, each in endpoints.items()
            },
        }
