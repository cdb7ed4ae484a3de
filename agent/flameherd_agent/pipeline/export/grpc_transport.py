"""OTLP over gRPC. This module alone imports grpc, which costs 16 MB: load it when it is used.

Names are resolved here and gRPC gets addresses, so that they can be checked. A channel is given up
after a failure, since its own reconnection back-off (up to two minutes) would compete with the
exporter's. Proxy variables of the environment are ignored on purpose, as over HTTP.
"""

import itertools
import socket
import ssl
import threading
from pathlib import Path
from typing import Any, Final

import grpc
from flameherd_policy.endpoints import Scheme
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
    retry_delay_s,
    shown,
)
from flameherd_agent.pipeline.otlp import Batch

METHOD: Final = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"
_RETRYABLE: Final = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
_MAX_PEM_BYTES: Final = 4 << 20


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(_MAX_PEM_BYTES + 1)
    if len(content) > _MAX_PEM_BYTES:
        raise UsageError(f"{path}: more than {_MAX_PEM_BYTES} bytes")
    return content


def _credentials(config: EndpointConfig) -> grpc.ChannelCredentials:
    ca_file = config.ca_file
    if ca_file is None and (system := ssl.get_default_verify_paths().cafile) is not None:
        ca_file = Path(system)  # gRPC would trust a list of its own
    return grpc.ssl_channel_credentials(
        _read(ca_file) if ca_file else None,
        _read(config.key_file) if config.key_file else None,
        _read(config.cert_file) if config.cert_file else None,
    )


def _retry_info(error: grpc.Call) -> float | None:
    """The delay that the server asks for; None if it sent no (readable) RetryInfo."""
    for key, value in map(tuple, error.trailing_metadata() or ()):
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            try:
                return retry_delay_s(value)
            except ValueError:
                return None
    return None


class GrpcTransport:
    """Calls `ProfilesService.Export`."""

    def __init__(self, config: EndpointConfig) -> None:
        self._config = config
        self._target = config.target
        self._channel: grpc.Channel | None = None
        self._call: Any = None
        self._lock = threading.Lock()
        self._under_way: grpc.Future[bytes] | None = None
        self._metadata: tuple[tuple[str, str], ...] = ()
        self._stamp = stamp(config)
        self._turn = itertools.count()

    def send(self, batch: Batch, timeout_s: float) -> Sent:
        try:
            self._ready()
        except (OSError, UsageError) as error:
            raise RetryableError(f"{self._config.url}: {error}") from error
        message = batch.message()
        future = self._call.future(message, timeout=timeout_s, metadata=self._metadata)
        with self._lock:
            self._under_way = future
        try:
            content = future.result()
        except (grpc.RpcError, grpc.FutureCancelledError) as error:
            self.close()
            raise self._failure(error) from error
        finally:
            with self._lock:
                self._under_way = None
        zipped = self._config.compression is Compression.GZIP
        size = len(batch.compressed) if zipped else len(message)
        try:
            partial = ExportProfilesServiceResponse.FromString(content).partial_success
        except DecodeError:
            return Sent(size, 0, "the server's response is not a protobuf message")
        return Sent(size, max(partial.rejected_profiles, 0), shown(partial.error_message))

    def _ready(self) -> None:
        now = stamp(self._config)
        if self._channel is not None and now == self._stamp:
            return
        self.close()
        self._stamp = now
        self._metadata = tuple((key.lower(), value) for key, value in read_headers(self._config))
        options = [
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
            ("grpc.primary_user_agent", f"Flameherd/{__version__}"),
            ("grpc.default_authority", f"{self._authority_host()}:{self._target.port}"),
        ]
        compression = grpc.Compression.NoCompression
        if self._config.compression is Compression.GZIP:
            compression = grpc.Compression.Gzip
        address = self._address()
        if self._target.scheme is Scheme.HTTPS:
            options.append(("grpc.ssl_target_name_override", self._target.host))
            self._channel = grpc.secure_channel(
                address, _credentials(self._config), options, compression
            )
        else:
            self._channel = grpc.insecure_channel(address, options, compression)
        self._call = self._channel.unary_unary(METHOD, None, None)

    def _authority_host(self) -> str:
        host = self._target.host
        return f"[{host}]" if ":" in host else host

    def _address(self) -> str:
        """gRPC's name for the addresses: those of one family, another one at each attempt."""
        port = self._target.port
        found = resolve(self._target.host, port, self._config.source)
        families = list(dict.fromkeys(family for family, _ in found))
        family = families[next(self._turn) % len(families)]
        if family == socket.AF_INET6:
            return "ipv6:" + ",".join(f"[{ip}]:{port}" for f, ip in found if f == family)
        return "ipv4:" + ",".join(f"{ip}:{port}" for f, ip in found if f == family)

    def _failure(self, error: Exception) -> RetryableError | RefusedError:
        if not isinstance(error, grpc.Call):
            return RetryableError(f"{self._config.url}: the call was cancelled")
        code = error.code()
        message = f"{self._config.url}: {code.name}: {shown(error.details() or '')}"
        delay = _retry_info(error)
        if code in _RETRYABLE or (code is grpc.StatusCode.RESOURCE_EXHAUSTED and delay is not None):
            return RetryableError(message, delay)
        return RefusedError(message, f"grpc_{code.name.lower()}")

    def abort(self) -> None:
        with self._lock:
            future = self._under_way
        if future is not None:
            future.cancel()

    def close(self) -> None:
        if (channel := self._channel) is not None:
            self._channel = self._call = None
            channel.close()
