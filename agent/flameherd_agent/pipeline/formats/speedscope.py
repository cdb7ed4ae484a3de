"""Speedscope's JSON (https://www.speedscope.app/file-format-schema.json): one sampled profile.

Weights are nanoseconds, so that samples of different periods add up. The order of samples is not
their order in time, which the kernel side does not keep: speedscope's "left heavy" view is the one
that means something.
"""

import json
from collections.abc import Iterator, Sequence

from flameherd_agent import __version__
from flameherd_agent.model import ResourceProfiles
from flameherd_agent.pipeline.formats.weights import weight_ns
from flameherd_agent.pipeline.frames import clean, name_of, root_first


def chunks(profiles: Sequence[ResourceProfiles]) -> Iterator[bytes]:
    """The file: frames are shared, stacks are lists of frame indices, root first."""
    frames: dict[tuple[str, str, int], int] = {}
    weights: dict[tuple[int, ...], int] = {}
    for resource in profiles:
        for profile in resource.profiles:
            for sample in profile.samples:
                stack = tuple(
                    frames.setdefault(
                        (
                            name_of(location, line),
                            clean(line.file) if line else "",
                            line.line if line else 0,
                        ),
                        len(frames),
                    )
                    for location, line in root_first(sample)
                )
                weights[stack] = weights.get(stack, 0) + weight_ns(profile, sample)
    document = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": f"flameherd {__version__}",
        "name": "flameherd",
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(*frame) for frame in frames]},
        "profiles": [
            {
                "type": "sampled",
                "name": "CPU",
                "unit": "nanoseconds",
                "startValue": 0,
                "endValue": sum(weights.values()),
                "samples": list(weights),
                "weights": list(weights.values()),
            }
        ],
    }
    yield json.dumps(document, separators=(",", ":")).encode()


def _frame(name: str, file: str, line: int) -> dict[str, str | int]:
    frame: dict[str, str | int] = {"name": name}
    if file:
        frame["file"] = file
    if line:
        frame["line"] = line
    return frame
