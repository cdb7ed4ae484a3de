"""Which functions are hot: self and total CPU time by process or container and function.

Pure: profiles in, rows out. `total` counts a sample once for a function however often it recurs in the stack.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from flameherd_agent.model import Location, ResourceProfiles, Sample
from flameherd_agent.pipeline.frames import name_of

_CONTAINER_DIGITS: Final = 12


class Sort(StrEnum):
    """What rows are ordered by, greatest first."""

    SELF = "self"
    TOTAL = "total"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class HotRow:
    """CPU time of one function in one process or container, in nanoseconds."""

    owner: str
    function: str
    self_ns: int
    total_ns: int


def hot_functions(resources: Iterable[ResourceProfiles]) -> tuple[list[HotRow], int]:
    """Rows in no order, and the CPU time of all samples in nanoseconds."""
    self_ns: Counter[tuple[str, str]] = Counter()
    total_ns: Counter[tuple[str, str]] = Counter()
    names: dict[int, tuple[str, ...]] = {}
    everything = 0
    for resource in resources:
        container = str(dict(resource.attributes).get("container.id", ""))[:_CONTAINER_DIGITS]
        for profile in resource.profiles:
            for sample in profile.samples:
                cost = sample.value * profile.period_ns
                everything += cost
                owner = _owner(sample, container)
                functions: set[str] = set()
                for depth, location in enumerate(sample.stack):
                    lines = _names(location, names)
                    if depth == 0:
                        self_ns[owner, lines[0]] += cost
                    functions.update(lines)
                for function in functions:
                    total_ns[owner, function] += cost
    rows = [
        HotRow(owner, function, self_ns[owner, function], total)
        for (owner, function), total in total_ns.items()
    ]
    return rows, everything


def _owner(sample: Sample, container: str) -> str:
    attributes = dict(sample.attributes)
    process = (
        f"{attributes.get('process.executable.name', '?')} {attributes.get('process.pid', '')}"
    )
    return f"{container}/{process}" if container else process


def _names(location: Location, known: dict[int, tuple[str, ...]]) -> tuple[str, ...]:
    """Functions at a location, innermost first; locations are interned, so each is named once."""
    found = known.get(id(location))
    if found is None:
        found = tuple(name_of(location, line) for line in location.lines or (None,))
        known[id(location)] = found
    return found


def select(rows: Iterable[HotRow], sort: Sort, pattern: str) -> list[HotRow]:
    """Rows whose owner or function contains `pattern` (case ignored), in order."""
    wanted = pattern.casefold()
    kept = [
        row for row in rows if wanted in row.owner.casefold() or wanted in row.function.casefold()
    ]
    if sort is Sort.NAME:
        return sorted(kept, key=lambda row: (row.owner, row.function))
    if sort is Sort.SELF:
        return sorted(kept, key=lambda row: (-row.self_ns, -row.total_ns, row.owner, row.function))
    return sorted(kept, key=lambda row: (-row.total_ns, -row.self_ns, row.owner, row.function))


def table(rows: list[HotRow], everything_ns: int, width: int, height: int) -> list[str]:
    """At most `height` lines of `width` columns, header first. Percentages are of all samples."""
    owner_width = max(12, min(32, max((len(row.owner) for row in rows), default=0), width // 3))
    lines = [f"{'SELF':>7} {'TOTAL':>7}  {'PROCESS':<{owner_width}}  FUNCTION"[:width]]
    for row in rows[: max(0, height - 1)]:
        lines.append(
            (
                f"{_percent(row.self_ns, everything_ns)} {_percent(row.total_ns, everything_ns)}  "
                f"{_printable(row.owner)[:owner_width]:<{owner_width}}  {_printable(row.function)}"
            )[:width]
        )
    return lines


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:6.1f}%" if whole else "      -"


def _printable(text: str) -> str:
    """Names are hostile: a terminal must not see their control characters."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)
