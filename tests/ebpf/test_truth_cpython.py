"""CPython: the Python frames of every stack are the program's own, between native ones, with their lines."""

from collections.abc import Sequence
from functools import cache

import pytest

from tests.debian_roots import NoRootError
from tests.ebpf.recorded import needs_root
from tests.python_roots import SUITES, rooted
from tests.python_truth import PROGRAMS, wrong
from tests.pythons import Python, missing, pythons
from tests.runtime_truth import FULL, LIMIT_S, SHORT, Verdict
from tests.runtime_truth import record as side_by_side

pytestmark = [needs_root, pytest.mark.timeout(900)]
NAMES = ("deep", "callback", "threads", "errors", "generators", "late", "extension")


def record(
    python: Python, names: Sequence[str], samples: int, limit_s: float
) -> dict[str, Verdict]:
    """Every program's verdict."""
    commands = {name: python.command(PROGRAMS / f"{name}.py") for name in names}
    verdicts = {}
    for name, found in side_by_side(commands, samples, limit_s).items():
        verdicts[name] = Verdict()
        for sample in found:
            verdicts[name].add(sample, *wrong(name, python.version, sample))
    return verdicts


@cache
def recorded(python: Python) -> dict[str, Verdict]:
    """The short form, once for all tests of an interpreter."""
    return record(python, NAMES, SHORT, LIMIT_S)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("python", pythons(), ids=lambda python: python.name)
def test_stacks_are_the_known_chain(python: Python, name: str) -> None:
    recorded(python)[name].check(name)


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
        verdict.check(name)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("python", pythons(), ids=lambda python: python.name)
def test_at_full_length(python: Python) -> None:
    for name, verdict in record(python, NAMES, FULL, 3600.0).items():
        verdict.check_full(name)
