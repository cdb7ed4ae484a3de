"""`flameherd up`."""

import argparse
import curses
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from flameherd_agent.commands import agent, top
from flameherd_agent.commands.backend_child import backend
from flameherd_agent.commands.top import Screen, Window
from flameherd_agent.errors import UsageError

HELP: Final = "profile this machine and look at it, in a browser or here"
DESCRIPTION: Final = """\
Runs the agent under a policy for this machine (examples/host-with-page.yaml) and flameherd-backend beside it, and
prints the address of its page. Ctrl-C ends both; what was stored stays.

With --no-page there is no backend: the agent runs under examples/host.yaml and its profiles are shown here, as by
`flameherd top`. q ends it. Without a terminal, or with --once, one table is printed after one window."""

_EXAMPLE: Final = "examples/host-with-page.yaml"
_EXAMPLE_WITHOUT: Final = "examples/host.yaml"
_CHECK_S: Final = 1.0


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "up",
        help=HELP,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"default: {_EXAMPLE}; with --no-page: {_EXAMPLE_WITHOUT}",
    )
    parser.add_argument("--no-page", action="store_true", help="a table in this terminal instead")
    parser.add_argument(
        "--page",
        default="127.0.0.1:4040",
        metavar="HOST:PORT",
        help="of the page; port 0 = any (default: 127.0.0.1:4040)",
    )
    parser.add_argument(
        "--otlp",
        default="127.0.0.1:4317",
        metavar="HOST:PORT",
        help="where the backend takes profiles over gRPC, as the policy's endpoint says "
        "(default: 127.0.0.1:4317)",
    )
    parser.add_argument(
        "--store", default="", metavar="FOLDER|URL", help="the backend's (default: as it has it)"
    )
    agent.add_arguments(parser)
    top.add_arguments(parser)
    parser.set_defaults(run=run, listen="127.0.0.1:0")


def run(arguments: argparse.Namespace) -> int:
    """Until Ctrl-C or SIGTERM; without a page until q, or for one window."""
    without = arguments.no_page or arguments.once
    if arguments.config is None:
        arguments.config = Path(_EXAMPLE_WITHOUT if without else _EXAMPLE)
    if not arguments.config.exists():
        raise UsageError(f"--config {arguments.config}: there is no such file")
    return _with_table(arguments) if without else _with_page(arguments)


def _with_page(arguments: argparse.Namespace) -> int:
    options = ["--page", arguments.page, "--grpc", arguments.otlp, "--http", ""]
    if arguments.store:
        options += ["--store", arguments.store]
    # Both start at once: what is exported before the backend is ready is sent again.
    with (
        agent.stop_signals() as stopped,
        backend(options) as child,
        agent.running(arguments) as (service, _),
    ):
        host = arguments.page.rpartition(":")[0]
        sys.stdout.write(f"http://{host}:{child.page_port()}\n")
        sys.stdout.flush()
        sys.stderr.write("flameherd up: profiling this machine; Ctrl-C ends it\n")
        service.run(_unless(stopped, child.check))
    return 0


def _unless(stopped: Callable[[], bool], check: Callable[[], None]) -> Callable[[], bool]:
    """`stopped`, with `check` called now and then."""
    due = time.monotonic()

    def poll() -> bool:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + _CHECK_S
            check()
        return stopped()

    return poll


def _with_table(arguments: argparse.Namespace) -> int:
    window = Window(max(arguments.window, 10.0))
    with agent.running(arguments, window.add) as (service, _):
        if arguments.once or not sys.stdout.isatty():
            until = time.monotonic() + arguments.window
            service.run(lambda: time.monotonic() >= until)
            top.print_table(window, arguments)
        else:
            curses.wrapper(lambda screen: service.run(Screen(screen, window, arguments).poll))
    return 0
