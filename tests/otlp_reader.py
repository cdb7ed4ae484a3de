"""Reads OTLP profiles back into plain tuples, to compare what was sent with what arrived.

Written apart from the encoder, from the specification's messages.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from flameherd_agent.model import ResourceProfiles
from flameherd_agent.pipeline.otlp import SCOPE_NAME
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

Observed = tuple[Any, ...]
"""(resource attributes, scope, profile's head, stack, sample attributes, value): one sample."""


def _plain(value: Any, text: Sequence[str]) -> str | int:
    """An AnyValue; a collector moves strings into the dictionary when it passes them on."""
    kind = value.WhichOneof("value")
    if kind == "string_value_strindex":
        return str(text[value.string_value_strindex])
    assert kind in ("string_value", "int_value")
    plain: str | int = getattr(value, kind)
    return plain


def read_back(request: ExportProfilesServiceRequest) -> list[Observed]:
    """Every sample of a request, sorted."""
    table = request.dictionary
    text = table.string_table

    def attributes(indices: Iterable[int]) -> tuple[tuple[str, str | int], ...]:
        entries = (table.attribute_table[index] for index in indices)
        return tuple((text[entry.key_strindex], _plain(entry.value, text)) for entry in entries)

    def location(index: int) -> Observed:
        found = table.location_table[index]
        mapping = table.mapping_table[found.mapping_index]
        lines = []
        for line in found.lines:
            function = table.function_table[line.function_index]
            lines.append(
                (
                    text[function.name_strindex],
                    text[function.system_name_strindex],
                    text[function.filename_strindex],
                    line.line,
                )
            )
        return (
            found.address,
            dict(attributes(found.attribute_indices))["profile.frame.type"],
            text[mapping.filename_strindex],
            attributes(mapping.attribute_indices),
            tuple(lines),
        )

    out = []
    for resource in request.resource_profiles:
        resource_attributes = tuple(
            (kv.key or text[kv.key_strindex], _plain(kv.value, text))
            for kv in resource.resource.attributes
        )
        for scope in resource.scope_profiles:
            for profile in scope.profiles:
                head = (
                    text[profile.sample_type.type_strindex],
                    text[profile.sample_type.unit_strindex],
                    text[profile.period_type.type_strindex],
                    text[profile.period_type.unit_strindex],
                    profile.period,
                    profile.time_unix_nano,
                    profile.duration_nano,
                    attributes(profile.attribute_indices),
                )
                for sample in profile.samples:
                    stack = table.stack_table[sample.stack_index]
                    out.append(
                        (
                            resource_attributes,
                            scope.scope.name,
                            head,
                            tuple(location(index) for index in stack.location_indices),
                            attributes(sample.attribute_indices),
                            *sample.values,
                        )
                    )
    return sorted(out)


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def expected(resources: Iterable[ResourceProfiles]) -> list[Observed]:
    """What `read_back` must give for these profiles."""
    sums: Counter[Observed] = Counter()
    for resource in resources:
        resource_attributes = resource.attributes
        if resource.policy:
            resource_attributes = (*resource_attributes, ("flameherd.policy", resource.policy))
        for profile in resource.profiles:
            head = (
                profile.sample_type,
                profile.sample_unit,
                profile.period_type,
                profile.period_unit,
                profile.period_ns,
                profile.time_unix_ns,
                profile.duration_ns,
                tuple(("pprof.profile.comment", comment) for comment in profile.comments),
            )
            for sample in profile.samples:
                stack = []
                for location in sample.stack:
                    ids: tuple[tuple[str, str], ...] = ()
                    if location.mapping:
                        ids = (
                            ("process.executable.build_id.gnu", location.mapping.gnu_build_id),
                            ("process.executable.build_id.go", location.mapping.go_build_id),
                            ("process.executable.build_id.htlhash", location.mapping.htlhash),
                        )
                    stack.append(
                        (
                            location.address,
                            location.kind.value,
                            location.mapping.path if location.mapping else "",
                            tuple((key, value) for key, value in ids if value),
                            tuple(
                                (_clean(line.function), line.system_name, line.file, line.line)
                                for line in location.lines
                            ),
                        )
                    )
                if sample.truncated:
                    stack.append((0, "native", "", (), (("[truncated]", "", "", 0),)))
                attributes = tuple(
                    (key, _clean(value) if isinstance(value, str) else value)
                    for key, value in sample.attributes
                )
                observed = (resource_attributes, SCOPE_NAME, head, tuple(stack), attributes)
                sums[observed] += sample.value
    return sorted((*observed, value) for observed, value in sums.items())
