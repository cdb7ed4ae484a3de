"""Writes the tables of docs/runtimes/README.md by running the truth programs on every version that can be had.

`make runtimes` for all; `python -m tests.runtimes hotspot` for some. Minutes each. What cannot be had is a row that says so.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests import jdks, nodes, python_roots
from tests.debian_roots import NoRootError
from tests.ebpf import test_truth_cpython, test_truth_hotspot, test_truth_v8
from tests.pythons import pythons
from tests.runtime_truth import LIMIT_S, Verdict

SAMPLES = 500
PAGE = Path(__file__).resolve().parents[1] / "docs" / "runtimes" / "README.md"


def _head(first: str, names: Sequence[str]) -> list[str]:
    return [f"| {' | '.join([first, *names])} |", f"| --- {'| --- ' * len(names)}|"]


def _cells(
    title: str,
    names: Sequence[str],
    verdicts: Mapping[str, Verdict],
) -> str:
    for name in names:
        sys.stderr.write(f"{title} {name}: {verdicts[name].describe()}\n")
    cells = [f"{verdicts[name].right} of {verdicts[name].samples}" for name in names]
    return f"| {' | '.join([title, *cells])} |"


def cpython() -> list[str]:
    """A row for each interpreter."""
    names = test_truth_cpython.NAMES
    everything = list(pythons())
    failed: list[str] = []
    for suite, version in python_roots.SUITES:
        try:
            everything.append(python_roots.rooted(suite, version))
        except NoRootError as problem:
            failed.append(f"| CPython {version} of Debian {suite} | not tried: {problem} |")
    rows = [
        _cells(
            f"CPython {python.name}",
            names,
            test_truth_cpython.record(python, names, SAMPLES, LIMIT_S),
        )
        for python in sorted(everything, key=lambda one: (one.version, one.build))
    ]
    return [*_head("interpreter", names), *rows, *failed]


def hotspot() -> list[str]:
    """A row for each JVM and way to run it."""
    names = test_truth_hotspot.NAMES
    everything = list(jdks.jdks())
    failed: list[str] = []
    for suite, version in jdks.SUITES:
        try:
            everything.append(jdks.rooted(suite, version))
        except NoRootError as problem:
            failed.append(f"| JDK {version} of Debian {suite} | not tried: {problem} |")
    rows = [
        _cells(
            f"{jdk.name}, {tier}",
            names,
            test_truth_hotspot.record(jdk, tier, names, SAMPLES, LIMIT_S),
        )
        for jdk in sorted(everything, key=lambda one: (one.version, one.build))
        for tier in test_truth_hotspot.TABLE
    ]
    return [*_head("JVM, tiers", names), *rows, *failed]


def v8() -> list[str]:
    """A row for each Node.js and way to run it."""
    names = test_truth_v8.NAMES
    everything = list(nodes.nodes())
    failed: list[str] = []
    for major in nodes.missing():
        try:
            everything.append(nodes.fetched(major))
        except nodes.NoNodeError as problem:
            failed.append(f"| Node.js {major} | not tried: {problem} |")
    rows = []
    for node in sorted(everything, key=lambda one: one.version):
        for tier in test_truth_v8.TIERS:
            cases = [case for case in test_truth_v8.cases(node) if case[1] == tier]
            if not cases:
                continue
            verdicts = test_truth_v8.record(node, cases, SAMPLES, LIMIT_S)
            for case, verdict in verdicts.items():
                sys.stderr.write(f"{node.name} {case}: {verdict.describe()}\n")
            found = {case[0]: f"{one.right} of {one.samples}" for case, one in verdicts.items()}
            cells = [
                f"Node.js {node.name}, {tier or 'default'}",
                *(found.get(name, "") for name in names),
            ]
            rows.append(f"| {' | '.join(cells)} |")
    return [*_head("Node.js, tiers", names), *rows, *failed]


TABLES: dict[str, Callable[[], list[str]]] = {"cpython": cpython, "hotspot": hotspot, "v8": v8}


def write(name: str, table: Sequence[str]) -> None:
    """Put a table between its marks."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    before, mark, rest = PAGE.read_text().partition(begin)
    _, found, after = rest.partition(end)
    if not mark or not found:
        raise SystemExit(f"{PAGE}: no marks {begin.strip()} and {end.strip()}")
    PAGE.write_text(f"{before}{begin}{chr(10).join([*table, ''])}{end}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runtimes", nargs="*", metavar="RUNTIME", help=", ".join(TABLES))
    for name in parser.parse_args().runtimes or TABLES:
        if name not in TABLES:
            parser.error(f"{name}: not one of {', '.join(TABLES)}")
        write(name, TABLES[name]())


if __name__ == "__main__":
    main()
