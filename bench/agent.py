"""What the agent costs while eight programs keep the machine busy, beside the design's budgets.

    python -m bench.agent [--seconds 60] [--warm-up 15]

For 20 Hz and for 97 Hz a new agent with a cache of its own is started, warms up, and is measured
over whole intervals, from the end of one to the end of another: its counters are snapshots of those
moments. One slot takes the programs of native code alone, by pid, because that work has a budget of
its own; `host` takes everything else on the machine. Nothing is exported, so export costs are not
in here (see bench.export), nor is the memory of a pod.

Needs root, like the agent. Exits with 1 if a budget is exceeded, with 2 if nothing could be
measured. Other load on the machine adds samples and is counted: run it on an idle machine.
"""

import argparse
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from flameherd_agent.kernel.abi import Outcome
from prometheus_client.parser import text_string_to_metric_families

from tests.programs.build import MissingToolError
from tests.programs.running import Running, running

RATES_HZ = (20, 97)
START_S = 30.0
INTERVAL_S = 60.0
"""An interval that takes longer to end than this is an error; the agent's are 10 s or shorter."""
STOP_S = 20.0
PROGRAMS = 8
PROJECTED_CPUS = 64

# Budgets (design, section 9), by rate where they depend on it.
BUDGET_RSS_MB = {20: 60.0, 97: 64.0}
BUDGET_CPU_PERCENT = {20: 0.3, 97: 0.6}
BUDGET_MAPS_MIB = 32.0
BUDGET_MIXED_US = 25.0
BUDGET_NATIVE_US = 12.0

NATIVE = ("qsort", "cpp", "rust", "go_stripped")
"""The slot `native`: programs that stay in user space, in code with unwind tables."""
SPARE = ("static", "nopie", "pie", "threads")
"""Take the places of programs that this machine has no compiler or interpreter for."""
PYTHON = """
def leaf(n):
    return sum(i * i for i in range(n))
def middle(n):
    return leaf(n) + leaf(n // 2)
print("ready", flush=True)
while True:
    middle(2000)
"""
NODE = """
function leaf(n) { let s = 0; for (let i = 0; i < n; i++) s += i % 7; return s; }
function middle(n) { return [n, n / 2].map(leaf).concat(JSON.parse("[1, 2, 3]")).sort(); }
console.log("ready");
for (;;) middle(20000);
"""
JAVA = """
public class Hog {
    static long leaf(int n) { long s = 0; for (int i = 0; i < n; i++) s += i % 7; return s; }
    static String middle(int n) { return Long.toString(leaf(n) + leaf(n / 2)); }
    public static void main(String[] arguments) {
        System.out.println("ready");
        for (long total = 0;; ) total += middle(20000).hashCode();
    }
}
"""


class CannotMeasureError(Exception):
    """The agent did not start, or did not end an interval: says what it logged."""


# The load


def _interpreters(folder: Path) -> Iterator[tuple[str, Path, list[str]]]:
    """(name, executable, arguments) of the interpreters that are installed."""
    yield "python3", Path(sys.executable), ["-c", PYTHON]
    if node := shutil.which("node"):
        yield "node", Path(node), ["-e", NODE]
    if java := shutil.which("java"):
        source = folder / "Hog.java"
        source.write_text(JAVA)
        yield "java", Path(java), ["-Xmx64m", str(source)]


@contextmanager
def busy_programs(folder: Path) -> Iterator[list[Running]]:
    """`PROGRAMS` of them, each ready and busy; all are gone afterwards."""
    with ExitStack() as stack:
        programs: list[Running] = []
        for name, executable, arguments in _interpreters(folder):
            context = running(name, *arguments, executable=executable)
            try:
                programs.append(stack.enter_context(context))
            except RuntimeError as error:  # java without a compiler, a node of another kind
                print(f"{name} is left out: {error}", file=sys.stderr)
        for name in (*NATIVE, "syscalls", *SPARE):
            if len(programs) == PROGRAMS:
                break
            try:
                programs.append(stack.enter_context(running(name)))
            except MissingToolError as error:
                print(f"{name} is left out: {error}", file=sys.stderr)
        yield programs


# The agent


