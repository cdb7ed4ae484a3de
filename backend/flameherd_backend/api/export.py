"""A selection as a file: pprof, speedscope, collapsed stacks, SVG. Nothing is pruned."""

import gzip
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from flameherd_backend.api.reader import Function, Reader
from flameherd_backend.api.selection import Selection
from flameherd_backend.api.tree import Stacks, build, root_down
from flameherd_backend.decode.native import varint

_UNITS: Final = frozenset(
    {"none", "nanoseconds", "microseconds", "milliseconds", "seconds", "bytes"}
)
_UNKNOWN: Final = Function("[unknown]", "", "", "", 0, True)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Weighted(NamedTuple):
    """What is written."""

    selection: Selection
    unit: str
    stacks: Stacks
    known: Mapping[int, Function]

    def rows(self) -> Iterator[tuple[list[int], int]]:
        """(function ids, leaf first; value) of each stack."""
        functions = self.stacks.functions
        starts, ends = self.stacks.starts().tolist(), self.stacks.ends.tolist()
        for start, end, value in zip(starts, ends, self.stacks.values.tolist(), strict=True):
            yield functions[start:end].tolist(), value

    def function(self, identity: int) -> Function:
        """What it is called."""
        return self.known.get(identity, _UNKNOWN)


def _field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def _int(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value) if value else b""


def pprof(weighted: Weighted) -> bytes:
    """gzip'd `perftools.profiles.Profile` (github.com/google/pprof, proto/profile.proto)."""
    texts: dict[str, int] = {"": 0}
    mappings: dict[str, int] = {}
    places: dict[int, int] = {}
    out: list[bytes] = []

    def text(value: str) -> int:
        return texts.setdefault(value, len(texts))

    def location(identity: int) -> int:
        place = places.get(identity)
        if place is not None:
            return place
        place = places[identity] = len(places) + 1
        function = weighted.function(identity)
        if function.mapping and function.mapping not in mappings:
            mappings[function.mapping] = len(mappings) + 1
            body = (
                _int(1, mappings[function.mapping]) + _int(5, text(function.mapping)) + _int(7, 1)
            )
            out.append(_field(3, body))
        line = _field(4, _int(1, place) + _int(2, function.line))
        out.append(_field(4, _int(1, place) + _int(2, mappings.get(function.mapping, 0)) + line))
        name = text(function.name)
        out.append(
            _field(5, _int(1, place) + _int(2, name) + _int(3, name) + _int(4, text(function.file)))
        )
        return place

    kind = _int(1, text(weighted.selection.type)) + _int(2, text(weighted.unit))
    out += [_field(1, kind), _field(11, kind), _int(12, 1)]
    for functions, value in weighted.rows():
        ids = b"".join(varint(location(identity)) for identity in functions)
        out.append(_field(2, _field(1, ids) + _field(2, varint(value))))
    window_ns = (weighted.selection.to_ms - weighted.selection.from_ms) * 10**6
    out += [_int(9, weighted.selection.from_ms * 10**6), _int(10, window_ns)]
    out += [_field(6, each.encode("utf-8", "replace")) for each in texts]
    return gzip.compress(b"".join(out), 6, mtime=0)


def speedscope(weighted: Weighted) -> bytes:
    """Speedscope's own JSON (speedscope.app/file-format-schema.json), of the type "sampled"."""
    places: dict[int, int] = {}
    samples, weights = [], []
    for functions, value in weighted.rows():
        samples.append(
            [places.setdefault(identity, len(places)) for identity in reversed(functions)]
        )
        weights.append(value)
    frames = []
    for identity in places:
        function = weighted.function(identity)
        frame: dict[str, Any] = {"name": function.name}
        if function.file or function.mapping:
            frame["file"] = function.file or function.mapping
        if function.line:
            frame["line"] = function.line
        frames.append(frame)
    profile = {
        "type": "sampled",
        "name": weighted.selection.type,
        "unit": weighted.unit if weighted.unit in _UNITS else "none",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }
    answer = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "flameherd-backend",
        "name": weighted.selection.type,
        "shared": {"frames": frames},
        "profiles": [profile],
    }
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def collapsed(weighted: Weighted) -> bytes:
    """A line for each stack: names from the root down, joined by `;`, and its value."""
    sums: dict[str, int] = {}
    for functions, value in weighted.rows():
        names = (_plain(weighted.function(identity).name) for identity in reversed(functions))
        line = ";".join(names) or "[no stack]"
        sums[line] = sums.get(line, 0) + value
    return "".join(f"{line} {value}\n" for line, value in sorted(sums.items())).encode(
        "utf-8", "replace"
    )


