"""The JVM's own thread dumps, which share no code with us, show the same chains.

`jcmd Thread.print` stops the JVM where it may be stopped, at calls and in loops, so the chains are compared but for the
method at the leaf and its caller's line.
"""

import re
import subprocess
from collections import Counter

import pytest
from flameherd_agent.recording import Recording

from tests.ebpf.recorded import OPTIONS, needs_root, warm
from tests.ebpf.test_truth_hotspot import SMALL, TIERS, needs_programs
from tests.java_truth import java_frames
from tests.jdks import Jdk, jdks
from tests.programs.running import running_command
from tests.truth import samples_by_pid

pytestmark = [needs_root, pytest.mark.timeout(600)]
FREQUENCY_HZ = 97
SECONDS = 8
DUMPS, MANY_DUMPS = 10, 60
OFTEN, RARELY = 0.15, 0.05
"""A chain with this share of one reader's samples is in the other's; few dumps tell only the commonest."""
NAMES = ("Deep", "Callback", "Threads", "Lambdas")
_FRAME = re.compile(r"\tat (?:[\w.]+/)?([^\s(]+)\((?:[^/()]*/)?([^:()]*)(?::(\d+))?\)")
Callers = tuple[tuple[str, int], ...]


def theirs(jdk: Jdk, pid: int, dumps: int) -> Counter[Callers]:
    """Chains of the threads that run one of the program's methods, root first, without the leaf."""
    jcmd = jdk.java.with_name("jcmd")
    seen: Counter[Callers] = Counter()
    for _ in range(dumps):
        text = subprocess.run(
            [jcmd, str(pid), "Thread.print"], capture_output=True, text=True, check=True, timeout=60
        ).stdout
        for thread in text.split("\n\n"):
            frames = [(name, int(line or 0)) for name, _, line in reversed(_FRAME.findall(thread))]
            if frames and "Burning" in frames[-1][0]:
                seen[tuple(frames[:-1])] += 1
    return seen


def ours(recording: Recording, pid: int) -> Counter[Callers]:
    seen: Counter[Callers] = Counter()
    for sample in samples_by_pid(recording.result().profiles)[pid]:
        frames = [(frame.name, frame.line) for frame in java_frames(sample.stack)]
        if frames and "Burning" in frames[-1][0]:
            seen[tuple(frames[:-1])] += sample.value
    return seen


def compare(jdk: Jdk, name: str, tier: str, dumps: int, often: float) -> None:
    needs_programs()
    if not jdk.java.with_name("jcmd").exists():
        pytest.skip(f"{jdk.name} has no jcmd: install its -jdk-headless package")
    with (
        running_command(jdk.command(name, *SMALL, *TIERS[tier]), name) as program,
        Recording([program.pid], frequency_hz=FREQUENCY_HZ, options=OPTIONS) as recording,
    ):
        warm(recording, FREQUENCY_HZ)
        recording.run(SECONDS)
        we = ours(recording, program.pid)
        they = theirs(jdk, program.pid, dumps)
    for one, other in ((we, they), (they, we)):
        common = {chain for chain, n in one.items() if n >= often * one.total()}
        assert common, one
        assert common <= set(other), (common - set(other), other.most_common(5))


@pytest.mark.parametrize("jdk", jdks(), ids=lambda jdk: jdk.name)
def test_the_same_chains(jdk: Jdk) -> None:
    compare(jdk, "Callback", "interpreted", DUMPS, OFTEN)


@pytest.mark.soak
@pytest.mark.parametrize("tier", ["everywhere", "interpreted", "C1"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("jdk", jdks(), ids=lambda jdk: jdk.name)
def test_the_same_chains_of_all(jdk: Jdk, name: str, tier: str) -> None:
    compare(jdk, name, tier, MANY_DUMPS, RARELY)
