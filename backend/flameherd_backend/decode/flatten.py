"""One OTLP request → rows of `samples`, all profiles and resources of it at once.

A profile that breaks a rule is rejected with a reason, and the others go on (OTLP's partial
success). What a profile's values mean is decided here, once:

| sample type | period | type | unit | value of a row |
| --- | --- | --- | --- | --- |
| `samples/count` | `cpu/nanoseconds`, 1e9/rate | `cpu` | `nanoseconds` | count × period |
| `off_cpu/nanoseconds` | none | `off_cpu` | `nanoseconds` | as sent |
| `alloc_space/bytes` | `space/bytes`, 524288 | `space:alloc_space` | `bytes` | as sent |

A sample with timestamps becomes a row for each; without, one row at the start of its profile that
covers the profile's duration.
Senders with the field numbers of opentelemetry-proto ≤ 1.9 (values in field 2, attributes in 3) are
recognised by what that leaves behind here, and told so.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from flameherd_backend.decode import wire
from flameherd_backend.decode.attributes import (
    Attributes,
    Origin,
    collect,
    key_of,
    origin,
    value_of,
)
from flameherd_backend.decode.dictionary import Dictionary, Known, NewRows
from flameherd_backend.errors import Refused

MAX_ROWS: Final = 4_000_000
MAX_VALUE: Final = 1 << 53
"""The largest number that the page's numbers hold exactly; in nanoseconds 104 days."""
OLD_LAYOUT: Final = (
    "its samples have the field numbers of opentelemetry-proto 1.9 or older, which mean something "
    "else now: the sender needs opentelemetry-proto 1.10 (Python package 1.43) or newer"
)


@dataclass(frozen=True, slots=True)
class Accepted:
    """What profiles may be: a window of time, and namespaces (None = any) that the sender may claim."""

    oldest_ns: int
    newest_ns: int
    namespaces: frozenset[str] | None = None


@dataclass(slots=True)
class SampleRows:
    """Columns of `samples`; arrays of one length. `*_code`: places in `texts` or `maps`."""

    profile: wire.Positions
    ts: wire.Positions
    stack: wire.Longs
    value: wire.Positions
    count: wire.Positions
    duration: wire.Longs
    """Nanoseconds from `ts` on that the value covers; 0 = it happened at `ts`."""
    attribute_set: wire.Positions
    link: wire.Positions


@dataclass(slots=True)
class Head:
    """What one profile says once."""

    origin: Origin
    type: bytes
    unit: bytes
    sample_type: bytes
    sample_unit: bytes
    period: int
    scale: int
    """A row's value is what was sent times this."""
    is_count: bool
    time_ns: int
    duration_ns: int
    error: str = ""


@dataclass(slots=True)
class Flat:
    """A whole request."""

    heads: list[Head]
    rows: SampleRows
    attribute_sets: list[Attributes]
    links: list[tuple[bytes, bytes]]
    rejected: int
    reasons: list[str] = field(default_factory=list)


def _profile_spans(data: bytes) -> Iterator[tuple[int, int]]:
    """Bounds of each profile in a canonical request, in order."""
    resources = wire.split(data, 0, len(data), 0x0A)
    for resource_start, resource_end in zip(
        resources[0].tolist(), resources[1].tolist(), strict=True
    ):
        at = _skip(data, resource_start, resource_end, 0x0A)
        scopes = wire.split(data, at, resource_end, 0x12)
        for scope_start, scope_end in zip(scopes[0].tolist(), scopes[1].tolist(), strict=True):
            at = _skip(data, scope_start, scope_end, 0x0A)
            starts, ends, _ = wire.split(data, at, scope_end, 0x12)
            yield from zip(starts.tolist(), ends.tolist(), strict=True)


def _skip(data: bytes, at: int, end: int, tag: int) -> int:
    return wire.split(data, at, end, tag)[2]


def _head(profile: Any, source: Origin, dictionary: Dictionary) -> Head:
    string = dictionary.string
    sample_type, sample_unit = (
        string(profile.sample_type.type_strindex),
        string(profile.sample_type.unit_strindex),
    )
    period_type, period_unit = (
        string(profile.period_type.type_strindex),
        string(profile.period_type.unit_strindex),
    )
    period = profile.period
    kind, unit, scale = sample_type, sample_unit, 1
    if period > 0 and period_type:
        if sample_unit == b"count" and sample_type in (b"samples", b"sample", period_type):
            kind, unit, scale = period_type, period_unit, period
        else:
            kind = period_type + b":" + sample_type
    error = "" if kind else "it has no sample type"
    if period < 0:
        error = f"its period is {period}"
    return Head(
        source, kind, unit, sample_type, sample_unit, max(period, 0), scale, sample_unit == b"count",
        profile.time_unix_nano, profile.duration_nano, error,
    )  # fmt: skip


