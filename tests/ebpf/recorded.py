"""Records several truth programs at once and judges each.

One recording costs what the longest costs.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from flameherd_agent.app import EngineOptions
from flameherd_agent.model import Sample
from flameherd_agent.recording import Recording, RecordingResult

from tests.programs.build import CACHE
from tests.programs.catalog import Case
from tests.programs.running import Running
from tests.truth import Judgement, describe, judge, samples_by_pid

OPTIONS = EngineOptions(cache=Path(CACHE.parent, "agent"))
"""The tests' own cache: the machine's may belong to an agent that runs here."""
STEP_S = 1.0
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
        began = {program.name: program.cpu_seconds() for program in programs}
        recording = stack.enter_context(
            Recording(
                [program.pid for program in programs], frequency_hz=frequency_hz, options=OPTIONS
            )
        )
        until = time.monotonic() + limit_s
        needed_s = samples * FAIR_SHARE / frequency_hz
        while time.monotonic() < until and any(
            program.cpu_seconds() - began[program.name] < needed_s for program in programs
        ):
            recording.run(STEP_S)
        result = recording.result()
    judgements = judge_all(cases, programs, result)
    print(f"{frequency_hz} Hz, outcomes {result.outcomes}")
    print(describe(judgements.values()))
    return judgements


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
    judgements = {
        case.name: judge(case.name, case.truth, samples.pop(case.name), result.lost)
        for case in cases
    }
    strangers = {name: sum(sample.value for sample in left) for name, left in samples.items()}
    assert not strangers, f"samples of processes that were not selected: {strangers}"
    return judgements
