"""Which samples a request is about, as a condition of SQL: the one place where it is made.

Every query over samples takes its condition from here, and every condition has the viewer's
namespaces in it: what a viewer may not see is not read. Values go as parameters, never into the text:
what is put together here are names of ours and placeholders.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from flameherd_backend.access import Namespaces
from flameherd_backend.api.parameters import MAX_TEXT, Given, wrong
from flameherd_backend.errors import Problem
from flameherd_backend.store import sql
from flameherd_backend.store.database import Value

COLUMNS: Final = (
    "instance", "service", "cluster", "namespace", "workload", "pod", "container", "node", "executable", "thread"
)  # fmt: skip
"""Labels that are columns of `samples`."""
ROLLED_UP: Final = frozenset(COLUMNS) - {"thread"}
"""Those that are columns of `timeline`, too."""
NUMBERS: Final = {"process.pid": "pid", "thread.id": "tid"}
MAX_WINDOW_MS: Final = 31 * 86_400_000
_MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Match:
    """`label=value` or `label!=value`."""

    label: str
    value: str
    equal: bool


@dataclass(frozen=True, slots=True)
class Selection:
    """Samples of one type in a window. Times in milliseconds, `to_ms` exclusive."""

    type: str
    from_ms: int
    to_ms: int
    matches: tuple[Match, ...]
    path: tuple[int, ...]
    visible: Namespaces

    def window(self) -> dict[str, int]:
        """As answers hold it."""
        return {"from": self.from_ms, "to": self.to_ms}

    def without(self, label: str) -> "Selection":
        """The same without filters on one label."""
        return replace(self, matches=tuple(match for match in self.matches if match.label != label))

    def is_rolled_up(self) -> bool:
        """Whether `timeline` can answer for it."""
        return not self.path and all(match.label in ROLLED_UP for match in self.matches)


class Condition:
    """A WHERE clause and its parameters; `prefix` keeps those of several apart."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._parts: list[str] = []
        self.parameters: dict[str, Value] = {}

    def parameter(self, value: Value, kind: str) -> str:
        """A placeholder for a value."""
        name = f"{self._prefix}p{len(self.parameters)}"
        self.parameters[name] = value
        return f"{{{name}:{kind}}}"

    def add(self, part: str) -> None:
        """One more that must hold."""
        self._parts.append(part)

    def __str__(self) -> str:
        return " AND ".join(f"({part})" for part in self._parts) or "1"


def window_of(
    given: Given,
    first: str = "from",
    last: str = "to",
    default: tuple[str, str] = ("now-15m", "now"),
) -> tuple[int, int]:
    """From and to, in milliseconds. Raises `Problem`."""
    from_ms, to_ms = given.time_ms(first, default[0]), given.time_ms(last, default[1])
    if from_ms >= to_ms:
        raise wrong(first, f"is not before {last}")
    if to_ms - from_ms > MAX_WINDOW_MS:
        raise wrong(first, "the window is longer than 31 days")
    return from_ms, to_ms


def matches_of(given: Given, name: str, visible: Namespaces) -> tuple[Match, ...]:
    """Filters. Raises `Problem`: 403 if one names a namespace that may not be seen."""
    out = []
    for text in given.texts(name):
        label, sign, value = text.partition("=")
        equal = not label.endswith("!")
        label = label.removesuffix("!")
        if not sign or not label or len(value) > MAX_TEXT:
            raise wrong(
                name,
                f"{text[:64]!r} is not label=value or label!=value (at most {MAX_TEXT} characters)",
            )
        if label == "namespace" and equal and visible is not None and value not in visible:
            raise Problem(403, f"namespace {value!r} is not one that you may see", parameter=name)
        out.append(Match(label, value, equal))
    return tuple(out)


