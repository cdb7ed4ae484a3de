"""The HTTP application: who asks, what for, within which limits; then a view in a thread.

Queries run in as many threads as the engine has reading connections; a few more may wait, and the
next is told to come again. Every answer carries the headers that keep a browser strict.
"""

import asyncio
import http
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flameherd_backend import metrics
from flameherd_backend.access import Access, Identity
from flameherd_backend.api import page
from flameherd_backend.api.endpoints import ENDPOINTS, PREFIX, Endpoint, openapi
from flameherd_backend.api.export import FORMATS, export
from flameherd_backend.api.labels import label_values, profile_types, status
from flameherd_backend.api.parameters import Given, wrong
from flameherd_backend.api.reader import Reader
from flameherd_backend.api.selection import selection_of
from flameherd_backend.errors import (
    AccessUnknown,
    Problem,
    QueryTimeout,
    StoreError,
    StoreFull,
    Unauthenticated,
)
from flameherd_backend.store import sql
from flameherd_backend.store.database import Database, QueryLimits

log = logging.getLogger(__name__)
T = TypeVar("T")

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_COMPRESSED_FROM: Final = 1024
_COMPRESS_LEVEL: Final = 5
_WAITING_PER_QUERY: Final = 8
_NAMESPACES_S: Final = 10.0
_NO_STORE: Final = {"Cache-Control": "no-store"}
_IMMUTABLE: Final = "public, max-age=31536000, immutable"


