"""Moved to `flameherd_agent.model`, below every layer that names things. Import it from there."""

from flameherd_agent.model import (
    Attributes,
    FrameType,
    Line,
    Location,
    Mapping,
    Profile,
    ResourceProfiles,
    Sample,
)

__all__ = [
    "Attributes",
    "FrameType",
    "Line",
    "Location",
    "Mapping",
    "Profile",
    "ResourceProfiles",
    "Sample",
]
