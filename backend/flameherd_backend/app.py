"""Wires a backend: store, decoding workers, receivers, API and page; one event loop, one process and its workers.

Order matters twice. At the start the store is opened and migrated before anything listens. At the end
nothing new is taken, what was admitted is stored and answered, and only then the store closes.
"""

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import uvicorn

from flameherd_backend import metrics
from flameherd_backend.access import Access, read_tokens
from flameherd_backend.api.app import Api
from flameherd_backend.decode.pool import DecoderPool, WorkerSettings
from flameherd_backend.errors import BackendError, EnvironmentProblem, StoreFull, UsageError
from flameherd_backend.receive.grpc import GrpcReceiver, TlsFiles
from flameherd_backend.receive.http import application
from flameherd_backend.receive.intake import Intake
from flameherd_backend.reviews import ApiServer, Reviews
from flameherd_backend.settings import Settings
from flameherd_backend.store import retention, rollup, schema
from flameherd_backend.store.database import (
    DEFAULT_LIMITS,
    Database,
    EmbeddedDatabase,
    QueryLimits,
    Value,
)
from flameherd_backend.store.results import Table
from flameherd_backend.store.server import ServerDatabase
from flameherd_backend.store.writer import Writer

log = logging.getLogger(__name__)

_RETENTION_S: Final = 60.0
_GRACE_S: Final = 5.0
_BACKLOG: Final = 2048


class Addresses(NamedTuple):
    """Ports that are listened on; 0 = not."""

    grpc: int
    http: int
    page: int


class GuardedDatabase:
    """A database whose inserts stop while the disk is nearly full, so that queries and merges go on."""

    def __init__(self, database: EmbeddedDatabase, folder: Path, min_free_bytes: int) -> None:
        self._database = database
        self._folder = folder
        self._min_free_bytes = min_free_bytes

    def execute(self, sql: str, parameters: Mapping[str, Value] | None = None) -> None:
        self._database.execute(sql, parameters)

    def query(
        self,
        sql: str,
        parameters: Mapping[str, Value] | None = None,
        limits: QueryLimits = DEFAULT_LIMITS,
    ) -> Table:
        return self._database.query(sql, parameters, limits)

    def insert(self, table: str, blocks: Sequence[bytes]) -> None:
        disk = os.statvfs(self._folder)
        free = disk.f_bavail * disk.f_frsize
        if free < self._min_free_bytes + 2 * sum(map(len, blocks)):
            raise StoreFull(
                f"{self._folder} has {free >> 20} MiB free; {self._min_free_bytes >> 20} MiB stay free"
            )
        self._database.insert(table, blocks)

    def close(self) -> None:
        self._database.close()


def open_store(settings: Settings) -> Database:
    """The store, with its schema up to date. Raises `EnvironmentProblem`, `UsageError`."""
    database: Database
    if settings.is_server:
        database = ServerDatabase(settings.store)
        schema.migrate(database)
        return database
    folder = Path(settings.store)
    embedded = EmbeddedDatabase(
        folder, max_memory_bytes=settings.memory_bytes, readers=settings.queries
    )
    try:
        schema.migrate(embedded)
        rollup.mend(embedded)
    except BackendError:
        embedded.close()
        raise
    return GuardedDatabase(embedded, folder, settings.min_free_bytes)


class _HttpServer(uvicorn.Server):
    """uvicorn without signal handlers: the process has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(address: str, option: str) -> socket.socket:
    """A listening socket. Raises `UsageError`, `EnvironmentProblem`."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"{option} {address}: write HOST:PORT, as 127.0.0.1:4040")
    bare = host.strip("[]")
    try:
        family = socket.AF_INET6 if ":" in bare else socket.AF_INET
        return socket.create_server((bare, int(port)), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise EnvironmentProblem(f"{option} {address}: {error.strerror or error}") from error


@contextlib.asynccontextmanager
async def serving(
    application: Any, sock: socket.socket, tls: TlsFiles | None
) -> AsyncIterator[None]:
    """An ASGI application on a socket, until the end of the block."""
    config = uvicorn.Config(
        application,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=int(_GRACE_S),
        ssl_certfile=tls.certificate if tls else None,
        ssl_keyfile=tls.key if tls else None,
    )
    server = _HttpServer(config)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        while not server.started and not task.done():
            await asyncio.sleep(0.01)
        if task.done():
            task.result()
        yield
    finally:
        server.should_exit = True
        await task


class Backend:
    """One backend. `run` returns when `stop` is set."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        account = settings.service_account
        self.api_server = ApiServer.of_pod(account) if account else None
        self.reviews = Reviews(self.api_server.ask) if self.api_server else None
        self.access = Access(
            read_tokens(settings.tokens) if settings.tokens else None,
            settings.user_header,
            self.reviews.visible if self.reviews else None,
            settings.groups_header,
        )
        self.database = open_store(settings)

    async def run(self, stop: asyncio.Event, ready: Callable[[Addresses], None]) -> None:
        """Serves until `stop`. Raises `EnvironmentProblem` if a port cannot be had."""
        settings = self.settings
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(asyncio.to_thread, self.database.close)
            if self.api_server and self.reviews:
                stack.callback(self.api_server.close)
                stack.callback(self.reviews.close)
            self.pool = DecoderPool(
                schema.id_key(self.database), self._worker_settings(), settings.workers
            )
            stack.push_async_callback(self.pool.close)
            self.writer = Writer(self.database, asyncio.get_running_loop())
            stack.push_async_callback(asyncio.to_thread, self.writer.close)
            await self.pool.start()
            self.intake = Intake(self.pool, self.writer, settings.intake)
            ports = {"grpc": 0, "http": 0, "page": 0}
            if settings.http:
                sock = listen(settings.http, "--http")
                ports["http"] = sock.getsockname()[1]
                await stack.enter_async_context(
                    serving(application(self.intake, self.access), sock, settings.tls)
                )
            if settings.page:
                sock = listen(settings.page, "--page")
                ports["page"] = sock.getsockname()[1]
                api = Api(
                    self.database,
                    self.access,
                    QueryLimits(settings.query_s, settings.query_memory_bytes),
                    settings.queries,
                    settings.retention.max_age_s,
                    lambda: self.writer.is_running() and self.pool.is_running(),
                    lambda: metrics.text(metrics.collect(self.intake, self.pool, self.writer)),
                )
                stack.push_async_callback(asyncio.to_thread, api.close)
                await stack.enter_async_context(serving(api.application(), sock, settings.tls))
            if settings.grpc:
                receiver = GrpcReceiver(self.intake, self.access, settings.grpc, settings.tls)
                await receiver.start()
                stack.push_async_callback(receiver.stop, _GRACE_S)
                ports["grpc"] = receiver.port
            tidy = asyncio.create_task(self._retain())
            stack.callback(tidy.cancel)
            ready(Addresses(**ports))
            await stop.wait()

    def _worker_settings(self) -> WorkerSettings:
        return WorkerSettings(
            self.settings.intake.max_decoded_bytes,
            self.settings.retention.max_age_s,
            self.settings.worker_memory_bytes,
        )

    async def _retain(self) -> None:
        while True:
            try:
                dropped = await asyncio.to_thread(
                    retention.enforce, self.database, self.settings.retention, time.time()
                )
                for part in dropped:
                    log.info(
                        "retention: dropped %s of %s, %d rows", part.name, part.table, part.rows
                    )
            except BackendError as error:
                log.error("retention: %s", error)
            await asyncio.sleep(_RETENTION_S)
