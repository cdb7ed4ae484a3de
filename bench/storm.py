"""What a storm of process starts costs the agent.

    python -m bench.storm [--seconds 30] [--frequency 97] [--execs 300]

A program executes a tiny one, several hundred times a second; the agent samples it and all that it
starts. Work is per *sampled* process, not per started one: most processes of the storm end before a
tick falls on them. Budget (the agent's issue): less than 10 % of one core, for the agent and its
children. Programs of eBPF run in the time of the sampled and are not in it. Needs root.
"""

import argparse
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

from flameherd_agent.app import EngineOptions
from flameherd_agent.recording import Recording

from tests.programs.build import build
from tests.programs.running import running

BUDGET_PERCENT = 10.0
WARM_S = 3.0


def cpu_seconds() -> float:
    """User and system time of this process and of its children that have ended or are alive."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    total = usage.ru_utime + usage.ru_stime
    for line in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        fields = Path(f"/proc/{line}/stat").read_text().rpartition(")")[2].split()
        if "execstorm" not in Path(f"/proc/{line}/comm").read_text():
            total += sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return total


def main() -> int:
    """Print one line; the exit code is 1 if the budget is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--frequency", type=int, default=97)
    parser.add_argument("--execs", type=int, default=300, help="a second")
    arguments = parser.parse_args()
    duration = str(int(arguments.seconds + WARM_S + 10))
    with (
        tempfile.TemporaryDirectory(prefix="flameherd-bench-") as cache,
        running("execstorm", str(arguments.execs), duration, str(build("tiny"))) as program,
        Recording(
            [program.pid],
            frequency_hz=arguments.frequency,
            options=EngineOptions(Path(cache)),
        ) as recording,
    ):
        recording.run(WARM_S)
        before, began = cpu_seconds(), time.monotonic()
        samples = recording.engine.summary().samples
        recording.run(arguments.seconds)
        used, elapsed = cpu_seconds() - before, time.monotonic() - began
        samples = recording.engine.summary().samples - samples
        stats = recording.engine.processes.stats
    percent = 100 * used / elapsed
    print(
        f"{arguments.execs} execs a second at {arguments.frequency} Hz for {elapsed:.0f} s: "
        f"{used:.2f} s of CPU, {percent:.1f} % of a core (budget {BUDGET_PERCENT:.0f} %); "
        f"{samples} samples, {stats.loaded} processes looked at"
    )
    return int(percent > BUDGET_PERCENT)


if __name__ == "__main__":
    sys.exit(main())