def _policies(hz: int, native_pids: list[int]) -> str:
    """An AgentConfig; JSON is YAML."""
    return json.dumps(
        {
            "apiVersion": "flameherd.dev/v1alpha1",
            "kind": "AgentConfig",
            "version": "1",
            "policies": [
                {"name": "host", "selector": {"host": True}, "frequencyHz": hz},
                {
                    "name": "native",
                    "selector": {"pids": native_pids},
                    "frequencyHz": hz,
                    "priority": 10,
                },
            ],
        }
    )


@dataclass
class Agent:
    """A running agent and the address that it serves on."""

    process: subprocess.Popen[bytes]
    address: str
    log: Path

    def get(self, page: str) -> str:
        """The text of `/metrics` or `/status`. Raises OSError when the agent is gone."""
        with urllib.request.urlopen(f"{self.address}/{page}", timeout=10) as answer:
            text: bytes = answer.read()
        return text.decode()

    def family(self) -> list[int]:
        """The agent first, then its living children."""
        found = [self.process.pid]
        for pid in found:
            with suppress(FileNotFoundError, ProcessLookupError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    found += map(int, (task / "children").read_text().split())
        return found

    def cpu_seconds(self) -> tuple[float, float]:
        """User and system time: its own; its children's, living or reaped (proc(5), 14th to 17th)."""
        own = children = 0
        for pid in self.family():
            with suppress(FileNotFoundError, ProcessLookupError):
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                user, system, reaped_user, reaped_system = map(int, stat[11:15])
                children += reaped_user + reaped_system
                if pid == self.process.pid:
                    own += user + system
                else:
                    children += user + system
        hertz = os.sysconf("SC_CLK_TCK")
        return own / hertz, children / hertz


def memory_mb(pid: int) -> dict[str, float]:
    """Vm* and Rss* lines of /proc/PID/status in MB (10^6 bytes); empty if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    found = re.findall(r"^((?:Vm|Rss)\w+):\s+(\d+) kB$", text, re.MULTILINE)
    return {name: int(kib) * 1024 / 1e6 for name, kib in found}


@contextmanager
def running_agent(folder: Path, hz: int, native_pids: list[int]) -> Iterator[Agent]:
    """An agent with configuration, cache, lock and log in `folder`; it has ended afterwards."""
    folder.mkdir()
    config, log = folder / "config.yaml", folder / "log"
    config.write_text(_policies(hz, native_pids))
    command = [str(Path(sys.executable).with_name("flameherd")), "agent", "--config", str(config)]
    command += ["--cache", str(folder / "cache"), "--lock", str(folder / "lock")]
    command += ["--listen", "127.0.0.1:0"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield Agent(process, _address(process, log), log)
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_S)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(r"(http://\S+)/status$", log.read_text(), re.MULTILINE):
            return found.group(1)
        time.sleep(0.1)
    raise CannotMeasureError(f"the agent did not start:\n{log.read_text()[-2000:]}")


# Measuring


class Snapshot(NamedTuple):
    """What the agent counted until the end of an interval."""

    at_s: float
    cpu_s: float
    children_cpu_s: float
    status: dict[str, Any]
    cold: dict[str, int]
    """Samples unwound in user space, by outcome."""
    map_bytes: int


def _next_interval(agent: Agent) -> Snapshot:
    """Waits for an interval to end."""
    before = json.loads(agent.get("status"))["ticks"]["due"]
    deadline = time.monotonic() + INTERVAL_S
    while time.monotonic() < deadline:
        time.sleep(0.25)
        status = json.loads(agent.get("status"))
        if status["ticks"]["due"] != before:
            at_s, (own, children) = time.monotonic(), agent.cpu_seconds()
            return Snapshot(at_s, own, children, status, *_metrics(agent.get("metrics")))
    raise CannotMeasureError(f"no interval ended in {INTERVAL_S:.0f} s:\n{agent.log.read_text()}")


def _metrics(text: str) -> tuple[dict[str, int], int]:
    """What /status does not tell: cold samples by outcome, bytes of all kernel maps."""
    cold: dict[str, int] = {}
    map_bytes = 0
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "flameherd_cold_samples_total" and "outcome" in sample.labels:
                cold[sample.labels["outcome"]] = int(sample.value)
            elif sample.name == "flameherd_kernel_map_bytes":
                map_bytes = int(sample.value)
    return cold, map_bytes


@dataclass(frozen=True)
class Measured:
    """One rate's window."""

    hz: int
    seconds: float
    cpu_s: float
    """Of the agent and its children."""
    children_cpu_s: float
    memory: dict[str, float]
    """Of the agent's process, in MB, by the names of /proc/PID/status."""
    children_mb: float
    map_bytes: int
    samples: dict[str, int]
    """By slot."""
    bpf_ns: dict[str, int]
    whole: float
    """Samples with a stack to its root; those that were cold are estimated by their share."""
    outcomes: dict[str, int]
    """What became of samples in the kernel; cold ones go on in user space."""
    cold: dict[str, int]
    missed: float
    due: float

    @property
    def cpu_percent(self) -> float:
        """Of one core."""
        return 100 * self.cpu_s / self.seconds

    def bpf_us(self, *slots: str) -> float:
        """BPF run time of a sample in these slots, in µs; NaN without samples."""
        samples = sum(self.samples[slot] for slot in slots)
        return (
            sum(self.bpf_ns[slot] for slot in slots) / samples / 1000 if samples else float("nan")
        )

    @property
    def all_samples(self) -> int:
        """Of all slots."""
        return sum(self.samples.values())


def measure(agent: Agent, hz: int, seconds: float) -> Measured:
    """Whole intervals that cover about `seconds`."""
    begin = _next_interval(agent)
    interval_s = begin.status["intervalSeconds"]
    # Each question costs the agent a millisecond or two: ask only when the last interval ends.
    time.sleep(max(1, math.ceil(seconds / interval_s)) * interval_s - 0.25)
    end = _next_interval(agent)
    memory = memory_mb(agent.process.pid)
    children = sum(memory_mb(pid).get("VmRSS", 0.0) for pid in agent.family()[1:])

    def grown(part: str, name: str) -> float:
        return float(end.status[part][name] - begin.status[part][name])

    def grown_slots(field: str) -> dict[str, int]:
        was, now = begin.status["policies"], end.status["policies"]
        return {slot: now[slot][field] - was[slot][field] for slot in now}

    cold = {name: count - begin.cold.get(name, 0) for name, count in end.cold.items()}
    outcomes = {outcome.name: int(grown("counters", outcome.name)) for outcome in Outcome}
    # Cold samples are unwound later, so their outcomes are of a slightly older window: a share.
    cold_share = cold.get("complete", 0) / max(1, sum(cold.values()))
    whole = outcomes["COMPLETE"] + outcomes["KERNEL_THREAD"] + outcomes["COLD"] * cold_share
    ticks = {name: grown("ticks", name) for name in ("due", "idle", "seen")}
    return Measured(
        hz=hz,
        seconds=end.at_s - begin.at_s,
        cpu_s=end.cpu_s - begin.cpu_s + end.children_cpu_s - begin.children_cpu_s,
        children_cpu_s=end.children_cpu_s - begin.children_cpu_s,
        memory=memory,
        children_mb=children,
        map_bytes=end.map_bytes,
        samples=grown_slots("samples"),
        bpf_ns=grown_slots("bpfNanoseconds"),
        whole=whole,
        outcomes=outcomes,
        cold=cold,
        missed=ticks["due"] - ticks["idle"] - ticks["seen"],
        due=ticks["due"] - ticks["idle"],
    )


# Telling


class Row(NamedTuple):
    """A line of the table. Without a budget it is told, not judged."""

    what: str
    measured: float
    unit: str
    budget: float | None = None

    @property
    def verdict(self) -> str:
        """`ok`, `OVER`, or nothing. What could not be measured (NaN) is not ok."""
        if self.budget is None:
            return ""
        return "ok" if self.measured <= self.budget else "OVER"


def rows(measured: Measured) -> list[Row]:
    """The table of one rate."""
    m, hz = measured, f"{measured.hz} Hz"
    per_sample_us = m.cpu_s * 1e6 / max(1, m.all_samples)
    on_many = PROJECTED_CPUS * m.hz * 100 / 1e6
    many = f"{PROJECTED_CPUS} busy CPUs"
    bpf_us = m.bpf_us(*m.samples)
    return [
        Row(f"{hz}: agent RSS", m.memory["VmRSS"], "MB", BUDGET_RSS_MB[m.hz]),
        Row(f"{hz}: of that anonymous", m.memory["RssAnon"], "MB"),
        Row(f"{hz}: of that files", m.memory["RssFile"], "MB"),
        Row(f"{hz}: agent RSS, peak since its start", m.memory["VmHWM"], "MB"),
        Row(f"{hz}: RSS of its children at the end", m.children_mb, "MB"),
        Row(f"{hz}: kernel maps", m.map_bytes / 2**20, "MiB", BUDGET_MAPS_MIB),
        Row(f"{hz}: agent CPU, with children", m.cpu_s, "s"),
        Row(f"{hz}: the same", m.cpu_percent, "% of a core", BUDGET_CPU_PERCENT[m.hz]),
        Row(f"{hz}: of that children", 100 * m.children_cpu_s / m.seconds, "% of a core"),
        Row(f"{hz}: BPF per sample, all", bpf_us, "µs", BUDGET_MIXED_US),
        Row(f"{hz}: BPF per sample, native", m.bpf_us("native"), "µs", BUDGET_NATIVE_US),
        Row(f"{hz}: samples", m.all_samples, ""),
        Row(f"{hz}: of those native", m.samples["native"], ""),
        Row(f"{hz}: whole stacks", 100 * m.whole / max(1, sum(m.outcomes.values())), "%"),
        Row(f"{hz}: missed ticks", 100 * m.missed / max(1.0, m.due), "% of those due"),
        Row(f"{hz}: agent CPU per sample", per_sample_us, "µs"),
        Row(f"{hz}: agent, if {many} cost so", per_sample_us * on_many, "% of a core"),
        Row(f"{hz}: BPF, if {many} cost so", bpf_us * on_many, "% of a core"),
    ]


def account(measured: Measured) -> str:
    """One line: how long was measured, and what became of the samples."""
    told = [f"{name} {count}" for name, count in measured.outcomes.items() if count]
    told += [f"cold {name} {count}" for name, count in measured.cold.items() if count]
    return f"{measured.hz} Hz, {measured.seconds:.1f} s: {', '.join(told)}"


def render(table: list[Row]) -> str:
    """The table in Markdown."""
    lines = ["| what | measured | budget | |", "| --- | ---: | ---: | --- |"]
    for row in table:
        number = f"{row.measured:,.0f}" if not row.unit else f"{row.measured:.2f} {row.unit}"
        budget = "" if row.budget is None else f"{row.budget:g}"
        lines.append(f"| {row.what} | {number} | {budget} | {row.verdict} |")
    return "\n".join(lines)


def main() -> int:
    """Measures, prints the table; the exit code is told in the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m bench.agent")
    parser.add_argument("--seconds", type=float, default=60.0, help="window a rate (default: 60)")
    parser.add_argument("--warm-up", type=float, default=15.0, help="seconds a rate (default: 15)")
    arguments = parser.parse_args()
    # The end of the process must not be the end of its `finally` blocks.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    table: list[Row] = []
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="flameherd-bench-") as name:
        folder = Path(name)
        with busy_programs(folder) as programs:
            native = [program.pid for program in programs if program.name in NATIVE]
            try:
                for hz in RATES_HZ:
                    with running_agent(folder / f"{hz}", hz, native) as agent:
                        time.sleep(arguments.warm_up)
                        measured = measure(agent, hz, arguments.seconds)
                    print(account(measured), file=sys.stderr)
                    table += rows(measured)
            except (CannotMeasureError, OSError) as error:
                print(f"bench.agent: {error}", file=sys.stderr)
                return 2
            print(f"{len(programs)} programs: {', '.join(p.name for p in programs)};", end=" ")
            print(f"{os.cpu_count()} CPUs; load average before: {load_before:.1f}\n")
    print(render(table))
    return 1 if any(row.verdict == "OVER" for row in table) else 0


if __name__ == "__main__":
    sys.exit(main())
