"""One HTTP/2 connection to the API server: requests go out, answers come in by stream.

A watch is a request whose answer never ends. HTTP/2 carries all of an agent's watches on one
connection: with HTTP/1.1 each would be a TCP and TLS connection of its own, 17 for each node, on the
node and on the API server. The protocol is `h2`'s; here are the socket, TLS, and liveness: a
connection whose ping stays unanswered is given up, since a peer that vanished says nothing.
"""

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from flameherd_agent.cluster.account import Account

CONNECT_S: Final = 10.0
PING_AFTER_S: Final = 30.0
"""A connection that has been silent for so long is asked whether it is still there."""
PING_ANSWER_S: Final = 15.0
_RECEIVE_BYTES: Final = 64 << 10
_WINDOW_BYTES: Final = 1 << 20


class ConnectionLost(Exception):
    """The connection is gone, with all of its streams. The message says how."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The head of an answer."""

    stream: int
    status: int


@dataclass(frozen=True, slots=True)
class Received:
    """A piece of an answer's body."""

    stream: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """An answer is complete, or was broken off: then `error` says how."""

    stream: int
    error: str = ""


Event = Answered | Received | Ended


class Connection:
    """Made connected. One thread uses it; `shut` may come from another one."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._authority = (
            f"[{account.host}]:{account.port}"
            if ":" in account.host
            else f"{account.host}:{account.port}"
        )
        self._lock = threading.Lock()
        self._shut = False
        self._socket = self._connect()
        self._pinged_at: float | None = None
        self._heard_at = time.monotonic()
        config = h2.config.H2Configuration(client_side=True)
        self._h2 = h2.connection.H2Connection(config)
        try:
            self._h2.initiate_connection()
            self._h2.update_settings(
                {
                    h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW_BYTES,
                    h2.settings.SettingCodes.ENABLE_PUSH: 0,
                }
            )
            self._h2.increment_flow_control_window(_WINDOW_BYTES)
            self._flush()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> ssl.SSLSocket:
        where = self._authority
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.load_verify_locations(self._account.ca_file)
            context.set_alpn_protocols(["h2"])
            plain = socket.create_connection((self._account.host, self._account.port), CONNECT_S)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, ssl.SSLError) as error:
            raise ConnectionLost(f"{where}: {error}") from error
        try:
            wrapped = context.wrap_socket(plain, server_hostname=self._account.host)
        except (OSError, ssl.SSLError) as error:
            plain.close()
            raise ConnectionLost(f"{where}: {error}") from error
        if wrapped.selected_alpn_protocol() != "h2":
            wrapped.close()
            raise ConnectionLost(
                f"{where} does not speak HTTP/2: a proxy in front of the API server must let it through"
            )
        return wrapped

    def get(self, target: str) -> int:
        """Ask for `target` (path and query); the stream that answers."""
        try:
            token = self._account.token()
        except OSError as error:
            raise ConnectionLost(f"the ServiceAccount's token cannot be read: {error}") from error
        headers = [
            (":method", "GET"),
            (":scheme", "https"),
            (":authority", self._authority),
            (":path", target),
            ("accept", "application/json"),
            ("user-agent", "flameherd-agent"),
            ("authorization", f"Bearer {token}"),
        ]
        with _as_lost(self._authority):
            stream = self._h2.get_next_available_stream_id()
            self._h2.send_headers(stream, headers, end_stream=True)
        self._flush()
        return stream

    def cancel(self, stream: int) -> None:
        """Tell the server that nobody listens any more."""
        try:
            self._h2.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
        except h2.exceptions.StreamClosedError:
            return  # it ended in this moment
        except h2.exceptions.ProtocolError as error:
            raise ConnectionLost(f"{self._authority}: {error}") from error
        self._flush()

    def poll(self, timeout_s: float) -> list[Event]:
        """What has come, waiting at most `timeout_s` for it. Raises `ConnectionLost`."""
        now = time.monotonic()
        if self._pinged_at is not None and now - self._pinged_at > PING_ANSWER_S:
            raise ConnectionLost(f"{self._authority} has not answered for {PING_ANSWER_S:.0f} s")
        if self._pinged_at is None and now - self._heard_at > PING_AFTER_S:
            with _as_lost(self._authority):
                self._h2.ping(b"flameher")
            self._pinged_at = now
            self._flush()
        try:
            self._socket.settimeout(max(0.001, min(timeout_s, PING_ANSWER_S)))
            data = self._socket.recv(_RECEIVE_BYTES)
        except TimeoutError:
            return []
        except OSError as error:
            raise ConnectionLost(f"{self._authority}: {error}") from error
        if not data:
            raise ConnectionLost(f"{self._authority} has closed the connection")
        self._heard_at, self._pinged_at = time.monotonic(), None
        with _as_lost(self._authority):
            events = list(self._translated(self._h2.receive_data(data)))
        self._flush()
        return events

    def _translated(self, events: list[h2.events.Event]) -> Iterator[Event]:
        for event in events:
            if isinstance(event, h2.events.ResponseReceived):
                headers = dict(event.headers or ())
                yield Answered(event.stream_id or 0, int(headers.get(b":status", b"0")))
            elif isinstance(event, h2.events.DataReceived):
                stream = event.stream_id or 0
                self._h2.acknowledge_received_data(event.flow_controlled_length or 0, stream)
                if event.data:
                    yield Received(stream, event.data)
            elif isinstance(event, h2.events.StreamEnded):
                yield Ended(event.stream_id or 0)
            elif isinstance(event, h2.events.StreamReset):
                yield Ended(event.stream_id or 0, f"reset by the server ({event.error_code})")
            elif isinstance(event, h2.events.ConnectionTerminated):
                # It lets streams end, but asks for a new connection: watches go on where they were.
                raise ConnectionLost(f"{self._authority} asks for another connection")

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if not data:
            return
        try:
            self._socket.settimeout(CONNECT_S)
            self._socket.sendall(data)
        except OSError as error:
            raise ConnectionLost(f"{self._authority}: {error}") from error

    def shut(self) -> None:
        """End what `poll` waits for."""
        with self._lock:
            if not self._shut:
                self._shut = True
                try:
                    # Not SSLSocket's: that one takes the TLS object from under the reader.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
                except OSError:
                    return  # it is not connected any more, which is what was wanted

    def close(self) -> None:
        with self._lock:
            self._shut = True
            self._socket.close()


class _as_lost:  # noqa: N801 reads as a statement
    """Protocol errors as `ConnectionLost`."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, h2.exceptions.H2Error | ValueError):
            raise ConnectionLost(f"{self._where}: {type(error).__name__}: {error}") from error
