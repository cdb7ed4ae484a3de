"""OTLP profiles over gRPC: `ProfilesService/Export`, bytes in and bytes out.

Messages are not parsed here: they go to a worker as they are. gRPC decompresses them itself and bounds
them before and after (`grpc.max_receive_message_length`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceResponse,
)

from flameherd_backend.access import Access
from flameherd_backend.decode.pool import Request
from flameherd_backend.errors import (
    Busy,
    EnvironmentProblem,
    Refused,
    TooLarge,
    Unauthenticated,
    UsageError,
)
from flameherd_backend.receive.intake import Intake
from flameherd_backend.receive.status import status

SERVICE: Final = "opentelemetry.proto.collector.profiles.v1development.ProfilesService"
_DETAILS: Final = "grpc-status-details-bin"
_CODES: Final = {
    TooLarge: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    Refused: grpc.StatusCode.INVALID_ARGUMENT,
}


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. With `client_ca`, senders need a certificate that it signed."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


def response(rejected: int, reason: str) -> bytes:
    """`ExportProfilesServiceResponse`."""
    message = ExportProfilesServiceResponse()
    if rejected or reason:
        message.partial_success.rejected_profiles = rejected
        message.partial_success.error_message = reason
    return message.SerializeToString()


class GrpcReceiver:
    """A server on one address."""

    def __init__(self, intake: Intake, access: Access, listen: str, tls: TlsFiles | None) -> None:
        self._intake = intake
        self._access = access
        self._listen = listen
        self._tls = tls
        self.port = 0

    async def start(self) -> None:
        """Listens. Raises `EnvironmentProblem` if the port cannot be had."""
        limits = self._intake.limits
        self._server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", limits.max_decoded_bytes),
                ("grpc.so_reuseport", 0),
                ("grpc.max_concurrent_streams", 256),
            ),
            maximum_concurrent_rpcs=2 * limits.max_waiting,
        )
        handler = grpc.unary_unary_rpc_method_handler(self._export)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {"Export": handler}),)
        )
        try:
            if self._tls is None:
                self.port = self._server.add_insecure_port(self._listen)
            else:
                self.port = self._server.add_secure_port(self._listen, _credentials(self._tls))
        except RuntimeError as error:
            raise EnvironmentProblem(
                f"--grpc {self._listen}: the address cannot be listened on; is another collector or backend running?"
            ) from error
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Takes no new messages; those under way get `grace_s`."""
        await self._server.stop(grace_s)

    async def _export(self, body: bytes, context: Any) -> bytes:
        try:
            metadata = dict(context.invocation_metadata())
            identity = self._access.identify(metadata.get("authorization"))
            with self._intake.admit(len(body), self._intake.limits.max_decoded_bytes):
                outcome = await self._intake.take(Request(body, namespaces=identity.may_send))
        except Refused as error:
            code = next(code for kind, code in _CODES.items() if isinstance(error, kind))
            await context.abort(code, str(error))
        except Busy as error:
            code = grpc.StatusCode.UNAVAILABLE
            details = status(code.value[0], str(error), error.retry_after_s)
            await context.abort(code, str(error), ((_DETAILS, details),))
        return response(outcome.rejected, outcome.reason)


def _credentials(tls: TlsFiles) -> Any:
    try:
        key, certificate = tls.key.read_bytes(), tls.certificate.read_bytes()
        client_ca = tls.client_ca.read_bytes() if tls.client_ca else None
    except OSError as error:
        raise UsageError(f"TLS: {error}") from error
    return grpc.ssl_server_credentials(
        [(key, certificate)], client_ca, require_client_auth=client_ca is not None
    )
