"""`flameherd agent`."""

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType as StackFrame
from typing import Final

from flameherd_policy.errors import PolicyError

from flameherd_agent.app import DEFAULT_CACHE, Engine, EngineOptions
from flameherd_agent.cluster.account import DEFAULT_FOLDER, in_cluster
from flameherd_agent.configuration import FileSource, Source
from flameherd_agent.errors import AlreadyRunning, UsageError
from flameherd_agent.kernel.hostlock import DEFAULT_LOCK, HostLock
from flameherd_agent.metadata.hierarchy import PidsHierarchy
from flameherd_agent.observe.logs import Log, set_up
from flameherd_agent.observe.server import ObserveServer
from flameherd_agent.service import ProfilesSink, Service

log = Log(__name__)

_LOCK_S: Final = 1.0
STATUS_FOLDER: Final = Path("/var/run/flameherd/status")
"""Where the DaemonSet has the token and the certificates for reports."""

HELP: Final = "profile this machine by policies, until stopped"
DESCRIPTION: Final = """\
Carries out the policies of a file: an AgentConfig, or ProfilingPolicies for one machine (examples/host.yaml).
The file is watched: an edit applies within a second or two, and one that does not load changes nothing.

With --cluster it is told by flameherd-operator instead, and samples the pods of its node: see docs/agent-in-cluster.md.

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
    told = parser.add_mutually_exclusive_group(required=True)
    told.add_argument("--config", type=Path, metavar="FILE", help="policies")
    told.add_argument(
        "--cluster", action="store_true", help="in a pod: policies come from flameherd-operator"
    )
    parser.add_argument(
        "--service-account", type=Path, default=DEFAULT_FOLDER, metavar="DIR",
        help=f"with --cluster: holds token and ca.crt (default: {DEFAULT_FOLDER})",
    )  # fmt: skip
    parser.add_argument(
        "--status-url", default="", metavar="URL",
        help="with --cluster: tell flameherd-operator there how this node fares, as https://host[:port]",
    )  # fmt: skip
    parser.add_argument(
        "--status-folder", type=Path, default=STATUS_FOLDER, metavar="DIR",
        help=f"holds token and ca.crt for it (default: {STATUS_FOLDER})",
    )  # fmt: skip
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
    with stop_signals() as stopped, running(arguments, stopped=stopped) as (service, server):
        address, port = server.address
        sys.stderr.write(f"flameherd agent: sampling; http://{address}:{port}/status\n")
        service.run(stopped)
    handler.summarise(force=True)
    return 0


@contextmanager
def running(
    arguments: argparse.Namespace,
    sink: ProfilesSink | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Service, ObserveServer]]:
    """The agent, set up and torn down in order. Raises before anything is attached if the file is wrong."""
    host, _, port = arguments.listen.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"--listen {arguments.listen}: write ADDRESS:PORT, as 127.0.0.1:4041")
    with ExitStack() as stack:
        cluster = getattr(arguments, "cluster", False)
        account = in_cluster(arguments.service_account) if cluster else None
        lock = _lock(arguments.lock, wait=cluster, stopped=stopped)
        stack.callback(lock.close)
        source: Source
        if account is not None:
            from flameherd_agent.cluster.node import NodeView  # TLS and HTTP/2: 6 MB

            source = view = NodeView(account, PidsHierarchy.discover())
            stack.callback(view.close)
            view.start()
            engine = stack.enter_context(
                Engine(EngineOptions(cache=arguments.cache), view.hierarchy, view)
            )
            engine.wake_for(view.fds)
        else:
            try:
                source = FileSource(arguments.config)
            except PolicyError as error:
                raise UsageError(str(error)) from error
            engine = stack.enter_context(Engine(EngineOptions(cache=arguments.cache)))
        service = Service(engine, source, sink)
        if account is not None and arguments.status_url:
            from flameherd_agent.status.push import Pusher

            pusher = Pusher(arguments.status_url, arguments.status_folder)
            stack.callback(pusher.close)
            service.report_to(pusher, view)
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


def _lock(path: Path, *, wait: bool, stopped: Callable[[], bool]) -> HostLock:
    """In a cluster the agent before this one may still be sending what it has: wait for its end."""
    while True:
        try:
            return HostLock(path)
        except AlreadyRunning as error:
            if not wait or stopped():
                raise
            log.once("lock", "waiting for the other agent of this host to end", error=error)
        time.sleep(_LOCK_S)


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
