"""`google.rpc.Status`, as OTLP puts it into errors: in HTTP bodies, and in gRPC's `grpc-status-details-bin`.

Two small messages, written by hand: their package would be a dependency for thirty bytes
(https://github.com/googleapis/googleapis, google/rpc/status.proto and error_details.proto).
"""

import json
from typing import Final

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration

from flameherd_backend.decode.native import varint

_RETRY_INFO: Final = "type.googleapis.com/google.rpc.RetryInfo"


def _field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def status(code: int, message: str, retry_after_s: float | None = None) -> bytes:
    """A serialised Status; with `retry_after_s`, a RetryInfo in its details."""
    out = (b"\x08" + varint(code) if code else b"") + _field(2, message.encode())
    if retry_after_s is not None:
        delay = Duration(seconds=int(retry_after_s), nanos=int(retry_after_s % 1 * 1e9))
        detail = AnyMessage(type_url=_RETRY_INFO, value=_field(1, delay.SerializeToString()))
        out += _field(3, detail.SerializeToString())
    return out


def status_json(code: int, message: str) -> bytes:
    """The same for senders of JSON."""
    return json.dumps({"code": code, "message": message}).encode()