def selection_of(given: Given, visible: Namespaces) -> tuple[Selection, Selection | None]:
    """The selection, and the base of a comparison if there is one. Raises `Problem`."""
    kind = given.text("type")
    if not kind:
        raise wrong("type", "is missing: an id from /profile-types")
    from_ms, to_ms = window_of(given)
    chosen = Selection(
        kind, from_ms, to_ms, matches_of(given, "match", visible), given.path(), visible
    )
    if not any(given.has(name) for name in ("base_from", "base_to", "base_match")):
        return chosen, None
    base_from, base_to = window_of(given, "base_from", "base_to", (str(from_ms), str(to_ms)))
    base = replace(chosen, from_ms=base_from, to_ms=base_to)
    if given.has("base_match"):
        base = replace(base, matches=matches_of(given, "base_match", visible))
    return chosen, base


def _attribute_filter(condition: Condition, label: str, values: Sequence[str]) -> str:
    key = condition.parameter(label, "String")
    wanted = condition.parameter(list(values), "Array(String)")
    return sql.load("attribute_filter", key=key, wanted=wanted)


def _label_filter(condition: Condition, label: str, values: Sequence[str]) -> str:
    if label in COLUMNS:
        return f"{label} IN {condition.parameter(list(values), 'Array(String)')}"
    if label in NUMBERS:
        wanted = [
            int(value or 0)
            for value in values
            if (value or "0").isascii() and (value or "0").isdigit() and len(value) < 11
        ]
        return f"{NUMBERS[label]} IN {condition.parameter(wanted, 'Array(UInt64)')}"
    return _attribute_filter(condition, label, values)


def seen_by(condition: Condition, visible: Namespaces) -> None:
    """Only the viewer's namespaces."""
    if visible is not None:
        condition.add(f"namespace IN {condition.parameter(sorted(visible), 'Array(String)')}")


def condition_of(selection: Selection, *, minutes: bool = False, prefix: str = "") -> Condition:
    """The samples of a selection; with `minutes`, the rows of `timeline` of the minutes that it touches."""
    condition = Condition(prefix)
    seen_by(condition, selection.visible)
    if selection.type:
        condition.add(f"type = {condition.parameter(selection.type, 'String')}")
    if minutes:
        begin = condition.parameter(selection.from_ms // _MINUTE_MS * 60, "UInt32")
        end = condition.parameter(-(-selection.to_ms // _MINUTE_MS) * 60, "UInt32")
        condition.add(f"minute >= toDateTime({begin}, 'UTC') AND minute < toDateTime({end}, 'UTC')")
    else:
        for sign, ms in ((">=", selection.from_ms), ("<", selection.to_ms)):
            time = condition.parameter(ms, "Int64")
            condition.add(f"ts {sign} fromUnixTimestamp64Milli({time}, 'UTC')")
    wanted: dict[str, list[str]] = {}
    for match in selection.matches:
        if match.equal:
            wanted.setdefault(match.label, []).append(match.value)
        else:
            condition.add(f"NOT ({_label_filter(condition, match.label, [match.value])})")
    for label, values in wanted.items():
        condition.add(_label_filter(condition, label, values))
    if selection.path:
        leaf_first = condition.parameter(list(reversed(selection.path)), "Array(UInt64)")
        count = condition.parameter(len(selection.path), "UInt64")
        condition.add(sql.load("path_filter", count=count, leaf_first=leaf_first))
    return condition


@dataclass(frozen=True, slots=True)
class Labelled:
    """A label as an expression over a source."""

    expression: str
    source: str


def label_of(label: str, condition: Condition, table: str = "samples") -> Labelled:
    """How to read a label's value of each row of `table`; "" = it has none."""
    if label in COLUMNS:
        return Labelled(f"{table}.{label}", table)
    if label in NUMBERS:
        column = NUMBERS[label]
        return Labelled(f"if({column} = 0, '', toString({column}))", table)
    key = condition.parameter(label, "String")
    own = f"if(mapContains(samples.attributes, {key}), samples.attributes[{key}], r.of_resource)"
    return Labelled(own, sql.load("resource_label", key=key))
