"""OTLP/HTTP against a server that answers as told: codes, delays, broken and hostile responses."""

import gzip
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from flameherd_agent.pipeline.export import Compression, EndpointConfig, Protocol
from flameherd_agent.pipeline.export.http_transport import HttpTransport, retry_after_s
from flameherd_agent.pipeline.export.transport import RefusedError, RetryableError, Sent
from flameherd_agent.pipeline.otlp import Batch, encode_batches
from flameherd_policy.endpoints import Source
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
    ExportProfilesServiceResponse,
)

from tests.otlp_reader import expected, read_back
from tests.unit.profiles import resources

Answer = Callable[[BaseHTTPRequestHandler], None]


class Server:
    """Answers by `answer(handler)`; keeps (path, headers, body) of each request."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.connections = 0
        self.answer: Answer = respond(200)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                outer.connections += 1
                super().setup()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {key.lower(): value for key, value in self.headers.items()}
                outer.requests.append((self.path, headers, body))
                outer.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def respond(
    status: int, body: bytes = b"", kind: str = "application/x-protobuf", **headers: str
) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(body)))
        for key, value in headers.items():
            handler.send_header(key.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def batch() -> Batch:
    (batch,) = encode_batches(resources())
    return batch


def transport(url: str, **more: object) -> HttpTransport:
    return HttpTransport(EndpointConfig("test", Protocol.HTTP, url, **more))  # type: ignore[arg-type]


def send(url: str, batch: Batch, timeout_s: float = 10, **more: object) -> Sent:
    made = transport(url, **more)
    try:
        return made.send(batch, timeout_s)
    finally:
        made.close()


@pytest.mark.parametrize("compression", list(Compression))
def test_the_request(server: Server, batch: Batch, compression: Compression) -> None:
    headers = (("Authorization", "Bearer x"),)
    sent = send(server.url, batch, compression=compression, headers=headers)
    ((path, got, body),) = server.requests
    assert path == "/v1development/profiles"
    assert got["content-type"] == "application/x-protobuf"
    assert got["user-agent"].startswith("Flameherd/")
    assert got["authorization"] == "Bearer x"
    assert sent == Sent(len(body))
    if compression is Compression.GZIP:
        assert got["content-encoding"] == "gzip"
        body = gzip.decompress(body)
    else:
        assert "content-encoding" not in got
    request = ExportProfilesServiceRequest.FromString(body)
    assert read_back(request) == expected(resources())


@pytest.mark.parametrize(
    ("base", "path"),
    [
        ("", "/v1development/profiles"),
        ("/", "/v1development/profiles"),
        ("/otlp", "/otlp/v1development/profiles"),
        ("/otlp/", "/otlp/v1development/profiles"),
        ("/v1development/profiles", "/v1development/profiles"),
    ],
)
def test_the_path_is_appended(server: Server, batch: Batch, base: str, path: str) -> None:
    send(server.url + base, batch)
    assert server.requests[0][0] == path


def test_one_connection_serves_many_batches(server: Server, batch: Batch) -> None:
    made = transport(server.url)
    for _ in range(5):
        made.send(batch, 10)
    made.close()
    assert server.connections == 1


def test_a_connection_that_the_server_closed_is_not_used(server: Server, batch: Batch) -> None:
    def close_quietly(handler: BaseHTTPRequestHandler) -> None:
        respond(200)(handler)
        handler.close_connection = True

    server.answer = close_quietly
    made = transport(server.url)
    for _ in range(3):
        made.send(batch, 10)
        connection = made._connection
        assert connection is not None
        assert connection.sock is not None
        connection.sock.settimeout(10)
        connection.sock.recv(1, socket.MSG_PEEK)  # wait for the server's end to close
    made.close()
    assert server.connections == 3


@pytest.mark.parametrize("status", [429, 502, 503, 504])
@pytest.mark.parametrize(("header", "after_s"), [(None, None), ("7", 7.0), ("soon", None)])
def test_retryable_statuses(
    server: Server, batch: Batch, status: int, header: str | None, after_s: float | None
) -> None:
    server.answer = respond(status, Retry_After=header) if header else respond(status)
    with pytest.raises(RetryableError, match=f"HTTP {status}") as error:
        send(server.url, batch)
    assert error.value.after_s == after_s


@pytest.mark.parametrize("status", [301, 307, 400, 401, 403, 404, 408, 413, 500, 501])
def test_other_statuses_are_final(server: Server, batch: Batch, status: int) -> None:
    body = b"\x08\x03\x12\x08bad data"  # google.rpc.Status: code 3, message
    server.answer = respond(status, body, Retry_After="1", Location="http://127.0.0.1:1/")
    with pytest.raises(RefusedError, match="bad data") as error:
        send(server.url, batch)
    assert error.value.reason == f"http_{status}"
    assert len(server.requests) == 1


def test_partial_success(server: Server, batch: Batch) -> None:
    response = ExportProfilesServiceResponse()
    response.partial_success.rejected_profiles = 2
    response.partial_success.error_message = "too\nold"
    server.answer = respond(200, response.SerializeToString())
    sent = send(server.url, batch)
    assert (sent.rejected_profiles, sent.message) == (2, "too old")


@pytest.mark.parametrize(
    "answer",
    [
        respond(200, b"<html>", "text/html"),
        respond(200, b"\xff" * 50),
        respond(202),
        respond(204),
    ],
)
def test_an_odd_success_is_a_success(server: Server, batch: Batch, answer: Answer) -> None:
    server.answer = answer
    assert send(server.url, batch).rejected_profiles == 0


def test_a_huge_response_is_not_read(server: Server, batch: Batch) -> None:
    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(400)
        handler.send_header("Content-Length", str(1 << 40))
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(b"x" * 65536)
        except OSError:
            handler.close_connection = True

    server.answer = endless
    with pytest.raises(RefusedError) as error:
        send(server.url, batch)
    assert len(str(error.value)) < 500


def test_a_server_that_drips_is_cut_off(server: Server, batch: Batch) -> None:
    over = threading.Event()

    def drip(handler: BaseHTTPRequestHandler) -> None:
        try:
            handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
            while not over.wait(0.02):
                handler.wfile.write(b"X-Drip: 1\r\n")
        except OSError:
            handler.close_connection = True

    server.answer = drip
    try:
        with pytest.raises(RetryableError, match="in time"):
            send(server.url, batch, timeout_s=0.3)
    finally:
        over.set()


def test_a_server_that_hangs_up_or_talks_nonsense(server: Server, batch: Batch) -> None:
    def nonsense(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"\x00\x01nonsense\r\n\r\n")
        handler.close_connection = True

    def hang_up(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True

    for answer in (nonsense, hang_up):
        server.answer = answer
        with pytest.raises(RetryableError):
            send(server.url, batch)


def test_nobody_listens_or_no_such_name(batch: Batch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(RetryableError, match="refused"):
            send(f"http://127.0.0.1:{unused.getsockname()[1]}", batch)
    with pytest.raises(RetryableError, match="cannot resolve"):
        send("http://no-such-name.invalid:1", batch)


def test_a_tenant_cannot_reach_the_node_by_a_name(
    server: Server, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, port, **more: real("127.0.0.1", port, **more)
    )
    url = server.url.replace("127.0.0.1", "innocent.obs.svc")
    with pytest.raises(RefusedError, match="loopback") as error:
        send(url, batch, source=Source.CR)
    assert error.value.reason == "forbidden_address"
    assert not server.requests
    send(url, batch, source=Source.FILE)
    assert len(server.requests) == 1


def test_proxy_variables_are_ignored(
    server: Server, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    send(server.url, batch)
    assert len(server.requests) == 1


def test_headers_come_from_a_file_that_may_change(
    server: Server, batch: Batch, tmp_path: Path
) -> None:
    file = tmp_path / "headers"
    file.write_text("# credentials\nAuthorization: Bearer a\n\nX-Tenant: b: c\n", encoding="ascii")
    made = transport(server.url, headers_file=file)
    made.send(batch, 10)
    file.write_text("Authorization: Bearer longer\n", encoding="ascii")
    made.send(batch, 10)
    file.unlink()
    with pytest.raises(RetryableError, match="headers"):
        made.send(batch, 10)
    file.write_text("no colon\n", encoding="ascii")
    with pytest.raises(RetryableError, match="headers:1: a line is `name: value`"):
        made.send(batch, 10)
    made.close()
    first, second = (headers for _, headers, _ in server.requests)
    assert (first["authorization"], first["x-tenant"]) == ("Bearer a", "b: c")
    assert second["authorization"] == "Bearer longer"
    assert "x-tenant" not in second


def test_abort_ends_a_send(server: Server, batch: Batch) -> None:
    arrived, over = threading.Event(), threading.Event()

    def hang(handler: BaseHTTPRequestHandler) -> None:
        arrived.set()
        over.wait(20)
        handler.close_connection = True

    server.answer = hang
    made = transport(server.url)
    failure: list[Exception] = []

    def run() -> None:
        try:
            made.send(batch, 20)
        except RetryableError as error:
            failure.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert arrived.wait(10)
    made.abort()
    thread.join(10)
    over.set()
    assert not thread.is_alive()
    assert len(failure) == 1
    made.close()


def test_retry_after() -> None:
    now = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
    assert retry_after_s("Sat, 21 Nov 2026 12:00:30 GMT", now) == 30
    assert retry_after_s("Sat, 21 Nov 2026 11:00:00 GMT", now) == 0
    assert retry_after_s(" 5 ", now) == 5
    assert retry_after_s("9" * 5000, now) == 999_999_999
    for odd in ("-5", "1.5", "", "²", "Sat, 99 Foo 2026", "Fri, 31 Dec 9999 99:99:99 GMT"):
        assert retry_after_s(odd, now) is None
    assert retry_after_s(None, now) is None
