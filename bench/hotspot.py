"""What unwinding a JVM costs, and how soon an old one has names.

    python -m bench.hotspot [--age 20] [--seconds 10]

First: a JVM with 20,000 methods that has run for `--age` seconds; the time from the agent's start to the first function of it that
is named (budget 2 s). Then: BPF time a sample for stacks of some 60 frames, most of them Java's, interpreted and compiled (budget
25 µs at 40 mixed frames), and the memory of this process. Run it on an idle machine; needs root and a JDK.
"""

import argparse
import os
import time
from pathlib import Path

from flameherd_agent.recording import Recording
from flameherd_agent.types import SlotId

from bench.table import Row, render
from tests.ebpf.recorded import OPTIONS, warm
from tests.ebpf.test_truth_hotspot import TIERS
from tests.jdks import Jdk, jdks
from tests.programs.running import running_command
from tests.truth import samples_by_pid

FREQUENCY_HZ = 97
CLASSES = "100"
"""Of 200 methods each."""
LIMIT_S = 60.0
ATTACH_BUDGET_S = 2.0
SAMPLE_BUDGET_US = 25.0


def first_name(jdk: Jdk, age_s: float) -> tuple[float, float]:
    """(seconds until a function has its name, CPU seconds of the agent until then)."""
    command = jdk.command("Many", "-Xmx256m", arguments=(CLASSES,))
    with running_command(command, "Many") as program:
        time.sleep(age_s)
        began, cpu = time.monotonic(), time.process_time()
        with Recording([program.pid], frequency_hz=FREQUENCY_HZ, options=OPTIONS) as recording:
            while not recording.engine.interpreters.named:
                recording.run(0.02)
                if time.monotonic() - began > LIMIT_S:
                    raise SystemExit(f"{jdk.name}: nothing was named in {LIMIT_S:.0f} s")
            return time.monotonic() - began, time.process_time() - cpu


def cost(jdk: Jdk, tier: str, seconds: float) -> tuple[float, float]:
    """(microseconds of BPF time a sample, mean frames)."""
    with (
        running_command(jdk.command("Deep", *TIERS[tier]), "Deep") as program,
        Recording([program.pid], frequency_hz=FREQUENCY_HZ, options=OPTIONS) as recording,
    ):
        warm(recording, FREQUENCY_HZ)
        meter = recording.engine.sampler.meter
        before = meter(SlotId(1))
        recording.run(seconds)
        after = meter(SlotId(1))
        found = samples_by_pid(recording.result().profiles)[program.pid]
    frames = sum(sample.value * len(sample.stack) for sample in found)
    samples = after.samples - before.samples
    total = sum(sample.value for sample in found)
    return (after.run_ns - before.run_ns) / 1e3 / max(1, samples), frames / max(1, total)


def resident_mb() -> float:
    """RSS of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--age", type=float, default=20.0, metavar="S")
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S")
    arguments = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    table: list[Row] = []
    for jdk in jdks():
        first_name(jdk, 0.0)  # the program is compiled, the files are read
        seconds, cpu = first_name(jdk, arguments.age)
        table.append(Row(f"{jdk.name}: first name", seconds, "s", ATTACH_BUDGET_S))
        table.append(Row(f"{jdk.name}: CPU until then", cpu, "s"))
        for tier in ("default", "interpreted", "C1"):
            microseconds, frames = cost(jdk, tier, arguments.seconds)
            what = f"{jdk.name}, {tier}: a sample of {frames:.0f} locations"
            table.append(Row(what, microseconds, "µs", SAMPLE_BUDGET_US))
    table.append(Row("RSS of this process", resident_mb(), "MB"))
    print(render(table))


if __name__ == "__main__":
    main()
