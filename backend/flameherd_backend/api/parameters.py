"""Parameters of requests: what each is, in one table, from which they are checked and described.

An unknown parameter is an error, since it is a typing error more often than not.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from flameherd_backend.errors import Problem

MAX_TEXT: Final = 1024
MAX_MATCHES: Final = 64
MAX_PATH: Final = 512
_NOW: Final = re.compile(r"now(?:-([0-9]{1,9})([smhd]))?")
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_FRAME: Final = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. `schema`: JSON Schema, as OpenAPI has it."""

    text: str
    schema: Mapping[str, Any]
    repeated: bool = False


_TIME: Final = {"type": "string", "pattern": r"^(\d+|now(-\d+[smhd])?)$"}
_MATCH: Final = {
    "type": "array",
    "items": {"type": "string", "maxLength": MAX_TEXT},
    "maxItems": MAX_MATCHES,
}

PARAMETERS: Final[Mapping[str, Parameter]] = {
    "type": Parameter("Id of a profile type, from /profile-types.", {"type": "string", "maxLength": MAX_TEXT}),
    "from": Parameter("Begin of the window: milliseconds since 1970, `now` or `now-15m`.", {**_TIME, "default": "now-15m"}),
    "to": Parameter("End of the window, exclusive.", {**_TIME, "default": "now"}),
    "match": Parameter("`label=value` or `label!=value`; several `=` of one label: any of them, else all.", _MATCH, True),
    "path": Parameter("Frame ids from the root down, joined by `.`: only stacks that begin so.", {"type": "string"}),
    "base_from": Parameter("Begin of the base's window; any base_… makes it a comparison.", _TIME),
    "base_to": Parameter("End of the base's window.", _TIME),
    "base_match": Parameter("Filters of the base; alone and empty: none.", _MATCH, True),
    "points": Parameter("Buckets at most.", {"type": "integer", "minimum": 10, "maximum": 1000, "default": 240}),
    "step": Parameter("Width of a bucket in milliseconds.", {"type": "integer", "minimum": 1, "maximum": 31 * 86_400_000}),
    "by": Parameter("A label: a series for each of its values.", {"type": "string", "maxLength": MAX_TEXT}),
    "limit": Parameter("How many at most.", {"type": "integer", "minimum": 1}),
    "search": Parameter("Text that is contained, case ignored.", {"type": "string", "maxLength": MAX_TEXT}),
    "sort": Parameter("Order.", {"type": "string"}),
    "max_nodes": Parameter("Nodes of a tree at most.", {"type": "integer", "minimum": 100, "maximum": 50_000, "default": 4000}),
    "frame": Parameter("Id of a frame.", {"type": "string", "pattern": "^[0-9a-f]{16}$"}),
    "format": Parameter("File format.", {"type": "string", "enum": ["pprof", "speedscope", "collapsed", "svg"]}),
}  # fmt: skip

SELECTION: Final = ("type", "from", "to", "match", "path", "base_from", "base_to", "base_match")


def wrong(parameter: str, detail: str) -> Problem:
    """A 400."""
    return Problem(400, f"{parameter}: {detail}", parameter=parameter)


class Given:
    """The parameters of one request. Raises `Problem` for what is unknown, repeated or too long."""

    def __init__(
        self, pairs: Sequence[tuple[str, str]], allowed: Sequence[str], now_ms: int
    ) -> None:
        self.now_ms = now_ms
        self._values: dict[str, list[str]] = {}
        for name, value in pairs:
            if name not in allowed:
                known = ", ".join(sorted(allowed)) or "none"
                raise Problem(
                    400,
                    f"unknown parameter {name[:64]!r}; known here: {known}",
                    parameter=name[:64],
                )
            if len(value) > (MAX_PATH * 34 if name == "path" else 2 * MAX_TEXT):
                raise wrong(name, "is too long")
            self._values.setdefault(name, []).append(value)
        for name, values in self._values.items():
            if len(values) > 1 and not PARAMETERS[name].repeated:
                raise wrong(name, "is given more than once")

    def has(self, name: str) -> bool:
        """Whether it is given, even if empty."""
        return name in self._values

    def text(self, name: str, default: str = "") -> str:
        """A text."""
        value = self._values.get(name, [default])[0]
        if name != "path" and len(value) > MAX_TEXT:
            raise wrong(name, f"is longer than {MAX_TEXT} characters")
        return value

    def texts(self, name: str) -> list[str]:
        """All values of a repeated one, without empty ones."""
        values = [value for value in self._values.get(name, []) if value]
        if len(values) > MAX_MATCHES:
            raise wrong(name, f"is given more than {MAX_MATCHES} times")
        return values

    def number(self, name: str, default: int, lowest: int, highest: int) -> int:
        """A whole number within bounds."""
        if name not in self._values:
            return default
        value = self._values[name][0]
        if (
            not value.isascii()
            or not value.isdigit()
            or not lowest <= int(value[:18]) <= highest
            or len(value) > 18
        ):
            raise wrong(name, f"{value[:32]!r} is not a whole number from {lowest} to {highest}")
        return int(value)

    def choice(self, name: str, choices: Sequence[str], default: str = "") -> str:
        """One of several words."""
        value = self._values.get(name, [default])[0]
        if value not in choices:
            raise wrong(name, f"{value[:32]!r} is none of {', '.join(choices)}")
        return value

    def time_ms(self, name: str, default: str) -> int:
        """Milliseconds since 1970."""
        value = self._values.get(name, [default])[0]
        if value.isascii() and value.isdigit() and len(value) < 14:
            return int(value)
        found = _NOW.fullmatch(value)
        if found is None:
            raise wrong(
                name,
                f"{value[:32]!r} is neither milliseconds since 1970 nor now or now-15m (s, m, h, d)",
            )
        return self.now_ms - int(found[1] or 0) * _UNITS_MS[found[2] or "s"]

    def frame(self, name: str) -> int:
        """A frame's id."""
        return frame_id(name, self.text(name))

    def path(self) -> tuple[int, ...]:
        """Frame ids, root first."""
        text = self.text("path")
        parts = text.split(".") if text else []
        if len(parts) > MAX_PATH:
            raise wrong("path", f"has more than {MAX_PATH} frames")
        return tuple(frame_id("path", part) for part in parts)


def frame_id(parameter: str, text: str) -> int:
    """16 hexadecimal digits as a number."""
    if not _FRAME.fullmatch(text):
        raise wrong(parameter, f"{text[:32]!r} is not a frame's id of 16 hexadecimal digits")
    return int(text, 16)
