"""A storm of short processes: most of what is sampled in them has names.

The storm's CPU cost to the agent is measured by the benchmarks, not asserted here.
"""

import functools
import subprocess

import pytest
from flameherd_agent.model import FrameType, Location, Sample
from flameherd_agent.recording import Recording

from tests.ebpf.recorded import OPTIONS, needs_root
from tests.programs.build import build
from tests.programs.running import running
from tests.truth import frames_of, render

pytestmark = [needs_root, pytest.mark.timeout(300)]
EXECS_PER_SECOND = 300
WANTED = 0.9


@functools.cache
def functions(path: str) -> list[tuple[int, int]]:
    """(begin, end) of every function that a file has a name for, by `nm`, sorted."""
    found = set()
    for tables in ((), ("-D",)):
        command = ["nm", "-S", "--defined-only", *tables, path]
        for line in subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout.splitlines():
            fields = line.split()
            if len(fields) == 4 and fields[2] in "tTwWiI":
                begin, size = int(fields[0], 16), int(fields[1], 16)
                found.add((begin, begin + size))
    return sorted(found)


def has_no_name(location: Location) -> bool:
    """Whether nobody could name it: Debian's dynamic loader is stripped of its own functions."""
    if location.mapping is None or location.kind is FrameType.KERNEL:
        return False
    known = functions(location.mapping.path)
    return not any(begin <= location.address < end for begin, end in known)


def named(sample: Sample) -> bool:
    """The stack is whole and every function in it has its name, if its file has one."""
    return (
        bool(sample.stack)
        and not sample.truncated
        and all(location.lines or has_no_name(location) for location in sample.stack)
    )


def storm(seconds: int) -> None:
    tiny = build("tiny")
    with (
        running("execstorm", str(EXECS_PER_SECOND), str(seconds), str(tiny)) as program,
        Recording([program.pid], frequency_hz=97, options=OPTIONS) as recording,
    ):
        recording.run(seconds, lambda _: program.process.poll() is None)
        result = recording.result()
    samples = [
        sample
        for resource in result.profiles
        for profile in resource.profiles
        for sample in profile.samples
    ]
    total = sum(sample.value for sample in samples) + result.lost
    good = sum(sample.value for sample in samples if named(sample))
    bad = [render(frames_of(sample.stack)) for sample in samples if not named(sample)][:10]
    pids = {dict(sample.attributes).get("process.pid") for sample in samples}
    report = f"{good} of {total} named, {len(pids)} pids, {result.outcomes}\n" + "\n".join(bad)
    print(report)
    assert len(pids) > 20, report
    assert good >= WANTED * total, report


def test_short_processes_have_names() -> None:
    storm(4)


@pytest.mark.soak
def test_short_processes_at_full_length() -> None:
    storm(30)
