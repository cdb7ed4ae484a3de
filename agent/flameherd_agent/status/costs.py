"""What each policy costs on this node, and the rates that keep its budget.

Between the agent's loop, which gives slots and ends intervals, and the pure parts: `totals` and
`pipeline.budget`. `step` is called in every step of the loop, also while an interval waits for
names: a budget is looked at once a second.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from flameherd_policy.report import BudgetState

from flameherd_agent.kernel.sampler import Sampler
from flameherd_agent.model import ResourceProfiles
from flameherd_agent.observe.logs import Log
from flameherd_agent.observe.metrics import Family, counter, gauge, labels
from flameherd_agent.pipeline.budget import STEP_S, RateControl
from flameherd_agent.pipeline.export.exporter import Exporter
from flameherd_agent.pipeline.slots import ActiveSlot
from flameherd_agent.status.totals import Totals

log = Log(__name__)

REMEMBERED: Final = 1024
"""Policies that are gone and come back go on where they were; so many, at most, are remembered."""


class Costs:
    """By policy. For the agent's loop."""

    def __init__(self, sampler: Sampler, clock: Callable[[], float] = time.monotonic) -> None:
        self.totals = Totals()
        self._sampler = sampler
        self._clock = clock
        self._slots: dict[str, ActiveSlot] = {}
        self._controls: dict[str, RateControl] = {}
        self._step_at = 0.0

    def begin(self, active: ActiveSlot) -> int:
        """A policy is carried out from now on, or otherwise than before; the rate to sample at."""
        name = active.policy.name
        meter = self._sampler.meter(active.slot)
        self.totals.begin(name, active.slot, meter)
        before = self._slots.get(name)
        self._slots[name] = active
        budget = active.cpus
        if budget is None:
            self._controls.pop(name, None)
            return active.frequency_hz
        same = before is not None and (before.slot, before.cpus, before.frequency_hz) == (
            *(active.slot, budget, active.frequency_hz),
        )
        if not same or name not in self._controls:
            self._controls[name] = RateControl(
                budget, active.frequency_hz, self._clock(), meter.run_ns, meter.samples
            )
        return self._controls[name].hz

    def leave(self, name: str) -> None:
        """A policy's slot has been switched off; its last interval is still to end."""
        self._controls.pop(name, None)

    def keep(self, names: Iterable[str]) -> None:
        """These policies are carried out; others no longer."""
        kept = set(names)
        self._slots = {name: active for name, active in self._slots.items() if name in kept}
        self._controls = {name: each for name, each in self._controls.items() if name in kept}
        self.totals.carried_out(kept)
        if len(self.totals.by_policy) > REMEMBERED:
            self.totals.forget(kept)

    def step(self) -> None:
        """Once a second: a rate that costs too much falls, one that was lowered rises again."""
        now = self._clock()
        if now < self._step_at:
            return
        self._step_at = now + STEP_S
        for name, control in self._controls.items():
            slot = self._slots[name].slot
            meter = self._sampler.meter(slot)
            before, state = control.hz, control.state
            if control.step(now, meter.run_ns, meter.samples) != before:
                self._sampler.set_rate(slot, control.hz)
            if control.state is not state:
                log.once(
                    f"budget {name} {control.state}",
                    "the CPU budget of a policy",
                    policy=name,
                    state=control.state,
                    hertz=control.hz,
                )

    def interval(
        self,
        profiles: list[ResourceProfiles],
        exporters: Mapping[str, Exporter],
        agent_ns: int,
    ) -> None:
        """An interval has ended, which took so much of the agent's CPU time."""
        meters = {name: self._sampler.meter(each.slot) for name, each in self._slots.items()}
        shares = self.totals.interval(meters, profiles, agent_ns)
        for name, (share_ns, samples) in shares.items():
            if name in self._controls:
                self._controls[name].interval_ended(share_ns, samples)
        for name, exporter in exporters.items():
            self.totals.endpoint(name, id(exporter), exporter.stats(), self.users(name))

    def users(self, endpoint: str) -> tuple[str, ...]:
        """Policies that export there."""
        return tuple(n for n, each in self._slots.items() if each.policy.endpoint == endpoint)

    def rates(self) -> dict[str, tuple[int, BudgetState]]:
        """Policy → (rate in Hz, what its budget does)."""
        found = {n: (each.frequency_hz, BudgetState.KEPT) for n, each in self._slots.items()}
        return found | {n: (each.hz, each.state) for n, each in self._controls.items()}

    def families(self) -> list[Family]:
        """Metrics."""
        rates = self.rates()
        totals = {n: total for n, total in self.totals.by_policy.items() if n in rates}
        return [
            gauge(
                "flameherd_slot_hertz",
                "Rate that a policy is sampled at; its CPU budget may lower it",
                {labels(policy=name): hertz for name, (hertz, _) in rates.items()},
            ),
            counter(
                "flameherd_slot_agent_nanoseconds_total",
                "A policy's share of the CPU time that the agent takes to end intervals",
                {labels(policy=name): round(total.agent_ns) for name, total in totals.items()},
            ),
        ]
