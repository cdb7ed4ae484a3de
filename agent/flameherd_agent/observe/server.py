"""`/metrics`, `/healthz` and `/status` over HTTP, on one thread, for one scraper or a few.

Not http.server: importing it costs 6 MB, and it would need a thread for each client. This one
answers GET, closes the connection after each answer, and bounds everything: bytes of a request,
clients at one time, seconds that a client may take. Whatever is wrong with a client, the others are
served.

The callbacks run on the server's thread: they must be quick and must not disturb the agent's
threads.
"""

import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from flameherd_agent.errors import EnvironmentProblem
from flameherd_agent.observe.logs import Log
from flameherd_agent.observe.metrics import CONTENT_TYPE, Family, render

MAX_REQUEST_BYTES: Final = 8192
MAX_CLIENTS: Final = 16
CLIENT_SECONDS: Final = 5.0
_TEXT: Final = "text/plain; charset=utf-8"
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_INDEX: Final = "flameherd agent: /metrics /healthz /status\n"

log = Log("observe")


class _Client:
    """One connection: first its request is read, then the answer is written."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.connection = connection
        self.deadline = deadline
        self.request = b""
        self.answer: memoryview | None = None


class ObserveServer:
    """Serves until `close`; also a context manager.

    `collect` makes the metrics, `status` what /status shows as JSON, `healthy` whether /healthz is
    200 (else 503), with a reason. `port` 0 takes a free one: see `address`. Raises
    `EnvironmentProblem` if it cannot listen there.
    """

    def __init__(
        self,
        *,
        collect: Callable[[], Iterable[Family]],
        status: Callable[[], Mapping[str, object]],
        healthy: Callable[[], tuple[bool, str]],
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._collect = collect
        self._status = status
        self._healthy = healthy
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listener = socket.create_server((host, port), family=family, backlog=MAX_CLIENTS)
        except OSError as error:
            raise EnvironmentProblem(
                f"cannot listen on {host}:{port} for /metrics: {error.strerror}: choose "
                "another address"
            ) from error
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._stop, stopping = socket.socketpair()
        self._selector.register(stopping, selectors.EVENT_READ)
        self._stopping = stopping
        self._clients: dict[int, _Client] = {}
        self._thread = threading.Thread(target=self._run, name="flameherd-observe", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on."""
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def start(self) -> "ObserveServer":
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop serving; clients in the middle of an answer are cut."""
        self._stop.close()
        if self._thread.ident is not None:
            self._thread.join()
        for client in list(self._clients.values()):
            self._drop(client)
        self._selector.close()
        self._listener.close()
        self._stopping.close()

    def __enter__(self) -> "ObserveServer":
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select(1.0 if self._clients else None):
                if key.fileobj is self._stopping:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._serve(key.data)
            now = time.monotonic()
            for client in [c for c in self._clients.values() if c.deadline < now]:
                self._drop(client)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # the client is gone already, or we are out of file descriptors
            return
        if len(self._clients) >= MAX_CLIENTS:
            self._drop(min(self._clients.values(), key=lambda c: c.deadline))
        connection.setblocking(False)
        client = _Client(connection, time.monotonic() + CLIENT_SECONDS)
        self._clients[connection.fileno()] = client
        self._selector.register(connection, selectors.EVENT_READ, client)

    def _drop(self, client: _Client) -> None:
        if self._clients.pop(client.connection.fileno(), None) is client:
            self._selector.unregister(client.connection)
            client.connection.close()

    def _serve(self, client: _Client) -> None:
        if client.connection.fileno() < 0:  # dropped in the same round
            return
        try:
            if client.answer is None:
                data = client.connection.recv(MAX_REQUEST_BYTES)
                client.request += data
                whole = b"\r\n\r\n" in client.request or b"\n\n" in client.request
                if not whole and len(client.request) <= MAX_REQUEST_BYTES:
                    if not data:
                        self._drop(client)
                    return
                client.answer = memoryview(self._answer(client.request))
                self._selector.modify(client.connection, selectors.EVENT_WRITE, client)
            sent = client.connection.send(client.answer)
            client.answer = client.answer[sent:]
        except BlockingIOError:
            return
        except OSError:  # the client went away
            self._drop(client)
            return
        if not client.answer:
            self._drop(client)

    def _answer(self, request: bytes) -> bytes:
        if len(request) > MAX_REQUEST_BYTES:
            return _response(431, "the request is too long\n")
        words = request.split(b"\n", 1)[0].rstrip(b"\r").split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _response(400, "this is HTTP/1.1\n")
        if words[0] != b"GET":
            return _response(405, "only GET\n", extra="Allow: GET\r\n")
        path = words[1].split(b"?", 1)[0]
        try:
            return self._page(path)
        except Exception as error:  # noqa: BLE001 - a broken callback must not end the server
            log.once(
                f"page {path!r}", "a page failed", path=path.decode("ascii", "replace"), error=error
            )
            return _response(500, f"{type(error).__name__}: {error}\n")

    def _page(self, path: bytes) -> bytes:
        match path:
            case b"/metrics":
                return _response(200, render(self._collect()), CONTENT_TYPE)
            case b"/healthz":
                good, reason = self._healthy()
                return _response(200 if good else 503, f"{reason}\n")
            case b"/status":
                body = msgspec.json.format(msgspec.json.encode(self._status()), indent=2)
                return _response(200, body.decode() + "\n", "application/json")
            case b"/":
                return _response(200, _INDEX)
        return _response(404, _INDEX)


def _response(code: int, body: str, content_type: str = _TEXT, extra: str = "") -> bytes:
    data = body.encode("utf-8", "replace")
    head = (
        f"HTTP/1.1 {code} {_REASONS[code]}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(data)}\r\n{extra}X-Content-Type-Options: nosniff\r\n"
        "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + data
