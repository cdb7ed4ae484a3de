"""HotSpot: the Java frames of every stack are the program's own, between native ones, with their lines."""

from collections.abc import Sequence
from functools import cache

import pytest

from tests.debian_roots import NoRootError
from tests.ebpf.recorded import needs_root
from tests.java_truth import Verdict, judge
from tests.jdks import SUITES, Jdk, NoJavacError, classes, jdks, missing, rooted
from tests.runtime_truth import FULL, LIMIT_S, SHORT
from tests.runtime_truth import record as side_by_side

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
SMALL = ("-Xmx128m", "-XX:+UseSerialGC")
"""Several JVMs run side by side."""


def noted(tier: str, name: str) -> bool:
    """Whether inlined methods are exact at the leaf. `Calls` ends in one that would call the next and never does."""
    return tier in NOTED and name != "Calls"


def record(
    jdk: Jdk, tier: str, names: Sequence[str], samples: int, limit_s: float
) -> dict[str, Verdict]:
    """Every program's verdict."""
    commands = {name: jdk.command(name, *SMALL, *TIERS[tier]) for name in names}
    found = side_by_side(commands, samples, limit_s, spare=1.3)
    return {name: judge(name, found[name], noted(tier, name)) for name in names}


@cache
def recorded(jdk: Jdk, tier: str) -> dict[str, Verdict]:
    """The short form, once for all tests of a JVM."""
    return record(jdk, tier, NAMES, SHORT, LIMIT_S)


def check(name: str, tier: str, verdict: Verdict) -> None:
    verdict.check(name, whole=noted(tier, name))
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
        verdict.check_full(name)
