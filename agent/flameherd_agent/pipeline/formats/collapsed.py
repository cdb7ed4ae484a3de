"""Collapsed stacks: a line for each distinct stack, root first, `;` between frames, count last.

It is the input of most flame graph tools. A count is a number of samples: stacks that were taken
with different periods do not weigh the same here (they do in the other formats). Kernel functions
end in `_[k]`.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from flameherd_agent.model import FrameType, ResourceProfiles
from flameherd_agent.pipeline.frames import name_of, root_first

_SEPARATORS: Final = re.compile(r"[;\x00-\x1f\x7f\x85\u2028\u2029]")
"""What would end a frame or a line for some reader."""


def _stack_line(sample_names: Iterator[tuple[str, bool]]) -> str:
    return ";".join(
        _SEPARATORS.sub("_", name) + ("_[k]" if kernel else "") for name, kernel in sample_names
    )


def chunks(profiles: Sequence[ResourceProfiles]) -> Iterator[bytes]:
    """The file's lines, sorted by stack."""
    counts: Counter[str] = Counter()
    for resource in profiles:
        for profile in resource.profiles:
            for sample in profile.samples:
                names = (
                    (name_of(location, line), location.kind is FrameType.KERNEL)
                    for location, line in root_first(sample)
                )
                counts[_stack_line(names)] += sample.value
    for stack, count in sorted(counts.items()):
        yield f"{stack} {count}\n".encode()
