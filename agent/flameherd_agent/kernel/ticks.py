"""The sampling tick of each CPU, and the account of every tick that was due.

`cpu-clock` counts nanoseconds, so its sample period is a time; idle CPUs do not fire. Ticks are due for as long as a
CPU's event is enabled. Each fell on idle or stolen time (`/proc/stat`), reached the program, or was missed: the kernel
runs no BPF program in an interrupt while a map system call of that CPU is in a critical section (`bpf_prog_active`),
throttles events beyond `kernel.perf_event_max_sample_rate`, and skips ticks while interrupts are off.

CPUs come and go. The kernel switches off the events of one that goes, for good, even if it is back at once: an event
whose time stands still is opened anew.
"""

import errno
import os
from dataclasses import dataclass
from typing import Final

from flameherd_agent.errors import EnvironmentProblem
from flameherd_agent.kernel.perf import enabled_ns, online_cpus, open_tick

_IDLE_FIELDS: Final = (4, 5, 8)
"""idle, iowait and steal in a line of /proc/stat (proc(5)), whose field 0 is the CPU's name."""


@dataclass(frozen=True, slots=True)
class TickBalance:
    """Ticks since the start: every one that time called for ends in one of these."""

    due: float
    """Enabled time of all CPUs over the tick's period."""
    idle: float
    """Idle and stolen time over the tick's period: no tick fires there."""
    seen: int
    """Ticks that reached the program."""

    @property
    def missed(self) -> float:
        """Ticks on busy CPUs that never reached the program; idle time is exact to 10 ms a CPU."""
        return max(0.0, self.due - self.idle - self.seen)


@dataclass(slots=True)
class _Tick:
    """The event of one CPU, and what was last read of it while the CPU was there. Nanoseconds."""

    fd: int
    idle_at_open: int
    enabled: int = 0
    idle: int = 0


class Ticks:
    """A `cpu-clock` event with a BPF program on every CPU. Closing it stops sampling.

    Raises EnvironmentProblem if no events can be opened.
    """

    def __init__(self, program_fd: int, period_ns: int) -> None:
        self.period_ns = period_ns
        self._program_fd = program_fd
        self._ticks: dict[int, _Tick] = {}
        self._enabled_before = self._idle_before = 0
        try:
            self._add(online_cpus(), idle_ns())
        except OSError as error:
            self.close()
            raise EnvironmentProblem(
                f"cannot sample: {error.strerror}. The agent needs CAP_PERFMON (or root); "
                "`flameherd doctor` tells more."
            ) from error

    def _add(self, cpus: list[int], idle: dict[int, int]) -> None:
        for cpu in cpus:
            try:
                fd = open_tick(cpu, self.period_ns, self._program_fd)
            except OSError as error:
                if error.errno == errno.ENODEV:  # it went just now
                    continue
                raise
            self._ticks[cpu] = _Tick(fd, idle.get(cpu, 0))

    def _remove(self, cpu: int) -> None:
        tick = self._ticks.pop(cpu)
        self._enabled_before += tick.enabled
        self._idle_before += tick.idle
        os.close(tick.fd)

    def _read(self) -> set[int]:
        """Read time and idle time of every CPU. Returns the CPUs whose event stands still."""
        ended = set()
        idle = idle_ns()
        for cpu, tick in self._ticks.items():
            enabled = enabled_ns(tick.fd)
            if enabled <= tick.enabled:
                ended.add(cpu)
            elif cpu in idle:
                tick.enabled = enabled
                # Older kernels begin anew when the CPU was away.
                tick.idle = max(tick.idle, idle[cpu] - tick.idle_at_open)
        return ended

    def follow_cpus(self) -> None:
        """Open events on CPUs that came online, or were away for a moment; drop those of CPUs that went.

        Up to the last reading before it went, a CPU's time counts as due.
        """
        ended = self._read()
        now = set(online_cpus())
        for cpu in (set(self._ticks) - now) | ended:
            self._remove(cpu)
        self._add(sorted(now - set(self._ticks)), idle_ns())

    def account_ns(self) -> tuple[int, int]:
        """Nanoseconds of all CPUs for which events were enabled, and of these idle or stolen."""
        self._read()
        ticks = self._ticks.values()
        return (
            self._enabled_before + sum(tick.enabled for tick in ticks),
            self._idle_before + sum(tick.idle for tick in ticks),
        )

    def close(self) -> None:
        for tick in self._ticks.values():
            os.close(tick.fd)
        self._ticks.clear()


def throttled_above_hz() -> int:
    """Ticks a second of one CPU beyond which the kernel throttles an event. It lowers the number by itself when
    interrupts of performance counters take long (kernel.perf_cpu_time_max_percent)."""
    with open("/proc/sys/kernel/perf_event_max_sample_rate") as source:  # noqa: PTH123
        return int(source.read())


def idle_ns() -> dict[int, int]:
    """{CPU: its idle, I/O-waiting and stolen time since boot in nanoseconds}, of CPUs that are online."""
    unit = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    found = {}
    with open("/proc/stat") as source:  # noqa: PTH123
        next(source)  # all CPUs: those that are offline too
        for line in source:
            if not line.startswith("cpu"):
                break
            fields = line.split()
            found[int(fields[0][3:])] = unit * sum(int(fields[index]) for index in _IDLE_FIELDS)
    return found
