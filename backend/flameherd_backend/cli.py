"""The `flameherd-backend` command."""

import argparse
import asyncio
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from flameherd_policy.durations import parse_duration

from flameherd_backend import __version__
from flameherd_backend.errors import BackendError, UsageError
from flameherd_backend.receive.grpc import TlsFiles
from flameherd_backend.receive.intake import IntakeLimits
from flameherd_backend.reviews import SERVICE_ACCOUNT
from flameherd_backend.settings import Settings
from flameherd_backend.store.retention import Retention

_DESCRIPTION: Final = """\
Receives OTLP profiles (gRPC and HTTP), stores them, answers queries and serves the page.
Everything listens on localhost unless told otherwise: without --tokens, who reaches a port may send and see all."""
_SIZE: Final = re.compile(r"([0-9]{1,15})(|Ki|Mi|Gi|Ti)")
_POWERS: Final = {"": 0, "Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}
_MAX_AGE_S: Final = 366 * 86_400


def parse_size(text: str) -> int:
    """`20Gi` in bytes."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 512Mi or 20Gi")
    return int(found[1]) << _POWERS[found[2]]


def parse_age(text: str) -> float:
    """`72h` in seconds."""
    try:
        seconds = parse_duration(text) / 1e9
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not 60 <= seconds <= _MAX_AGE_S:
        raise argparse.ArgumentTypeError(f"{text}: between 1m and 366d")
    return seconds


def parser() -> argparse.ArgumentParser:
    """The command line."""
    defaults = Settings()
    out = argparse.ArgumentParser(
        prog="flameherd-backend",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("--version", action="version", version=f"flameherd-backend {__version__}")
    add = out.add_argument
    add(
        "--store",
        default=defaults.store,
        metavar="FOLDER|URL",
        help=f"a folder for the embedded engine, or http[s]://user:password@host:port/database (default: {defaults.store})",
    )
    add(
        "--grpc",
        default=defaults.grpc,
        metavar="HOST:PORT",
        help=f"OTLP over gRPC; '' = off (default: {defaults.grpc})",
    )
    add(
        "--http",
        default=defaults.http,
        metavar="HOST:PORT",
        help=f"OTLP over HTTP; '' = off (default: {defaults.http})",
    )
    add(
        "--page",
        default=defaults.page,
        metavar="HOST:PORT",
        help=f"page and API; '' = off (default: {defaults.page})",
    )
    add("--tls-cert", type=Path, metavar="FILE", help="PEM certificate of all ports")
    add("--tls-key", type=Path, metavar="FILE", help="its key")
    add(
        "--tls-client-ca",
        type=Path,
        metavar="FILE",
        help="senders over gRPC need a certificate signed by it",
    )
    add(
        "--tokens",
        type=Path,
        metavar="FILE",
        help="bearer tokens and their namespaces: docs/backend.md",
    )
    add(
        "--user-header",
        default="",
        metavar="NAME",
        help="header in which a trusted proxy names the signed-in user",
    )
    add(
        "--groups-header",
        default="",
        metavar="NAME",
        help="header in which it names the user's groups, with commas between them",
    )
    add(
        "--kubernetes-access",
        type=Path,
        nargs="?",
        const=SERVICE_ACCOUNT,
        metavar="FOLDER",
        help="signed-in users see the namespaces in which this cluster lets them get profiles.flameherd.dev, by the pod's "
        f"service account (default of FOLDER: {SERVICE_ACCOUNT})",
    )
    add(
        "--retention",
        type=parse_age,
        default=defaults.retention.max_age_s,
        metavar="DURATION",
        help="age of the oldest samples kept (default: 72h)",
    )
    add(
        "--max-disk",
        type=parse_size,
        default=defaults.retention.max_bytes,
        metavar="SIZE",
        help="the oldest samples go beyond it; 0 = no cap (default: 20Gi)",
    )
    add(
        "--min-free",
        type=parse_size,
        default=defaults.min_free_bytes,
        metavar="SIZE",
        help="room that stays free on the store's disk (default: 512Mi)",
    )
    add(
        "--memory",
        type=parse_size,
        default=defaults.memory_bytes,
        metavar="SIZE",
        help="cap of the embedded engine (default: 2Gi)",
    )
    add(
        "--query-memory",
        type=parse_size,
        default=defaults.query_memory_bytes,
        metavar="SIZE",
        help="cap of one query (default: 1Gi)",
    )
    add(
        "--workers",
        type=int,
        default=max(1, (os.cpu_count() or 1) // 2),
        metavar="N",
        help="decoding processes (default: half the cores)",
    )
    add(
        "--max-message",
        type=parse_size,
        default=defaults.intake.max_message_bytes,
        metavar="SIZE",
        help="of one message as it comes (default: 16Mi)",
    )
    add(
        "--max-decompressed",
        type=parse_size,
        default=defaults.intake.max_decoded_bytes,
        metavar="SIZE",
        help="of one message after decompression (default: 64Mi)",
    )
    add(
        "--max-waiting",
        type=parse_size,
        default=defaults.intake.max_waiting_bytes,
        metavar="SIZE",
        help="of all messages that are not stored yet; more are sent away for a while (default: 256Mi)",
    )
    add(
        "--until-stdin-ends",
        action="store_true",
        help="end when standard input does: for a parent that must not leave it behind",
    )
    add("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    return out  # fmt: skip


def settings(arguments: argparse.Namespace) -> Settings:
    """The command line's. Raises `UsageError`."""
    if (arguments.tls_cert is None) != (arguments.tls_key is None):
        raise UsageError("--tls-cert and --tls-key go together")
    if arguments.tls_client_ca is not None and arguments.tls_cert is None:
        raise UsageError("--tls-client-ca needs --tls-cert and --tls-key")
    if arguments.groups_header and not arguments.user_header:
        raise UsageError("--groups-header needs --user-header")
    if arguments.kubernetes_access and not arguments.user_header:
        raise UsageError("--kubernetes-access needs --user-header: who is it that wants to see?")
    if not 1 <= arguments.workers <= 256:
        raise UsageError(f"--workers {arguments.workers}: between 1 and 256")
    tls = (
        TlsFiles(arguments.tls_cert, arguments.tls_key, arguments.tls_client_ca)
        if arguments.tls_cert
        else None
    )
    return Settings(
        store=arguments.store,
        grpc=arguments.grpc,
        http=arguments.http,
        page=arguments.page,
        tls=tls,
        tokens=arguments.tokens,
        user_header=arguments.user_header,
        groups_header=arguments.groups_header,
        service_account=arguments.kubernetes_access,
        retention=Retention(arguments.retention, arguments.max_disk),
        min_free_bytes=arguments.min_free,
        memory_bytes=arguments.memory,
        query_memory_bytes=arguments.query_memory,
        workers=arguments.workers,
        intake=IntakeLimits(
            arguments.max_message,
            arguments.max_decompressed,
            max_waiting_bytes=arguments.max_waiting,
        ),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Errors that are raised on purpose become one message and an exit code."""
    options = parser().parse_args(arguments)
    logging.basicConfig(
        level=options.log_level.upper(),
        format="%(asctime)s flameherd-backend %(levelname)s %(message)s",
    )
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    try:
        asyncio.run(_serve(settings(options), options.until_stdin_ends))
    except BackendError as error:
        sys.stderr.write(f"flameherd-backend: {error}\n")
        return error.exit_code
    return 0


async def _serve(chosen: Settings, until_stdin_ends: bool) -> None:
    # Imported when the command line is right: it maps the engine.
    from flameherd_backend.app import Addresses, Backend

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if until_stdin_ends:
        threading.Thread(target=_wait_for_stdin, args=(loop, stop), daemon=True).start()

    def ready(ports: Addresses) -> None:
        shown = {"OTLP/gRPC": ports.grpc, "OTLP/HTTP": ports.http, "page": ports.page}
        listening = ", ".join(f"{name} on port {port}" for name, port in shown.items() if port)
        sys.stderr.write(f"flameherd-backend: ready; {listening}\n")
        sys.stderr.flush()

    await Backend(chosen).run(stop, ready)


def _wait_for_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    while os.read(0, 4096):
        pass
    loop.call_soon_threadsafe(stop.set)


if __name__ == "__main__":
    sys.exit(main())
