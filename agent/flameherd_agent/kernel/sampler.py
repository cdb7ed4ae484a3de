"""The kernel side, attached: slots and their rates, selection by process and by cgroup, counters, ticks.

Ticks come at a little over twice the highest rate that any slot wants, so that a sample's threshold (0.5 to 1.5
periods) is never shorter than a tick; 2.07 rather than 2 keeps round rates off round beats.
"""

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flameherd_agent.kernel.abi import (
    Config,
    ConfigFlag,
    Counter,
    Outcome,
    Slot,
    SlotState,
)
from flameherd_agent.kernel.bpf import open_raw_tracepoint
from flameherd_agent.kernel.loader import Loaded, load
from flameherd_agent.kernel.perf import ProcessEvents
from flameherd_agent.kernel.ticks import TickBalance, Ticks
from flameherd_agent.types import Pid, SlotId

TICKS_PER_PERIOD: Final = 2.07
MAX_FREQUENCY_HZ: Final = 4999
EPOCH_REST_INTERVALS: Final = 30
"""The period of an epoch that is over is kept for so many intervals, each a second or longer."""
_TAIL_CALLS: Final = ("fh_native", "fh_finish", "fh_send_cold")  # enum fh_program
_TRACEPOINTS: Final = {
    "sched_process_fork": "fh_fork",
    "sched_process_exec": "fh_exec",
    "sched_process_exit": "fh_exit",
}


@dataclass(frozen=True, slots=True)
class SlotMeter:
    """What one slot has cost so far, over all CPUs."""

    ticks: int
    samples: int
    run_ns: int

    def since(self, begin: "SlotMeter") -> "SlotMeter":
        """What has come since: a slot's number may have been another policy's before."""
        return SlotMeter(
            self.ticks - begin.ticks, self.samples - begin.samples, self.run_ns - begin.run_ns
        )


