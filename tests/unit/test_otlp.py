"""OTLP encoding, read back through the message itself."""

import gzip
from importlib.metadata import version

import flameherd_agent
import pytest
from flameherd_agent.errors import EnvironmentProblem
from flameherd_agent.model import (
    FrameType,
    Line,
    Location,
    Profile,
    ResourceProfiles,
    Sample,
)
from flameherd_agent.pipeline import otlp
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.profiles.v1development import profiles_pb2

from tests.otlp_reader import expected, read_back
from tests.unit.profiles import APP, MAIN, START_NS, WORK, resources, thread


def test_what_is_encoded_reads_back_the_same() -> None:
    assert read_back(otlp.encode(resources())) == expected(resources())


def test_an_unnamed_function_is_one_function_at_every_address() -> None:
    """Receivers that cannot name it would show a box for each sampled address."""
    places = [
        Location(FrameType.NATIVE, address, APP, (), function_start=0x7000)
        for address in (0x7010, 0x7020)
    ]
    profile = Profile(
        [Sample((place, MAIN), thread(1, 1, "t"), 1) for place in places], 1, START_NS, 1
    )
    request = otlp.encode([ResourceProfiles((), [profile])])
    dictionary = request.dictionary
    names = [dictionary.string_table[f.name_strindex] for f in dictionary.function_table]
    assert names.count("[app]+0x7000") == 1
    found = {location.address: len(location.lines) for location in dictionary.location_table}
    assert found[0x7010] == found[0x7020] == 1


def test_index_0_of_every_table_is_its_zero_value() -> None:
    dictionary = otlp.encode(resources()).dictionary
    assert dictionary.string_table[0] == ""
    for table in (
        dictionary.mapping_table,
        dictionary.location_table,
        dictionary.function_table,
        dictionary.attribute_table,
        dictionary.stack_table,
    ):
        assert table[0] == type(table[0])()
        serialised = [entry.SerializeToString() for entry in table]
        assert len(set(serialised)) == len(serialised), "entries are unique"
    assert [(link.trace_id, link.span_id) for link in dictionary.link_table] == [
        (bytes(16), bytes(8))
    ]
    assert len(set(dictionary.string_table)) == len(dictionary.string_table)


def test_every_sample_has_one_value_and_every_profile_its_own_id() -> None:
    request = otlp.encode(resources())
    profiles = [
        profile
        for resource in request.resource_profiles
        for scope in resource.scope_profiles
        for profile in scope.profiles
    ]
    assert all(len(sample.values) == 1 for profile in profiles for sample in profile.samples)
    ids = {profile.profile_id for profile in profiles}
    assert len(ids) == len(profiles)
    assert all(len(profile_id) == 16 for profile_id in ids)
    assert {r.scope_profiles[0].scope.name for r in request.resource_profiles} == {"flameherd"}
    assert flameherd_agent.__version__ == version("flameherd-agent")


def test_equal_stacks_with_equal_attributes_are_one_sample() -> None:
    copy = Location(WORK.kind, WORK.address, APP, WORK.lines)
    samples = [
        Sample((WORK, MAIN), thread(1, 1, "a"), 2),
        Sample((copy, MAIN), thread(1, 1, "a"), 3),
        Sample((WORK, MAIN), thread(1, 2, "a"), 1),
    ]
    resource = ResourceProfiles((), [Profile(samples, 1, 1, 1)])
    request = otlp.encode([resource])
    encoded = request.resource_profiles[0].scope_profiles[0].profiles[0].samples
    assert [list(sample.values) for sample in encoded] == [[5], [1]]
    assert len(request.dictionary.stack_table) == 2


def test_a_time_has_no_period() -> None:
    blocked = Profile([Sample((MAIN,), (), 5)], 0, 1, 1, "off_cpu", "nanoseconds")
    request = otlp.encode([ResourceProfiles((), [blocked])])
    profile = request.resource_profiles[0].scope_profiles[0].profiles[0]
    assert profile.period == 0
    assert not profile.HasField("period_type")


def test_long_names_are_cut() -> None:
    location = Location(FrameType.NATIVE, 1, None, (Line("x" * 100_000),))
    resource = ResourceProfiles((), [Profile([Sample((location,), (), 1)], 1, 1, 1)])
    assert otlp.encode([resource]).ByteSize() < 5000


def test_batches_stay_below_the_limit_and_lose_nothing() -> None:
    samples = [
        Sample((Location(FrameType.NATIVE, n, APP, (Line(f"f{n}"),)), MAIN), thread(1, n, "t"), 2)
        for n in range(500)
    ]
    sent = [
        ResourceProfiles((("service.name", "x"),), [Profile(samples, 10, 20, 30)]),
        *resources(),
    ]
    batches = list(otlp.encode_batches(sent, max_bytes=8000))
    assert len(batches) > 3
    assert sum(batch.observations for batch in batches) == 1000 + 11 + 8
    read = []
    for batch in batches:
        message = gzip.decompress(batch.compressed)
        assert message == batch.message()
        assert len(message) == batch.message_bytes <= 8000
        read += read_back(ExportProfilesServiceRequest.FromString(message))
    assert sorted(read) == sorted(expected(sent))


def test_nothing_makes_no_batch() -> None:
    empty = ResourceProfiles((), [Profile([], 1, 1, 1)])
    assert list(otlp.encode_batches([empty])) == []
    assert list(otlp.encode_batches([])) == []


def test_an_old_wheel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "_SAMPLE_VALUES_FIELD", 2)
    with pytest.raises(EnvironmentProblem, match=r"opentelemetry-proto >= 1\.43"):
        otlp.encode([])


def test_field_numbers_are_those_of_1_10() -> None:
    fields = {field.name: field.number for field in profiles_pb2.Sample.DESCRIPTOR.fields}
    assert fields == {
        "stack_index": 1,
        "attribute_indices": 2,
        "link_index": 3,
        "values": 4,
        "timestamps_unix_nano": 5,
    }
