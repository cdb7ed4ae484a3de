"""What the agent costs while eight programs keep the machine busy, beside the design's budgets.

    python -m bench.agent [--seconds 60] [--warm-up 25] [--without-peers] [--programs-only]

For 20 Hz and for 97 Hz a new agent with a cache of its own is started, warms up, and is measured
over whole intervals, from the end of one to the end of another: its counters are snapshots of those
moments. One slot takes the programs of native code alone, by pid, because that work has a budget of
its own; `host` takes everything else on the machine (with `--programs-only` the other four programs,
for a machine that is not idle). Everything is exported over OTLP/gRPC to a
sink of the benchmark's (bench.sink), names included. Then an agent is started once more, on the
cache that the first one left, and `perf record` profiles the same load. When the programs have
ended, the rows of bench.executables and bench.drain follow.

Needs root, like the agent. Exits with 1 if a budget is exceeded, with 2 if nothing could be
measured. Other load on the machine adds samples and is counted: run it on an idle machine.
"""

import argparse
import json
import math
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from flameherd_agent.kernel.abi import Outcome
from prometheus_client.parser import text_string_to_metric_families

from bench import drain, executables
from bench.agent_process import Agent, CannotMeasureError, memory_mb, running_agent
from bench.load import NATIVE, busy_programs
from bench.memory_group import MemoryGroup, memory_group
from bench.peers import FREQUENCY_HZ, perf_record
from bench.sink import Sink
from bench.table import Row, render

RATES_HZ = (20, 97)
INTERVAL_S = 60.0
"""An interval that takes longer to end than this is an error; the agent's are 10 s or shorter."""
EXPORT_S = 1.0
"""An interval's export has arrived this long after its end."""
PROJECTED_CPUS = 64

# Budgets (design, section 9), by rate where they depend on it.
BUDGET_RSS_MB = {20: 60.0, 97: 64.0}
BUDGET_CPU_PERCENT = {20: 0.3, 97: 0.6}
BUDGET_MAPS_MIB = 32.0
BUDGET_MIXED_US = 25.0
BUDGET_NATIVE_US = 12.0
BUDGET_PEAK_MB = 220.0
BUDGET_START_CPU_S = 1.0
BUDGET_WIRE_KB = {20: 120.0}


def _policies(hz: int, native_pids: list[int], other_pids: list[int], url: str) -> str:
    """An AgentConfig; JSON is YAML. Without `other_pids` the second slot is the whole machine."""
    selector = {"pids": other_pids} if other_pids else {"host": True}
    host = {"name": "host", "selector": selector}
    native = {"name": "native", "selector": {"pids": native_pids}, "priority": 10}
    rest = {"frequencyHz": hz, "endpoint": "sink"}
    return json.dumps(
        {
            "apiVersion": "flameherd.dev/v1alpha1",
            "kind": "AgentConfig",
            "version": "1",
            "policies": [host | rest, native | rest],
            "endpoints": {"sink": {"protocol": "GRPC", "endpoint": url, "interval": "10s"}},
        }
    )


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
    wire_bytes: int
    sent_samples: int


def _next_interval(agent: Agent, sink: Sink) -> Snapshot:
    """Waits for an interval to end and to be exported."""
    before = json.loads(agent.get("status"))["ticks"]["due"]
    deadline = time.monotonic() + INTERVAL_S
    while time.monotonic() < deadline:
        time.sleep(0.25)
        status = json.loads(agent.get("status"))
        if status["ticks"]["due"] != before:
            time.sleep(EXPORT_S)
            at_s, (own, children) = time.monotonic(), agent.cpu_seconds()
            counted = (*_metrics(agent.get("metrics")), sink.wire_bytes, sink.samples)
            return Snapshot(at_s, own, children, status, *counted)
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
    wire_bytes: int
    sent_samples: int
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


def measure(agent: Agent, sink: Sink, hz: int, seconds: float) -> Measured:
    """Whole intervals that cover about `seconds`."""
    begin = _next_interval(agent, sink)
    interval_s = begin.status["intervalSeconds"]
    # Each question costs the agent a millisecond or two: ask only when the last interval ends.
    time.sleep(max(1, math.ceil(seconds / interval_s)) * interval_s - 0.5 - EXPORT_S)
    end = _next_interval(agent, sink)
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
        wire_bytes=end.wire_bytes - begin.wire_bytes,
        sent_samples=end.sent_samples - begin.sent_samples,
        samples=grown_slots("samples"),
        bpf_ns=grown_slots("bpfNanoseconds"),
        whole=whole,
        outcomes=outcomes,
        cold=cold,
        missed=ticks["due"] - ticks["idle"] - ticks["seen"],
        due=ticks["due"] - ticks["idle"],
    )


