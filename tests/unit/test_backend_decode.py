"""Decoding: the arrays against protobuf's own objects, what is rejected and why, hostile bytes."""

import contextlib
import json
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flameherd_agent.pipeline.otlp import encode
from flameherd_backend.decode import native, wire
from flameherd_backend.decode.attributes import MAX_ATTRIBUTES, cut
from flameherd_backend.decode.ids import Hasher, Recent
from flameherd_backend.decode.message import Decoded, Decoder, Limits, gunzip
from flameherd_backend.errors import Refused, TooLarge
from flameherd_backend.store import results
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest as Request,
)
from opentelemetry.proto.profiles.v1development import profiles_pb2 as pb

from tests.unit import profiles

NOW = 1_790_000_100.0
LIMITS = Limits(max_bytes=1 << 20, max_age_s=3600.0)


def decoder() -> Decoder:
    return Decoder(b"key of this store", LIMITS)


def decode(request: Request, **options: Any) -> Decoded:
    given = {
        "gzipped": False,
        "is_json": False,
        "epoch": 0,
        "namespaces": None,
        "now": NOW,
        **options,
    }
    return decoder().decode(request.SerializeToString(), **given)


def request() -> Request:
    return encode(profiles.resources())


i64 = st.integers(-(2**63), 2**63 - 1)
index = st.integers(0, 2**31 - 1)


@given(
    st.lists(
        st.builds(
            pb.Sample,
            stack_index=index,
            attribute_indices=st.lists(index, max_size=4),
            link_index=index,
            values=st.lists(i64, max_size=4),
            timestamps_unix_nano=st.lists(st.integers(0, 2**64 - 1), max_size=4),
        ),
        max_size=30,
    )
)
def test_records_read_what_protobuf_reads(samples: list[pb.Sample]) -> None:
    data = pb.Profile(samples=samples, time_unix_nano=7).SerializeToString()
    starts, ends, _ = wire.split(data, 0, len(data), 0x12)
    records = wire.Records(wire.view(data), starts, ends)
    assert records.varint(0x08).tolist() == [sample.stack_index for sample in samples]
    attributes, bounds = wire.unpack_varints(records.buffer, *records.span(0x12))
    assert records.varint(0x18).tolist() == [sample.link_index for sample in samples]
    values, value_bounds = wire.unpack_varints(records.buffer, *records.span(0x22))
    times, time_bounds = wire.unpack_fixed64(records.buffer, *records.span(0x2A))
    assert (records.unread() == -1).all()
    for number, sample in enumerate(samples):
        assert attributes[bounds[number] : bounds[number + 1]].tolist() == list(
            sample.attribute_indices
        )
        signed = values[value_bounds[number] : value_bounds[number + 1]].astype(np.int64)
        assert signed.tolist() == list(sample.values)
        assert times[time_bounds[number] : time_bounds[number + 1]].tolist() == list(
            sample.timestamps_unix_nano
        )


@given(
    st.lists(
        st.builds(
            pb.Location,
            mapping_index=index,
            address=st.integers(0, 2**64 - 1),
            lines=st.lists(st.builds(pb.Line, function_index=index, line=i64), max_size=3),
            attribute_indices=st.lists(index, max_size=2),
        ),
        max_size=12,
    )
)
def test_records_read_nested_records(locations: list[pb.Location]) -> None:
    data = pb.ProfilesDictionary(location_table=locations).SerializeToString()
    records = wire.Records(wire.view(data), *wire.split(data, 0, len(data), 0x12)[:2])
    assert records.varint(0x08).tolist() == [location.mapping_index for location in locations]
    assert records.varint(0x10).tolist() == [location.address for location in locations]
    owner, starts, ends = records.repeated(0x1A, 3)
    lines = wire.Records(records.buffer, starts, ends)
    read = list(zip(owner.tolist(), lines.varint(0x08).tolist(), strict=True))
    assert read == [
        (n, line.function_index) for n, location in enumerate(locations) for line in location.lines
    ]
    if len(read) > len(set(owner.tolist())):
        fresh = wire.Records(wire.view(data), *wire.split(data, 0, len(data), 0x12)[:2])
        fresh.varint(0x08)
        fresh.varint(0x10)
        with pytest.raises(ValueError, match="more than 1"):
            fresh.repeated(0x1A, 1)


