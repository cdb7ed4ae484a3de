"""One HTTP/2 connection, against a server made of the same protocol library over real TLS."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import pytest
from flameherd_agent.cluster import http2
from flameherd_agent.cluster.account import Account
from flameherd_agent.cluster.http2 import Answered, Connection, ConnectionLost, Ended, Received

from tests.collector.certificates import Identity, issue, make_ca

Act = Callable[["Server", h2.events.Event], None]


class Server:
    """Takes one connection and hands every event to `act`."""

    def __init__(self, identity: Identity, act: Act, protocols: tuple[str, ...] = ("h2",)) -> None:
        self._act = act
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(identity.cert, identity.key)
        self._context.set_alpn_protocols(list(protocols))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self.requests: list[dict[bytes, bytes]] = []
        self.resets: list[int] = []
        self._to_send: dict[int, bytes] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            plain, _ = self._listener.accept()
            with self._context.wrap_socket(plain, server_side=True) as self.socket:
                self.h2.initiate_connection()
                self.flush()
                while data := self.socket.recv(65536):
                    for event in self.h2.receive_data(data):
                        if isinstance(event, h2.events.RequestReceived):
                            self.requests.append(dict(event.headers or ()))
                        if isinstance(event, h2.events.StreamReset):
                            self.resets.append(event.stream_id or 0)
                        self._act(self, event)
                    self._push()
                    self.flush()
        except (OSError, h2.exceptions.ProtocolError):  # the client went away, or we did
            return

    def flush(self) -> None:
        self.socket.sendall(self.h2.data_to_send())

    def answer(
        self, stream: int, body: bytes = b"", *, end: bool = True, status: int = 200
    ) -> None:
        self.h2.send_headers(stream, [(":status", str(status))])
        self._to_send[stream] = body
        self._end = end
        self._push()

    def _push(self) -> None:
        """As much as the client's windows take."""
        for stream, body in list(self._to_send.items()):
            while body:
                room = min(
                    self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size
                )
                if room <= 0:
                    break
                self.h2.send_data(stream, body[:room])
                body = body[room:]
            self._to_send[stream] = body
            if not body:
                del self._to_send[stream]
                if self._end:
                    self.h2.end_stream(stream)

    def close(self) -> None:
        self._listener.close()
        self._thread.join(10)


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Identity]:
    folder = tmp_path_factory.mktemp("tls")
    ca = make_ca(folder)
    (folder / "token").write_text("secret\n")
    return folder, issue(folder, ca, "api", "DNS:localhost,IP:127.0.0.1")


class Both:
    """A server and the means to connect to it."""

    def __init__(self, identity: tuple[Path, Identity]) -> None:
        self._folder, self._identity = identity
        self._open: list[Server | Connection] = []

    def account(self, port: int, host: str = "127.0.0.1") -> Account:
        return Account(host, port, self._folder, "n1", "agents")

    def serve(self, act: Act, protocols: tuple[str, ...] = ("h2",)) -> Server:
        made = Server(self._identity, act, protocols)
        self._open.append(made)
        return made

    def connect(self, server: Server) -> Connection:
        made = Connection(self.account(server.port))
        self._open.append(made)
        return made

    def close(self) -> None:
        for each in reversed(self._open):
            each.close()


@pytest.fixture
def both(identity: tuple[Path, Identity]) -> Iterator[Both]:
    made = Both(identity)
    yield made
    made.close()


def until_ended(connection: Connection, streams: int = 1) -> list[object]:
    events: list[object] = []
    deadline = time.monotonic() + 60
    while sum(isinstance(event, Ended) for event in events) < streams:
        assert time.monotonic() < deadline
        events += connection.poll(1.0)
    return events


def for_ever(connection: Connection, timeout_s: float) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        connection.poll(timeout_s)


def requested(server: Server, event: h2.events.Event, body: bytes = b"hello") -> None:
    if isinstance(event, h2.events.RequestReceived):
        server.answer(event.stream_id or 0, body)


