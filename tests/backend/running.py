"""A real `flameherd-backend` process, and ways to send to it and ask it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc

EXPORT = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"
HTTP_PATH = "/v1development/profiles"
_READY_S = 120.0


@dataclass
class Response:
    """An HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def request(
    url: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    timeout_s: float = 60.0,
) -> Response:
    """One HTTP request; errors are responses too."""
    made = urllib.request.Request(url, body, headers or {})
    try:
        with urllib.request.urlopen(made, timeout=timeout_s) as answer:
            return Response(
                answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read()
            )
    except urllib.error.HTTPError as error:
        with error:
            return Response(
                error.code, {k.lower(): v for k, v in error.headers.items()}, error.read()
            )


@dataclass
class RunningBackend:
    """Starts on any free ports; use as a context manager."""

    store: Path
    arguments: list[str] = field(default_factory=list)
    wrapper: list[str] = field(default_factory=list)
    """A command that becomes the backend, given its command."""
    ports: dict[str, int] = field(default_factory=dict)

    def __enter__(self) -> "RunningBackend":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when it is ready. Raises AssertionError with what it said if it ends instead."""
        self.log = self.store.with_name(self.store.name + ".log")
        any_port = ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--page", "127.0.0.1:0"]
        with self.log.open("ab") as log:
            begin = log.tell()
            self.process = subprocess.Popen(
                [
                    *self.wrapper,
                    *(sys.executable, "-m", "flameherd_backend.cli", "--workers", "1"),
                    *("--store", str(self.store), *any_port, *self.arguments),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + _READY_S
        while True:
            said = self.log.read_bytes()[begin:].decode()
            if "ready;" in said:
                break
            if self.process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise AssertionError(f"the backend did not get ready: {said}")
            time.sleep(0.05)
        names = re.findall(r"(OTLP/gRPC|OTLP/HTTP|page) on port (\d+)", said)
        self.ports = {name: int(port) for name, port in names}

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def kill(self) -> None:
        """SIGKILL."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)

    def said(self) -> str:
        """Its log."""
        return self.log.read_text(encoding="utf-8")

    def children(self) -> list[int]:
        """Its decoding workers."""
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(
            encoding="ascii"
        )
        return [int(pid) for pid in text.split()]

    def post(self, body: bytes, **headers: str) -> Response:
        """OTLP over HTTP; header names with `_` for `-`."""
        given = {"Content-Type": "application/x-protobuf"}
        given.update({name.replace("_", "-"): value for name, value in headers.items()})
        return request(f"http://127.0.0.1:{self.ports['OTLP/HTTP']}{HTTP_PATH}", body, given)

    def export(self, body: bytes, **options: Any) -> bytes:
        """OTLP over gRPC. Raises grpc.RpcError."""
        with grpc.insecure_channel(f"127.0.0.1:{self.ports['OTLP/gRPC']}") as channel:
            answer: bytes = channel.unary_unary(EXPORT, None, None)(body, timeout=60, **options)
            return answer

    def get(self, view: str, token: str = "", /, **parameters: Any) -> Response:
        """The API; a list is a repeated parameter."""
        query = urllib.parse.urlencode(parameters, doseq=True)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return request(
            f"http://127.0.0.1:{self.ports['page']}/api/v1/{view}?{query}", None, headers
        )


def now_ns() -> int:
    return time.time_ns()


def tmpfs() -> Path | None:
    """A folder on a file system in memory, if there is one to write to."""
    path = Path("/dev/shm")
    return path if path.is_dir() and os.access(path, os.W_OK) else None
