"""Appends batches to a file as OTLP JSON, one request a line (OTLP's file exporter format).

Ids are hexadecimal, as OTLP's JSON wants them (protobuf's own mapping would be base64). The file is
rotated by size: `x.json` becomes `x.json.1`, and so on; it is opened anew if someone else moved it.
"""

import json
import os
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from flameherd_agent.pipeline.export.config import EndpointConfig
from flameherd_agent.pipeline.export.transport import RefusedError, RetryableError, Sent
from flameherd_agent.pipeline.otlp import Batch


def otlp_json(message: bytes) -> bytes:
    """A serialised request as one line of OTLP JSON, line feed included."""
    request = ExportProfilesServiceRequest.FromString(message)
    document: dict[str, Any] = MessageToDict(request, use_integers_for_enums=True)
    for shown, link in zip(
        document["dictionary"]["linkTable"], request.dictionary.link_table, strict=True
    ):
        shown["traceId"], shown["spanId"] = link.trace_id.hex(), link.span_id.hex()
    for shown_resource, resource in zip(
        document.get("resourceProfiles", ()), request.resource_profiles, strict=True
    ):
        for shown_scope, scope in zip(
            shown_resource["scopeProfiles"], resource.scope_profiles, strict=True
        ):
            for shown, profile in zip(shown_scope["profiles"], scope.profiles, strict=True):
                shown["profileId"] = profile.profile_id.hex()
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


class FileTransport:
    """Writes to `config.path`; a line is there as a whole or not at all."""

    def __init__(self, config: EndpointConfig) -> None:
        if config.path is None:
            raise ValueError("a file transport needs a path")
        self._path = config.path
        self._max_bytes = config.file_max_bytes
        self._count = config.file_count
        self._fd = -1

    def send(self, batch: Batch, timeout_s: float) -> Sent:
        line = otlp_json(batch.message())
        if len(line) > self._max_bytes:
            raise RefusedError(
                f"{self._path}: a line of {len(line)} bytes is over the limit of a file",
                "too_large",
            )
        try:
            self._append(line)
        except OSError as error:
            self.close()
            raise RetryableError(f"{self._path}: {error.strerror or error}") from error
        return Sent(len(line))

    def _append(self, line: bytes) -> None:
        self._open()
        size = os.fstat(self._fd).st_size
        if size and size + len(line) > self._max_bytes:
            self.close()
            self._rotate()
            self._open()
            size = 0
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            os.ftruncate(self._fd, size)  # a disk that is full takes a part of a line
            raise

    def _open(self) -> None:
        if self._fd >= 0:
            held = os.fstat(self._fd)
            try:
                there = self._path.stat(follow_symlinks=False)
            except FileNotFoundError:
                there = None
            if there is not None and (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino):
                return
            self.close()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self._path, flags | os.O_NONBLOCK, 0o640)

    def _rotate(self) -> None:
        names = [self._path, *(self._numbered(n) for n in range(1, self._count))]
        for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
            if newer.exists():
                newer.replace(older)
        if self._count == 1:
            self._path.unlink()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def abort(self) -> None:
        """A write to a file ends by itself."""

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