class _Headers:
    """Puts `HEADERS` on every response, errors of the framework included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *added]
            await send(message)

        await self._app(scope, receive, with_headers)


def problem_response(problem: Problem) -> Response:
    """RFC 9457."""
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": http.HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "detail": problem.detail,
    }
    if problem.parameter is not None:
        body["parameter"] = problem.parameter
    headers = dict(_NO_STORE)
    if problem.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if problem.retry_after_s is not None:
        headers["Retry-After"] = str(problem.retry_after_s)
    content = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
    return Response(content, problem.status, headers, "application/problem+json")


def _as_problem(error: Exception) -> Problem:
    if isinstance(error, Problem):
        return error
    if isinstance(error, Unauthenticated):
        return Problem(401, str(error))
    if isinstance(error, AccessUnknown):
        log.error("what a viewer may see cannot be found out: %s", error)
        return Problem(
            503,
            "what you may see cannot be found out now; the backend's log tells why",
            retry_after_s=5,
        )
    if isinstance(error, QueryTimeout):
        return Problem(504, "the query ran over its time: choose a shorter window or add a filter")
    if isinstance(error, StoreFull):
        return Problem(
            504, "the query ran over its memory: choose a shorter window or add a filter"
        )
    if isinstance(error, StoreError):
        log.error("a query failed: %s", error)
        return Problem(
            503, "the store cannot answer now; the backend's log tells why", retry_after_s=5
        )
    raise error


class Api:
    """Answers requests. `queries` run at the same time."""

    def __init__(
        self,
        database: Database,
        access: Access,
        limits: QueryLimits,
        queries: int,
        retention_s: float,
        healthy: Callable[[], bool],
        measured: Callable[[], str],
    ) -> None:
        self._database = database
        self._access = access
        self._limits = limits
        self._retention_s = retention_s
        self._healthy = healthy
        self._metrics = measured
        self._threads = ThreadPoolExecutor(queries, "query")
        self._most = queries * (1 + _WAITING_PER_QUERY)
        self._running = 0
        self._namespaces: tuple[float, frozenset[str]] = (-_NAMESPACES_S, frozenset())
        self._files = page.load()
        self._openapi = json.dumps(openapi()).encode()

    def close(self) -> None:
        """Waits for queries that run."""
        self._threads.shutdown(cancel_futures=True)

    def application(self) -> Starlette:
        """The ASGI application."""
        routes = [Route(PREFIX + "/openapi.json", self._describe)]
        routes += [Route(PREFIX + endpoint.path, self._handler(endpoint)) for endpoint in ENDPOINTS]
        routes += [Route("/healthz", self._health), Route("/metrics", self._measure)]
        routes += [Route("/{path:path}", self._file)]
        middleware = [
            Middleware(_Headers),
            Middleware(
                GZipMiddleware, minimum_size=_COMPRESSED_FROM, compresslevel=_COMPRESS_LEVEL
            ),
        ]
        return Starlette(routes=routes, middleware=middleware)

    async def _describe(self, request: Request) -> Response:
        del request
        return Response(self._openapi, media_type="application/json", headers=_NO_STORE)

    async def _health(self, request: Request) -> Response:
        del request
        healthy = self._healthy()
        text = "ok\n" if healthy else "the writer or the workers have ended\n"
        return Response(text, 200 if healthy else 503, _NO_STORE, "text/plain; charset=utf-8")

    async def _measure(self, request: Request) -> Response:
        """For those who may see everything: counts of all tenants are in it."""
        try:
            identity = self._identify(request)
        except Unauthenticated as error:
            return problem_response(Problem(401, str(error)))
        if identity.may_see is not None or identity.groups is not None:
            return problem_response(Problem(403, "metrics count the samples of all namespaces"))
        return Response(self._metrics(), 200, _NO_STORE, metrics.CONTENT_TYPE)

    def _identify(self, request: Request) -> Identity:
        return self._access.identify(request.headers.get("authorization"), request.headers)

    async def _file(self, request: Request) -> Response:
        path = request.url.path
        file = self._files.get(path)
        if file is not None:
            caching = _IMMUTABLE if file.immutable else "no-cache"
            return Response(
                file.body, media_type=file.media_type, headers={"Cache-Control": caching}
            )
        if path == "/":
            return Response(page.NOT_BUILT, 404, _NO_STORE, "text/plain; charset=utf-8")
        return problem_response(Problem(404, f"there is nothing at {path[:200]}"))

    def _handler(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            try:
                return await self._answer(endpoint, request)
            except (Problem, Unauthenticated, AccessUnknown, StoreError) as error:
                return problem_response(_as_problem(error))

        return handle

    async def _answer(self, endpoint: Endpoint, request: Request) -> Response:
        identity = self._identify(request)
        given = Given(
            request.query_params.multi_items(), endpoint.parameters, round(time.time() * 1000)
        )
        label = request.path_params.get("name", "")
        if self._running >= self._most:
            raise Problem(429, "too many queries run at once", retry_after_s=2)
        self._running += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(
                self._threads, self._run, endpoint, identity, given, label
            )
        finally:
            self._running -= 1

    def _run(self, endpoint: Endpoint, identity: Identity, given: Given, label: str) -> Response:
        """In a thread."""
        visible = self._access.visible(identity, self._stored)
        reader = Reader(self._database, self._limits)
        answer: Mapping[str, Any]
        if endpoint.path == "/status":
            answer = status(reader, given, identity, visible, self._retention_s)
        elif endpoint.path == "/profile-types":
            answer = profile_types(reader, given, visible)
        else:
            selection, base = selection_of(given, visible)
            if endpoint.path == "/export":
                if not given.has("format"):
                    raise wrong("format", f"is missing: {', '.join(FORMATS)}")
                chosen = given.choice("format", tuple(FORMATS))
                body, name, media_type = export(reader, selection, chosen)
                disposition = {
                    "Content-Disposition": f'attachment; filename="{name}"',
                    "Cache-Control": "no-store",
                }
                return Response(body, media_type=media_type, headers=disposition)
            if endpoint.view is None:
                answer = label_values(reader, given, selection, base, label)
            else:
                answer = endpoint.view(reader, given, selection, base)
        body = json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode(
            "utf-8", "replace"
        )
        return Response(body, media_type="application/json", headers=_NO_STORE)

    def _stored(self) -> frozenset[str]:
        """Namespaces that there are samples of, as of a moment ago."""
        asked, stored = self._namespaces
        if time.monotonic() - asked > _NAMESPACES_S:
            found = self._database.query(sql.load("namespaces"), {}, self._limits)
            stored = frozenset(found.get("namespace", []))
            self._namespaces = (time.monotonic(), stored)
        return stored
