"""What is lost of a process's first seconds, while its unwind tables are made.

    python -m bench.cold [--seconds 5] [--frequency 997] [crowd] [java] [node]

`crowd` starts a dozen different programs at once; `java` and `node` start one runtime each on a
machine that should be idle. The agent has an empty cache, so that every table is made anew, and was
started before. Printed for each: the share of samples, of the first seconds, without a full native
stack, by outcome; and how long after its start the last sample was taken that the kernel could not
unwind by itself.

Budgets (design, section 9, and the agent's issue): less than 2 % without a full native stack;
`java` unwound in the kernel after 0.4 s, `node` after 0.5 s. Needs root.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter as Tally
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from flameherd_agent.app import EngineOptions
from flameherd_agent.kernel.abi import Counter, Outcome
from flameherd_agent.pipeline.assemble import WHOLE
from flameherd_agent.recording import Recording
from flameherd_agent.types import Pid, SlotId

from bench.load import JAVA, NODE
from tests.ebpf.recorded import missing
from tests.programs.build import MissingToolError
from tests.programs.catalog import NATIVE, PROCESSES, RUNTIMES
from tests.programs.running import Running, running

LOST_BUDGET = 0.02
CROWD = 12
MANAGED = (Outcome.NO_RULE, Outcome.NO_MAPPING)
"""A chain that is whole down to code that a runtime generated: its native part is all there."""


@dataclass
class Phase:
    """The first seconds of some processes."""

    outcomes: Tally[Outcome] = field(default_factory=Tally)
    lost: int = 0
    last_cold_s: float = 0.0
    """After their start."""
    cold_bytes: int = 0

    def missing(self, managed: bool) -> float:
        """Share of samples without a full native stack."""
        good = WHOLE | set(MANAGED) if managed else WHOLE
        total = self.outcomes.total() + self.lost
        bad = sum(count for outcome, count in self.outcomes.items() if outcome not in good)
        return (bad + self.lost) / max(1, total)


def measure(
    start: Callable[[ExitStack], list[Running]], seconds: float, frequency_hz: int
) -> Phase:
    """Start programs under a running agent and follow their first seconds."""
    phase = Phase()
    with ExitStack() as stack:
        cache = stack.enter_context(tempfile.TemporaryDirectory(prefix="flameherd-bench-"))
        options = EngineOptions(Path(cache))
        # What this process starts is selected from its first tick on.
        recording = stack.enter_context(
            Recording([os.getpid()], frequency_hz=frequency_hz, options=options)
        )
        engine = recording.engine
        engine.run(2.0)
        engine.take()
        before = engine.summary().samples
        cold_bytes = engine.sampler.counters()[Counter.COLD_BYTES]
        began_ns = time.monotonic_ns()
        # Programs are waited for until they say that they are ready: the agent does not.
        starter = stack.enter_context(ThreadPoolExecutor(1)).submit(start, stack)
        until = time.monotonic() + seconds
        intervals = []
        while (left := until - time.monotonic()) > 0:
            engine.run(min(1.0, left))
            intervals.append(engine.take())
        engine.clear_slot(SlotId(1))
        engine.settle(30.0)
        intervals += [engine.take(), engine.take()]
        collected = 0
        for interval in intervals:
            for key, count in interval.samples():
                collected += count
                if key.pid != os.getpid():
                    phase.outcomes[key.outcome] += count
        phase.lost = engine.summary().samples - before - collected
        phase.cold_bytes = engine.sampler.counters()[Counter.COLD_BYTES] - cold_bytes
        for program in starter.result():
            process = engine.processes.current(Pid(program.pid))
            if process is not None and process.last_cold_ns:
                after_s = (process.last_cold_ns - began_ns) / 1e9
                phase.last_cold_s = max(phase.last_cold_s, after_s)
    return phase


def crowd(stack: ExitStack) -> list[Running]:
    """A dozen truth programs of as many kinds."""
    programs: list[Running] = []
    for case in (*NATIVE, *PROCESSES, *RUNTIMES):
        if case.name in ("deep1000", "plugins", "container"):
            continue  # truncated by design; swaps libraries; needs runc
        if len(programs) < CROWD and not missing(case):
            programs.append(stack.enter_context(case.start()))
    return programs


def java(stack: ExitStack) -> list[Running]:
    """A JVM that compiles and runs one class."""
    executable = shutil.which("java")
    if executable is None:
        raise MissingToolError("java is not installed")
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flameherd-bench-")))
    source = folder / "Hog.java"
    source.write_text(JAVA)
    path = Path(executable).resolve()
    return [stack.enter_context(running("java", "-Xmx64m", str(source), executable=path))]


def node(stack: ExitStack) -> list[Running]:
    """Node.js with a busy loop."""
    executable = shutil.which("node")
    if executable is None:
        raise MissingToolError("node is not installed")
    path = Path(executable).resolve()
    return [stack.enter_context(running("node", "-e", NODE, executable=path))]


@dataclass(frozen=True)
class Scenario:
    start: Callable[[ExitStack], list[Running]]
    managed: bool
    """Runs code that a runtime generates: only the native part of a stack is judged."""
    warm_s: float | None = None
    """Budget until the kernel unwinds it by itself."""


SCENARIOS = {
    "crowd": Scenario(crowd, managed=False),
    "java": Scenario(java, managed=True, warm_s=0.4),
    "node": Scenario(node, managed=True, warm_s=0.5),
}


def main() -> int:
    """Print the lines; the exit code is 1 if a budget is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", choices=[*SCENARIOS, []])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--frequency", type=int, default=997)
    arguments = parser.parse_args()
    over = False
    for name in arguments.scenarios or SCENARIOS:
        scenario = SCENARIOS[name]
        try:
            phase = measure(scenario.start, arguments.seconds, arguments.frequency)
        except MissingToolError as error:
            print(f"{name}: left out: {error}")
            continue
        missing_share = phase.missing(scenario.managed)
        over |= missing_share > LOST_BUDGET
        total = phase.outcomes.total() + phase.lost
        print(
            f"{name}: {missing_share:.2%} of {total} samples without a full native stack "
            f"(budget {LOST_BUDGET:.0%}), {phase.cold_bytes / 1e6:.1f} MB copied"
        )
        budget = ""
        if scenario.warm_s is not None:
            over |= phase.last_cold_s > scenario.warm_s
            budget = f" (budget {scenario.warm_s} s on an idle machine)"
        print(f"    unwound by the kernel alone after {phase.last_cold_s:.2f} s{budget}")
        texts = [f"{outcome.name} {count}" for outcome, count in phase.outcomes.most_common()]
        print(f"    {', '.join(texts)}; in no profile {phase.lost}")
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
