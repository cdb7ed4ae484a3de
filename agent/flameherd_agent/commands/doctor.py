"""`flameherd doctor`: may this machine be profiled, and if not, what mends it."""

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

from flameherd_agent.commands.doctor_checks import CHECKS, Finding, Machine, State
from flameherd_agent.errors import EnvironmentProblem
from flameherd_agent.kernel.hostlock import DEFAULT_LOCK

HELP: Final = "what this kernel and container may do, and how to mend it"
DESCRIPTION: Final = """\
Tries what the agent does (a BPF map, a program, a perf event, reading other processes) and says of
each capability of the kernel, the container and the tools:

  ok        it works
  degraded  profiling works, with less: the line says what is lost
  missing   profiling does not work without it

and how to mend what is not ok. Run it as the agent runs: same user, same container, same
capabilities.
Changes nothing. Exit code: 0 if nothing is missing, else 3."""

_DEFAULT_CACHE: Final = Path("/var/cache/flameherd")
_COLOURS: Final = {State.OK: "32", State.DEGRADED: "33", State.MISSING: "31"}
_VERDICTS: Final = {
    State.OK: "this machine can be profiled",
    State.DEGRADED: "this machine can be profiled, with less",
    State.MISSING: "this machine cannot be profiled like this",
}


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "doctor",
        help=HELP,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument(
        "--cache", type=Path, default=_DEFAULT_CACHE, metavar="DIR",
        help="the agent's cache directory (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--lock", type=Path, default=DEFAULT_LOCK, metavar="FILE",
        help="the agent's host lock (default: %(default)s)",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Check, print, and tell by the exit code."""
    findings = examine(Machine.this(arguments.cache, arguments.lock))
    if arguments.json:
        sys.stdout.write(as_json(findings))
    else:
        sys.stdout.write(as_text(findings, colour=_takes_colour(sys.stdout)))
    return EnvironmentProblem.exit_code if worst(findings) is State.MISSING else 0


def examine(machine: Machine) -> list[Finding]:
    """Every check, in order; one that fails unforeseen says so and is no more than degraded."""
    findings = []
    for check in CHECKS:
        try:
            findings.append(check(machine))
        except (OSError, ValueError) as error:
            name = check.__name__.removeprefix("check_").replace("_", " ")
            detail = f"could not be checked: {error}"
            findings.append(Finding(name, State.DEGRADED, detail, "", "Not checked"))
    return findings


def worst(findings: Sequence[Finding]) -> State:
    """The state of the machine."""
    states = {finding.state for finding in findings}
    return next((s for s in (State.MISSING, State.DEGRADED) if s in states), State.OK)


def as_json(findings: Sequence[Finding]) -> str:
    """For programs: `{"ok": …, "findings": [{"name", "state", "detail", "mend", "group"}]}`."""
    document = {
        "ok": worst(findings) is not State.MISSING,
        "findings": [finding._asdict() for finding in findings],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def as_text(findings: Sequence[Finding], *, colour: bool) -> str:
    """Aligned lines, grouped; the mend below what needs one."""
    width = max(len(finding.name) for finding in findings)
    lines = [f"kernel {platform.release()}, {platform.machine()}, {os.cpu_count()} CPUs"]
    group = ""
    for finding in findings:
        if finding.group != group:
            group = finding.group
            lines += ["", group]
        state = _painted(f"{finding.state.value:<8}", finding.state, colour)
        lines.append(f"  {state}  {finding.name:<{width}}  {finding.detail}")
        if finding.state is not State.OK and finding.mend:
            lines.append(f"  {'':<8}  {'':<{width}}  → {finding.mend}")
    verdict = worst(findings)
    counts = ", ".join(f"{sum(f.state is s for f in findings)} {s.value}" for s in State)
    lines += ["", f"{counts}: {_painted(_VERDICTS[verdict], verdict, colour)}"]
    return "\n".join(lines) + "\n"


def _painted(text: str, state: State, colour: bool) -> str:
    return f"\x1b[{_COLOURS[state]}m{text}\x1b[0m" if colour else text


def _takes_colour(stream: TextIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ
