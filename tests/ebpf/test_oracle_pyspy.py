"""The same stacks as py-spy sees: two readers of CPython's frames that share no code, side by side.

A chain of functions that a program repeats is told apart by names, files and lines from the root to the leaf's
caller; the leaf's own line changes with every instruction. Both see the chains that make up the program's time.
"""

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from flameherd_agent.recording import Recording
from flameherd_agent.types import FrameType

from tests.ebpf.recorded import OPTIONS, needs_root, warm
from tests.programs.running import running_command
from tests.python_truth import PROGRAMS
from tests.pythons import Python, pythons
from tests.truth import samples_by_pid

pytestmark = [needs_root, pytest.mark.soak, pytest.mark.timeout(600)]
FREQUENCY_HZ = 97
SECONDS = 20
NAMES = ("deep", "callback", "errors")
OFTEN = 0.05
"""Chains with this share of one reader's samples are in the other's."""
Callers = tuple[tuple[str, str, int], ...]


def py_spy() -> str:
    """Its path; skips the test without it."""
    found = shutil.which("py-spy") or shutil.which(str(Path(sys.executable).with_name("py-spy")))
    return found or pytest.skip("py-spy is not installed: pip install py-spy")


def callers(frames: list[tuple[str, str, int]]) -> Callers:
    """Root first, without the leaf; names without what only newer versions have."""
    return tuple(
        (name.rpartition(".")[2], Path(file).name, line) for name, file, line in frames[:-1]
    )


def theirs(pid: int) -> Counter[Callers]:
    """py-spy's dumps, one after another: its records name no lines of callers that our chains could be told by."""
    seen: Counter[Callers] = Counter()
    for _ in range(int(SECONDS * 5)):
        done = subprocess.run(
            [py_spy(), "dump", "--json", "--pid", str(pid)], capture_output=True, check=True
        )
        for thread in json.loads(done.stdout):
            frames = [(f["name"], f["filename"], f["line"]) for f in reversed(thread["frames"])]
            seen[callers(frames)] += 1
    return seen


def ours(recording: Recording, pid: int) -> Counter[Callers]:
    seen: Counter[Callers] = Counter()
    for sample in samples_by_pid(recording.result().profiles)[pid]:
        lines = [
            location.lines[0]
            for location in reversed(sample.stack)
            if location.kind is FrameType.CPYTHON and location.lines
        ]
        seen[callers([(line.function, line.file, line.line) for line in lines])] += sample.value
    return seen


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("python", pythons(), ids=lambda python: python.name)
def test_the_same_chains(python: Python, name: str) -> None:
    py_spy()
    with (
        running_command(python.command(PROGRAMS / f"{name}.py"), name) as program,
        Recording([program.pid], frequency_hz=FREQUENCY_HZ, options=OPTIONS) as recording,
    ):
        warm(recording, FREQUENCY_HZ)
        recording.run(SECONDS)
        we = ours(recording, program.pid)
        they = theirs(program.pid)
    for one, other in ((we, they), (they, we)):
        often = {chain for chain, n in one.items() if n >= OFTEN * one.total()}
        assert often, one
        assert often <= set(other), (often - set(other), other.most_common(5))
