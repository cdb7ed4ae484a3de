"""pprof's profile.proto, gzip'd.

The message is small and fixed, so it is written field by field here (field numbers from
https://github.com/google/pprof/blob/main/proto/profile.proto) rather than with generated code:
`go tool pprof` reads it back in the tests. Sample values are a count and nanoseconds; those of
profiles with different periods therefore add up, and `period` is that of the first profile.
Addresses are file addresses, so each mapping starts at 0.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from flameherd_agent.model import Attributes, Location, Mapping, ResourceProfiles
from flameherd_agent.pipeline.formats.weights import weight_ns
from flameherd_agent.pipeline.frames import clean, full_stack, name_of

_LABELS: Final = {
    "process.pid": "pid",
    "thread.id": "tid",
    "thread.name": "thread",
    "process.executable.name": "executable",
    "container.id": "container",
}
"""Attributes of samples and resources → labels."""

_VARINT, _BYTES = 0, 2
_PAGE = 4096


def varint(value: int) -> bytes:
    """Base-128 encoding, least significant group first; negatives as 64-bit two's complement."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _int(field: int, value: int) -> bytes:
    return varint(field << 3 | _VARINT) + varint(value) if value else b""


def _bytes(field: int, value: bytes) -> bytes:
    return varint(field << 3 | _BYTES) + varint(len(value)) + value


def _packed(field: int, values: Iterable[int]) -> bytes:
    return _bytes(field, b"".join(map(varint, values)))


class _Strings:
    """The string table: index 0 is "" by definition."""

    def __init__(self) -> None:
        self.table = {"": 0}

    def __call__(self, text: str) -> int:
        return self.table.setdefault(clean(text), len(self.table))


class _Writer:
    """Collects a profile's tables while samples are yielded."""

    def __init__(self) -> None:
        self.strings = _Strings()
        self._functions: dict[tuple[int, int, int], int] = {}
        self._locations: dict[Location, int] = {}
        self._by_identity: dict[int, int] = {}
        self._mappings: dict[Mapping, int] = {}
        self._ends: dict[int, int] = {}
        self._named: dict[int, bool] = {}

    def value_type(self, kind: str, unit: str) -> bytes:
        return _int(1, self.strings(kind)) + _int(2, self.strings(unit))

    def location(self, location: Location) -> int:
        number = self._by_identity.get(id(location))
        if number is None:
            number = self._locations.setdefault(location, len(self._locations) + 1)
            self._by_identity[id(location)] = number
        return number

    def sample(self, stack: Iterable[Location], values: tuple[int, int], labels: bytes) -> bytes:
        return _bytes(2, _packed(1, map(self.location, stack)) + _packed(2, values) + labels)

    def label(self, key: str, value: str | int) -> bytes:
        content = _int(2, self.strings(value)) if isinstance(value, str) else _int(3, value)
        return _bytes(3, _int(1, self.strings(key)) + content)

    def locations(self) -> Iterator[bytes]:
        for location, number in self._locations.items():
            mapping = 0
            if location.mapping is not None:
                mapping = self._mappings.setdefault(location.mapping, len(self._mappings) + 1)
                self._ends[mapping] = max(self._ends.get(mapping, 0), location.address + 1)
                self._named[mapping] = self._named.get(mapping, True) and bool(location.lines)
            lines = b"".join(
                _bytes(4, _int(1, self._function(location, index)) + _int(2, line.line))
                for index, line in enumerate(location.lines)
            )
            yield _bytes(4, _int(1, number) + _int(2, mapping) + _int(3, location.address) + lines)

    def _function(self, location: Location, index: int) -> int:
        line = location.lines[index]
        name = self.strings(name_of(location, line))
        key = (name, self.strings(line.system_name) or name, self.strings(line.file))
        return self._functions.setdefault(key, len(self._functions) + 1)

    def functions(self) -> Iterator[bytes]:
        for (name, system_name, file), number in self._functions.items():
            fields = _int(1, number) + _int(2, name) + _int(3, system_name) + _int(4, file)
            yield _bytes(5, fields)

    def mappings(self) -> Iterator[bytes]:
        for mapping, number in self._mappings.items():
            named = self._named[number]
            yield _bytes(
                3,
                _int(1, number)
                + _int(3, -(-self._ends[number] // _PAGE) * _PAGE)
                + _int(5, self.strings(mapping.path))
                + _int(6, self.strings(mapping.gnu_build_id or mapping.go_build_id))
                + _int(7, named),
            )


def _labels(writer: _Writer, resource: Attributes, sample: Attributes) -> bytes:
    values = dict(resource) | dict(sample)
    return b"".join(
        writer.label(label, values[key]) for key, label in _LABELS.items() if key in values
    )


def _message(profiles: Sequence[ResourceProfiles]) -> Iterator[bytes]:
    writer = _Writer()
    flat = [(resource, profile) for resource in profiles for profile in resource.profiles]
    first = flat[0][1] if flat else None
    kind, unit = (first.sample_type, first.sample_unit) if first else ("samples", "count")
    period = (first.period_type, first.period_unit) if first else ("cpu", "nanoseconds")
    yield _bytes(1, writer.value_type(kind, unit))
    yield _bytes(1, writer.value_type(*period))
    for resource, profile in flat:
        cache: dict[Attributes, bytes] = {}
        for sample in profile.samples:
            labels = cache.get(sample.attributes)
            if labels is None:
                labels = _labels(writer, resource.attributes, sample.attributes)
                cache[sample.attributes] = labels
            values = (sample.value, weight_ns(profile, sample))
            yield writer.sample(full_stack(sample), values, labels)
    yield from writer.locations()
    yield from writer.functions()
    yield from writer.mappings()
    if first is not None:
        start = min(profile.time_unix_ns for _, profile in flat)
        end = max(profile.time_unix_ns + profile.duration_ns for _, profile in flat)
        yield _int(9, start) + _int(10, end - start)
        yield _bytes(11, writer.value_type(*period))
        yield _int(12, first.period_ns)
    comments = dict.fromkeys(comment for _, profile in flat for comment in profile.comments)
    for comment in comments:
        yield _int(13, writer.strings(comment))
    yield _int(14, writer.strings(period[0]))
    for text in writer.strings.table:
        yield _bytes(6, text.encode())


def chunks(profiles: Sequence[ResourceProfiles]) -> Iterator[bytes]:
    """The file's bytes. Profiles must share one sample type."""
    compressor = zlib.compressobj(wbits=31)
    for part in _message(profiles):
        yield compressor.compress(part)
    yield compressor.flush()
