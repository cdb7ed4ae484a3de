"""A sender's bytes → blocks for the store: decompression within limits, parsing, flattening.

Runs in a worker process (`worker.py`), since it is the part that hostile input meets.
"""

import base64
import json
import time
import zlib
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from flameherd_backend.decode.blocks import sample_block, side_blocks
from flameherd_backend.decode.dictionary import Known, NewRows
from flameherd_backend.decode.flatten import Accepted, flatten
from flameherd_backend.errors import Refused, TooLarge

_SECONDS_A_DAY: Final = 86_400
_MAX_CARRIED: Final = 100_000
"""Rows of side tables that refused messages may leave behind."""
_IDS: Final = {"profileId": 32, "traceId": 32, "spanId": 16}
"""Members of OTLP's JSON that hold hexadecimal digits (protobuf's own JSON has base64 there), and how many."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one message."""

    max_bytes: int
    """After decompression."""
    max_age_s: float
    max_future_s: float = 3600.0


@dataclass(slots=True)
class Decoded:
    """What a message became."""

    blocks: dict[str, bytes] = field(default_factory=dict)
    """Table → blocks."""
    profiles: int = 0
    rejected: int = 0
    reason: str = ""
    rows: int = 0


def gunzip(data: bytes, limit: int) -> bytes:
    """Decompresses at most `limit` bytes; all members of a gzip stream, as zlib streams too.

    Raises `TooLarge` beyond the limit, and `Refused` for what is not gzip or ends early.
    """
    out: list[bytes] = []
    size = 0
    while data:
        stream = zlib.decompressobj(wbits=47)
        try:
            piece = stream.decompress(data, limit - size + 1)
        except zlib.error as error:
            raise Refused(f"the body is not gzip: {error}") from error
        size += len(piece)
        if size > limit:
            raise TooLarge(
                f"the message is over {limit} bytes when decompressed; send smaller batches"
            )
        if not stream.eof:
            raise Refused("the gzip stream ends too early")
        out.append(piece)
        data = stream.unused_data
    return b"".join(out)


def _plain_ids(value: Any, depth: int = 0) -> Any:
    """Hexadecimal ids of OTLP's JSON as the base64 that protobuf reads."""
    if depth > 64:
        raise Refused("the JSON is nested more than 64 deep")
    if isinstance(value, list):
        return [_plain_ids(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    out = {}
    for key, item in value.items():
        if key in _IDS and isinstance(item, str) and item:
            try:
                raw = bytes.fromhex(item)
            except ValueError as error:
                raise Refused(f"{key}: {item[:64]!r} is not hexadecimal") from error
            out[key] = base64.b64encode(raw).decode()
        else:
            out[key] = _plain_ids(item, depth + 1)
    return out


def parse(data: bytes, is_json: bool) -> Any:
    """The request message. Raises `Refused` for bytes that are none."""
    if not is_json:
        try:
            return ExportProfilesServiceRequest.FromString(data)
        except DecodeError as error:
            raise Refused(f"the body is not an ExportProfilesServiceRequest: {error}") from error
    try:
        plain = _plain_ids(json.loads(data))
        if not isinstance(plain, dict):
            raise ValueError("it is no object")
        request = ExportProfilesServiceRequest()
        json_format.ParseDict(plain, request, ignore_unknown_fields=True)
    except (ValueError, TypeError, RecursionError, json_format.ParseError) as error:
        raise Refused(
            f"the body is not the JSON of an ExportProfilesServiceRequest: {str(error)[:200]}"
        ) from error
    return request


class Decoder:
    """Decodes messages one after the other; remembers what it has seen and written."""

    def __init__(self, key: bytes, limits: Limits) -> None:
        self._known = Known(key)
        self._limits = limits
        self._new = NewRows()
        self._epoch = 0
        self._day = 0

    def forget(self) -> None:
        """After a mistake of ours: what was noted as written may not have been."""
        self._known.forget_written()
        self._new = NewRows()

    def decode(
        self, body: bytes, *, gzipped: bool, is_json: bool, epoch: int, namespaces: frozenset[str] | None,
        now: float | None = None,
    ) -> Decoded:  # fmt: skip
        """Blocks of one message. Raises `Refused`.

        A change of `epoch` says that blocks were lost on their way into the store: all is written
        again. Rows of side tables that a refused message brought go with the next one, since
        they count as written.
        """
        now = time.time() if now is None else now
        day = int(now // _SECONDS_A_DAY)
        if (epoch, day) != (self._epoch, self._day) or len(self._new.frames) > _MAX_CARRIED:
            self._epoch, self._day = epoch, day
            self.forget()
        if gzipped:
            body = gunzip(body, self._limits.max_bytes)
        elif len(body) > self._limits.max_bytes:
            raise TooLarge(
                f"the message has {len(body)} bytes; at most {self._limits.max_bytes} are taken"
            )
        request = parse(body, is_json)
        profiles = sum(
            len(scope.profiles)
            for resource in request.resource_profiles
            for scope in resource.scope_profiles
        )
        accepted = Accepted(
            int((now - self._limits.max_age_s) * 1e9),
            int((now + self._limits.max_future_s) * 1e9),
            namespaces,
        )
        flat = flatten(request, self._known, self._new, accepted)
        new, self._new = self._new, NewRows()
        blocks = side_blocks(new, day)
        if samples := sample_block(flat):
            blocks["samples"] = samples
        reason = "; ".join(flat.reasons[:3])
        if flat.rejected:
            reason = f"{flat.rejected} of {profiles} profiles rejected: {reason}"
        return Decoded(blocks, profiles, flat.rejected, reason, len(flat.rows.profile))
