"""CPU hotplug, throttling and hidden addresses, for real, on each kernel: see `guest/failures.py`."""

import json
from typing import Any

import pytest

from tests.kernels.machine import Machine

pytestmark = pytest.mark.kernels
CACHE = "/tmp/agent"


def run(vm: Machine, case: str) -> dict[str, Any]:
    command = [
        "python3",
        "/flameherd/tests/kernels/guest/failures.py",
        case,
        "--cache",
        CACHE,
    ]
    result = vm.run(command, timeout=500).check()
    print(f"\n{vm.release}: {case}, {result.seconds:.0f} s\n{result.stdout}")
    seen: dict[str, Any] = json.loads(result.stdout)
    return seen


def test_a_cpu_that_goes_and_comes_back(vm: Machine) -> None:
    seen = run(vm, "hotplug")
    steps = ("before", "noticed", "away", "returned", "back", "momentary", "again")
    assert [step for step in steps if not seen[step]] == []
    assert seen["idle"] + seen["seen"] < 1.02 * seen["due"]
    assert seen["lost"] == 0
    assert seen["outcomes"]["COMPLETE"] > 0


def test_throttling_and_hidden_addresses_are_told(vm: Machine) -> None:
    seen = run(vm, "throttle")
    log = seen["log"]
    assert seen["code"] == 0, log
    assert "the kernel throttles ticks beyond 100 Hz" in log
    assert "kernel.perf_event_max_sample_rate" in log
    assert "kernel functions stay unnamed" in log
    assert "kernel.kptr_restrict" in log
    assert seen["missed"] > 0.2 * seen["ticks"]["seen"]
    assert seen["ticks"]["seen"] >= 100, "what can go on goes on"