def test_blocks_are_read_back() -> None:
    rows = [((b"a", b"1"), (b"b", b"")), ()]
    block = native.block(
        2,
        [
            ("n", "UInt64", native.numbers([1, 2**63], "u8")),
            ("s", "String", native.strings([b"x" * 300, "ü".encode()])),
            ("c", "LowCardinality(String)", native.codes([b"", b"one"], np.array([1, 0]))),
            ("m", "Map(String, String)", native.maps(rows)),
        ],
    )
    table = results.read(block + block)
    assert table["n"].tolist() == [1, 2**63] * 2
    assert table["s"] == ["x" * 300, "ü"] * 2
    assert table["c"] == ["one", ""] * 2
    assert table["m"] == [{"a": "1", "b": ""}, {}] * 2


def first(made: Request) -> pb.Profile:
    return made.resource_profiles[0].scope_profiles[0].profiles[0]


def _old_layout(made: Request) -> None:
    """Samples with the field numbers of opentelemetry-proto 1.9: values 2, attributes 3, link 4."""
    for resource in made.resource_profiles:
        for profile in resource.scope_profiles[0].profiles:
            for sample in profile.samples:
                attributes, values = list(sample.attribute_indices), list(sample.values)
                packed = native.numbers([], "u1") + b"".join(native.varint(a) for a in attributes)
                sample.ClearField("attribute_indices")
                sample.ClearField("values")
                sample.attribute_indices.extend(values)
                sample.MergeFromString(b"\x1a" + native.varint(len(packed)) + packed)


def _old_layout_without_attributes(made: Request) -> None:
    for resource in made.resource_profiles:
        for profile in resource.scope_profiles[0].profiles:
            for sample in profile.samples:
                values = list(sample.values)
                sample.ClearField("values")
                sample.ClearField("attribute_indices")
                sample.attribute_indices.extend(values)


def _no_type(made: Request) -> None:
    first(made).sample_type.Clear()
    first(made).period_type.Clear()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_old_layout, "1.9 or older"),
        (_old_layout_without_attributes, "1.9 or older"),
        (lambda made: first(made).samples[0].ClearField("values"), "neither values nor timestamps"),
        (lambda made: first(made).samples[0].values.append(1), "one for each of its timestamps"),
        (lambda made: first(made).samples[0].timestamps_unix_nano.extend([1, 2]), "one for each"),
        (lambda made: setattr(first(made).samples[0], "stack_index", 99), "stack_table"),
        (lambda made: setattr(first(made).samples[0], "stack_index", -1), "stack_table"),
        (lambda made: setattr(first(made).samples[0], "link_index", 1), "link_table"),
        (lambda made: first(made).samples[0].attribute_indices.append(999), "attribute 999"),
        (lambda made: first(made).samples[0].attribute_indices.extend([1, 1]), "attribute twice"),
        (lambda made: first(made).attribute_indices.append(-5), "attribute -5"),
        (lambda made: first(made).samples[0].values.__setitem__(0, -1), "negative"),
        (lambda made: first(made).samples[0].values.__setitem__(0, 1 << 60), "2^53"),
        (lambda made: setattr(first(made), "period", -1), "period is -1"),
        (lambda made: setattr(first(made), "time_unix_nano", 10**18), "2001-09-09"),
        (lambda made: setattr(first(made), "time_unix_nano", 2**64 - 1), "in the future"),
        (_no_type, "no sample type"),
        (lambda made: setattr(first(made).sample_type, "type_strindex", 10**6), "string 1000000"),
    ],
)
def test_a_profile_that_breaks_a_rule_is_rejected_with_the_reason(
    change: Callable[[Request], object], says: str
) -> None:
    made = request()
    change(made)
    decoded = decode(made)
    both = change in (_old_layout, _old_layout_without_attributes)
    assert (decoded.profiles, decoded.rejected) == (2, 2 if both else 1)
    assert says in decoded.reason
    if not both:
        assert decoded.rows == 2
        assert set(results.read(decoded.blocks["samples"])["service"]) == {"unknown_service"}


