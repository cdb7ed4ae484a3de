"""A policy's CPU budget: the rate that keeps to it, against a simulated machine."""

import random
from collections.abc import Callable

import pytest
from flameherd_agent.pipeline.budget import FLOOR_HZ, RateControl
from flameherd_policy.report import BudgetState

KERNEL_NS, AGENT_NS = 20_000, 30_000
SAMPLE_S = (KERNEL_NS + AGENT_NS) / 1e9


class Machine:
    """Samples cost what they cost; `busy` says how many CPUs the pods use at a time."""

    def __init__(self, budget: float, wanted_hz: int, busy: Callable[[float], float]) -> None:
        self.control = RateControl(budget, wanted_hz, 0.0, 0, 0)
        self.busy = busy
        self.rng = random.Random(7)
        self.now, self.kernel_ns, self.samples = 0.0, 0, 0
        self.interval = 0
        self.spent: list[float] = []
        self.rates: list[int] = []

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            mean = self.control.hz * self.busy(self.now)
            count = max(0, round(self.rng.gauss(mean, mean**0.5)))
            self.now += 1.0
            self.samples += count
            self.interval += count
            self.kernel_ns += count * KERNEL_NS
            self.spent.append(count * SAMPLE_S)
            self.rates.append(self.control.hz)
            if self.now % 10 == 0:
                self.control.interval_ended(self.interval * AGENT_NS, self.interval)
                self.interval = 0
            self.control.step(self.now, self.kernel_ns, self.samples)

    def minutes(self) -> list[float]:
        """CPUs that each whole minute took."""
        return [sum(self.spent[at : at + 60]) / 60 for at in range(0, len(self.spent) - 59, 60)]


@pytest.mark.parametrize("cpus", [1.0, 8.0, 64.0])
@pytest.mark.parametrize("wanted_hz", [97, 997])
@pytest.mark.parametrize("budget", [0.0005, 0.005, 0.05])
def test_every_minute_keeps_to_the_budget(budget: float, wanted_hz: int, cpus: float) -> None:
    machine = Machine(budget, wanted_hz, lambda _now: cpus)
    machine.run(600)
    least = FLOOR_HZ * cpus * SAMPLE_S
    most = max(budget, least)
    asked = wanted_hz * cpus * SAMPLE_S
    # The first second is spent before anything is known.
    first, second, *others = machine.minutes()
    assert first <= 1.1 * most + asked / 60
    assert max(second, *others) <= 1.1 * most
    # Nor is the budget left unused.
    assert min(others) >= 0.5 * min(asked, most)
    if asked > 1.2 * budget:
        wanted = BudgetState.FLOOR if least > 1.2 * budget else BudgetState.LOWERED
        assert machine.control.state is wanted
    elif asked < 0.8 * budget:
        assert machine.control.state is BudgetState.KEPT
        assert set(machine.rates) == {wanted_hz}


def test_the_rate_recovers_when_the_load_goes() -> None:
    machine = Machine(0.005, 997, lambda now: 8.0 if now < 120 else 0.01)
    machine.run(120)
    assert machine.control.hz < 30
    machine.run(120)
    assert machine.control.hz == 997
    assert machine.control.state is BudgetState.KEPT
    assert max(machine.minutes()[1:]) <= 1.1 * 0.005


def test_bursts_are_paid_back() -> None:
    machine = Machine(0.005, 499, lambda now: 16.0 if now % 60 < 5 else 0.1)
    machine.run(1200)
    assert sum(machine.spent) / 1200 <= 1.05 * 0.005


def test_rates_do_not_flutter() -> None:
    machine = Machine(0.005, 997, lambda _now: 4.0)
    machine.run(600)
    changes = sum(a != b for a, b in zip(machine.rates[60:], machine.rates[61:], strict=False))
    assert changes < 60


def test_what_a_slot_had_before_is_not_counted() -> None:
    control = RateControl(0.001, 97, 0.0, 10**12, 10**6)
    assert control.step(1.0, 10**12, 10**6) == 97
    assert control.step(1.1, 10**13, 10**7) == 97  # too soon to tell
    assert control.state is BudgetState.KEPT
    assert control.step(2.0, 10**13, 10**7) == FLOOR_HZ
    assert control.state.value == "Floor"
