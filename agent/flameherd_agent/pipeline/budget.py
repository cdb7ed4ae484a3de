"""A policy's CPU budget on this node: from what it has cost to the rate that keeps to it. Pure.

What it costs is the time of the programs in the kernel for its samples, which they measure
themselves, and its share of the CPU time that the agent takes to end intervals (drain, names,
encoding), by samples. The agent's fixed costs are no policy's: no rate would lower them.

The budget is an account: it fills with time, as far as ten seconds' worth, and is emptied by what is
spent. The rate is chosen so that the account is even within ten seconds, so that what a burst has
overdrawn is saved afterwards, and a minute keeps to the budget. What a burst takes in the second
before it is noticed, beyond a minute's worth, is let go: else the rate would stay low for hours. Each
change is a new rate epoch of the slot: samples times period stays CPU time.
"""

from typing import Final

from flameherd_policy.report import BudgetState

FLOOR_HZ: Final = 1
"""Below it a profile would say nothing; what one sample a second of CPU time costs is told instead."""
STEP_S: Final = 1.0
_HORIZON_S: Final = 10.0
_DEBT_S: Final = 60.0
_RISE_S: Final = 10.0
"""A rate rises at most once in so long, at most twofold: load that comes and goes is no reason."""
_RISE: Final = 2.0
_WORTH_LOWER, _WORTH_RISE = 0.9, 1.25
"""Changes of less are not worth an epoch."""
_FIRST_AGENT_NS: Final = 30_000.0
"""Assumed of a sample until the first interval has ended."""
_SMOOTH: Final = 0.3


class RateControl:
    """One policy on this node; it begins with the slot's meters as they are."""

    def __init__(
        self, budget_cpus: float, wanted_hz: int, now_s: float, kernel_ns: int, samples: int
    ) -> None:
        self.budget_cpus = budget_cpus
        self.wanted_hz = wanted_hz
        self.hz = wanted_hz
        """The rate to sample at."""
        self._at = now_s
        self._rose_at = now_s
        self._kernel_ns = kernel_ns
        self._samples = samples
        self._agent_ns = _FIRST_AGENT_NS
        self._balance_ns = 0.0
        self._per_hz: float | None = None
        """CPUs that it costs at 1 Hz, smoothed."""

    @property
    def state(self) -> BudgetState:
        if self.hz == FLOOR_HZ and (self._per_hz or 0.0) * FLOOR_HZ > self.budget_cpus:
            return BudgetState.FLOOR
        return BudgetState.LOWERED if self.hz < self.wanted_hz else BudgetState.KEPT

    def interval_ended(self, agent_ns: float, samples: int) -> None:
        """It took `agent_ns` of the agent's CPU time to end an interval with so many samples."""
        if samples:
            self._agent_ns += _SMOOTH * (agent_ns / samples - self._agent_ns)

    def step(self, now_s: float, kernel_ns: int, samples: int) -> int:
        """Call it about once a second with the slot's meters; the rate from now on."""
        elapsed_s = now_s - self._at
        if elapsed_s < STEP_S / 2:
            return self.hz
        used_ns = kernel_ns - self._kernel_ns + (samples - self._samples) * self._agent_ns
        self._at, self._kernel_ns, self._samples = now_s, kernel_ns, samples
        budget_ns = self.budget_cpus * 1e9
        balance = self._balance_ns + budget_ns * elapsed_s - used_ns
        self._balance_ns = max(-_DEBT_S * budget_ns, min(_HORIZON_S * budget_ns, balance))
        per_hz = used_ns / elapsed_s / 1e9 / self.hz
        if self._per_hz is None or per_hz > 2 * self._per_hz:
            self._per_hz = per_hz
        else:
            self._per_hz += _SMOOTH * (per_hz - self._per_hz)
        self._choose(now_s)
        return self.hz

    def _choose(self, now_s: float) -> None:
        allowed = self.budget_cpus + self._balance_ns / 1e9 / _HORIZON_S
        if allowed <= 0:
            target = FLOOR_HZ
        elif not self._per_hz or allowed / self._per_hz >= self.wanted_hz:
            target = self.wanted_hz
        else:
            target = max(FLOOR_HZ, int(allowed / self._per_hz))
        if target <= _WORTH_LOWER * self.hz:
            self.hz = target
            self._rose_at = now_s
        elif target > self.hz and now_s - self._rose_at >= _RISE_S:
            risen = min(target, max(self.hz + 1, int(self.hz * _RISE)))
            if risen == self.wanted_hz or risen >= _WORTH_RISE * self.hz:
                self.hz = risen
                self._rose_at = now_s
