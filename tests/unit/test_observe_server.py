"""The HTTP server: right answers, and nothing that one client does hurts another."""

import contextlib
import json
import socket
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection

import pytest
from flameherd_agent.errors import EnvironmentProblem
from flameherd_agent.observe import server as module
from flameherd_agent.observe.metrics import CONTENT_TYPE, Family, gauge
from flameherd_agent.observe.server import MAX_CLIENTS, MAX_REQUEST_BYTES, ObserveServer


class Agent:
    """The callbacks."""

    healthy = True
    broken = False
    padding = ""

    def collect(self) -> list[Family]:
        if self.broken:
            raise RuntimeError("no map")
        return [gauge("up_bytes", self.padding, 1)]

    def status(self) -> Mapping[str, object]:
        return {"version": "1", "slots": [{"name": "host"}]}

    def health(self) -> tuple[bool, str]:
        return self.healthy, "ok" if self.healthy else "the drain is stuck"


@pytest.fixture
def agent() -> Agent:
    return Agent()


@pytest.fixture
def server(agent: Agent) -> Iterator[ObserveServer]:
    with ObserveServer(collect=agent.collect, status=agent.status, healthy=agent.health) as running:
        yield running


def get(server: ObserveServer, path: str, method: str = "GET") -> tuple[int, str, str]:
    connection = HTTPConnection(*server.address, timeout=10)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.getheader("Content-Type", ""), response.read().decode()
    finally:
        connection.close()


def raw(server: ObserveServer, data: bytes) -> bytes:
    with socket.create_connection(server.address, timeout=10) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        answer = b""
        while chunk := client.recv(65536):
            answer += chunk
        return answer


def test_pages(server: ObserveServer, agent: Agent) -> None:
    assert server.address[0] == "127.0.0.1"
    assert get(server, "/metrics") == (
        200,
        CONTENT_TYPE,
        "# HELP up_bytes \n# TYPE up_bytes gauge\nup_bytes 1\n",
    )
    assert get(server, "/healthz?x=1")[::2] == (200, "ok\n")
    agent.healthy = False
    assert get(server, "/healthz")[::2] == (503, "the drain is stuck\n")
    code, kind, body = get(server, "/status")
    assert (code, kind) == (200, "application/json")
    assert json.loads(body) == {"version": "1", "slots": [{"name": "host"}]}
    assert get(server, "/")[0] == 200
    assert get(server, "/../etc/passwd")[0] == 404


def test_only_get(server: ObserveServer) -> None:
    assert get(server, "/metrics", "POST")[0] == 405
    assert get(server, "/metrics", "DELETE")[0] == 405


@pytest.mark.parametrize(
    "request_line", [b"", b"GET", b"GET /", b"GET / FTP/1.0", b"\xff\xfe /x HTTP/2"]
)
def test_what_is_not_http(server: ObserveServer, request_line: bytes) -> None:
    assert raw(server, request_line + b"\r\n\r\n").startswith(b"HTTP/1.1 400 ")


def test_too_long_a_request_is_refused(server: ObserveServer) -> None:
    with socket.create_connection(server.address, timeout=10) as client:
        client.sendall(b"GET /" + b"x" * (MAX_REQUEST_BYTES + 1))
        assert client.recv(100).startswith(b"HTTP/1.1 431 ")


def test_a_request_that_ends_early_gets_no_answer(server: ObserveServer) -> None:
    assert raw(server, b"GET /metrics HTTP/1.1\r\n") == b""
    assert get(server, "/healthz")[0] == 200


def test_a_broken_callback_is_an_error_page_and_no_more(
    server: ObserveServer, agent: Agent
) -> None:
    agent.broken = True
    code, _, body = get(server, "/metrics")
    assert (code, body) == (500, "RuntimeError: no map\n")
    agent.broken = False
    assert get(server, "/metrics")[0] == 200


def test_a_large_answer_to_a_slow_reader_does_not_hold_up_others(
    server: ObserveServer, agent: Agent
) -> None:
    agent.padding = "x" * 20_000_000
    with socket.create_connection(server.address, timeout=10) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert slow.recv(10) == b"HTTP/1.1 2"
        assert get(server, "/healthz")[0] == 200
        left = len(agent.padding)
        while chunk := slow.recv(1 << 20):
            left -= len(chunk)
        assert left < 0


def test_idle_clients_do_not_keep_others_out(server: ObserveServer) -> None:
    idle = [socket.create_connection(server.address, timeout=10) for _ in range(MAX_CLIENTS * 2)]
    try:
        assert get(server, "/healthz")[0] == 200
    finally:
        for client in idle:
            client.close()


def test_clients_that_take_too_long_are_cut(
    server: ObserveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLIENT_SECONDS", 0.0)
    # Reset instead of an empty read: its bytes were not read yet.
    with (
        socket.create_connection(server.address, timeout=10) as client,
        contextlib.suppress(ConnectionResetError),
    ):
        client.sendall(b"GET /")
        assert client.recv(10) == b""


def test_one_thread_whatever_comes(server: ObserveServer) -> None:
    before = threading.active_count()
    idle = [socket.create_connection(server.address, timeout=10) for _ in range(MAX_CLIENTS)]
    assert get(server, "/healthz")[0] == 200
    assert threading.active_count() == before
    for client in idle:
        client.close()


def test_an_address_in_use_says_so(server: ObserveServer, agent: Agent) -> None:
    host, port = server.address
    with pytest.raises(EnvironmentProblem, match=f"cannot listen on {host}:{port}"):
        ObserveServer(
            collect=agent.collect, status=agent.status, healthy=agent.health, host=host, port=port
        )


def test_it_closes_without_having_been_started(agent: Agent) -> None:
    ObserveServer(collect=agent.collect, status=agent.status, healthy=agent.health).close()


def test_an_ordinary_client_is_content(server: ObserveServer) -> None:
    host, port = server.address
    with urllib.request.urlopen(f"http://{host}:{port}/healthz", timeout=10) as response:
        assert response.read() == b"ok\n"
