"""The HTTPS server that agents report to: one request, one report, everything bounded.

    POST /v1/status   Authorization: Bearer TOKEN   → 200 {"intervalSeconds": 60}
    else              {"reason": "TooOften", "message": "…"} with 400, 401, 403, 413, 429 or 503

Who asks comes first, then how often, then what: a stranger's body is not even read. How many
requests are worked on at one time is bounded, and so is what a node may send: 5,000 nodes that all
begin at once wait for each other, not for memory.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from aiohttp import web
from flameherd_policy.report import MAX_REPORT_BYTES, PATH, read_report

from flameherd_operator.receive.tokens import Denied
from flameherd_operator.reports import Reports

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 60
NODES_PER_SECOND: Final = 100
"""More nodes report less often, so that no more than so many do each second."""
_EVERY_S: Final = 5.0
"""A node may report so often in the long run,"""
_BURST: Final = 4
"""and so many times at once: after a start, several things flip."""
_WORKING: Final = 32
_WAITING: Final = 512
_CONNECTIONS: Final = 1024
_LIFE_S: Final = 30.0
_READ_S: Final = 10.0
_TOLD_S: Final = 60.0


class Receiver:
    """Hands reports over. `flipped` is called when one may change a condition."""

    def __init__(
        self,
        reports: Reports,
        node_of: Callable[[str], Awaitable[str]],
        flipped: Callable[[], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._reports = reports
        self._node_of = node_of
        self._flipped = flipped
        self._clock = clock
        self._allowed: dict[str, float] = {}
        """Node → when it will have used up nothing of its burst."""
        self._working = asyncio.Semaphore(_WORKING)
        self._waiting = 0
        self._told: dict[str, float] = {}
        self.taken = 0
        self.denied = 0

    async def serve(self, host: str, port: int, context: ssl.SSLContext) -> None:
        """Until cancelled."""
        app = web.Application(client_max_size=MAX_REPORT_BYTES)
        app.router.add_post(PATH, self.handle)
        runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await runner.setup()
        loop = asyncio.get_running_loop()
        server = runner.server
        assert server is not None

        def connection() -> asyncio.Protocol:
            if len(server.connections) >= _CONNECTIONS:
                return _Closed()
            made = server()
            # Whoever connects and then says nothing, or says it slowly, is cut off.
            loop.call_later(_LIFE_S, made.force_close)
            return made

        try:
            listener = await loop.create_server(
                connection, host, port, ssl=context, ssl_handshake_timeout=_READ_S, backlog=1024
            )
            logger.info("taking reports on port %d", listener.sockets[0].getsockname()[1])
            async with listener:
                await listener.serve_forever()
        finally:
            await runner.cleanup()

    async def handle(self, request: web.Request) -> web.Response:
        """One report."""
        node = ""
        try:
            if self._waiting >= _WAITING:
                raise Denied(503, "Busy", "too many agents report at this moment", retry_s=5)
            self._waiting += 1
            try:
                async with self._working, asyncio.timeout(_READ_S):
                    node = await self._node_of(_bearer(request))
                    await self._take(node, request)
            except TimeoutError:
                said = f"the request took more than {_READ_S:.0f} s"
                raise Denied(408, "TooSlow", said, retry_s=5) from None
            finally:
                self._waiting -= 1
        except Denied as denied:
            return self._deny(denied, node)
        self.taken += 1
        seconds = max(INTERVAL_S, len(self._reports) // NODES_PER_SECOND)
        return _json({"intervalSeconds": seconds})

    async def _take(self, node: str, request: web.Request) -> None:
        if not self._reports.open:
            said = "the operator has just begun and does not know the policies yet"
            raise Denied(503, "NotReady", said, retry_s=5)
        now = self._clock()
        self._often(node, now)
        try:
            data = await request.read()
        except web.HTTPRequestEntityTooLarge as error:
            said = f"a report has at most {MAX_REPORT_BYTES} bytes"
            raise Denied(413, "TooLarge", said) from error
        try:
            flipped = self._reports.put(node, read_report(data), now)
        except ValueError as error:
            raise Denied(400, "Unreadable", str(error)[:300]) from error
        if flipped:
            self._flipped()

    def _often(self, node: str, now: float) -> None:
        until = max(now, self._allowed.get(node, 0.0)) + _EVERY_S
        if until - now > _EVERY_S * _BURST:
            wait = int(until - now - _EVERY_S * _BURST) + 1
            said = f"a node reports at most every {_EVERY_S:.0f} seconds"
            raise Denied(429, "TooOften", said, retry_s=wait)
        self._allowed[node] = until
        if len(self._allowed) > 2 * len(self._reports) + 1000:
            self._allowed = {n: at for n, at in self._allowed.items() if at > now}

    def _deny(self, denied: Denied, node: str) -> web.Response:
        self.denied += 1
        now = self._clock()
        if now - self._told.get(denied.reason, 0.0) >= _TOLD_S:
            self._told[denied.reason] = now
            logger.warning(
                "a report of %s is refused: %s: %s (others like it within a minute are not told)",
                node or "an unknown node", denied.reason, denied,
            )  # fmt: skip
        said = {"reason": denied.reason, "message": str(denied)}
        return _json(said, denied.code, denied.retry_s)


class _Closed(asyncio.Protocol):
    """A connection that is closed as soon as it is made."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _bearer(request: web.Request) -> str:
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() != "bearer" or not token:
        raise Denied(401, "Unauthorized", "Authorization: Bearer TOKEN is missing")
    return token.strip()


def _json(said: dict[str, Any], code: int = 200, retry_s: int = 0) -> web.Response:
    headers = {"Connection": "close"}
    if retry_s:
        headers["Retry-After"] = str(retry_s)
    return web.Response(
        status=code,
        body=msgspec.json.encode(said),
        content_type="application/json",
        headers=headers,
    )
