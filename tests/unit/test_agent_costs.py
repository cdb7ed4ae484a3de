"""Costs and rates of policies as they come, change and go: with meters that the test turns."""

from typing import Any

from flameherd_agent.kernel.sampler import SlotMeter
from flameherd_agent.pipeline.assemble import SlotLabels
from flameherd_agent.pipeline.slots import ActiveSlot, SlotNumbers, active_slots
from flameherd_agent.status.costs import Costs
from flameherd_agent.types import SlotId
from flameherd_policy.agent_config import AgentConfig, Ceilings, PolicySlot, SlotSelector
from flameherd_policy.quantities import Quantity
from flameherd_policy.report import BudgetState

from tests.unit.test_agent_status import profiles


class Kernel:
    """Meters of slots, and the rates that they were set to."""

    def __init__(self) -> None:
        self.meters: dict[int, SlotMeter] = {}
        self.set: list[tuple[int, int]] = []
        self.now = 0.0
        self.costs = Costs(self, lambda: self.now)  # type: ignore[arg-type]

    def meter(self, slot: SlotId) -> SlotMeter:
        return self.meters.setdefault(slot, SlotMeter(0, 0, 0))

    def set_rate(self, slot: SlotId, hertz: int) -> None:
        self.set.append((slot, hertz))

    def runs(self, slot: int, samples: int) -> None:
        """A second in which so many samples are taken, of 20 µs each."""
        before = self.meter(SlotId(slot))
        self.now += 1.0
        self.meters[slot] = SlotMeter(0, before.samples + samples, before.run_ns + 20_000 * samples)
        self.costs.step()


def slot(name: str = "a", number: int = 1, hz: int = 97, cpus: float | None = None) -> ActiveSlot:
    policy = PolicySlot(name=name, selector=SlotSelector(host=True), frequency_hz=hz, endpoint="e")
    return ActiveSlot(SlotId(number), policy, SlotLabels(name), hz, cpus)


def test_a_rate_falls_and_outlives_changes_that_do_not_concern_it() -> None:
    kernel = Kernel()
    costs = kernel.costs
    assert costs.begin(slot(cpus=0.001)) == 97
    assert costs.begin(slot("b", 2)) == 97
    kernel.runs(1, 500)
    ((number, lowered),) = kernel.set
    assert number == 1
    assert lowered < 30
    assert costs.rates() == {"a": (lowered, BudgetState.LOWERED), "b": (97, BudgetState.KEPT)}
    # Another policy came: what the agent carries out is told to us anew.
    assert costs.begin(slot(cpus=0.001)) == lowered
    # This one changed: its rate is found anew.
    assert costs.begin(slot(cpus=0.002)) == 97
    assert costs.begin(slot(cpus=None)) == 97
    assert costs.rates()["a"] == (97, BudgetState.KEPT)


def test_a_policy_that_leaves_is_not_touched_any_more() -> None:
    kernel = Kernel()
    costs = kernel.costs
    costs.begin(slot(cpus=0.001))
    costs.leave("a")  # its slot is off; the interval is still to end
    kernel.runs(1, 500)
    assert kernel.set == []
    costs.interval([profiles("a", (400, True, False))], {}, 1000)
    assert costs.totals.by_policy["a"].samples == 500
    assert costs.totals.by_policy["a"].whole == 400
    costs.keep([])
    assert costs.rates() == {}
    # Its slot is another's now.
    costs.begin(slot("b", 1))
    kernel.runs(1, 50)
    costs.interval([profiles("b", (50, True, False))], {}, 1000)
    assert costs.totals.by_policy["a"].samples == 500
    assert costs.totals.by_policy["b"].samples == 50
    # It comes back, and goes on where it was.
    costs.begin(slot("a", 3))
    kernel.runs(3, 5)
    costs.interval([], {}, 0)
    assert costs.totals.by_policy["a"].samples == 505


def test_metrics_are_of_policies_that_are_carried_out() -> None:
    kernel = Kernel()
    kernel.costs.begin(slot("a", 1))
    kernel.costs.begin(slot("b", 2))
    kernel.costs.keep(["b"])
    found: dict[str, Any] = {family.name: family.samples for family in kernel.costs.families()}
    assert found["flameherd_slot_hertz"] == (((("policy", "b"),), 97),)
    assert len(found["flameherd_slot_agent_nanoseconds_total"]) == 1
    assert kernel.costs.users("e") == ("b",)


def test_ceilings_hold_for_budgets_too() -> None:
    def policy(name: str, budget: str | None) -> PolicySlot:
        amount = Quantity.parse(budget) if budget else None
        return PolicySlot(
            name=name, selector=SlotSelector(host=True), frequency_hz=19, cpu_per_node=amount
        )

    policies = (policy("a", "1m"), policy("b", "900m"), policy("c", None))
    ceilings = Ceilings(max_cpu_per_node=Quantity.parse("5m"))
    capped = active_slots(AgentConfig(policies=policies, ceilings=ceilings), SlotNumbers())
    assert [each.cpus for each in capped] == [0.001, 0.005, 0.005]
    free = active_slots(AgentConfig(policies=policies), SlotNumbers())
    assert [each.cpus for each in free] == [0.001, 0.9, None]
