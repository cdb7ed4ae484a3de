"""`flameherd up`."""

import argparse
import curses
import sys
import time
from pathlib import Path
from typing import Final

from flameherd_agent.commands import agent, top
from flameherd_agent.commands.top import Screen, Window
from flameherd_agent.errors import UsageError

HELP: Final = "profile this machine and watch it live"
DESCRIPTION: Final = """\
Runs the agent under a policy for this machine (examples/host.yaml) and shows `flameherd top` of what it samples.
The same profiles go to the policy's endpoint, if it names one. q ends both. Without a terminal, or with --once, one
table is printed after one window."""

_EXAMPLE: Final = "examples/host.yaml"


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "up",
        help=HELP,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config", type=Path, default=Path(_EXAMPLE), metavar="FILE", help=f"default: {_EXAMPLE}"
    )
    agent.add_arguments(parser)
    top.add_arguments(parser)
    parser.set_defaults(run=run, listen="127.0.0.1:0")


def run(arguments: argparse.Namespace) -> int:
    """Until q, or for one window."""
    if not arguments.config.exists():
        raise UsageError(f"--config {arguments.config}: there is no such file")
    window = Window(max(arguments.window, 10.0))
    with agent.running(arguments, window.add) as (service, _):
        if arguments.once or not sys.stdout.isatty():
            until = time.monotonic() + arguments.window
            service.run(lambda: time.monotonic() >= until)
            top.print_table(window, arguments)
        else:
            curses.wrapper(lambda screen: service.run(Screen(screen, window, arguments).poll))
    return 0
