"""A running OpenTelemetry Collector: started and stopped by tests, its output read back."""

import base64
import json
import re
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from tests.collector.certificates import Identity
from tests.otlp_reader import Observed, read_back

_HEX_IDS = {"profileId", "traceId", "spanId"}


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _base64_ids(node: Any) -> Any:
    """OTLP's JSON has ids in hexadecimal; protobuf's reader wants base64."""
    if isinstance(node, dict):
        return {
            key: base64.b64encode(bytes.fromhex(value)).decode()
            if key in _HEX_IDS
            else _base64_ids(value)
            for key, value in node.items()
        }
    return [_base64_ids(item) for item in node] if isinstance(node, list) else node


def parse_otlp_json(line: str) -> ExportProfilesServiceRequest:
    """One line of an OTLP JSON file."""
    return ParseDict(_base64_ids(json.loads(line)), ExportProfilesServiceRequest())


def read_json_lines(path: Path) -> list[Observed]:
    """Every sample of a file of OTLP JSON, sorted. A line under way is left out."""
    observed: list[Observed] = []
    if path.exists():
        # The line feed of a line that a test cleared may come after: an empty line.
        for line in re.findall(r"(.+)\n", path.read_text(encoding="utf-8")):
            observed += read_back(parse_otlp_json(line))
    return sorted(observed)


class Collector:
    """Listens plainly, with TLS, and with TLS and client certificates, over gRPC and HTTP each."""

    def __init__(self, binary: Path, folder: Path, server: Identity, client_ca: Path) -> None:
        self.output = folder / "profiles.json"
        self.ports = {
            f"{protocol}-{security}": free_port()
            for protocol in ("grpc", "http")
            for security in ("plain", "tls", "mtls")
        }
        self._binary = binary
        self._config = folder / "collector.json"
        self._log = folder / "collector.log"
        self._process: subprocess.Popen[bytes] | None = None
        tls = {"cert_file": str(server.cert), "key_file": str(server.key)}
        securities: dict[str, dict[str, Any]] = {
            "plain": {},
            "tls": {"tls": tls},
            "mtls": {"tls": tls | {"client_ca_file": str(client_ca)}},
        }
        receivers = {
            f"otlp/{security}": {
                "protocols": {
                    protocol: {
                        "endpoint": f"localhost:{self.ports[f'{protocol}-{security}']}",
                        **settings,
                    }
                    for protocol in ("grpc", "http")
                }
            }
            for security, settings in securities.items()
        }
        config = {
            "receivers": receivers,
            "exporters": {
                "file": {"path": str(self.output), "append": True, "flush_interval": "50ms"}
            },
            "service": {
                "telemetry": {"metrics": {"level": "none"}, "logs": {"level": "info"}},
                "pipelines": {"profiles": {"receivers": list(receivers), "exporters": ["file"]}},
            },
        }
        self._config.write_text(json.dumps(config), encoding="ascii")  # JSON is YAML

    def url(self, protocol: str, security: str) -> str:
        scheme = "http" if security == "plain" else "https"
        return f"{scheme}://localhost:{self.ports[f'{protocol}-{security}']}"

    def start(self) -> None:
        """Returns when all ports accept connections."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(self._binary),
                    f"--config=file:{self._config}",
                    "--feature-gates=service.profilesSupport",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            for port in self.ports.values():
                self._wait_for(port)
        except RuntimeError:
            self.stop()
            raise

    def _wait_for(self, port: int) -> None:
        assert self._process is not None
        for _ in range(600):
            try:
                socket.create_connection(("localhost", port), timeout=1).close()
            except OSError:
                if self._process.poll() is not None:
                    break
                time.sleep(0.05)
            else:
                return
        log = self._log.read_text(errors="replace")[-3000:]
        raise RuntimeError(f"the collector does not listen on {port}:\n{log}")

    def stop(self) -> None:
        """Flushes the output and ends."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def clear(self) -> None:
        """Forgets what was received."""
        if self.output.exists():
            # Truncated, not removed: the collector holds it open for appending.
            self.output.write_bytes(b"")

    def received(self, count: int) -> list[Observed]:
        """What was received, as soon as it is at least `count` samples (or 10 s have passed)."""
        for _ in range(200):
            observed = read_json_lines(self.output)
            if len(observed) >= count:
                return observed
            time.sleep(0.05)
        return read_json_lines(self.output)
