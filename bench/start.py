"""How soon a newly started agent shows its first named sample, and what the start costs.

    python -m bench.start [--repeat 5]

An agent is started again and again: on an idle machine, on which one program uses a little CPU time,
and with a busy program for every CPU; with the cache of the start before (as after a restart), and
with none (as on a new node: the eBPF programs are compiled). It exports to a file each second.

Time runs from the start of the process. "Sampling" is when the agent says so. "Exported" is when
the first sample whose leaf is a named function of a program (not of the kernel) lies in the file: in
the budget of the first named sample, the rest of the interval is included. CPU time is that of the
agent and its children until it samples.

The median is judged, the worst is told. Needs root, and an otherwise idle machine. Exits with 1 if
a budget is exceeded.
"""

import argparse
import json
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from flameherd_agent.kernel.perf import online_cpus

from bench.agent_process import Agent, CannotMeasureError, running_agent
from bench.table import Row, render
from tests.collector.collector import read_json_lines
from tests.programs.running import running

# Design, section 9.
BUDGET_CPU_S = 1.0
BUDGET_IDLE_S = 2.0
BUDGET_BUSY_S = 4.0
FREQUENCY_HZ = 97
LIMIT_S = 60.0


class Start(NamedTuple):
    """One start. Seconds."""

    cpu: float
    children_cpu: float
    sampling: float
    exported: float


@contextmanager
def load(busy: bool) -> Iterator[None]:
    """A program that uses a little CPU time, or one for each CPU that use all of it."""
    with ExitStack() as stack:
        for _ in online_cpus() if busy else [0]:
            stack.enter_context(running("hog" if busy else "periodic"))
        yield


def config(output: Path) -> str:
    """An AgentConfig (JSON is YAML) for the whole machine."""
    return json.dumps(
        {
            "apiVersion": "flameherd.dev/v1alpha1",
            "kind": "AgentConfig",
            "version": "1",
            "policies": [
                {
                    "name": "host",
                    "selector": {"host": True},
                    "frequencyHz": FREQUENCY_HZ,
                    "endpoint": "file",
                }
            ],
            "endpoints": {"file": {"protocol": "File", "path": str(output), "interval": "1s"}},
        }
    )


def named(output: Path) -> bool:
    """Whether a sample has a program's function as its named leaf."""
    return any(
        stack and stack[0][1] != "kernel" and stack[0][4]
        for _resource, _scope, _head, stack, *_ in read_json_lines(output)
    )


def first_named(agent: Agent, output: Path) -> float:
    """Waits for the first named sample; when that was (monotonic seconds)."""
    deadline = time.monotonic() + LIMIT_S
    size = 0
    while time.monotonic() < deadline and agent.process.poll() is None:
        time.sleep(0.01)
        now = output.stat().st_size if output.exists() else 0
        if now == size:
            continue
        size, seen = now, time.monotonic()
        if named(output):
            return seen
    raise CannotMeasureError(f"no sample was named in {LIMIT_S:.0f} s:\n{agent.log.read_text()}")


def start(folder: Path) -> Start:
    """Start an agent in a folder whose cache may be there, and stop it when it has shown a sample."""
    output = folder / "profiles.json"
    output.unlink(missing_ok=True)
    began = time.monotonic()
    with running_agent(folder, config(output), None) as agent:
        sampling = time.monotonic()
        own, children = agent.cpu_seconds()
        exported = first_named(agent, output)
    return Start(own + children, children, sampling - began, exported - began)


def measure(folder: Path, *, cached: bool, repeat: int) -> list[Start]:
    """Start `repeat` times, after one start that fills the cache or each with an empty one."""
    if cached:
        start(folder)
    starts = []
    for _ in range(repeat):
        if not cached:
            shutil.rmtree(folder / "cache", ignore_errors=True)
        starts.append(start(folder))
    return starts


def rows(starts: list[Start], *, busy: bool, cached: bool) -> list[Row]:
    """The rows of one state of machine and cache."""
    name = f"{'busy' if busy else 'idle'}, {'cached' if cached else 'empty cache'}"
    budget_s = BUDGET_BUSY_S if busy else BUDGET_IDLE_S
    exported = [each.exported for each in starts]

    def median(values: list[float]) -> float:
        return statistics.median(values)

    return [
        Row(
            f"{name}: CPU until it samples",
            median([each.cpu for each in starts]),
            "s",
            BUDGET_CPU_S if cached else None,
        ),
        Row(f"{name}: of that children", median([each.children_cpu for each in starts]), "s"),
        Row(f"{name}: sampling", median([each.sampling for each in starts]), "s"),
        Row(
            f"{name}: first named sample exported",
            median(exported),
            "s",
            budget_s if cached else None,
        ),
        Row(f"{name}: the same, worst", max(exported), "s"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="how soon a new agent shows a named sample")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    # Ended by `timeout`, say: the programs must end too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    table: list[Row] = []
    try:
        with tempfile.TemporaryDirectory(prefix="flameherd-start-") as place:
            for busy in (False, True):
                with load(busy):
                    for cached in (True, False):
                        folder = Path(place, f"{busy}-{cached}")
                        starts = measure(folder, cached=cached, repeat=options.repeat)
                        table += rows(starts, busy=busy, cached=cached)
    except CannotMeasureError as error:
        print(error, file=sys.stderr)
        return 2
    print(render(table))
    return 1 if any(row.verdict == "OVER" for row in table) else 0


if __name__ == "__main__":
    sys.exit(main())
