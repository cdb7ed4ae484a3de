"""CPython: the Python frames of every stack are the program's own, between native ones, with their lines."""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache

import pytest
from flameherd_agent.model import Sample
from flameherd_agent.recording import Recording

from tests.debian_roots import NoRootError
from tests.ebpf.recorded import OPTIONS, STEP_S, needs_root, warm
from tests.programs.running import Running, running_command
from tests.python_roots import SUITES, rooted
from tests.python_truth import PROGRAMS, wrong
from tests.pythons import Python, missing, pythons
from tests.truth import frames_of, render, samples_by_pid

pytestmark = [needs_root, pytest.mark.timeout(900)]
NAMES = ("deep", "callback", "threads", "errors", "generators", "late", "extension")
FREQUENCY_HZ = 997
SHORT, FULL = 300, 10_000
LIMIT_S = 120.0
SHARE = 0.99
FORGIVEN = 6
"""Wrong stacks of a short run: a few hundred samples cannot tell 99 % from 98 %."""


@dataclass
class Verdict:
    """What became of one program's samples."""

    samples: int = 0
    right: int = 0
    full: int = 0
    why: Counter[tuple[str, str]] = field(default_factory=Counter)

    def share(self) -> float:
        return self.right / max(1, self.samples)

    def describe(self) -> str:
        lines = [f"{self.right} of {self.samples} right, {self.full} whole"]
        lines += [f"  {n} × {why}: {stack}" for (why, stack), n in self.why.most_common(5)]
        return "\n".join(lines)


def judge(name: str, python: Python, samples: Sequence[Sample]) -> Verdict:
    verdict = Verdict()
    for sample in samples:
        why, full = wrong(name, python.version, sample)
        verdict.samples += sample.value
        verdict.right += sample.value * (not why)
        verdict.full += sample.value * full
        if why:
            verdict.why[why, render(frames_of(sample.stack))] += sample.value
    return verdict


def record(
    python: Python, names: Sequence[str], samples: int, limit_s: float
) -> dict[str, Verdict]:
    """Every program side by side until each used CPU time for `samples`."""
    with ExitStack() as stack:
        programs: list[Running] = [
            stack.enter_context(running_command(python.command(PROGRAMS / f"{name}.py"), name))
            for name in names
        ]
        recording = stack.enter_context(
            Recording([p.pid for p in programs], frequency_hz=FREQUENCY_HZ, options=OPTIONS)
        )
        warm(recording, FREQUENCY_HZ)
        began = [program.cpu_seconds() for program in programs]
        needed_s = 1.1 * samples / FREQUENCY_HZ
        waited = 0.0
        while waited < limit_s and any(
            program.cpu_seconds() - at < needed_s
            for program, at in zip(programs, began, strict=True)
        ):
            recording.run(STEP_S)
            waited += STEP_S
        result = recording.result()
    by_pid = samples_by_pid(result.profiles)
    print(python.name, result.outcomes)
    return {p.name: judge(p.name, python, by_pid.get(p.pid, [])) for p in programs}


@cache
def recorded(python: Python) -> dict[str, Verdict]:
    """The short form, once for all tests of an interpreter."""
    return record(python, NAMES, SHORT, LIMIT_S)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("python", pythons(), ids=lambda python: python.name)
def test_stacks_are_the_known_chain(python: Python, name: str) -> None:
    verdict = recorded(python)[name]
    assert verdict.samples >= SHORT, verdict.describe()
    allowed = max(FORGIVEN, (1 - SHARE) * verdict.samples)
    assert verdict.samples - verdict.right <= allowed, verdict.describe()
    assert verdict.full >= 0.3 * verdict.samples, verdict.describe()


def test_versions_that_are_not_here() -> None:
    if missing():
        pytest.skip(f"not on this machine: CPython {', '.join(missing())}")


@pytest.mark.soak
@pytest.mark.parametrize(("suite", "version"), SUITES)
def test_other_releases_in_roots_of_their_own(suite: str, version: str) -> None:
    """Stripped builds, other C libraries, and CPython 3.14."""
    try:
        python = rooted(suite, version)
    except NoRootError as problem:
        pytest.skip(str(problem))
    for name, verdict in record(python, NAMES, SHORT, LIMIT_S).items():
        assert verdict.samples >= SHORT, (name, verdict.describe())
        allowed = max(FORGIVEN, (1 - SHARE) * verdict.samples)
        assert verdict.samples - verdict.right <= allowed, (name, verdict.describe())


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("python", pythons(), ids=lambda python: python.name)
def test_at_full_length(python: Python) -> None:
    verdicts = record(python, NAMES, FULL, 3600.0)
    for name, verdict in verdicts.items():
        assert verdict.samples >= FULL, (name, verdict.describe())
        assert verdict.share() >= SHARE, (name, verdict.describe())
