"""An OTLP/gRPC endpoint that reads what it gets and counts the bytes on the wire.

A relay stands before the gRPC server, since only a socket knows what really came: HTTP/2 framing and headers
included, compressed as it was sent. It runs in threads of the benchmark, so that it costs the agent nothing.
"""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import grpc
from flameherd_agent.pipeline.export.grpc_transport import METHOD
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)


class Sink:
    """Use as a context manager. Counters grow until it is left."""

    def __init__(self) -> None:
        self.wire_bytes = 0
        """From the agent; what the server answers is not in it."""
        self.requests = 0
        self.samples = 0
        """Ticks that the profiles stand for."""
        self.functions = 0
        """Entries of all function tables: names that were sent."""
        self._pool = ThreadPoolExecutor(2)
        self._server = grpc.server(self._pool, handlers=[_Handler(self)])
        self._server_port = self._server.add_insecure_port("127.0.0.1:0")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []

    def __enter__(self) -> "Sink":
        self._server.start()
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        for each in (self._listener, *self._open):
            with suppress(OSError):  # the agent may have closed it first
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._server.stop(None).wait()
        self._pool.shutdown()

    def take(self, message: bytes) -> None:
        """A request's bytes, decoded by the server."""
        request = ExportProfilesServiceRequest.FromString(message)
        self.requests += 1
        self.functions += len(request.dictionary.function_table)
        self.samples += sum(
            sum(sample.values)
            for resource in request.resource_profiles
            for scope in resource.scope_profiles
            for profile in scope.profiles
            for sample in profile.samples
        )

    def _accept(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                agent, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
                self._open += (agent, server)
                for arguments in ((agent, server, True), (server, agent, False)):
                    threading.Thread(target=self._relay, args=arguments, daemon=True).start()

    def _relay(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        with suppress(OSError):  # one of them has closed: so does the other
            while data := source.recv(1 << 16):
                if counted:
                    self.wire_bytes += len(data)
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class _Handler(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        if details.method != METHOD:
            return None

        def export(message: bytes, _context: grpc.ServicerContext) -> bytes:
            self._sink.take(message)
            return b""

        return grpc.unary_unary_rpc_method_handler(export, None, None)
