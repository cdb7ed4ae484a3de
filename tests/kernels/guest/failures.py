"""What must not be done to the machine that runs the tests: a CPU is taken away, sampling throttled,
kernel addresses hidden.

    failures.py hotplug|throttle --cache DIR

Prints what was seen as JSON; `test_failures.py` judges it.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flameherd_agent.app import EngineOptions
from flameherd_agent.recording import Recording
from flameherd_agent.types import SlotId

from tests.programs.running import running

HOG = Path("/flameherd/programs/hog")
LAST_CPU = 1
WAIT_S = 200.0
SAMPLES = 100


def switch(online: bool) -> None:
    Path(f"/sys/devices/system/cpu/cpu{LAST_CPU}/online").write_text(str(int(online)))


def is_sampled(recording: Recording) -> bool:
    """Whether samples come. How fast is up to the host: the machine is emulated."""
    enough = recording.engine.sampler.meter(SlotId(1)).samples + SAMPLES
    return until(recording, lambda: recording.engine.sampler.meter(SlotId(1)).samples >= enough)


def until(recording: Recording, done: Callable[[], bool]) -> bool:
    recording.run(WAIT_S, lambda _: not done())
    return done()


def hotplug(cache: Path) -> dict[str, Any]:
    """A CPU goes, comes back, and then is away for a moment only."""
    seen: dict[str, Any] = {}
    with (
        running("hog", executable=HOG) as program,
        Recording([program.pid], frequency_hz=199, options=EngineOptions(cache=cache)) as recording,
    ):
        engine = recording.engine
        os.sched_setaffinity(program.pid, {LAST_CPU})
        seen["before"] = is_sampled(recording)
        switch(False)
        seen["noticed"] = until(recording, lambda: len(engine.sampler.events.filenos()) == 1)
        seen["away"] = is_sampled(recording)
        switch(True)
        seen["returned"] = until(recording, lambda: len(engine.sampler.events.filenos()) == 2)
        os.sched_setaffinity(program.pid, {LAST_CPU})
        seen["back"] = is_sampled(recording)
        lost = engine.processes.lost_events
        switch(False)
        switch(True)
        seen["momentary"] = until(recording, lambda: engine.processes.lost_events > lost)
        os.sched_setaffinity(program.pid, {LAST_CPU})
        seen["again"] = is_sampled(recording)
        balance = engine.sampler.tick_balance()
        seen |= {"due": balance.due, "idle": balance.idle, "seen": balance.seen}
        result = recording.result()
    return seen | {"outcomes": result.outcomes, "samples": result.samples, "lost": result.lost}


def sysctl(name: str, value: int) -> None:
    Path("/proc/sys", name).write_text(str(value))


def throttle(cache: Path) -> dict[str, Any]:
    """The agent under a rate that the kernel throttles, and without kernel addresses."""
    shutil.rmtree(cache / "tables", ignore_errors=True)  # it knows the names
    sysctl("kernel/kptr_restrict", 2)
    sysctl("kernel/perf_event_max_sample_rate", 100)
    policy = {
        "apiVersion": "flameherd.dev/v1alpha1",
        "kind": "AgentConfig",
        "version": "1",
        "policies": [{"name": "host", "selector": {"host": True}, "frequencyHz": 997}],
        "ceilings": {"maxFrequencyHz": 997},
    }
    config, log = Path("/tmp/policy.yaml"), Path("/tmp/agent.log")
    config.write_text(json.dumps(policy))
    command = [sys.executable, "-c", "import sys; from flameherd_agent.cli import main; main()"]
    command += ["agent", "--config", str(config), "--cache", str(cache), "--listen", "127.0.0.1:0"]
    with running("hog", executable=HOG), log.open("wb") as output:
        agent = subprocess.Popen(command, stderr=output)
        try:
            deadline = time.monotonic() + WAIT_S
            wanted = ("throttles", "stay unnamed")
            while not all(x in log.read_text() for x in wanted) and time.monotonic() < deadline:
                time.sleep(0.5)
            address = re.search(r"http://[0-9.:]+", log.read_text())
            assert address, log.read_text()
            status: dict[str, Any] = {"ticks": {"seen": 0}}
            while status["ticks"]["seen"] <= SAMPLES and time.monotonic() < deadline:
                time.sleep(0.5)
                with urllib.request.urlopen(f"{address[0]}/status", timeout=20) as answer:
                    status = json.loads(answer.read())
            with urllib.request.urlopen(f"{address[0]}/metrics", timeout=20) as answer:
                metrics = answer.read().decode()
            missed = re.search(r"^flameherd_ticks_missed (\S+)$", metrics, re.MULTILINE)
        finally:
            agent.terminate()
            agent.wait(WAIT_S)
    return {
        "log": log.read_text(),
        "missed": float(missed[1]) if missed else None,
        "ticks": status["ticks"],
        "code": agent.returncode,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=("hotplug", "throttle"))
    parser.add_argument("--cache", type=Path, required=True)
    options = parser.parse_args()
    seen = hotplug(options.cache) if options.case == "hotplug" else throttle(options.cache)
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
