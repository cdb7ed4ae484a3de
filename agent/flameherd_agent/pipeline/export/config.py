"""Where and how one exporter sends. Checked when made: a mistake shows before any data is lost.

The policy model has its own, user-facing shape; this is what it is mapped to.
"""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from flameherd_policy.endpoints import Scheme, Source, Target, parse_endpoint

from flameherd_agent.errors import UsageError

_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9][-_.A-Za-z0-9]{0,127}", re.ASCII)
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e]{0,4096}")
_RESERVED: Final = re.compile(
    r"(content-.*|host|te|connection|transfer-encoding|user-agent|grpc-.*|:.*|.*-bin)"
)
_MAX_HEADERS_FILE: Final = 64 << 10


class Protocol(StrEnum):
    """How profiles are sent."""

    GRPC = "grpc"
    HTTP = "http"
    FILE = "file"


class Compression(StrEnum):
    """Compression of messages."""

    GZIP = "gzip"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class EndpointConfig:
    """One endpoint. Raises `UsageError` for what cannot work."""

    name: str
    """In messages and metrics."""
    protocol: Protocol = Protocol.GRPC
    url: str = ""
    """`https://host[:port][/path]`, or `http://…` for plain text; not for files."""
    path: Path | None = None
    """The file, for `Protocol.FILE`."""
    source: Source = Source.FILE
    """Who chose the address: for a CR, addresses of the node itself are refused, after DNS too."""
    compression: Compression = Compression.GZIP
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    headers_file: Path | None = None
    """One `name: value` a line; read again when it changes."""
    ca_file: Path | None = None
    """PEM certificates to trust; None = the system's. This and the next two are read again when
    they change.
    """
    cert_file: Path | None = None
    key_file: Path | None = None
    insecure_skip_verify: bool = False
    """HTTP only."""
    timeout_s: float = 10.0
    """Of one attempt, everything included."""
    queue_bytes: int = 8 << 20
    """Of compressed messages, the one under way included; beyond it the oldest are dropped."""
    queue_batches: int = 512
    max_age_s: float = 600.0
    """A batch that could not be sent for so long is dropped."""
    retry_initial_s: float = 1.0
    retry_max_s: float = 30.0
    file_max_bytes: int = 64 << 20
    """A file is rotated before it grows beyond."""
    file_count: int = 4
    """Files that are kept, the one that is written included."""

    def __post_init__(self) -> None:
        def wrong(what: str) -> UsageError:
            return UsageError(f"endpoint {self.name!r}: {what}")

        if self.protocol is Protocol.FILE:
            if self.path is None:
                raise wrong("a file exporter needs a path")
            if self.file_count < 1:
                raise wrong("at least one file must be kept")
            return
        target = parse_endpoint(self.url, self.protocol.upper())
        if isinstance(target, str):
            raise wrong(target)
        tls_files = self.ca_file or self.cert_file or self.key_file
        if target.scheme is Scheme.HTTP and (tls_files or self.insecure_skip_verify):
            raise wrong(f"{self.url} is plain text: write https:// or leave the TLS settings out")
        if (self.cert_file is None) != (self.key_file is None):
            raise wrong("a client certificate and its key go together")
        if self.insecure_skip_verify and self.protocol is Protocol.GRPC:
            raise wrong(
                "gRPC always verifies the server's certificate: give the CA that signed it "
                "(for a self-signed one, the certificate itself), or use protocol HTTP"
            )
        check_headers(self.name, self.headers)

    @property
    def target(self) -> Target:
        """The address in its parts."""
        target = parse_endpoint(self.url, self.protocol.upper())
        if isinstance(target, str):
            raise UsageError(f"endpoint {self.name!r}: {target}")
        return target

    @property
    def watched_files(self) -> tuple[Path, ...]:
        """Files whose change needs a new connection."""
        files = (self.headers_file, self.ca_file, self.cert_file, self.key_file)
        return tuple(file for file in files if file is not None)


def check_headers(name: str, headers: tuple[tuple[str, str], ...]) -> None:
    """Raises `UsageError` for headers that would break or forge a request. Values are not shown."""
    for key, value in headers:
        if not _HEADER_NAME.fullmatch(key) or _RESERVED.fullmatch(key.lower()):
            raise UsageError(f"endpoint {name!r}: {key!r} cannot be set as a header")
        if not _HEADER_VALUE.fullmatch(value):
            raise UsageError(
                f"endpoint {name!r}: the value of header {key!r} is longer than 4096 characters "
                "or holds some that are not printable ASCII"
            )


def read_headers(config: EndpointConfig) -> tuple[tuple[str, str], ...]:
    """The configured headers and those of the file. Raises `UsageError` and `OSError`."""
    if config.headers_file is None:
        return config.headers
    with config.headers_file.open(encoding="utf-8", errors="replace") as file:
        text = file.read(_MAX_HEADERS_FILE + 1)
    if len(text) > _MAX_HEADERS_FILE:
        raise UsageError(f"{config.headers_file}: more than {_MAX_HEADERS_FILE} characters")
    headers = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        key, colon, value = line.partition(":")
        if not colon:
            raise UsageError(f"{config.headers_file}:{number}: a line is `name: value`")
        headers.append((key.strip(), value.strip()))
    check_headers(config.name, tuple(headers))
    return (*config.headers, *headers)


Stamp = tuple[tuple[int, int, int] | None, ...]


def stamp(config: EndpointConfig) -> Stamp:
    """Changes when one of `watched_files` does: (mtime, size, inode) of each, None if absent."""
    out: list[tuple[int, int, int] | None] = []
    for file in config.watched_files:
        try:
            status = file.stat()
        except OSError:
            out.append(None)
        else:
            out.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(out)
