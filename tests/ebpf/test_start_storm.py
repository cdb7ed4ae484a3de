"""A storm of short processes: most of what is sampled in them has names.

The storm's CPU cost to the agent is measured by the benchmarks, not asserted here.
"""

import pytest
from flameherd_agent.model import FrameType, Sample
from flameherd_agent.recording import Recording

from tests.ebpf.recorded import OPTIONS, needs_root
from tests.programs.build import build
from tests.programs.running import running
from tests.truth import frames_of, render

pytestmark = [needs_root, pytest.mark.timeout(300)]
EXECS_PER_SECOND = 300
WANTED = 0.9
"""What the project promises."""
FLOOR = 0.5
"""Below this the test fails: 82 % and 85 % were measured where the loader has no symbol table."""


def named(sample: Sample) -> bool:
    """Every user frame of the program itself has a name, or the sample was in the kernel alone.

    Unnamed frames of stripped libraries are not the agent's fault.
    """
    if not sample.stack:
        return False
    user = [location for location in sample.stack if location.kind is not FrameType.KERNEL]
    if not user:
        return all(location.lines for location in sample.stack)
    return any(location.lines for location in user) and not sample.truncated


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
    assert good >= FLOOR * total, report
    if good < WANTED * total:
        pytest.skip(
            f"known defect (docs/status.md): {good} of {total} samples of a start storm are named, "
            f"{WANTED:.0%} are wanted; the rest is mostly in the stripped dynamic loader"
        )


def test_short_processes_have_names() -> None:
    storm(4)


@pytest.mark.soak
def test_short_processes_at_full_length() -> None:
    storm(30)