def _grow_stack(made: Request) -> None:
    made.dictionary.stack_table.add(location_indices=[1] * 5000)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda made: made.dictionary.string_table.insert(0, "x"), r"string_table\[0\]"),
        (lambda made: made.dictionary.stack_table[0].location_indices.append(1), r"stack_table\[0\]"),
        (lambda made: setattr(made.dictionary.function_table[0], "start_line", 1), r"function_table\[0\]"),
        (lambda made: setattr(made.dictionary.location_table[0], "address", 1), r"location_table\[0\]"),
        (lambda made: setattr(made.dictionary.mapping_table[0], "memory_start", 1), r"mapping_table\[0\]"),
        (lambda made: setattr(made.dictionary.attribute_table[0], "key_strindex", 1), r"attribute_table\[0\]"),
        (lambda made: setattr(made.dictionary.link_table[0], "trace_id", b"\x01" * 16), r"link_table\[0\]"),
        (lambda made: made.dictionary.stack_table[1].location_indices.append(99), "location_table"),
        (lambda made: setattr(made.dictionary.function_table[1], "name_strindex", 10**6), "string_table"),
        (lambda made: setattr(made.dictionary.location_table[1], "mapping_index", -1), "mapping_table"),
        (lambda made: setattr(made.dictionary.mapping_table[1], "filename_strindex", -1), "string -1"),
        (_grow_stack, "5000 locations"),
        (lambda made: made.dictionary.location_table[1].lines.extend([pb.Line()] * 300), "256"),
        (lambda made: [made.resource_profiles[0].resource.attributes.add(key=f"k{n}")
                       for n in range(MAX_ATTRIBUTES)], "128 attributes"),
    ],
)  # fmt: skip
def test_a_dictionary_that_breaks_a_rule_is_refused(
    change: Callable[[Request], object], says: str
) -> None:
    made = request()
    change(made)
    with pytest.raises(Refused, match=says):
        decode(made)


def test_json_and_protobuf_become_the_same_rows() -> None:
    made = request()
    plain = json_format.MessageToDict(made)
    for resource in plain["resourceProfiles"]:
        for profile in resource["scopeProfiles"][0]["profiles"]:
            profile["profileId"] = "ab" * 16
    plain["dictionary"]["linkTable"] = [{"traceId": "00" * 16, "spanId": "00" * 8}]
    plain["fieldOfTheFuture"] = {"x": 1}
    body = json.dumps(plain).encode()
    of_json = decoder().decode(body, gzipped=False, is_json=True, epoch=0, namespaces=None, now=NOW)
    assert of_json.blocks == decode(made).blocks


def test_links_and_timestamps_become_rows() -> None:
    made = request()
    made.dictionary.link_table.add(trace_id=b"t" * 16, span_id=b"s" * 8)
    profile = first(made)
    del profile.samples[1:]
    (sample,) = profile.samples
    sample.link_index = 1
    times = [profiles.START_NS + n for n in (5, 6, 8)]
    sample.timestamps_unix_nano.extend(times)
    sample.ClearField("values")
    del made.resource_profiles[1]
    table = results.read(decode(made).blocks["samples"])
    assert table["ts"].tolist() == times
    assert table["value"].tolist() == [profile.period] * 3
    assert table["count"].tolist() == [1, 1, 1]
    assert set(table["trace_id"]) == {b"t" * 16}
    assert set(table["span_id"]) == {b"s" * 8}


@pytest.mark.parametrize(
    ("sample", "period", "kind", "unit", "value"),
    [
        (("samples", "count"), ("cpu", "nanoseconds", 10), "cpu", "nanoseconds", 30),
        (("off_cpu", "nanoseconds"), ("", "", 0), "off_cpu", "nanoseconds", 3),
        (("alloc_space", "bytes"), ("space", "bytes", 512), "space:alloc_space", "bytes", 3),
        (("cpu", "nanoseconds"), ("cpu", "nanoseconds", 10), "cpu:cpu", "nanoseconds", 3),
        (("contentions", "count"), ("", "", 0), "contentions", "count", 3),
    ],
)
def test_what_values_mean(
    sample: tuple[str, str], period: tuple[str, str, int], kind: str, unit: str, value: int
) -> None:
    made = request()
    del made.resource_profiles[1]
    profile = first(made)
    del profile.samples[1:]
    text = list(made.dictionary.string_table)
    made.dictionary.string_table.extend([*sample, *period[:2]])
    profile.sample_type.type_strindex, profile.sample_type.unit_strindex = len(text), len(text) + 1
    profile.period_type.type_strindex = len(text) + 2 if period[0] else 0
    profile.period_type.unit_strindex = len(text) + 3 if period[0] else 0
    profile.period = period[2]
    table = results.read(decode(made).blocks["samples"])
    assert (table["type"], table["unit"], table["value"].tolist()) == ([kind], [unit], [value])


