"""A flame graph as one SVG file that needs nothing else: open it in a browser.

Roots are on top (an icicle), widths are nanoseconds, so that samples of different periods add up.
Hovering shows a frame's share, a click zooms, Ctrl-F or "Search" marks frames and adds them up.
Names come from hostile files: they appear in attributes and text nodes only, escaped, without the
characters that XML forbids; the script beside this module never makes markup out of them.
"""

import re
import zlib
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from typing import Final

from flameherd_agent.model import FrameType, ResourceProfiles
from flameherd_agent.pipeline.formats.weights import weight_ns
from flameherd_agent.pipeline.frames import name_of, root_first

WIDTH: Final = 1200
"""Pixels. The picture scales with the window."""
MIN_PIXELS: Final = 0.1
"""Narrower frames are left out."""
_ROW: Final = 17
_CHAR: Final = 7.3
"""Pixels of a character of the labels' font."""
_TOP: Final = 48
_BOTTOM: Final = 28
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_HUES: Final = {
    FrameType.KERNEL: 24,
    FrameType.NATIVE: 48,
    FrameType.GO: 190,
    FrameType.CPYTHON: 228,
    FrameType.JVM: 10,
}
"""Degrees: orange, yellow, cyan; told apart with red-green blindness as well."""
_OTHER_HUE: Final = 270

_STYLE: Final = """
text{font:12px monospace;fill:#111;pointer-events:none}
#title{font:bold 15px sans-serif}
.b{cursor:pointer;pointer-events:all;fill:#0b5cad}
.f{cursor:pointer}
.f rect{stroke:#fff;stroke-width:.5}
.f:hover rect,.f:focus rect{stroke:#111;stroke-width:1}
.faded{opacity:.55}
.hit rect{fill:#c2338b!important}
.hit text{fill:#fff}
"""


class _Node:
    """One frame of the tree: its weight holds that of its children."""

    __slots__ = ("children", "kind", "name", "weight")

    def __init__(self, name: str, kind: FrameType | None) -> None:
        self.name = name
        self.kind = kind
        self.weight = 0
        self.children: dict[tuple[str, FrameType], _Node] = {}


def _tree(profiles: Sequence[ResourceProfiles]) -> _Node:
    root = _Node("all", None)
    for resource in profiles:
        for profile in resource.profiles:
            for sample in profile.samples:
                weight = weight_ns(profile, sample)
                node = root
                node.weight += weight
                for location, line in root_first(sample):
                    key = (name_of(location, line), location.kind)
                    child = node.children.get(key)
                    if child is None:
                        child = node.children[key] = _Node(*key)
                    child.weight += weight
                    node = child
    return root


def _layout(root: _Node) -> Iterator[tuple[_Node, int, int]]:
    """(node, start in nanoseconds, depth) of all that is wide enough, parents before children."""
    least = root.weight * MIN_PIXELS / WIDTH
    stack = [(root, 0, 0)]
    while stack:
        node, start, depth = stack.pop()
        yield node, start, depth
        for child in sorted(node.children.values(), key=lambda child: child.name):
            if child.weight >= least and child.weight > 0:
                stack.append((child, start, depth + 1))
            start += child.weight


def _text(name: str) -> str:
    return escape(_NOT_XML.sub("\ufffd", name).replace("\n", " ").replace("\r", " "))


def _colour(node: _Node) -> str:
    if node.kind is None:
        return "#ddd"
    # A name keeps its shade from one picture to the next.
    shade = zlib.crc32(node.name.encode("utf-8", "replace"))
    return f"hsl({_HUES.get(node.kind, _OTHER_HUE)},{70 + shade % 20}%,{62 + shade // 32 % 16}%)"


def _seconds(weight_ns: int) -> str:
    return f"{weight_ns / 1e9:.2f} s" if weight_ns >= 10**9 else f"{weight_ns / 1e6:.1f} ms"


def _frame(node: _Node, start: int, depth: int, total: int) -> str:
    name = _text(node.name)
    kind = f" ({node.kind.value})" if node.kind else ""
    share = f"{_seconds(node.weight)}, {100 * node.weight / total:.2f} %"
    x, width = start * WIDTH / total, node.weight * WIDTH / total
    y = _TOP + depth * _ROW
    room = int((width - 4) / _CHAR)
    label = node.name if len(node.name) <= room else node.name[: room - 1] + "…"
    return (
        f'<g class="f" tabindex="0" data-n="{name}" data-x="{start}" data-w="{node.weight}" '
        f'data-d="{depth}"><title>{name}{kind}: {share}</title>'
        f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_ROW - 1}" rx="1" '
        f'fill="{_colour(node)}"/><text x="{x + 2:.2f}" y="{y + 12}">'
        f"{_text(label) if room >= 3 else ''}</text></g>\n"
    )


def chunks(profiles: Sequence[ResourceProfiles]) -> Iterator[bytes]:
    """The picture, one frame after the other."""
    root = _tree(profiles)
    placed = list(_layout(root))
    height = _TOP + (1 + max(depth for _, _, depth in placed)) * _ROW + _BOTTOM
    policies = sorted({resource.policy for resource in profiles if resource.policy})
    title = _text("Flame graph" + (f" · {', '.join(policies)}" if policies else ""))
    script = (files(__package__) / "flame_graph.js").read_text(encoding="utf-8")
    # Zooming divides by widths, so an empty recording still has a total.
    total = root.weight = max(root.weight, 1)
    yield (
        f'<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="100%" '
        f'data-width="{WIDTH}"><style>{_STYLE}</style>\n'
        f'<rect width="{WIDTH}" height="{height}" fill="#fafafa"/>\n'
        f'<text id="title" x="{WIDTH / 2:g}" y="20" text-anchor="middle">{title}</text>\n'
        f'<text id="reset" class="b" x="4" y="38" style="display:none">Reset zoom</text>\n'
        f'<text id="matched" x="{WIDTH - 80}" y="38" text-anchor="end"></text>\n'
        f'<text id="find" class="b" x="{WIDTH - 4}" y="38" text-anchor="end">Search</text>\n'
        f'<text id="details" x="4" y="{height - 9}"></text>\n'
    ).encode()
    for node, start, depth in placed:
        yield _frame(node, start, depth, total).encode()
    yield f"<script><![CDATA[\n{script}]]></script>\n</svg>\n".encode()