class _Origins:
    """Resource, scope and profile attributes → `Origin`, remembered over messages by their bytes."""

    def __init__(self, dictionary: Dictionary, known: Known, new: NewRows) -> None:
        self._dictionary, self._known, self._new = dictionary, known, new

    def of(self, resource: Attributes, scope: Attributes, profile: Any) -> Origin:
        own = tuple(self._dictionary.attribute(index) for index in profile.attribute_indices)
        attributes = collect((*resource, *scope, *own))
        identity = self._known.hash.of_texts(
            b"resource", [text for pair in attributes for text in pair]
        )
        key = identity.to_bytes(8, "little")
        found: Origin | None = self._known.origins.get(key)
        if found is None:
            found = origin(identity, attributes)
            self._known.origins.put(key, found)
        return found

    def note(self, used: Origin) -> None:
        """Writes the attributes of an origin that samples were taken from."""
        if self._known.resources.get(used.id) is None:
            self._known.resources.put(used.id, True)
            self._new.resources.append((used.id, used.attributes))


def _heads(request: Any, dictionary: Dictionary, origins: _Origins) -> list[Head]:
    heads = []
    strings = dictionary.strings
    for resource in request.resource_profiles:
        attributes = collect(
            (key_of(entry, strings), value_of(entry.value, strings))
            for entry in resource.resource.attributes
        )
        for scope in resource.scope_profiles:
            named = (
                (b"otel.scope.name", scope.scope.name),
                (b"otel.scope.version", scope.scope.version),
            )
            of_scope = tuple((key, text.encode()) for key, text in named if text)
            for profile in scope.profiles:
                try:
                    heads.append(
                        _head(profile, origins.of(attributes, of_scope, profile), dictionary)
                    )
                except Refused as error:
                    nobody = Origin(0, (), (), b"", b"")
                    heads.append(Head(nobody, b"", b"", b"", b"", 0, 1, True, 0, 0, str(error)))
    return heads


class _Samples:
    """The samples of all profiles, side by side."""

    def __init__(self, data: bytes, heads: list[Head]) -> None:
        starts, ends, owners = [], [], []
        for number, (start, end) in enumerate(_profile_spans(data)):
            at = _skip(data, start, end, 0x0A)
            first, last, _ = wire.split(data, at, end, 0x12)
            starts.append(first)
            ends.append(last)
            owners.append(np.full(len(first), number, np.int64))
        none = np.zeros(0, np.int64)
        buffer = wire.view(data)
        records = wire.Records(
            buffer, np.concatenate([none, *starts]), np.concatenate([none, *ends])
        )
        self.profile = np.concatenate([none, *owners])
        self.stack = records.varint(0x08).astype(np.int64)
        self.attribute_starts, self.attribute_ends = records.span(0x12)
        self.link = records.varint(0x18).astype(np.int64)
        self.values, self.value_offsets = wire.unpack_varints(buffer, *records.span(0x22))
        self.times, self.time_offsets = wire.unpack_fixed64(buffer, *records.span(0x2A))
        self.left_over = records.unread()
        self.value_counts, self.time_counts = (
            np.diff(self.value_offsets),
            np.diff(self.time_offsets),
        )
        self.heads = heads

    def reject(self, wrong: np.ndarray[Any, Any], reason: str) -> None:
        """Marks the profiles of the samples at `wrong`; the first reason of each counts."""
        for number in np.unique(self.profile[wrong]).tolist():
            self.heads[number].error = self.heads[number].error or reason


def flatten(request: Any, known: Known, new: NewRows, accepted: Accepted) -> Flat:
    """The rows of a parsed `ExportProfilesServiceRequest`.

    Raises `Refused` if its dictionary breaks a rule, or it holds more than `MAX_ROWS` rows.
    """
    table = request.dictionary
    dictionary = Dictionary(table, table.SerializeToString(), known, new)
    origins = _Origins(dictionary, known, new)
    heads = _heads(request, dictionary, origins)
    request.ClearField("dictionary")
    data = request.SerializeToString()
    samples = _Samples(data, heads)
    if len(samples.profile) + int(samples.time_counts.sum()) > MAX_ROWS:
        raise Refused(f"more than {MAX_ROWS} samples in one message")
    sets, set_of_sample = _attribute_sets(data, samples, dictionary)
    _check(samples, dictionary, accepted)
    rows = _rows(samples, heads, set_of_sample)
    _check_rows(rows, heads, accepted)
    for head in heads:
        if not head.error:
            origins.note(head.origin)

    good = np.array([not head.error for head in heads], bool)
    keep = good[rows.profile] if len(heads) else np.zeros(0, bool)
    rows = SampleRows(*(getattr(rows, name)[keep] for name in SampleRows.__dataclass_fields__))
    used, place = np.unique(rows.stack.astype(np.int64), return_inverse=True)
    rows.stack = dictionary.stack_ids(used)[place] if used.size else rows.stack
    link_numbers, rows.link = np.unique(rows.link, return_inverse=True)
    links = [dictionary.link(index) for index in link_numbers.tolist()]
    reasons = list(dict.fromkeys(head.error for head in heads if head.error))
    return Flat(heads, rows, sets, links, int((~good).sum()), reasons)


