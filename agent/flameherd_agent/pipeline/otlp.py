"""Profiles as OTLP messages (opentelemetry-proto 1.10: `profiles/v1development`).

One request holds one dictionary: every string, location, stack and attribute is in it once and
everything else refers to it by index. Index 0 of each table is its zero value, so that 0 means
"none". Locations of a stack are leaf first, and the last line of a location is the function that
the others were inlined into.

What a backend makes of a CPU profile hangs on small things, kept here on purpose: exactly one value
a sample, `samples/count` with period type `cpu/nanoseconds` and a period; resource attributes under
plain keys; a frame type on each location. Truncated stacks end in a `[truncated]` frame.

Wheels of opentelemetry-proto before 1.43 number the fields of `Sample` otherwise and would lose
data without an error: `encode` refuses them.
"""

import gzip
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.profiles.v1development import profiles_pb2 as pb

from flameherd_agent import __version__
from flameherd_agent.errors import EnvironmentProblem
from flameherd_agent.model import (
    Attributes,
    Line,
    Location,
    Mapping,
    Profile,
    ResourceProfiles,
    Sample,
)
from flameherd_agent.pipeline.frames import clean, full_stack, placeholder

SCOPE_NAME: Final = "flameherd"
POLICY_KEY: Final = "flameherd.policy"
MAX_MESSAGE_BYTES: Final = 3 << 20
"""Servers take gRPC messages of 4 MiB unless told otherwise; a request stays below."""
_GZIP_LEVEL: Final = 6
_SAMPLE_VALUES_FIELD: Final = 4


@dataclass(frozen=True, slots=True)
class Batch:
    """One encoded request, as queues hold it."""

    compressed: bytes
    """The message, gzip'd: a queue holds several times more of them this way."""
    message_bytes: int
    """Size before compression."""
    profiles: int
    observations: int
    """Ticks that it stands for (entries, for profiles whose values are not counts)."""

    def message(self) -> bytes:
        """The serialised `ExportProfilesServiceRequest`."""
        return gzip.decompress(self.compressed)


