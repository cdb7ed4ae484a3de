"""V8: the functions of every stack are the program's own, inlined ones included, between native ones, with their lines."""

from collections.abc import Sequence
from functools import cache

import pytest

from tests.ebpf.recorded import needs_root
from tests.nodes import Node, NoNodeError, fetched, missing, nodes
from tests.runtime_truth import FULL, LIMIT_S, SHORT, Verdict
from tests.runtime_truth import record as side_by_side
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


def cases(node: Node) -> tuple[tuple[str, str], ...]:
    """Programs and tiers that a version has: Node.js has Maglev from 24 on."""
    return tuple((name, tier) for name, tier in CASES if tier != "maglev" or node.version >= (24,))


def command(node: Node, name: str, tier: str) -> list[str]:
    flags = [flag for flag in TIERS[tier] if "maglev" not in flag or node.version >= (24,)]
    return [str(node.executable), *flags, str(PROGRAMS / f"{name}.js")]


def record(
    node: Node, chosen: Sequence[tuple[str, str]], samples: int, limit_s: float
) -> dict[tuple[str, str], Verdict]:
    """The verdict of every program, by a tier each."""
    commands = {(name, tier): command(node, name, tier) for name, tier in chosen}
    verdicts = {}
    for case, found in side_by_side(commands, samples, limit_s).items():
        name, tier = case
        verdicts[case] = Verdict()
        for sample in found:
            verdicts[case].add(sample, *wrong(name, sample, tier != "maglev"))
    return verdicts


@cache
def recorded(node: Node, tier: str) -> dict[tuple[str, str], Verdict]:
    """The short form, once for all tests of a version and tier."""
    return record(node, [case for case in cases(node) if case[1] == tier], SHORT, LIMIT_S)


@pytest.mark.parametrize(("name", "tier"), CASES)
@pytest.mark.parametrize("node", nodes(), ids=lambda node: node.name)
def test_stacks_are_the_known_chain(node: Node, name: str, tier: str) -> None:
    if (name, tier) not in cases(node):
        pytest.skip(f"{node.name} has no {tier}")
    recorded(node, tier)[name, tier].check((name, tier))


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
        verdict.check(case)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("node", nodes(), ids=lambda node: node.name)
def test_at_full_length(node: Node) -> None:
    for case, verdict in record(node, cases(node), FULL, 3600.0).items():
        verdict.check_full(case)
