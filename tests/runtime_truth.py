"""Truth programs of a runtime, run side by side, and what became of their samples."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TypeVar

from flameherd_agent.model import Sample
from flameherd_agent.recording import Recording

from tests.ebpf.recorded import OPTIONS, STEP_S, warm
from tests.programs.running import Running, running_command
from tests.truth import frames_of, render, samples_by_pid

Key = TypeVar("Key")
FREQUENCY_HZ = 997
SHORT, FULL = 300, 10_000
LIMIT_S = 120.0
SHARE = 0.99
FORGIVEN = 6
"""Wrong stacks of a short run: a few hundred samples cannot tell 99 % from 98 %."""
LEAST_WHOLE = 0.3
"""Share of samples that must reach the end of the program's chain, so that a prefix of it is not all that is seen."""


@dataclass
class Verdict:
    """What became of one program's samples."""

    samples: int = 0
    right: int = 0
    full: int = 0
    why: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, sample: Sample, why: str, full: bool) -> None:
        """`why` it is wrong, or ""; `full`: to the end of the chain."""
        self.samples += sample.value
        self.right += sample.value * (not why)
        self.full += sample.value * full
        if why:
            self.why[why, render(frames_of(sample.stack))] += sample.value

    def share(self) -> float:
        return self.right / max(1, self.samples)

    def describe(self) -> str:
        lines = [f"{self.right} of {self.samples} right, {self.full} whole"]
        lines += [f"  {n} × {why}: {stack}" for (why, stack), n in self.why.most_common(5)]
        return "\n".join(lines)

    def check(self, of: object = "", *, whole: bool = True) -> None:
        """Of a short run. `whole`: whether enough of them must reach the end of the chain."""
        assert self.samples >= SHORT, (of, self.describe())
        allowed = max(FORGIVEN, (1 - SHARE) * self.samples)
        assert self.samples - self.right <= allowed, (of, self.describe())
        if whole:
            assert self.full >= LEAST_WHOLE * self.samples, (of, self.describe())

    def check_full(self, of: object) -> None:
        """Of a run at full length."""
        assert self.samples >= FULL, (of, self.describe())
        assert self.share() >= SHARE, (of, self.describe())


def record(
    commands: Mapping[Key, Sequence[str]], samples: int, limit_s: float, *, spare: float = 1.1
) -> dict[Key, list[Sample]]:
    """Run every command until each used CPU time for `spare` times `samples`, at most `limit_s` seconds."""
    with ExitStack() as stack:
        programs: list[Running] = [
            stack.enter_context(running_command(list(command), str(key)))
            for key, command in commands.items()
        ]
        recording = stack.enter_context(
            Recording([p.pid for p in programs], frequency_hz=FREQUENCY_HZ, options=OPTIONS)
        )
        warm(recording, FREQUENCY_HZ)
        began = [program.cpu_seconds() for program in programs]
        needed_s = spare * samples / FREQUENCY_HZ
        waited = 0.0
        while waited < limit_s and any(
            program.cpu_seconds() - at < needed_s
            for program, at in zip(programs, began, strict=True)
        ):
            for program in programs:
                assert program.process.poll() is None, f"{program.name} has ended"
            recording.run(STEP_S)
            waited += STEP_S
        result = recording.result()
        print(result.outcomes, dict(recording.engine.interpreters.unnamed))
    by_pid = samples_by_pid(result.profiles)
    return {
        key: by_pid.get(program.pid, []) for key, program in zip(commands, programs, strict=True)
    }
