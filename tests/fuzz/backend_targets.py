"""Targets that decode what senders give the backend: OTLP as protobuf, as JSON, and gzip.

What was decoded is held against a plain walk over the parsed message, which shares no code with the
decoder: the same rows, the same sum of values, and a definition for everything that a row refers to.
After each input the same decoder takes an honest message, which must become what it always becomes.
"""

import json
import zlib
from collections.abc import Iterator
from functools import cache
from typing import Any

from flameherd_agent.pipeline.otlp import encode
from flameherd_backend.decode.message import Decoded, Decoder, Limits, gunzip, parse
from flameherd_backend.errors import Refused, TooLarge
from flameherd_backend.store import results
from google.protobuf import json_format
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from tests.fuzz.target import must
from tests.unit import profiles

_NOW = profiles.START_NS / 1e9 + 60.0
_KEY = bytes(32)
_MOST_BYTES = 1 << 20
_MOST_VALUE = 1 << 53
_DEFINITIONS = (("stacks", "stack_id"), ("functions", "function_id"), ("frames", "frame_id"), ("resources", "resource_id"))  # fmt: skip

Ids = dict[str, set[int]]


def _decode(decoder: Decoder, body: bytes, *, is_json: bool = False) -> Decoded:
    return decoder.decode(body, gzipped=False, is_json=is_json, epoch=0, namespaces=None, now=_NOW)


def _decoder() -> Decoder:
    return Decoder(_KEY, Limits(_MOST_BYTES, 3600.0))


@cache
def _honest() -> tuple[bytes, bytes]:
    """A sound message, and the block of samples that it becomes."""
    body = encode(profiles.resources()).SerializeToString()
    return body, _decode(_decoder(), body).blocks["samples"]


def _defined(decoded: Decoded) -> Ids:
    tables = {
        name: results.read(decoded.blocks[name])
        for name, _ in _DEFINITIONS
        if name in decoded.blocks
    }
    return {name: set(tables[name][key].tolist()) if name in tables else set() for name, key in _DEFINITIONS}  # fmt: skip


def _check_references(decoded: Decoded, defined: Ids) -> None:
    """What samples refer to has a definition, down to functions."""
    samples = results.read(decoded.blocks["samples"])
    must(set(samples["stack_id"].tolist()) <= defined["stacks"], "each stack is defined")
    must(set(samples["resource_id"].tolist()) <= defined["resources"], "each resource is defined")
    for name in ("stacks", "frames"):
        if name in decoded.blocks:
            functions = results.read(decoded.blocks[name])["functions"].values
            must(set(functions.tolist()) <= defined["functions"], "each function is defined")
    if "stacks" in decoded.blocks:
        frames = results.read(decoded.blocks["stacks"])["frames"].values
        must(set(frames.tolist()) <= defined["frames"], "each frame is defined")


def _plain_rows(request: Any) -> Iterator[int]:
    """The value of each row of a message of which nothing was rejected, by the specification's words."""
    text = request.dictionary.string_table
    for resource in request.resource_profiles:
        for scope in resource.scope_profiles:
            for profile in scope.profiles:
                kind, period = profile.sample_type, profile.period_type
                name, unit, of = (
                    text[index] if text else ""
                    for index in (kind.type_strindex, kind.unit_strindex, period.type_strindex)
                )
                counted = (
                    profile.period > 0
                    and of
                    and unit == "count"
                    and name in ("samples", "sample", of)
                )
                for sample in profile.samples:
                    for value in sample.values or [1] * len(sample.timestamps_unix_nano):
                        yield value * (profile.period if counted else 1)