def test_definitions_are_written_once_a_day_and_again_after_a_failure() -> None:
    one = decoder()

    def tables(epoch: int, now: float) -> set[str]:
        made = request()
        for resource in made.resource_profiles:
            resource.scope_profiles[0].profiles[0].time_unix_nano = int(now * 1e9)
        body = made.SerializeToString()
        done = one.decode(body, gzipped=False, is_json=False, epoch=epoch, namespaces=None, now=now)
        return set(done.blocks)

    everything = {"samples", "functions", "frames", "stacks", "resources"}
    assert tables(0, NOW) == everything
    assert tables(0, NOW + 60) == {"samples"}
    assert tables(1, NOW + 60) == everything
    assert tables(1, NOW + 60) == {"samples"}
    assert tables(1, NOW + 86_400) == everything


def test_a_refused_message_takes_no_definition_with_it() -> None:
    """Its dictionary was noted as written when its samples were found to be wrong: the next message brings it."""
    one = decoder()
    bad = request()
    bad.dictionary.stack_table[1].location_indices.append(99)
    options: dict[str, Any] = {
        "gzipped": False, "is_json": False, "epoch": 0, "namespaces": None, "now": NOW
    }  # fmt: skip
    with pytest.raises(Refused):
        one.decode(bad.SerializeToString(), **options)
    brought = one.decode(request().SerializeToString(), **options)
    direct = decode(request())
    assert (
        results.read(brought.blocks["frames"])["frame_id"].tolist()
        == results.read(direct.blocks["frames"])["frame_id"].tolist()
    )


@given(st.binary(max_size=300), st.booleans(), st.booleans())
def test_any_bytes_are_refused_or_decoded(body: bytes, gzipped: bool, is_json: bool) -> None:
    with contextlib.suppress(Refused):
        decoder().decode(body, gzipped=gzipped, is_json=is_json, epoch=0, namespaces=None, now=NOW)


@pytest.mark.parametrize(
    "body",
    [b"0", b"[]", b"null", b'"x"', b'{"resourceProfiles": 3}', b'{"dictionary": {"stackTable": [3]}}',
     b'{"dictionary": {"linkTable": [{"traceId": "xy"}]}}', b'{"dictionary": {"linkTable": [{"traceId": 3}]}}',
     b"[" * 5000, b'{"a":' * 3000],
)  # fmt: skip
def test_json_that_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(Refused):
        decoder().decode(body, gzipped=False, is_json=True, epoch=0, namespaces=None, now=NOW)


VALID = request().SerializeToString()


@given(
    st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), max_size=6),
    st.integers(0, 40),
)
def test_mutated_messages_are_refused_or_decoded(
    changes: list[tuple[int, int]], cut_at: int
) -> None:
    body = bytearray(VALID)
    for place, byte in changes:
        body[place] = byte
    body = body[: len(body) - cut_at]
    try:
        decoded = decoder().decode(
            bytes(body), gzipped=False, is_json=False, epoch=0, namespaces=None, now=NOW
        )
    except Refused:
        return
    for block in decoded.blocks.values():
        results.read(block)


def test_gunzip_is_bounded_and_takes_several_members() -> None:
    packed = zlib.compress(b"a" * 50, wbits=31) + zlib.compress(b"b" * 50, wbits=31)
    assert gunzip(packed, 100) == b"a" * 50 + b"b" * 50
    with pytest.raises(TooLarge, match="99 bytes"):
        gunzip(packed, 99)
    with pytest.raises(Refused, match="too early"):
        gunzip(packed[:-1], 100)
    with pytest.raises(Refused, match="gzip"):
        gunzip(b"plain", 100)


def test_ids_depend_on_the_key_and_on_where_texts_end() -> None:
    one, other = Hasher(b"1"), Hasher(b"2")
    assert one.of_texts(b"x", (b"ab", b"c")) != one.of_texts(b"x", (b"a", b"bc"))
    assert one.of_texts(b"x", (b"ab",)) != other.of_texts(b"x", (b"ab",))
    assert one.of_texts(b"x", (b"ab",)) != one.of_texts(b"y", (b"ab",))


@given(st.lists(st.integers(0, 30), max_size=200))
def test_recent_knows_the_last_used_and_is_bounded(keys: list[int]) -> None:
    cache: Recent[int, int] = Recent(10)
    for key in keys:
        if cache.get(key) is None:
            cache.put(key, key + 1)
        assert cache.get(key) == key + 1
        assert len(cache) <= 10
    last = list(dict.fromkeys(reversed(keys)))[:4]
    assert cache.find(last) == [key + 1 for key in last]


def test_cut_never_splits_a_character() -> None:
    assert cut("aü".encode(), 2) == b"a"
    assert cut("aü".encode(), 3) == "aü".encode()
