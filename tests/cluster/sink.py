"""An OTLP/HTTP endpoint that keeps what it gets. It listens on an address of this machine that is
not loopback, which a policy's endpoint may not be.
"""

import gzip
import socket
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from flameherd_policy.endpoints import Source, check_address
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
    ExportProfilesServiceResponse,
)

from tests.otlp_reader import Observed, read_back

Resource = dict[str, str | int]


def own_address() -> str:
    """An address of this machine that a policy may name. No packet is sent for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            found = str(probe.getsockname()[0])
        except OSError:
            found = "127.0.0.1"
    if check_address(found, Source.CR):
        pytest.skip("needs an address of this machine that is neither loopback nor link-local")
    return found


class Sink:
    """What has arrived so far."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._lock = threading.Lock()
        self._samples: list[Observed] = []

    def take(self, body: bytes) -> None:
        request = ExportProfilesServiceRequest.FromString(body)
        samples = read_back(request)
        with self._lock:
            self._samples += samples

    def samples(self) -> list[Observed]:
        with self._lock:
            return list(self._samples)

    def clear(self) -> None:
        with self._lock:
            self._samples.clear()

    def by_pod(self) -> dict[str, list[Resource]]:
        """{pod: its resources, each once}; "" = samples that name no pod."""
        found: dict[str, list[Resource]] = defaultdict(list)
        for sample in self.samples():
            resource = dict(sample[0])
            pod = str(resource.get("k8s.pod.name", ""))
            if resource not in found[pod]:
                found[pod].append(resource)
        return found

    def cpu_seconds(self, uid: str) -> float:
        """Samples × period of all profiles of a pod."""
        total = 0.0
        for sample in self.samples():
            if dict(sample[0]).get("k8s.pod.uid") == uid:
                total += sample[-1] * sample[2][4] / 1e9
        return total


@contextmanager
def sink() -> Iterator[Sink]:
    """Listens until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            made.take(body)
            answer = ExportProfilesServiceResponse().SerializeToString()
            with suppress(ConnectionError):  # an agent that was killed waits for no answer
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    address = own_address()
    server = ThreadingHTTPServer((address, 0), Handler)
    made = Sink(f"http://{address}:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