def _check(body: bytes, *, is_json: bool) -> None:
    decoder = _decoder()
    honest, block = _honest()
    defined: Ids = {name: set() for name, _ in _DEFINITIONS}
    try:
        decoded = _decode(decoder, body, is_json=is_json)
    except Refused as error:
        must(bool(str(error)), "a refusal says why")
    else:
        must(0 <= decoded.rejected <= decoded.profiles, "profiles are counted")
        must(bool(decoded.reason) == bool(decoded.rejected), "a rejection has a reason")
        defined = _defined(decoded)
        values = []
        if "samples" in decoded.blocks:
            _check_references(decoded, defined)
            values = results.read(decoded.blocks["samples"])["value"].tolist()
        must(len(values) == decoded.rows, "rows are counted")
        must(
            all(0 <= value <= _MOST_VALUE for value in values),
            "a value is one that a page can show",
        )
        if not decoded.rejected:
            plain = list(_plain_rows(parse(body, is_json)))
            must(sorted(values) == sorted(plain), "rows are those of the message")
    after = _decode(decoder, honest)
    must(after.blocks["samples"] == block, "an honest message is what it was")
    for name, ids in _defined(after).items():
        defined[name] |= ids
    _check_references(after, defined)


def otlp(data: bytes) -> None:
    """`ExportProfilesServiceRequest` as protobuf."""
    _check(data, is_json=False)


def otlp_json(data: bytes) -> None:
    """The same as OTLP's JSON."""
    _check(data, is_json=True)


def gzipped(data: bytes) -> None:
    """Compressed bodies: never more than the limit, and what zlib says of one whole member."""
    limit = 4 * len(data) + 64
    try:
        out = gunzip(data, limit)
    except TooLarge:
        plain = zlib.decompressobj(wbits=47)
        must(
            len(plain.decompress(data, limit + 1)) > 0 or bool(plain.unused_data),
            "it was too large",
        )
        return
    except Refused:
        return
    must(len(out) <= limit, "the limit holds")
    if data:
        must(
            out.startswith(zlib.decompressobj(wbits=47).decompress(data)),
            "the first member is zlib's",
        )


def otlp_seeds() -> list[bytes]:
    """The agent's, one with timestamps and links, one with the field numbers of old senders, an empty one."""
    honest = _honest()[0]
    timed = ExportProfilesServiceRequest.FromString(honest)
    table = timed.dictionary
    table.link_table.add()
    table.link_table.add(trace_id=bytes(range(16)), span_id=bytes(range(8)))
    for resource in timed.resource_profiles:
        (profile,) = resource.scope_profiles[0].profiles
        for sample in profile.samples:
            sample.link_index = 1
            sample.ClearField("values")
            sample.timestamps_unix_nano.extend([profile.time_unix_nano, profile.time_unix_nano + 7])
    old = ExportProfilesServiceRequest.FromString(honest)
    for resource in old.resource_profiles:
        for sample in resource.scope_profiles[0].profiles[0].samples:
            values, attributes = list(sample.values), list(sample.attribute_indices)
            del sample.attribute_indices[:], sample.values[:]
            sample.attribute_indices.extend(values)
            sample.values.extend(attributes)
    return [honest, timed.SerializeToString(), old.SerializeToString(), b""]


def json_seeds() -> list[bytes]:
    """The same messages; ids are hexadecimal in OTLP's JSON."""
    found = []
    for body in otlp_seeds():
        plain = json_format.MessageToDict(ExportProfilesServiceRequest.FromString(body))
        for link in plain.get("dictionary", {}).get("linkTable", []):
            link.update(traceId="00" * 16, spanId="00" * 8)
        for resource in plain.get("resourceProfiles", []):
            for profile in resource["scopeProfiles"][0]["profiles"]:
                profile.pop("profileId", None)
        found.append(json.dumps(plain, separators=(",", ":")).encode())
    return found


def gzip_seeds() -> list[bytes]:
    """gzip, zlib, two members, a bomb."""
    one, two = (zlib.compress(text, wbits=31) for text in (b"a" * 200, bytes(range(256))))
    return [one, zlib.compress(b"zlib"), one + two, zlib.compress(bytes(1 << 16), wbits=31)]
