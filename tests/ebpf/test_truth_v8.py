"""V8: the functions of every stack are the program's own, inlined ones included, between native ones, with their lines."""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache

import pytest
from flameherd_agent.model import Sample
from flameherd_agent.recording import Recording

from tests.ebpf.recorded import OPTIONS, STEP_S, needs_root, warm
from tests.nodes import Node, NoNodeError, fetched, missing, nodes
from tests.programs.running import Running, running_command
from tests.truth import frames_of, render, samples_by_pid
from tests.v8_truth import PROGRAMS, wrong

pytestmark = [needs_root, pytest.mark.timeout(900)]
TIERS = {
    "": (),
    "interpreted": ("--no-opt", "--no-sparkplug", "--no-maglev"),
    "baseline": ("--no-opt", "--always-sparkplug", "--no-maglev"),
    "maglev": ("--maglev", "--no-turbofan"),
}
"""Which compilers may run: by default all. What Maglev itself notes of the line of a call that it has inlined is out of date
in copies that it makes of loops."""
NAMES = ("deep", "calls", "callback", "errors", "late", "asyncs", "workers")
TIERED = ("deep", "calls", "callback")
CASES = tuple((name, "") for name in NAMES) + tuple(
    (name, tier) for tier in TIERS if tier for name in TIERED
)
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

    def check(self, least: int) -> None:
        assert self.samples >= least, self.describe()
        allowed = max(FORGIVEN, (1 - SHARE) * self.samples)
        assert self.samples - self.right <= allowed, self.describe()
        assert self.full >= 0.3 * self.samples, self.describe()


def judge(name: str, tier: str, samples: Sequence[Sample]) -> Verdict:
    verdict = Verdict()
    for sample in samples:
        why, full = wrong(name, sample, tier != "maglev")
        verdict.samples += sample.value
        verdict.right += sample.value * (not why)
        verdict.full += sample.value * full
        if why:
            verdict.why[why, render(frames_of(sample.stack))] += sample.value
    return verdict


def cases(node: Node) -> tuple[tuple[str, str], ...]:
    """Programs and tiers that a version has: Node.js has Maglev from 24 on."""
    return tuple((name, tier) for name, tier in CASES if tier != "maglev" or node.version >= (24,))


def command(node: Node, name: str, tier: str) -> list[str]:
    flags = [flag for flag in TIERS[tier] if "maglev" not in flag or node.version >= (24,)]
    return [str(node.executable), *flags, str(PROGRAMS / f"{name}.js")]


def record(
    node: Node, chosen: Sequence[tuple[str, str]], samples: int, limit_s: float
) -> dict[tuple[str, str], Verdict]:
    """Every program side by side until each used CPU time for `samples`."""
    with ExitStack() as stack:
        programs: list[Running] = [
            stack.enter_context(running_command(command(node, name, tier), f"{name} {tier}"))
            for name, tier in chosen
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
        print(node.name, result.outcomes, dict(recording.engine.interpreters.unnamed))
    by_pid = samples_by_pid(result.profiles)
    return {
        case: judge(*case, by_pid.get(program.pid, []))
        for case, program in zip(chosen, programs, strict=True)
    }


@cache
def recorded(node: Node, tier: str) -> dict[tuple[str, str], Verdict]:
    """The short form, once for all tests of a version and tier."""
    return record(node, [case for case in cases(node) if case[1] == tier], SHORT, LIMIT_S)


@pytest.mark.parametrize(("name", "tier"), CASES)
@pytest.mark.parametrize("node", nodes(), ids=lambda node: node.name)
def test_stacks_are_the_known_chain(node: Node, name: str, tier: str) -> None:
    if (name, tier) not in cases(node):
        pytest.skip(f"{node.name} has no {tier}")
    recorded(node, tier)[name, tier].check(SHORT)


def test_versions_that_are_not_here() -> None:
    if missing():
        pytest.skip(f"not on this machine: Node.js {', '.join(map(str, missing()))}")


@pytest.mark.soak
@pytest.mark.parametrize("major", missing())
def test_other_versions(major: int) -> None:
    """Those that npm has."""
    try:
        node = fetched(major)
    except NoNodeError as problem:
        pytest.skip(str(problem))
    for case, verdict in record(node, cases(node), SHORT, LIMIT_S).items():
        print(case)
        verdict.check(SHORT)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("node", nodes(), ids=lambda node: node.name)
def test_at_full_length(node: Node) -> None:
    for case, verdict in record(node, cases(node), FULL, 3600.0).items():
        assert verdict.samples >= FULL, (case, verdict.describe())
        assert verdict.share() >= SHARE, (case, verdict.describe())
