"""Options and the summary that every test run shares.

`--soak` runs the full-length form of tests marked `soak`; `--kernels` runs the virtual machines of
tests marked `kernels`. A run ends with a section that names what did not run and why: a skipped
test is a statement about this machine, not about the code.
"""

from collections import Counter

import pytest

OPTIONS = {
    "soak": "full length; `make soak` runs it",
    "kernels": "boots virtual machines; `make test-kernels` runs it",
}
"""Marker and option of the same name → why it is skipped without."""


def pytest_addoption(parser: pytest.Parser) -> None:
    for name, reason in OPTIONS.items():
        parser.addoption(f"--{name}", action="store_true", help=f"run {name} tests: {reason}")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"kernels: {OPTIONS['kernels']}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for name, reason in OPTIONS.items():
        if config.getoption(f"--{name}"):
            continue
        skip = pytest.mark.skip(reason=reason)
        for item in items:
            if item.get_closest_marker(name) is not None:
                item.add_marker(skip)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists skipped tests by reason: file (how many)."""
    skipped: dict[str, Counter[str]] = {}
    for report in terminalreporter.stats.get("skipped", []):
        # A skip's longrepr is (file, line, "Skipped: reason").
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        files = skipped.setdefault(reason.removeprefix("Skipped: "), Counter())
        files[report.nodeid.partition("::")[0]] += 1
    if not skipped:
        return
    terminalreporter.section("did not run")
    for reason, files in sorted(skipped.items()):
        where = ", ".join(f"{file} ({count})" for file, count in sorted(files.items()))
        terminalreporter.line(f"{reason}: {where}")