# Telling


def rows(measured: Measured) -> list[Row]:
    """The table of one rate."""
    m, hz = measured, f"{measured.hz} Hz"
    per_sample_us = m.cpu_s * 1e6 / max(1, m.all_samples)
    on_many = PROJECTED_CPUS * m.hz * 100 / 1e6
    many = f"{PROJECTED_CPUS} busy CPUs"
    bpf_us = m.bpf_us(*m.samples)
    wire_kb = m.wire_bytes / 1000 * 60 / m.seconds
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
        Row(f"{hz}: on the wire", wire_kb, "KB/min", BUDGET_WIRE_KB.get(m.hz)),
        Row(f"{hz}: on the wire, a sample", m.wire_bytes / max(1, m.sent_samples), "bytes"),
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


def start_rows(folder: Path, config: str) -> list[Row]:
    """CPU time until a second agent samples, on the cache that a first one left."""
    before = time.monotonic()
    with running_agent(folder, config, None) as agent:
        seconds, (own, children) = time.monotonic() - before, agent.cpu_seconds()
    return [
        Row("start, cached bytecode: CPU", own + children, "s", BUDGET_START_CPU_S),
        Row("start: of that children", children, "s"),
        Row("start: until it samples", seconds, "s"),
    ]


def group_rows(hz: int, group: MemoryGroup | None) -> list[Row]:
    """The memory of the agent's cgroup."""
    if group is None:
        print("memory.peak: no memory controller of cgroups here", file=sys.stderr)
        return []
    parts = [Row(f"{hz} Hz: there now, {n}", mb, "MB") for n, mb in group.parts_mb().items()]
    what = f"{hz} Hz: memory.peak (cgroup v{group.version})"
    return [Row(what, group.peak_mb(), "MB", BUDGET_PEAK_MB), *parts]


def perf_rows(folder: Path, seconds: float) -> list[Row]:
    """`perf record` beside the same load."""
    run = perf_record(folder, seconds)
    if isinstance(run, str):
        print(f"perf record is left out: {run}", file=sys.stderr)
        return []
    name = f"perf record -F {FREQUENCY_HZ} --call-graph dwarf -a"
    return [
        Row(f"{name}: CPU", run.cpu_s, "s"),
        Row("perf record: the same", 100 * run.cpu_s / run.seconds, "% of a core"),
        Row("perf record: peak RSS", run.rss_mb, "MB"),
        Row("perf record: written", run.file_bytes * 60 / run.seconds / 1000, "KB/min"),
        Row("perf record: samples", run.samples, ""),
    ]


def main() -> int:
    """Measures, prints the table; the exit code is told in the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m bench.agent")
    parser.add_argument("--seconds", type=float, default=60.0, help="window a rate (default: 60)")
    parser.add_argument("--warm-up", type=float, default=25.0, help="seconds a rate (default: 25)")
    parser.add_argument("--without-peers", action="store_true", help="do not run perf record")
    parser.add_argument("--programs-only", action="store_true", help="do not sample the rest")
    arguments = parser.parse_args()
    # The end of the process must not be the end of its `finally` blocks.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    table: list[Row] = []
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="flameherd-bench-") as name, Sink() as sink:
        folder = Path(name)
        with busy_programs(folder) as programs:
            native = [program.pid for program in programs if program.name in NATIVE]
            others = [program.pid for program in programs if program.name not in NATIVE]
            others = others if arguments.programs_only else []
            try:
                for hz in RATES_HZ:
                    config = _policies(hz, native, others, sink.url)
                    with (
                        memory_group(f"flameherd-bench-{hz}") as group,
                        running_agent(folder / f"{hz}", config, group) as agent,
                    ):
                        time.sleep(arguments.warm_up)
                        measured = measure(agent, sink, hz, arguments.seconds)
                        table += rows(measured) + group_rows(hz, group)
                    print(account(measured), file=sys.stderr)
                table += start_rows(folder / f"{RATES_HZ[0]}", config)
            except (CannotMeasureError, OSError) as error:
                print(f"bench.agent: {error}", file=sys.stderr)
                return 2
            if not arguments.without_peers:
                table += perf_rows(folder, arguments.seconds)
            print(f"{len(programs)} programs: {', '.join(p.name for p in programs)};", end=" ")
            print(f"{os.cpu_count()} CPUs; load average before: {load_before:.1f}\n")
    table += executables.rows(executables.measure(executables.system_files(executables.FILES)))
    table += drain.measure(drain.STACKS)
    print(render(table))
    return 1 if any(row.verdict == "OVER" for row in table) else 0


if __name__ == "__main__":
    sys.exit(main())
