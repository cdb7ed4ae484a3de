"""Policies that come and go while the agent runs: each sample goes where its policy said, once.

The intervals are long here, so that nothing is exported before the change.
"""

from pathlib import Path
from typing import Any

from tests.ebpf.agents import agent, agent_config, eventually
from tests.ebpf.recorded import needs_root
from tests.ebpf.test_rate_change import apply, exported
from tests.programs.running import Running, running

pytestmark = needs_root
FREQUENCY_HZ = 199
PERIOD_NS = round(1e9 / FREQUENCY_HZ)


def by_pid(name: str, *programs: Running) -> dict[str, Any]:
    pids = [program.pid for program in programs]
    return {"name": name, "selector": {"pids": pids}, "frequencyHz": FREQUENCY_HZ}


def samples_of(path: Path, program: Running) -> int:
    return exported(path).get((program.pid, PERIOD_NS), 0) if path.exists() else 0


def test_what_a_policy_took_is_exported_when_it_goes(tmp_path: Path) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    with running("hog") as first, running("hog") as second:
        text = agent_config([by_pid("first", first)], before, "10s")
        with agent(tmp_path, config=text) as it:
            until = first.cpu_seconds() + 2
            eventually(lambda: first.cpu_seconds() > until)
            apply(it, agent_config([by_pid("second", second)], after, "10s"))
            taken = it.samples()
            until = second.cpu_seconds() + 2
            eventually(lambda: second.cpu_seconds() > until)
            it.stop()
    assert taken >= 100
    assert samples_of(before, first) == taken
    assert samples_of(before, second) == 0
    assert samples_of(after, first) == 0
    assert samples_of(after, second) >= 100


def test_a_process_goes_back_to_the_policy_of_its_cgroup(tmp_path: Path) -> None:
    """A policy named it by pid; when that policy is gone, the machine's takes it."""
    output = tmp_path / "profiles.json"
    host = {"name": "host", "selector": {"host": True}, "frequencyHz": FREQUENCY_HZ}
    slow = {"frequencyHz": 19, "priority": 10}
    with running("hog") as program:
        text = agent_config([host, by_pid("one", program) | slow], output)
        with agent(tmp_path, config=text) as it:
            eventually(lambda: it.status()["policies"]["one"]["samples"] > 10)
            assert samples_of(output, program) == 0
            apply(it, agent_config([host], output))
            eventually(lambda: samples_of(output, program) > 100)


def test_a_process_that_a_policy_names_no_longer(tmp_path: Path) -> None:
    output = tmp_path / "profiles.json"
    with running("hog") as kept, running("hog") as dropped:
        text = agent_config([by_pid("two", kept, dropped)], output)
        with agent(tmp_path, config=text) as it:
            eventually(lambda: samples_of(output, dropped) > 20)
            apply(it, agent_config([by_pid("two", kept)], output))
            had, goal = samples_of(output, dropped), samples_of(output, kept) + 100
            eventually(lambda: samples_of(output, kept) > goal)
            # At most what was taken between the end of the interval and the deselection.
            assert samples_of(output, dropped) <= had + FREQUENCY_HZ
