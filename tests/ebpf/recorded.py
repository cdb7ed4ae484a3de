"""Records several truth programs at once and judges each.

One recording costs what the longest costs.
"""

import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from flameherd_agent.app import EngineOptions
from flameherd_agent.model import Sample
from flameherd_agent.recording import Recording, RecordingResult
from flameherd_agent.types import SlotId

from tests.programs.build import CACHE, MissingToolError
from tests.programs.catalog import Case
from tests.programs.running import Running
from tests.truth import Judgement, describe, judge, samples_by_pid

OPTIONS = EngineOptions(cache=Path(CACHE.parent, "agent"))
"""The tests' own cache: the machine's may belong to an agent that runs here."""
STEP_S = 1.0
WARM_LEAST_S = 1.5
WARM_LIMIT_S = 60.0
FAIR_SHARE = 1.03
"""Sampling error: run until this much more CPU time was used than the wanted samples need."""


def record(
    cases: Sequence[Case], frequency_hz: int, samples: int, limit_s: float
) -> dict[str, Judgement]:
    """Run the cases side by side until each used CPU time for `samples`, at most `limit_s` seconds.

    Prints the table of all judgements: pytest shows it for a test that fails.
    """
    with ExitStack() as stack:
        programs = [stack.enter_context(case.start()) for case in cases]
        recording = stack.enter_context(
            Recording(
                [pid for program in programs for pid in program.family()],
                frequency_hz=frequency_hz,
                options=OPTIONS,
            )
        )
        before = warm(recording, frequency_hz)
        began = {program.name: program.cpu_seconds() for program in programs}
        until = time.monotonic() + limit_s
        needed_s = samples * FAIR_SHARE / frequency_hz
        while time.monotonic() < until and any(
            program.cpu_seconds() - began[program.name] < needed_s for program in programs
        ):
            recording.run(STEP_S)
        used = {program.name: program.cpu_seconds() - began[program.name] for program in programs}
        result = recording.result()
    lost = max(0, result.samples - before - result.collected())
    judgements = judge_all(cases, programs, result)
    for name, judgement in judgements.items():
        judgement.expected = used[name] * frequency_hz
        judgement.lost = math.ceil(lost * used[name] / max(sum(used.values()), 1e-9))
    print(f"{frequency_hz} Hz, outcomes {result.outcomes}")
    print(describe(judgements.values()))
    return judgements


def warm(recording: Recording, frequency_hz: int) -> int:
    """Run until every executable is loaded and drop what was sampled; returns how many samples.

    What is judged here is the steady state. A process's first seconds, in which stacks are copied at a cap, have a
    criterion of their own.
    """
    engine, slot = recording.engine, SlotId(1)
    until = time.monotonic() + WARM_LIMIT_S
    engine.run(WARM_LEAST_S)
    while engine.waits_for():
        assert time.monotonic() < until, f"still not loaded: {engine.waits_for()}"
        engine.run(WARM_LEAST_S / 10)
    engine.sampler.set_rate(slot, 0)
    engine.settle(WARM_LIMIT_S)
    for _ in range(2):  # both halves of the double buffer
        engine.take()
    before = engine.summary().samples
    engine.sampler.set_rate(slot, frequency_hz)
    return before


def judge_all(
    cases: Sequence[Case], programs: Sequence[Running], result: RecordingResult
) -> dict[str, Judgement]:
    """{name of the case: judgement}.

    A pid that is not a program's own is a child's: its comm tells whose.
    """
    by_pid = samples_by_pid(result.profiles)
    samples: dict[str, list[Sample]] = {
        program.name: by_pid.pop(program.pid, []) for program in programs
    }
    for children in by_pid.values():
        for sample in children:
            comm = str(dict(sample.attributes).get("thread.name", ""))
            samples.setdefault(comm, []).append(sample)
    judgements = {case.name: judge(case.name, case.truth, samples.pop(case.name)) for case in cases}
    strangers = {name: sum(sample.value for sample in left) for name, left in samples.items()}
    assert not strangers, f"samples of processes that were not selected: {strangers}"
    return judgements


@dataclass(frozen=True)
class Length:
    """How much is asked of each program."""

    samples: int
    limit_s: float

    def check_all(self, cases: Sequence[Case], frequency_hz: int) -> dict[str, Judgement]:
        """Record and check every case; the first that fails raises, after the whole table."""
        runnable = [case for case in cases if not missing(case)]
        if not runnable:
            pytest.skip("; ".join(sorted({missing(case) for case in cases})))
        judgements = record(runnable, frequency_hz, self.samples, self.limit_s)
        for case in runnable:
            judgements[case.name].check(case.truth, self.samples)
        return judgements


SHORT = Length(samples=1_000, limit_s=120.0)
FULL = Length(samples=10_000, limit_s=3_600.0)
"""What the project promises, at both rates."""
SHORT_HZ = 997
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="eBPF programs are loaded as root")
soak_parameters = pytest.mark.parametrize("frequency_hz", [97, 997])


def missing(case: Case) -> str:
    """Why the case cannot run on this machine; "" if it can."""
    if os.geteuid() != 0:
        return "eBPF programs are loaded as root"
    try:
        case.prepare()
    except MissingToolError as error:
        return str(error)
    return ""


class Judged:
    """The judgements of one recording; a program that could not run skips its tests."""

    def __init__(self, cases: Sequence[Case], length: Length) -> None:
        self._cases = {case.name: case for case in cases}
        self._length = length
        self._missing = {case.name: missing(case) for case in cases}
        runnable = [case for case in cases if not self._missing[case.name]]
        self._judgements = (
            record(runnable, SHORT_HZ, length.samples, length.limit_s) if runnable else {}
        )

    def of(self, name: str) -> Judgement:
        """The judgement of a program; skips the test if it could not run."""
        if self._missing[name]:
            pytest.skip(self._missing[name])
        return self._judgements[name]

    def check(self, name: str) -> None:
        """Raises AssertionError if its stacks are not what the program did."""
        self.of(name).check(self._cases[name].truth, self._length.samples)


def judged_module(cases: Sequence[Case], length: Length) -> Callable[[], Judged]:
    """A fixture that records the cases once for all tests of a module."""

    @pytest.fixture(scope="module")
    def judged() -> Judged:
        return Judged(cases, length)

    return judged
