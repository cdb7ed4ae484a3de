"""How a frame is called, wherever it is written: one rule for OTLP and for every file format.

Names come out of hostile files, so they are bounded here and made encodable; escaping is each
writer's own matter.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from flameherd_agent.model import FrameType, Line, Location, ResourceProfiles, Sample

MAX_NAME: Final = 4096
"""Characters of a name that are written; what is cut off ends in '…'."""

TRUNCATED: Final = Location(FrameType.NATIVE, 0, None, (Line("[truncated]"),))
"""Stands where the root would be, if unwinding did not reach it."""


def clean(text: str) -> str:
    """`text` within `MAX_NAME` characters and without lone surrogates, which no format can hold."""
    if len(text) > MAX_NAME:
        text = text[: MAX_NAME - 1] + "…"
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode("utf-8")
    return text


def placeholder(location: Location) -> str:
    """The name of a location without one: `[basename]+0x…`, where its function begins if known."""
    if location.mapping is not None and location.mapping.path:
        place = location.mapping.path.rpartition("/")[2].strip("[]")
    else:
        place = "unknown" if location.kind is FrameType.NATIVE else location.kind.value
    start = location.address if location.function_start is None else location.function_start
    return f"[{clean(place)}]+{start:#x}"


def full_stack(sample: Sample) -> tuple[Location, ...]:
    """The sample's locations, leaf first; a truncated stack gets `TRUNCATED` as its root."""
    return (*sample.stack, TRUNCATED) if sample.truncated else sample.stack


def root_first(sample: Sample) -> Iterator[tuple[Location, Line | None]]:
    """Every function of a stack from the root to the leaf, inlined ones after their caller.

    A location without a name comes once, with None.
    """
    for location in reversed(full_stack(sample)):
        if location.lines:
            for line in reversed(location.lines):
                yield location, line
        else:
            yield location, None


def name_of(location: Location, line: Line | None) -> str:
    """The text that stands for one function of a stack."""
    return clean(line.function) if line and line.function else placeholder(location)


def executables(resources: Iterable[ResourceProfiles]) -> set[str]:
    """Names of the executables that the samples come from."""
    return {
        _executable(resource, sample)
        for resource in resources
        for profile in resource.profiles
        for sample in profile.samples
    }


def _executable(resource: ResourceProfiles, sample: Sample) -> str:
    attributes = dict(resource.attributes) | dict(sample.attributes)
    return str(attributes.get("process.executable.name", "[unknown process]"))


def with_process_roots(resources: Iterable[ResourceProfiles]) -> list[ResourceProfiles]:
    """The same profiles with each stack rooted in a frame that is called like its executable.

    For files that show many processes at once in a format without labels.
    """
    roots: dict[str, Location] = {}

    def rooted(resource: ResourceProfiles, sample: Sample) -> Sample:
        name = _executable(resource, sample)
        root = roots.setdefault(name, Location(FrameType.NATIVE, 0, None, (Line(name),)))
        return replace(sample, stack=(*full_stack(sample), root), truncated=False)

    return [
        replace(
            resource,
            profiles=[
                replace(profile, samples=[rooted(resource, sample) for sample in profile.samples])
                for profile in resource.profiles
            ],
        )
        for resource in resources
    ]
