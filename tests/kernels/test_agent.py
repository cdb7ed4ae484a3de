"""The agent's kernel side on each kernel: every program loads, every stack is whole.

Stacks are judged in the guest by the same oracle as on the machine itself (`tests/truth.py`): the C
program that recurses 60 deep through libc's qsort without frame pointers, and one that spends its
time in system calls.
"""

import json

import pytest

from tests.kernels.machine import Machine

pytestmark = pytest.mark.kernels

GUEST = "/flameherd/tests/kernels/guest"
CACHE = "/tmp/agent"
FREQUENCY_HZ = 199
SECONDS = 60
"""At most: a recording ends when it has its samples."""
LEAST_SAMPLES = 1000
MOST_VERIFIED_INSTRUCTIONS = 1_000_000
"""The verifier's limit for one program (BPF_COMPLEXITY_LIMIT_INSNS)."""


def unwind(vm: Machine, program: str, select: str) -> None:
    command = ["python3", f"{GUEST}/unwind.py", program, "--select", select, "--cache", CACHE]
    command += ["--seconds", str(SECONDS), "--frequency", str(FREQUENCY_HZ)]
    result = vm.run([*command, "--least", str(LEAST_SAMPLES)], timeout=400)
    print(f"\n{vm.release}: {program} by {select}, {result.seconds:.0f} s\n{result.stdout}")
    result.check()


def test_every_program_loads(vm: Machine) -> None:
    result = vm.run(["python3", f"{GUEST}/load.py", CACHE], timeout=400).check()
    answer = json.loads(result.stdout)
    print(f"\n{vm.release}: verified instructions, maps of {answer['map_bytes'] / 1024:.0f} KiB")
    for name, counts in answer["programs"].items():
        print(f"  {name:<14} {counts['log']:>8}")
        assert 0 < counts["log"] < MOST_VERIFIED_INSTRUCTIONS
        if vm.kernel.name != "5.10":  # bpf_prog_info.verified_insns came with 5.16
            assert counts["info"] == counts["log"]


def test_stacks_without_frame_pointers(vm: Machine) -> None:
    unwind(vm, "qsort", "pid")


def test_stacks_of_samples_taken_in_the_kernel(vm: Machine) -> None:
    unwind(vm, "syscalls", "cgroup")


def test_selection_by_cgroup_v1(vm_cgroup_v1: Machine) -> None:
    unwind(vm_cgroup_v1, "qsort", "cgroup")
