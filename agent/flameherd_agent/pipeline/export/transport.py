"""What an exporter asks of a transport, and what both OTLP transports share."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from flameherd_policy.endpoints import Source, check_address

from flameherd_agent.errors import ExportError
from flameherd_agent.pipeline.otlp import Batch

MAX_RESPONSE_BYTES: Final = 64 << 10
"""A response is a few dozen bytes; whatever is larger is not read to its end."""
MAX_MESSAGE_CHARS: Final = 300
"""Of a server's words in our messages."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch was accepted, at least in part."""

    payload_bytes: int
    """The request's body; headers and framing come on top."""
    rejected_profiles: int = 0
    message: str = ""
    """What the server said about a partial success."""


class RetryableError(ExportError):
    """The batch may be sent again, after `after_s` if the server asked for it."""

    def __init__(self, message: str, after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s


class RefusedError(ExportError):
    """The batch must not be sent again. `reason` is a short label for counters."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class Transport(Protocol):
    """Sends one batch at a time, from one thread; `abort` comes from another one."""

    def send(self, batch: Batch, timeout_s: float) -> Sent:
        """Sends within `timeout_s`; raises `RetryableError` or `RefusedError`."""

    def abort(self) -> None:
        """Makes a `send` that is under way fail soon."""

    def close(self) -> None:
        """Lets go of connections and files."""


def resolve(host: str, port: int, source: Source) -> list[tuple[socket.AddressFamily, str]]:
    """Addresses of `host`, in the resolver's order, as text.

    Raises `RetryableError` if there are none, `RefusedError` if one is forbidden for `source`: then
    none is used, since a name that points to the node at times means to.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    except (OSError, UnicodeError) as error:
        raise RetryableError(f"cannot resolve {host}: {error}") from error
    addresses: list[tuple[socket.AddressFamily, str]] = list(
        dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found)
    )
    for _, address in addresses:
        if (problem := check_address(address, source)) is not None:
            raise RefusedError(f"{host}: {problem}", "forbidden_address")
    return addresses


def shown(text: str | bytes) -> str:
    """A server's words, short and printable."""
    if isinstance(text, bytes):
        text = text[: 4 * MAX_MESSAGE_CHARS].decode("utf-8", "replace")
    return "".join(c if c.isprintable() else " " for c in text[:MAX_MESSAGE_CHARS]).strip()


def wire_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) pairs of a protobuf message: ints of varints, bytes of the rest.

    For the two messages of `google.rpc` that errors carry. Raises `ValueError` if malformed.
    """
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            if position >= len(message) or shift > 63:
                raise ValueError("truncated or overlong varint")
            byte = message[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while position < len(message):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            yield number, varint()
            continue
        size = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            size = varint()
        if size is None or position + size > len(message):
            raise ValueError("unknown wire type or truncated field")
        yield number, message[position : position + size]
        position += size


def retry_delay_s(status: bytes) -> float | None:
    """`RetryInfo.retry_delay` of a serialised `google.rpc.Status` (error_details.proto).

    None if there is no RetryInfo; 0.0 if it names no delay. Raises `ValueError` if malformed.
    """
    for number, detail in wire_fields(status):
        if number != 3 or not isinstance(detail, bytes):
            continue
        any_message = dict(wire_fields(detail))
        if any_message.get(1) != b"type.googleapis.com/google.rpc.RetryInfo":
            continue
        info = any_message.get(2, b"")
        delay = dict(wire_fields(info)).get(1, b"") if isinstance(info, bytes) else b""
        duration = dict(wire_fields(delay)) if isinstance(delay, bytes) else {}
        seconds, nanos = duration.get(1, 0), duration.get(2, 0)
        if not isinstance(seconds, int) or not isinstance(nanos, int):
            raise ValueError("not a Duration")
        # Negative numbers come as 64-bit two's complement: no delay.
        return (seconds + nanos / 1e9) if seconds < 1 << 40 and nanos < 10**9 else 0.0
    return None


def status_message(status: bytes) -> str:
    """The message of a serialised `google.rpc.Status`, or what the bytes read as."""
    try:
        message = dict(wire_fields(status)).get(2)
    except ValueError:
        message = None
    return shown(message if isinstance(message, bytes) else status)
