"""A rate that changes while the agent runs: every profile's period stays true.

Two programs that use a CPU all the time, each in a slot of its own, are sampled by the agent under a
file that is edited while it runs. Samples times period of the profiles that it exported must be the
CPU time that the scheduler accounts (`/proc/PID/task/TID/schedstat`): for every rate of the edited
slot by itself, and for the other slot, whose rate stays while the ticks below it change.
"""

import math
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from flameherd_agent.kernel.sampler import EPOCH_REST_INTERVALS, Sampler
from flameherd_agent.types import SlotId

from tests.collector.collector import read_json_lines
from tests.ebpf.agents import Agent, agent, agent_config, eventually
from tests.ebpf.recorded import OPTIONS, needs_root
from tests.programs.running import Running, running

pytestmark = [needs_root, pytest.mark.timeout(900)]
RATES_HZ = (19, 97, 499)
STEADY_HZ = 49
SHORT_S = 4.0
FULL_S = 60.0
"""CPU seconds at each rate."""
APPLIED = "configuration applied"


def used_ns(program: Running) -> int:
    return sum(program.cpu_ns_by_thread().values())


def run_for(program: Running, cpu_s: float) -> None:
    """Until a program has used some more CPU time."""
    until = used_ns(program) + cpu_s * 1e9
    eventually(lambda: used_ns(program) > until, 60 + 20 * cpu_s)


def apply(it: Agent, text: str) -> None:
    """Edit the configuration; returns as soon as the agent has applied it."""
    before = it.log.read_text().count(APPLIED)
    it.config.write_text(text)
    until = time.monotonic() + 60
    while it.log.read_text().count(APPLIED) == before:
        assert time.monotonic() < until, it.log.read_text()
        time.sleep(0.002)


def exported(path: Path) -> dict[tuple[int, int], int]:
    """{(pid, period in nanoseconds): samples} of a file of OTLP JSON lines."""
    found: Counter[tuple[int, int]] = Counter()
    for _resource, _scope, head, _stack, attributes, *values in read_json_lines(path):
        found[int(dict(attributes)["process.pid"]), head[4]] += sum(values)
    return dict(found)


def change_rates(folder: Path, cpu_s: float) -> None:
    output = folder / "profiles.json"
    with running("hog") as edited, running("hog") as steady:

        def config(hz: int) -> str:
            return agent_config(
                [
                    {"name": "edited", "selector": {"pids": [edited.pid]}, "frequencyHz": hz},
                    {
                        "name": "steady",
                        "selector": {"pids": [steady.pid]},
                        "frequencyHz": STEADY_HZ,
                    },
                ],
                output,
            )

        for program in (edited, steady):
            program.process.send_signal(signal.SIGSTOP)
        eventually(lambda: all(stopped(program.pid) for program in (edited, steady)))
        with agent(folder, config=config(RATES_HZ[0])) as it:
            marks = [used_ns(edited)]
            began = used_ns(steady)
            for program in (edited, steady):
                program.process.send_signal(signal.SIGCONT)
            for hz in RATES_HZ:
                if hz != RATES_HZ[0]:
                    apply(it, config(hz))
                    marks.append(used_ns(edited))
                run_for(edited, cpu_s)
            for program in (edited, steady):
                program.process.send_signal(signal.SIGSTOP)
            eventually(lambda: all(stopped(program.pid) for program in (edited, steady)))
            marks.append(used_ns(edited))
            steady_ns = used_ns(steady) - began
            it.stop()
    found = exported(output)
    rows = [
        (f"edited, {hz} Hz", edited.pid, hz, end - start)
        for hz, start, end in zip(RATES_HZ, marks, marks[1:], strict=False)
    ] + [("steady", steady.pid, STEADY_HZ, steady_ns)]
    periods = {(pid, round(1e9 / hz)) for _, pid, hz, _ in rows}
    assert set(found) == periods, "every profile carries a period that was in force"
    lines = []
    good = True
    for name, pid, hz, cpu_ns in rows:
        period = round(1e9 / hz)
        sampled = found[pid, period] * period
        error = 4 / math.sqrt(cpu_ns * hz / 1e9)
        good &= abs(sampled - cpu_ns) <= error * cpu_ns
        lines.append(f"{name}: {cpu_ns / 1e9:.2f} s, sampled {sampled / 1e9:.2f} s, ± {error:.1%}")
    print("\n".join(lines))
    assert good, "\n".join(lines)


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_every_epoch_has_its_own_true_period(tmp_path: Path) -> None:
    change_rates(tmp_path, SHORT_S)


@pytest.mark.soak
def test_every_epoch_has_its_own_true_period_at_full_length(tmp_path: Path) -> None:
    change_rates(tmp_path, FULL_S)


def test_periods_outlive_their_epoch() -> None:
    """A cold sample may come when its epoch is over: its period must still be known."""
    sampler = Sampler(OPTIONS.cache, cold_bytes_per_second=0)
    try:
        sampler.set_rate(SlotId(1), 19)
        sampler.set_rate(SlotId(2), 49)
        sampler.set_rate(SlotId(1), 97)
        first, second, third = sampler.periods_ns
        assert [slot for slot, _ in (first, second, third)] == [1, 2, 1]
        for _ in range(EPOCH_REST_INTERVALS):
            sampler.forget_epochs()
            assert first in sampler.periods_ns
        sampler.forget_epochs()
        assert set(sampler.periods_ns) == {second, third}
        sampler.set_rate(SlotId(2), 0)
        for _ in range(EPOCH_REST_INTERVALS + 1):
            assert second in sampler.periods_ns
            sampler.forget_epochs()
        assert set(sampler.periods_ns) == {third}
    finally:
        sampler.close()
