"""What flows from the drain to the writers: profiles of named, labelled stacks.

The shape follows OTLP profiles (opentelemetry-proto 1.10) so that encoding loses nothing, and it is
plain enough that pprof, speedscope, collapsed and SVG are written from the same objects.
`Location`, `Mapping` and `Stack` objects are interned by their producer: writers may key their
dictionaries by `id()` of a location while they hold the profile.
"""

from dataclasses import dataclass, field

from flameherd_agent.types import FrameType as FrameType
from flameherd_agent.types import Line as Line


@dataclass(frozen=True, slots=True)
class Mapping:
    """An executable file that locations lie in. Empty strings mean "not known"."""

    path: str
    gnu_build_id: str = ""
    go_build_id: str = ""
    htlhash: str = ""
    """OpenTelemetry's `process.executable.build_id.htlhash`: 32 hex digits."""


@dataclass(frozen=True, slots=True)
class Location:
    """One frame. `lines`: innermost inlined function first, physical function last; () = unnamed."""

    kind: FrameType
    address: int
    """Address in the file (`p_vaddr` space) for mapped code, else the raw virtual address.

    For callers: return address - 1.
    """
    mapping: Mapping | None = None
    lines: tuple[Line, ...] = ()
    function_start: int | None = None
    """Where the function of an unnamed location begins, if known: in the terms of `address`."""


Attributes = tuple[tuple[str, str | int], ...]
"""Sorted (key, value) pairs with OpenTelemetry semantic-convention keys."""


@dataclass(frozen=True, slots=True)
class Sample:
    """`value` observations of one stack (leaf first) with the same attributes."""

    stack: tuple[Location, ...]
    attributes: Attributes
    """Per sample: `process.pid`, `thread.id`, `thread.name`, `process.executable.name`, …"""
    value: int
    truncated: bool = False
    """The root was not reached; writers mark it."""


@dataclass(slots=True)
class Profile:
    """All samples of one resource under one (policy slot, rate epoch) in one interval."""

    samples: list[Sample]
    period_ns: int
    """Nanoseconds of CPU time that one observation stands for; 1e9 / rate."""
    time_unix_ns: int
    duration_ns: int
    sample_type: str = "samples"
    sample_unit: str = "count"
    period_type: str = "cpu"
    period_unit: str = "nanoseconds"
    comments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ResourceProfiles:
    """The profiles of one resource: a container, or an executable outside containers."""

    attributes: Attributes
    """Resource attributes: `container.id`, `service.name`, `process.executable.name`, …"""
    profiles: list[Profile]
    policy: str = ""
    """Name of the policy that asked for them (`namespace/name`, or `name` for a cluster policy)."""