class Sampler:
    """Programs loaded and attached. Nothing is sampled until a slot has a rate and something selects it."""

    def __init__(self, cache: Path | None, *, cold_bytes_per_second: int) -> None:
        self.loaded: Loaded = load(cache)
        self._tracepoints: list[int] = []
        self._ticks: Ticks | None = None
        self._rates: dict[SlotId, int] = {}
        self._epoch = 0
        self._epochs: dict[SlotId, int] = {}  # the one that is under way
        self._ended: dict[tuple[SlotId, int], int] = {}  # intervals since
        self._due_before = 0.0
        self._idle_before = 0.0
        self.periods_ns: dict[tuple[SlotId, int], int] = {}
        """{(slot, epoch): period in nanoseconds} of every epoch that a sample may still be of."""
        self.config: NDArray[Any] = np.zeros(1, Config)
        self.config["seed"] = int.from_bytes(os.urandom(8))
        self.config["cold_bytes_per_second"] = cold_bytes_per_second
        try:
            for number, name in enumerate(_TAIL_CALLS):
                fd = self.loaded.programs[name].fd
                self.loaded.maps["fh_programs"].update(_u32(number), _u32(fd))
            self._write_config()
            self.events = ProcessEvents()
            self._trace()
        except BaseException:
            self.close()
            raise

    def _trace(self) -> None:
        # Events before tracepoints: no process starts unseen by both.
        self.events.open()
        for tracepoint, program in _TRACEPOINTS.items():
            fd = open_raw_tracepoint(tracepoint, self.loaded.programs[program])
            self._tracepoints.append(fd)

    @property
    def resting(self) -> bool:
        """Whether processes are not followed: see `rest`."""
        return not self._tracepoints

    def rest(self) -> None:
        """While no slot has a rate: no perf event is open, and no program runs on forks and exits."""
        for fd in self._tracepoints:
            os.close(fd)
        self._tracepoints.clear()
        self.events.close()

    def rouse(self) -> None:
        """The end of a rest. What was known of processes is to have been forgotten."""
        self._trace()

    def _write_config(self) -> None:
        self.loaded.maps["fh_config"].update(_u32(0), self.config.tobytes())

    def configure(self, **fields: int) -> None:
        """Change fields of `fh_config`."""
        for name, value in fields.items():
            self.config[name] = value
        self._write_config()

    # Rates

    def set_rate(self, slot: SlotId, frequency_hz: int) -> None:
        """Sample `slot` at `frequency_hz` from now on; 0 switches it off. A change begins a new rate epoch."""
        if self._rates.get(slot, 0) == frequency_hz:
            return
        self._epoch += 1
        record = np.zeros(1, Slot)
        if slot in self._epochs:
            self._ended[slot, self._epochs.pop(slot)] = 0
        if frequency_hz:
            self._rates[slot] = frequency_hz
            self._epochs[slot] = self._epoch
            record["period_ns"] = round(1e9 / frequency_hz)
            record["epoch"] = self._epoch
            self.periods_ns[slot, self._epoch] = int(record["period_ns"][0])
        else:
            self._rates.pop(slot, None)
        self.loaded.maps["fh_slots"].update(_u32(slot), record.tobytes())
        self._adjust_ticks()

    def forget_epochs(self) -> None:
        """Drop the periods of epochs that ended long ago. Call it once an interval, after its samples were used.

        Cold samples wait for their executables: they may come several intervals after their epoch's end.
        """
        for ended, intervals in list(self._ended.items()):
            self._ended[ended] = intervals + 1
            if intervals >= EPOCH_REST_INTERVALS:
                del self._ended[ended], self.periods_ns[ended]

    def _adjust_ticks(self) -> None:
        highest = max(self._rates.values(), default=0)
        period = round(1e9 / (highest * TICKS_PER_PERIOD)) if highest else 0
        if self._ticks is not None and self._ticks.period_ns == period:
            return
        if self._ticks is not None:
            balance = self.tick_balance()
            self._due_before, self._idle_before = balance.due, balance.idle
            self._ticks.close()
            self._ticks = None
        if period:
            self._ticks = Ticks(self.loaded.programs["fh_tick"].fd, period)

    @property
    def tick_hz(self) -> float:
        """Ticks a second of each CPU; 0 while nothing is sampled."""
        return 1e9 / self._ticks.period_ns if self._ticks is not None else 0.0

    def follow_cpus(self) -> tuple[list[int], list[int]]:
        """Attach to CPUs that came online, let go of those that went. Returns (came, went)."""
        if self._ticks is not None:
            self._ticks.follow_cpus()
        return self.events.follow_cpus()

    # Selection

    def use_hierarchy(self, version: int) -> None:
        """Take tasks' cgroups from the unified hierarchy (2), or from that of the pids controller (1)."""
        flags = int(self.config["flags"][0]) & ~ConfigFlag.UNIFIED
        self.configure(flags=flags | (ConfigFlag.UNIFIED if version == 2 else 0))

    def select_process(self, pid: Pid, slot: SlotId) -> None:
        """Sample a process, and what it forks from now on, into `slot`."""
        self.loaded.maps["fh_tgid_slots"].update(_u32(pid), _u32(slot))
        self.configure(flags=int(self.config["flags"][0]) | ConfigFlag.TGIDS)

    def deselect_slot(self, slot: SlotId) -> None:
        """Let go of every process that was selected into `slot`, or inherited it: its cgroup decides from now on."""
        selected = self.loaded.maps["fh_tgid_slots"]
        for pid in list(selected.keys()):
            if selected.lookup(pid) == _u32(slot):
                selected.delete(pid)

    def deselect_process(self, pid: Pid) -> None:
        """Let go of one process; what it has forked stays selected."""
        self.loaded.maps["fh_tgid_slots"].delete(_u32(pid))

    def select_cgroups(self, slots: dict[int, SlotId]) -> None:
        """{cgroup id: slot}: replaces the selection by cgroup. The nearest ancestor that is named decides."""
        selected = self.loaded.maps["fh_cgroup_slots"]
        for cgroup, slot in slots.items():
            selected.update(struct.pack("<Q", cgroup), _u32(slot))
        for key in list(selected.keys()):
            if struct.unpack("<Q", key)[0] not in slots:
                selected.delete(key)
        flags = int(self.config["flags"][0]) & ~ConfigFlag.CGROUPS
        if slots:
            flags |= ConfigFlag.CGROUPS
        selection = (int(self.config["selection"][0]) + 1) & 0xFFFFFFFF
        self.configure(flags=flags, selection=selection)

    # Meters

    def counters(self) -> dict[Outcome | Counter, int]:
        """Every outcome and counter, summed over CPUs, since the start."""
        counters = self.loaded.maps["fh_counters"]
        return {
            name: int(counters.per_cpu(np.dtype("<u8"), name).sum())
            for name in (*Outcome, *Counter)
        }

    def meter(self, slot: SlotId) -> SlotMeter:
        """Cost of one slot since the start."""
        state = self.loaded.maps["fh_slot_state"].per_cpu(SlotState, slot)
        return SlotMeter(
            int(state["ticks"].sum()), int(state["samples"].sum()), int(state["run_ns"].sum())
        )

    def tick_balance(self) -> TickBalance:
        """Ticks due, idle and seen since the start."""
        due, idle = self._due_before, self._idle_before
        if self._ticks is not None:
            enabled_ns, idle_ns = self._ticks.account_ns()
            due += enabled_ns / self._ticks.period_ns
            idle += idle_ns / self._ticks.period_ns
        counters = self.loaded.maps["fh_counters"]
        seen = int(counters.per_cpu(np.dtype("<u8"), Counter.TICKS).sum())
        return TickBalance(due, idle, seen)

    def close(self) -> None:
        """Detach and unload everything."""
        if self._ticks is not None:
            self._ticks.close()
            self._ticks = None
        for fd in self._tracepoints:
            os.close(fd)
        self._tracepoints.clear()
        if hasattr(self, "events"):
            self.events.close()
        self.loaded.close()


def _u32(value: int) -> bytes:
    return struct.pack("<I", value)
