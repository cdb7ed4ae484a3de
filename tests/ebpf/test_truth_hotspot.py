"""HotSpot: the Java frames of every stack are the program's own, between native ones, with their lines."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache

import pytest
from flameherd_agent.recording import Recording

from tests.debian_roots import NoRootError
from tests.ebpf.recorded import OPTIONS, STEP_S, needs_root, warm
from tests.java_truth import Verdict, judge
from tests.jdks import SUITES, Jdk, NoJavacError, classes, jdks, missing, rooted
from tests.programs.running import Running, running_command
from tests.truth import samples_by_pid

pytestmark = [needs_root, pytest.mark.timeout(900)]
NAMES = (
    "Deep",
    "Calls",
    "Callback",
    "Hot",
    "Replaced",
    "Threads",
    "Errors",
    "Late",
    "Lambdas",
)
AS_IT_COMES = "default"
TIERS = {
    AS_IT_COMES: (),
    "everywhere": ("-XX:+UnlockDiagnosticVMOptions", "-XX:+DebugNonSafepoints"),
    "interpreted": ("-Xint",),
    "C1": ("-XX:TieredStopAtLevel=1",),
    "mixed": (
        "-XX:CompileCommand=quiet",
        "-XX:CompileCommand=exclude,Calls::even",
        "-XX:CompileCommand=exclude,Deep::odd",
        "-XX:CompileCommand=exclude,Callback::deeper",
        "-XX:CompileCommand=exclude,Hot::total",
        "-XX:CompileCommand=exclude,Errors::guard",
        "-XX:CompileCommand=exclude,Lambdas::apply",
    ),
}
"""By what the programs are run: all tiers as they come; the same, but C2 notes the methods at every instruction, not only
where it may be stopped; the interpreter alone; the quick compiler alone; some methods interpreted, others compiled."""
TABLE = ("default", "everywhere", "interpreted", "C1")
"""What docs/runtimes/README.md shows."""
NOTED = ("everywhere", "interpreted")
"""Here the methods at the leaf are known too, where they are inlined."""
QUICK = ("everywhere", "interpreted")
"""Without `--soak`: the two that are furthest apart."""
FREQUENCY_HZ = 997
SHORT, FULL = 300, 10_000
LIMIT_S = 120.0
SHARE = 0.99
FORGIVEN = 6
"""Wrong stacks of a short run: a few hundred samples cannot tell 99 % from 98 %."""
SMALL = ("-Xmx128m", "-XX:+UseSerialGC")
"""Several JVMs run side by side."""


def noted(tier: str, name: str) -> bool:
    """Whether inlined methods are exact at the leaf. `Calls` ends in one that would call the next and never does."""
    return tier in NOTED and name != "Calls"


def record(
    jdk: Jdk, tier: str, names: Sequence[str], samples: int, limit_s: float
) -> dict[str, Verdict]:
    """Every program side by side until each used CPU time for `samples`."""
    with ExitStack() as stack:
        programs: list[Running] = [
            stack.enter_context(running_command(jdk.command(name, *SMALL, *TIERS[tier]), name))
            for name in names
        ]
        recording = stack.enter_context(
            Recording([p.pid for p in programs], frequency_hz=FREQUENCY_HZ, options=OPTIONS)
        )
        warm(recording, FREQUENCY_HZ)
        began = [program.cpu_seconds() for program in programs]
        needed_s = 1.3 * samples / FREQUENCY_HZ
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
        unnamed = recording.engine.interpreters.unnamed
    by_pid = samples_by_pid(result.profiles)
    print(jdk.name, tier, result.outcomes, dict(unnamed))
    return {p.name: judge(p.name, by_pid.get(p.pid, []), noted(tier, p.name)) for p in programs}


@cache
def recorded(jdk: Jdk, tier: str) -> dict[str, Verdict]:
    """The short form, once for all tests of a JVM."""
    return record(jdk, tier, NAMES, SHORT, LIMIT_S)


def check(name: str, tier: str, verdict: Verdict) -> None:
    assert verdict.samples >= SHORT, (name, verdict.describe())
    allowed = max(FORGIVEN, (1 - SHARE) * verdict.samples)
    assert verdict.samples - verdict.right <= allowed, (name, verdict.describe())
    if noted(tier, name):
        assert verdict.full >= 0.3 * verdict.samples, (name, verdict.describe())
    assert len(verdict.threads) == (4 if name == "Threads" else 1), (name, verdict.describe())


def needs_programs() -> None:
    try:
        classes()
    except NoJavacError as problem:
        pytest.skip(str(problem))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tier", QUICK)
@pytest.mark.parametrize("jdk", jdks(), ids=lambda jdk: jdk.name)
def test_stacks_are_the_known_chain(jdk: Jdk, tier: str, name: str) -> None:
    needs_programs()
    check(name, tier, recorded(jdk, tier)[name])


@pytest.mark.soak
@pytest.mark.parametrize("tier", [tier for tier in TIERS if tier not in QUICK])
@pytest.mark.parametrize("jdk", jdks(), ids=lambda jdk: jdk.name)
def test_stacks_of_other_tiers(jdk: Jdk, tier: str) -> None:
    needs_programs()
    for name, verdict in recorded(jdk, tier).items():
        check(name, tier, verdict)


def test_versions_that_are_not_here() -> None:
    if missing():
        pytest.skip(f"not installed: JDK {', '.join(missing())}; `make soak` fetches them")


@pytest.mark.soak
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(("suite", "version"), SUITES)
def test_other_releases_in_roots_of_their_own(suite: str, version: str, tier: str) -> None:
    needs_programs()
    try:
        jdk = rooted(suite, version)
    except NoRootError as problem:
        pytest.skip(str(problem))
    for name, verdict in record(jdk, tier, NAMES, SHORT, LIMIT_S).items():
        check(name, tier, verdict)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("jdk", jdks(), ids=lambda jdk: jdk.name)
def test_at_full_length(jdk: Jdk) -> None:
    needs_programs()
    for name, verdict in record(jdk, AS_IT_COMES, NAMES, FULL, 3600.0).items():
        assert verdict.samples >= FULL, (name, verdict.describe())
        assert verdict.share() >= SHARE, (name, verdict.describe())
