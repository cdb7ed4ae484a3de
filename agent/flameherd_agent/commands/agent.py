"""`flameherd agent`."""

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType as StackFrame
from typing import Final

from flameherd_policy.errors import PolicyError

from flameherd_agent.app import DEFAULT_CACHE, Engine, EngineOptions
from flameherd_agent.errors import UsageError
from flameherd_agent.kernel.hostlock import DEFAULT_LOCK, HostLock
from flameherd_agent.observe.logs import set_up
from flameherd_agent.observe.server import ObserveServer
from flameherd_agent.service import ProfilesSink, Service

HELP: Final = "profile this machine by policies, until stopped"
DESCRIPTION: Final = """\
Carries out the policies of a file: an AgentConfig, or ProfilingPolicies for one machine (examples/host.yaml).
The file is watched: an edit applies within a second or two, and one that does not load changes nothing.

/metrics (Prometheus), /healthz and /status (JSON) are served on --listen.
One agent runs on a host; `flameherd record` and `flameherd top` run beside it."""


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "agent",
        help=HELP,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="policies")
    parser.add_argument(
        "--log-level", default="info", choices=["debug", "info", "warning", "error"]
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `agent` and `up` have in common."""
    parser.add_argument(
        "--cache", type=Path, default=DEFAULT_CACHE, metavar="DIR", help=f"default: {DEFAULT_CACHE}"
    )
    parser.add_argument(
        "--lock", type=Path, default=DEFAULT_LOCK, metavar="FILE", help=f"default: {DEFAULT_LOCK}"
    )
    parser.add_argument(
        "--listen", default="127.0.0.1:4041", metavar="ADDRESS:PORT",
        help="of /metrics, /healthz and /status; port 0 = any (default: 127.0.0.1:4041)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT; what is queued is then sent, within a deadline."""
    handler = set_up(arguments.log_level, sys.stderr)
    with running(arguments) as (service, server), stop_signals() as stopped:
        address, port = server.address
        sys.stderr.write(f"flameherd agent: sampling; http://{address}:{port}/status\n")
        service.run(stopped)
    handler.summarise(force=True)
    return 0


@contextmanager
def running(
    arguments: argparse.Namespace, sink: ProfilesSink | None = None
) -> Iterator[tuple[Service, ObserveServer]]:
    """The agent, set up and torn down in order. Raises before anything is attached if the file is wrong."""
    host, _, port = arguments.listen.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"--listen {arguments.listen}: write ADDRESS:PORT, as 127.0.0.1:4041")
    lock = HostLock(arguments.lock)
    try:
        with Engine(EngineOptions(cache=arguments.cache)) as engine:
            try:
                service = Service(engine, arguments.config, sink)
            except PolicyError as error:
                raise UsageError(str(error)) from error
            server = ObserveServer(
                collect=service.collect,
                status=service.status,
                healthy=service.healthy,
                host=host,
                port=int(port),
            )
            try:
                with server, service:
                    yield service, server
            except OSError as error:
                if error.filename is None and error.errno in (98, 99, 13):
                    raise UsageError(f"--listen {arguments.listen}: {error.strerror}") from error
                raise
    finally:
        lock.close()


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """SIGINT and SIGTERM make what it gives true, instead of ending the process."""
    stop = False

    def note(_number: int, _frame: StackFrame | None) -> None:
        nonlocal stop
        stop = True

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