def _attribute_sets(
    data: bytes, samples: _Samples, dictionary: Dictionary
) -> tuple[list[Attributes], wire.Positions]:
    """Distinct attribute sets, and which of them each sample has."""
    numbers: dict[bytes, int] = {}
    keys = [
        data[start:end]
        for start, end in zip(
            samples.attribute_starts.tolist(), samples.attribute_ends.tolist(), strict=True
        )
    ]
    which = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
    sets: list[Attributes] = []
    for number, key in enumerate(numbers):
        plain = wire.packed_indices(key)
        if len(set(plain)) < len(plain):
            samples.reject(
                which == number, f"a sample names an attribute twice; perhaps {OLD_LAYOUT}"
            )
            plain = []
        try:
            sets.append(dictionary.attribute_set(plain))
        except Refused as error:
            samples.reject(which == number, str(error))
            sets.append(())
    return sets, which


def _check(samples: _Samples, dictionary: Dictionary, accepted: Accepted) -> None:
    samples.reject(samples.left_over == 0x1A, OLD_LAYOUT)
    nothing = (samples.value_counts == 0) & (samples.time_counts == 0)
    samples.reject(
        nothing & (samples.attribute_ends > samples.attribute_starts),
        f"a sample has neither values nor timestamps; perhaps {OLD_LAYOUT}",
    )
    samples.reject(nothing, "a sample has neither values nor timestamps")
    mismatch = (samples.value_counts > 0) & (
        samples.value_counts != np.maximum(samples.time_counts, 1)
    )
    samples.reject(mismatch, "a sample's values are not one for each of its timestamps")
    outside = (samples.stack < 0) | (samples.stack >= dictionary.stacks)
    samples.reject(
        outside, f"a sample's stack is not in dictionary.stack_table, which has {dictionary.stacks}"
    )
    outside = (samples.link < 0) | (samples.link >= max(1, dictionary.links))
    samples.reject(
        outside, f"a sample's link is not in dictionary.link_table, which has {dictionary.links}"
    )
    if accepted.namespaces is None:
        return
    for head in samples.heads:
        if not head.error and head.origin.namespace not in accepted.namespaces:
            head.error = f"this token may not send profiles of namespace {head.origin.namespace!r}"


def _rows(samples: _Samples, heads: list[Head], set_of_sample: wire.Positions) -> SampleRows:
    """One row for each timestamp, or for each sample without."""
    per_sample = np.maximum(samples.time_counts, 1)
    sample = np.repeat(np.arange(len(per_sample)), per_sample)
    rank = np.arange(len(sample)) - np.repeat(np.cumsum(per_sample) - per_sample, per_sample)
    profile = samples.profile[sample]

    begin = np.array([min(head.time_ns, 1 << 62) for head in heads] or [0], np.int64)
    ts = begin[profile]
    timed = samples.time_counts[sample] > 0
    ts[timed] = samples.times[samples.time_offsets[sample[timed]] + rank[timed]].astype(np.int64)
    sent = np.ones(len(sample), np.int64)
    # Where values and rows do not match, the profile is rejected: what is read then does not count.
    valued = samples.value_counts[sample] > rank
    sent[valued] = samples.values[samples.value_offsets[sample[valued]] + rank[valued]].astype(
        np.int64
    )

    scale = np.array([head.scale for head in heads] or [1], np.int64)[profile]
    too_large = (sent < 0) | (sent > MAX_VALUE // scale)
    samples.reject(sample[too_large], "a sample's value is negative or over 2^53")
    value = np.where(too_large, 0, sent) * scale
    counts = np.array([head.is_count for head in heads] or [True])[profile]
    durations = np.array([head.duration_ns for head in heads] or [0], np.uint64)
    return SampleRows(
        profile,
        ts,
        samples.stack[sample].astype(np.uint64),
        value,
        np.where(counts, sent, 1),
        np.where(timed, 0, durations[profile]).astype(np.uint64),
        set_of_sample[sample],
        samples.link[sample],
    )


def _check_rows(rows: SampleRows, heads: list[Head], accepted: Accepted) -> None:
    for wrong, what in (
        (rows.ts < accepted.oldest_ns, "older than this backend keeps"),
        (rows.ts > accepted.newest_ns, "in the future: compare the clocks"),
    ):
        for number in np.unique(rows.profile[wrong]).tolist():
            if not heads[number].error:
                first = int(rows.ts[wrong & (rows.profile == number)][0]) // 10**9
                when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(min(max(first, 0), 1 << 37)))
                heads[number].error = f"it has samples of {when}, {what}"