def _plain(name: str) -> str:
    return _CONTROL.sub("_", name.replace(";", "_"))


_WIDTH, _ROW, _FONT, _SMALLEST = 1200.0, 17, 11, 0.1
_COLOURS: Final = {
    "kernel": "#c9a0dc", "native": "#f2b880", "go": "#8fd0d8", "jvm": "#9fcf9a", "cpython": "#a5b8f0", "v8js": "#e8d37a"
}  # fmt: skip


def svg(weighted: Weighted) -> bytes:
    """A flame graph as a picture, root at the bottom; tooltips only, no script. Under 0.1 px left out."""
    tree = build(root_down(weighted.stacks))
    total = max(1, int(tree.value[0]))
    scale = _WIDTH / total
    left = [0.0] * len(tree)
    used = [0.0] * len(tree)
    depth = [0] * len(tree)
    boxes = []
    values, parents, functions = tree.value.tolist(), tree.parent.tolist(), tree.function.tolist()
    for node in range(len(tree)):
        width = values[node] * scale
        if node:
            parent = parents[node]
            depth[node] = depth[parent] + 1
            left[node] = left[parent] + used[parent]
            used[parent] += width
        if width >= _SMALLEST:
            boxes.append((node, left[node], width, depth[node]))
    height = (max(level for *_, level in boxes) + 1) * _ROW + 2 * _ROW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:.0f} {height}" '
        f'font-family="monospace" font-size="{_FONT}">',
        f"<title>{_xml(weighted.selection.type)}</title>",
    ]
    for node, x, width, level in boxes:
        function = (
            weighted.function(functions[node]) if node else Function("all", "", "", "", 0, False)
        )
        y = height - (level + 2) * _ROW
        share = 100 * values[node] / total
        tip = f"{function.name} ({values[node]} {weighted.unit}, {share:.2f} %) {function.mapping}"
        colour = quoteattr(_COLOURS.get(function.kind, "#d8d8d8"))
        parts.append(
            f'<g><title>{_xml(tip)}</title><rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_ROW - 1}" fill={colour}/>'
        )
        room = int(width / (_FONT * 0.62)) - 1
        if room >= 3:
            shown = function.name if len(function.name) <= room else function.name[: room - 1] + "…"
            parts.append(f'<text x="{x + 2:.2f}" y="{y + 12}">{_xml(shown)}</text>')
        parts.append("</g>")
    return "\n".join([*parts, "</svg>\n"]).encode("utf-8", "replace")


def _xml(text: str) -> str:
    return escape(_NOT_XML.sub("\ufffd", text))


class Format(NamedTuple):
    """One format."""

    write: Callable[[Weighted], bytes]
    extension: str
    media_type: str


FORMATS: Final[Mapping[str, Format]] = {
    "pprof": Format(pprof, "pb.gz", "application/octet-stream"),
    "speedscope": Format(speedscope, "speedscope.json", "application/json"),
    "collapsed": Format(collapsed, "collapsed.txt", "text/plain; charset=utf-8"),
    "svg": Format(svg, "svg", "image/svg+xml"),
}


def export(reader: Reader, selection: Selection, format_name: str) -> tuple[bytes, str, str]:
    """(file, its name, its media type)"""
    chosen = FORMATS[format_name]
    selected = reader.stacks(selection)
    stacks, unit = selected.stacks, selected.totals.unit
    known = reader.functions({int(identity) for identity in stacks.functions})
    body = chosen.write(Weighted(selection, unit, stacks, known))
    begin, end = (
        time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(ms / 1000))
        for ms in (selection.from_ms, selection.to_ms)
    )
    kind = re.sub(r"[^A-Za-z0-9_-]", "-", selection.type)[:64]
    return body, f"flameherd-{kind}-{begin}-{end}.{chosen.extension}", chosen.media_type
