"""OTLP over HTTP/1.1 by the standard library: one connection, kept between batches.

Retries and responses follow the OTLP specification ("OTLP/HTTP Response", "Failures"). Proxy
variables of the environment are ignored on purpose: which address is spoken to is what a policy's
ceilings are about. Redirects are not followed, for the same reason.
"""

import http.client
import select
import socket
import ssl
import threading
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from flameherd_policy.endpoints import Scheme, Source, Target
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceResponse,
)

from flameherd_agent import __version__
from flameherd_agent.errors import UsageError
from flameherd_agent.pipeline.export.config import Compression, EndpointConfig, read_headers, stamp
from flameherd_agent.pipeline.export.transport import (
    MAX_RESPONSE_BYTES,
    RefusedError,
    RetryableError,
    Sent,
    resolve,
    shown,
    status_message,
)
from flameherd_agent.pipeline.otlp import Batch

PROFILES_PATH: Final = "/v1development/profiles"
_RETRYABLE: Final = frozenset({429, 502, 503, 504})


class _Connection(http.client.HTTPConnection):
    """A connection to a checked address, whose socket can be shut from another thread."""

    def __init__(self, target: Target, source: Source, tls: ssl.SSLContext | None) -> None:
        super().__init__(target.host, target.port)
        self._source = source
        self._tls = tls
        self.deadline = 0.0
        """Monotonic seconds."""
        self.was_shut = False

    def connect(self) -> None:
        problem: OSError | None = None
        for family, address in resolve(self.host, self.port, self._source):
            self.sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                self.sock.settimeout(max(self.deadline - time.monotonic(), 0.001))
                self.sock.connect((address, self.port))
                self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls is not None:
                    # The handshake comes after the assignment, so that `shut` can end it.
                    self.sock = self._tls.wrap_socket(
                        self.sock, server_hostname=self.host, do_handshake_on_connect=False
                    )
                    self.sock.do_handshake()
                return
            except OSError as error:
                self.sock.close()
                self.sock = None
                problem = error
        raise problem or OSError("no address")

    def shut(self) -> None:
        """Ends what another thread waits for on this connection."""
        self.was_shut = True
        sock: socket.socket | None = self.sock
        if sock is not None:
            try:
                # Not SSLSocket.shutdown: that one takes the TLS object from under a reader.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
            except OSError:
                return  # closed or not connected: nothing waits on it

    def is_stale(self) -> bool:
        """Whether the server has closed an idle connection (it has nothing else to say)."""
        return self.sock is not None and bool(select.select([self.sock], [], [], 0)[0])


def tls_context(config: EndpointConfig) -> ssl.SSLContext:
    """Of an `https` endpoint. Raises `OSError` (`ssl.SSLError` is one) for unusable files."""
    context = ssl.create_default_context(cafile=config.ca_file)
    context.set_alpn_protocols(["http/1.1"])
    if config.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if config.cert_file is not None:
        context.load_cert_chain(config.cert_file, config.key_file, password=_no_password)
    return context


def _no_password() -> str:
    raise OSError("the client's key is encrypted; give one without a passphrase")


def retry_after_s(value: str | None, now: datetime) -> float | None:
    """`Retry-After` in seconds: a number or an HTTP date; None if absent or neither."""
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max((when - now).total_seconds(), 0.0)


class HttpTransport:
    """Posts batches to `<url>/v1development/profiles`."""

    def __init__(self, config: EndpointConfig) -> None:
        self._config = config
        self._target = config.target
        path = self._target.path.removesuffix(PROFILES_PATH)
        self._path = path + PROFILES_PATH
        self._connection: _Connection | None = None
        self._stamp = stamp(config)
        self._headers: dict[str, str] = {}

    def send(self, batch: Batch, timeout_s: float) -> Sent:
        zipped = self._config.compression is Compression.GZIP
        body = batch.compressed if zipped else batch.message()
        try:
            connection = self._ready(time.monotonic() + timeout_s)
        except (OSError, UsageError) as error:
            raise RetryableError(f"{self._config.url}: {error}") from error
        headers = dict(self._headers)
        if zipped:
            headers["Content-Encoding"] = "gzip"
        # Socket timeouts bound one read each; a server that drips bytes is cut off here.
        watchdog = threading.Timer(timeout_s, connection.shut)
        watchdog.daemon = True
        watchdog.start()
        try:
            connection.request("POST", self._path, body, headers)
            response = connection.getresponse()
            content = response.read(MAX_RESPONSE_BYTES)
            if connection.was_shut:  # http.client takes the end of a stream for the end of headers
                raise TimeoutError("the response did not end in time")
            if not response.isclosed() or response.will_close:
                self.close()
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            what = str(error) or type(error).__name__
            raise RetryableError(f"{self._config.url}: {what}") from error
        except BaseException:
            self.close()
            raise
        finally:
            watchdog.cancel()
        self._raise_for(response, content)
        return self._accepted(response, content, len(body))

    def _ready(self, deadline: float) -> _Connection:
        now = stamp(self._config)
        connection = self._connection
        if connection is not None and (now != self._stamp or connection.is_stale()):
            self.close()
            connection = None
        if connection is None:
            self._stamp = now
            self._headers = {
                "Content-Type": "application/x-protobuf",
                "User-Agent": f"Flameherd/{__version__}",
                **dict(read_headers(self._config)),
            }
            secure = self._target.scheme is Scheme.HTTPS
            tls = tls_context(self._config) if secure else None
            connection = _Connection(self._target, self._config.source, tls)
            self._connection = connection
        connection.deadline = deadline
        if connection.sock is not None:
            connection.sock.settimeout(max(deadline - time.monotonic(), 0.001))
        return connection

    def _raise_for(self, response: http.client.HTTPResponse, content: bytes) -> None:
        status = response.status
        if 200 <= status < 300:
            return
        said = status_message(content)
        message = f"{self._config.url}: HTTP {status} {shown(response.reason)}: {said}"
        if status in _RETRYABLE:
            after = retry_after_s(response.getheader("Retry-After"), datetime.now(UTC))
            raise RetryableError(message, after)
        raise RefusedError(message, f"http_{status}")

    def _accepted(
        self, response: http.client.HTTPResponse, content: bytes, payload_bytes: int
    ) -> Sent:
        kind = response.getheader("Content-Type", "").partition(";")[0].strip()
        if kind != "application/x-protobuf":
            return Sent(payload_bytes)
        try:
            partial = ExportProfilesServiceResponse.FromString(content).partial_success
        except DecodeError:
            return Sent(payload_bytes, 0, "the server's response is not a protobuf message")
        return Sent(payload_bytes, max(partial.rejected_profiles, 0), shown(partial.error_message))

    def abort(self) -> None:
        if (connection := self._connection) is not None:
            connection.shut()

    def close(self) -> None:
        if (connection := self._connection) is not None:
            self._connection = None
            connection.close()
