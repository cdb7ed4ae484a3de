"""A CPU budget with real programs on this kernel: the rate falls and rises, and CPU seconds stay true.

Two programs use a CPU each. The slot of one has a budget that its rate would exceed many times. What
it costs is measured as the agent measures it (the programs' own times and the agent's share) and must
keep to the budget over a minute; samples times period of the profiles that were exported, over all
rate epochs, must be the CPU time that the scheduler accounts. When the program stops, the rate rises
again.
"""

import math
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.collector.collector import read_json_lines
from tests.ebpf.agents import Agent, agent, agent_config, eventually
from tests.ebpf.recorded import needs_root
from tests.programs.running import running

pytestmark = [needs_root, pytest.mark.timeout(900)]
WANTED_HZ, OTHER_HZ = 997, 49
BUDGET_CPUS = 0.0005
"""997 Hz of one CPU cost fifty times as much; also a program that gets a twentieth of one exceeds it."""
SHORT_S, FULL_S = 40.0, 300.0
SETTLE_S = 15.0
"""In the first seconds the rate is still being found; what they overdraw is paid back in these."""


def spent_ns(it: Agent, policy: str) -> float:
    """What a policy has cost so far, by the agent's own metrics."""
    metrics = it.metrics()
    kernel = metrics["flameherd_slot_run_nanoseconds_total", policy]
    return kernel + metrics["flameherd_slot_agent_nanoseconds_total", policy]


def exported(path: Path) -> dict[int, Counter[int]]:
    """{pid: {period in nanoseconds: samples}} of a file of OTLP JSON lines."""
    found: dict[int, Counter[int]] = {}
    for _resource, _scope, head, _stack, attributes, *values in read_json_lines(path):
        pid = int(dict(attributes)["process.pid"])
        found.setdefault(pid, Counter())[head[4]] += sum(values)
    return found


def keep_to_a_budget(folder: Path, seconds: float) -> None:
    output = folder / "profiles.json"
    with running("hog") as capped, running("hog") as other:
        config = agent_config(
            [
                {
                    "name": "capped",
                    "selector": {"pids": [capped.pid]},
                    "frequencyHz": WANTED_HZ,
                    "cpuPerNode": f"{round(BUDGET_CPUS * 1e6)}u",
                },
                {"name": "other", "selector": {"pids": [other.pid]}, "frequencyHz": OTHER_HZ},
            ],
            output,
            interval="2s",
        )
        for program in (capped, other):
            program.process.send_signal(signal.SIGSTOP)
        eventually(lambda: stopped(capped.pid) and stopped(other.pid))
        with agent(folder, config=config) as it:
            began = {p.pid: sum(p.cpu_ns_by_thread().values()) for p in (capped, other)}
            assert policy(it)["budget"] == "Kept"
            for program in (capped, other):
                program.process.send_signal(signal.SIGCONT)
            eventually(lambda: policy(it)["budget"] == "Lowered")
            time.sleep(SETTLE_S)
            at, spent = time.monotonic(), spent_ns(it, "capped")
            time.sleep(seconds)
            cpus = (spent_ns(it, "capped") - spent) / 1e9 / (time.monotonic() - at)
            lowered_hz = policy(it)["frequencyHz"]
            for program in (capped, other):
                program.process.send_signal(signal.SIGSTOP)
            used = {
                p.pid: sum(p.cpu_ns_by_thread().values()) - began[p.pid] for p in (capped, other)
            }
            # With nothing to sample, the rate is what the policy says again.
            eventually(lambda: policy(it)["frequencyHz"] == WANTED_HZ, 300)
            assert policy(it)["budget"] == "Kept"
            it.stop()
    found = exported(output)
    periods = found[capped.pid]
    print(f"{cpus * 1000:.2f}m of {BUDGET_CPUS * 1000}m, at {lowered_hz} Hz in the end")
    print({round(1e9 / period): count for period, count in sorted(periods.items())})
    assert cpus <= 1.1 * BUDGET_CPUS
    assert len(periods) >= 2
    assert min(periods) == round(1e9 / WANTED_HZ)
    assert set(found[other.pid]) == {round(1e9 / OTHER_HZ)}
    for pid, counts in found.items():
        sampled = sum(period * count for period, count in counts.items())
        # Of each epoch's count the error is its root.
        error = 4 * math.sqrt(sum(period**2 * count for period, count in counts.items()))
        assert abs(sampled - used[pid]) <= error + 0.02 * used[pid], (pid, sampled, used[pid])


def policy(it: Agent) -> dict[str, Any]:
    found: dict[str, Any] = it.status()["policies"]["capped"]
    return found


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_budget_is_kept_and_cpu_seconds_stay_true(tmp_path: Path) -> None:
    keep_to_a_budget(tmp_path, SHORT_S)


@pytest.mark.soak
def test_a_budget_is_kept_for_minutes(tmp_path: Path) -> None:
    keep_to_a_budget(tmp_path, FULL_S)


def test_a_budget_that_no_rate_keeps_is_told(tmp_path: Path) -> None:
    with running("hog") as program:
        slot = {
            "name": "capped",
            "selector": {"pids": [program.pid]},
            "frequencyHz": WANTED_HZ,
            "cpuPerNode": "100u",
        }
        config = agent_config([slot], tmp_path / "profiles.json")
        # The agent's share of one sample in a second is that of a whole interval: more than 0.1 ms.
        with agent(tmp_path, config=config) as it:
            eventually(lambda: policy(it)["budget"] == "Floor", 300)
            assert policy(it)["frequencyHz"] == 1
            assert "the CPU budget of a policy" in it.stop()