def test_answers_by_stream_with_our_token(both: Both) -> None:
    server = both.serve(requested)
    connection = both.connect(server)
    one, other = connection.get("/a?b=c"), connection.get("/d")
    events = until_ended(connection, 2)
    for stream in (one, other):
        own = [e for e in events if getattr(e, "stream", None) == stream]
        assert own == [Answered(stream, 200), Received(stream, b"hello"), Ended(stream)]
    assert [request[b":path"] for request in server.requests] == [b"/a?b=c", b"/d"]
    assert server.requests[0][b"authorization"] == b"Bearer secret"


def test_more_than_every_window_comes_whole(both: Both) -> None:
    """Found by a real API server: windows that the peer was not told of end in silence."""
    body = bytes(range(256)) * (5 << 12)  # 5 MiB
    server = both.serve(lambda server, event: requested(server, event, body))
    connection = both.connect(server)
    connection.get("/")
    events = until_ended(connection)
    assert b"".join(e.data for e in events if isinstance(e, Received)) == body


def test_a_stream_that_is_cancelled_leaves_the_others(both: Both) -> None:
    def act(server: Server, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            server.answer(event.stream_id or 0, b"x", end=event.stream_id != 1)

    server = both.serve(act)
    connection = both.connect(server)
    first = connection.get("/watch")
    assert first == 1
    connection.cancel(first)
    connection.get("/list")
    until_ended(connection)
    assert server.resets == [1]
    connection.cancel(first)  # it is closed: nothing to tell


def test_a_reset_ends_one_answer_with_an_error(both: Both) -> None:
    def act(server: Server, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            server.h2.reset_stream(event.stream_id or 0, 2)

    connection = both.connect(both.serve(act))
    connection.get("/")
    (ended,) = (e for e in until_ended(connection) if isinstance(e, Ended))
    assert "reset" in ended.error


def test_a_server_that_asks_for_another_connection_or_goes(both: Both) -> None:
    def act(server: Server, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            server.h2.close_connection()

    connection = both.connect(both.serve(act))
    connection.get("/")
    with pytest.raises(ConnectionLost, match="another connection"):
        until_ended(connection)

    def end(server: Server, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            server.socket.close()

    connection = both.connect(both.serve(end))
    connection.get("/")
    with pytest.raises(ConnectionLost):
        until_ended(connection)


def test_a_peer_that_is_silent_is_asked_and_given_up(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "PING_AFTER_S", 0.2)
    monkeypatch.setattr(http2, "PING_ANSWER_S", 0.5)
    pinged = threading.Event()

    def deaf(server: Server, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.PingReceived):
            pinged.set()
            server.h2.data_to_send()  # the answer is thrown away

    connection = both.connect(both.serve(deaf))
    with pytest.raises(ConnectionLost, match="not answered"):
        for_ever(connection, 0.1)
    assert pinged.is_set()


def test_a_peer_that_answers_pings_is_kept(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "PING_AFTER_S", 0.05)
    pings: list[h2.events.Event] = []

    def act(server: Server, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.PingReceived):
            pings.append(event)

    connection = both.connect(both.serve(act))
    while len(pings) < 3:
        connection.poll(0.1)


def test_shut_ends_a_wait(both: Both) -> None:
    connection = both.connect(both.serve(requested))
    connection.poll(0.01)
    timer = threading.Timer(0.2, connection.shut)
    timer.start()
    with pytest.raises(ConnectionLost):
        for_ever(connection, 10.0)
    timer.join()


def test_what_cannot_be_connected_to(
    both: Both, identity: tuple[Path, Identity], tmp_path: Path
) -> None:
    plain = both.serve(requested, protocols=("http/1.1",))
    with pytest.raises(ConnectionLost, match="HTTP/2"):
        Connection(both.account(plain.port))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    with pytest.raises(ConnectionLost, match="refused"):
        Connection(both.account(port))
    other = make_ca(tmp_path)
    (tmp_path / "ca.crt").write_bytes(other.cert.read_bytes())
    server = both.serve(requested)
    with pytest.raises(ConnectionLost, match="CERTIFICATE_VERIFY_FAILED"):
        Connection(Account("127.0.0.1", server.port, tmp_path, "n", "a"))
