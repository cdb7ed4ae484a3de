"""Writes the table of docs/runtimes/README.md by running the truth programs on every interpreter that can be had.

`make runtimes`; some minutes. What cannot be had is a row that says so.
"""

import sys
from pathlib import Path

from tests.debian_roots import NoRootError
from tests.ebpf.test_truth_cpython import FREQUENCY_HZ, LIMIT_S, NAMES, record
from tests.python_roots import SUITES, rooted
from tests.pythons import pythons

SAMPLES = 500
PAGE = Path(__file__).resolve().parents[1] / "docs" / "runtimes" / "README.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"


def rows() -> list[str]:
    """The table of CPython."""
    head = ["interpreter", *NAMES]
    table = [f"| {' | '.join(head)} |", f"| --- {'| --- ' * len(NAMES)}|"]
    everything = list(pythons())
    failed: list[str] = []
    for suite, version in SUITES:
        try:
            everything.append(rooted(suite, version))
        except NoRootError as problem:
            failed.append(f"| CPython {version} of Debian {suite} | not tried: {problem} |")
    for python in sorted(everything, key=lambda one: (one.version, one.build)):
        verdicts = record(python, NAMES, SAMPLES, LIMIT_S)
        cells = [f"{verdicts[name].right} of {verdicts[name].samples}" for name in NAMES]
        table.append(f"| CPython {python.name} | {' | '.join(cells)} |")
        for name in NAMES:
            sys.stderr.write(f"{python.name} {name}: {verdicts[name].describe()}\n")
    return table + failed


def main() -> None:
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    lines = "\n".join([f"Right stacks of those sampled, at {FREQUENCY_HZ} Hz:", "", *rows(), ""])
    PAGE.write_text(f"{before}{BEGIN}{lines}{END}{after}")


if __name__ == "__main__":
    main()