class _Dictionary:
    """Fills a `ProfilesDictionary`; every method returns an index into one of its tables.

    Locations are looked up by `id()` first: their producer interns them, and hashing one by value
    costs more than writing it. Equal ones with another identity still share an entry. The objects
    must live as long as this one.
    """

    def __init__(self, out: pb.ProfilesDictionary) -> None:
        self._out = out
        self._strings: dict[str, int] = {"": 0}
        self._attributes: dict[tuple[str, str | int], int] = {}
        self._sets: dict[Attributes, tuple[int, ...]] = {}
        self._mappings: dict[Mapping, int] = {}
        self._functions: dict[tuple[int, int, int], int] = {}
        self._location_ids: dict[int, int] = {}
        self._locations: dict[Location, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {(): 0}
        out.string_table.append("")
        out.attribute_table.add()
        out.mapping_table.add()
        out.function_table.add()
        out.location_table.add()
        out.stack_table.add()
        out.link_table.add(trace_id=bytes(16), span_id=bytes(8))

    def string(self, text: str) -> int:
        index = self._strings.get(text)
        if index is None:
            shown = clean(text)
            if shown != text:
                index = self.string(shown)
            else:
                index = len(self._out.string_table)
                self._out.string_table.append(text)
            self._strings[text] = index
        return index

    def attribute(self, key: str, value: str | int) -> int:
        index = self._attributes.get((key, value))
        if index is None:
            index = len(self._out.attribute_table)
            entry = self._out.attribute_table.add(key_strindex=self.string(key))
            _set_value(entry.value, value)
            self._attributes[key, value] = index
        return index

    def attributes(self, attributes: Attributes) -> tuple[int, ...]:
        indices = self._sets.get(attributes)
        if indices is None:
            indices = tuple(self.attribute(key, value) for key, value in attributes)
            self._sets[attributes] = indices
        return indices

    def mapping(self, mapping: Mapping | None) -> int:
        if mapping is None:
            return 0
        index = self._mappings.get(mapping)
        if index is None:
            index = self._mappings[mapping] = len(self._out.mapping_table)
            self._out.mapping_table.add(
                filename_strindex=self.string(mapping.path),
                attribute_indices=[
                    self.attribute(f"process.executable.build_id.{kind}", value)
                    for kind, value in (
                        ("gnu", mapping.gnu_build_id),
                        ("go", mapping.go_build_id),
                        ("htlhash", mapping.htlhash),
                    )
                    if value
                ],
            )
        return index

    def function(self, line: Line) -> int:
        key = (self.string(line.function), self.string(line.system_name), self.string(line.file))
        index = self._functions.get(key)
        if index is None:
            index = self._functions[key] = len(self._out.function_table)
            name, system_name, file = key
            self._out.function_table.add(
                name_strindex=name, system_name_strindex=system_name, filename_strindex=file
            )
        return index

    def location(self, location: Location) -> int:
        index = self._locations.get(location)
        if index is None:
            index = self._locations[location] = len(self._out.location_table)
            entry = self._out.location_table.add(
                mapping_index=self.mapping(location.mapping),
                address=location.address,
                attribute_indices=[self.attribute("profile.frame.type", location.kind.value)],
            )
            lines = location.lines
            if not lines and location.function_start is not None:
                # Receivers that cannot name it either still see one function, not many addresses.
                lines = (Line(placeholder(location)),)
            for line in lines:
                entry.lines.add(function_index=self.function(line), line=line.line)
        self._location_ids[id(location)] = index
        return index

    def stack(self, sample: Sample) -> int:
        known = self._location_ids.get
        # The hottest line of the encoder: most frames are known, and no index of one is 0.
        key = tuple([known(id(frame)) or self.location(frame) for frame in full_stack(sample)])
        index = self._stacks.get(key)
        if index is None:
            index = self._stacks[key] = len(self._out.stack_table)
            self._out.stack_table.add(location_indices=key)
        return index


def _set_value(out: common_pb2.AnyValue, value: str | int) -> None:
    if isinstance(value, str):
        out.string_value = clean(value)
    else:
        out.int_value = value


def _encode_profile(out: pb.Profile, profile: Profile, dictionary: _Dictionary) -> None:
    out.profile_id = os.urandom(16)
    out.time_unix_nano = profile.time_unix_ns
    out.duration_nano = profile.duration_ns
    out.sample_type.type_strindex = dictionary.string(profile.sample_type)
    out.sample_type.unit_strindex = dictionary.string(profile.sample_unit)
    if profile.period_ns:
        out.period = profile.period_ns
        out.period_type.type_strindex = dictionary.string(profile.period_type)
        out.period_type.unit_strindex = dictionary.string(profile.period_unit)
    for comment in profile.comments:
        out.attribute_indices.append(dictionary.attribute("pprof.profile.comment", comment))
    # A sample is identified by its stack and attributes: equal ones are one entry.
    sums: dict[tuple[int, tuple[int, ...]], int] = {}
    for sample in profile.samples:
        key = (dictionary.stack(sample), dictionary.attributes(sample.attributes))
        sums[key] = sums.get(key, 0) + sample.value
    for (stack, attributes), value in sums.items():
        out.samples.add(stack_index=stack, attribute_indices=attributes, values=(value,))


def _check_wheel() -> None:
    field = pb.Sample.DESCRIPTOR.fields_by_name.get("values")
    if field is None or field.number != _SAMPLE_VALUES_FIELD:
        raise EnvironmentProblem(
            "the installed opentelemetry-proto has an older layout of profiles, which receivers "
            "misread without an error; install opentelemetry-proto >= 1.43"
        )


def encode(resources: Iterable[ResourceProfiles]) -> ExportProfilesServiceRequest:
    """One request that holds all of `resources`, whatever its size.

    Raises `EnvironmentProblem` if the installed opentelemetry-proto is too old.
    """
    _check_wheel()
    request = ExportProfilesServiceRequest()
    dictionary = _Dictionary(request.dictionary)
    for resource in resources:
        out = request.resource_profiles.add()
        attributes = resource.attributes
        if resource.policy:
            attributes = (*attributes, (POLICY_KEY, resource.policy))
        for key, value in attributes:
            _set_value(out.resource.attributes.add(key=clean(key)).value, value)
        scope = out.scope_profiles.add()
        scope.scope.name = SCOPE_NAME
        scope.scope.version = __version__
        for profile in resource.profiles:
            _encode_profile(scope.profiles.add(), profile, dictionary)
    return request


def _halves(resources: Sequence[ResourceProfiles]) -> list[list[ResourceProfiles]]:
    """`resources` cut in two: between resources, else profiles, else samples; [] if none can be."""
    if len(resources) > 1:
        middle = len(resources) // 2
        return [list(resources[:middle]), list(resources[middle:])]
    (resource,) = resources
    profiles = resource.profiles
    if len(profiles) > 1:
        middle = len(profiles) // 2
        parts = [profiles[:middle], profiles[middle:]]
    elif profiles and len(profiles[0].samples) > 1:
        (profile,) = profiles
        middle = len(profile.samples) // 2
        parts = [
            [replace(profile, samples=profile.samples[:middle])],
            [replace(profile, samples=profile.samples[middle:])],
        ]
    else:
        return []
    return [[replace(resource, profiles=part)] for part in parts]


def observations(resources: Iterable[ResourceProfiles]) -> int:
    """Ticks that the profiles stand for; entries, where values are not counts."""
    return sum(
        sum(sample.value for sample in profile.samples)
        if profile.sample_unit == "count"
        else len(profile.samples)
        for resource in resources
        for profile in resource.profiles
    )


def encode_batches(
    resources: Sequence[ResourceProfiles], max_bytes: int = MAX_MESSAGE_BYTES
) -> Iterator[Batch]:
    """`resources` as requests of at most `max_bytes` each, serialised and compressed.

    A single sample that is larger than that comes alone. Profiles without samples are left out.
    """
    resources = [
        replace(resource, profiles=kept)
        for resource in resources
        if (kept := [profile for profile in resource.profiles if profile.samples])
    ]
    if not resources:
        return
    message = encode(resources).SerializeToString()
    if len(message) > max_bytes and (halves := _halves(resources)):
        del message
        for half in halves:
            yield from encode_batches(half, max_bytes)
        return
    yield Batch(
        compressed=gzip.compress(message, _GZIP_LEVEL, mtime=0),
        message_bytes=len(message),
        profiles=sum(len(resource.profiles) for resource in resources),
        observations=observations(resources),
    )
