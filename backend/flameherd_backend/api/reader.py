"""What views need from the store, for one request: samples of a selection as stacks, and names of functions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from flameherd_backend.api.selection import Condition, Selection, condition_of, seen_by
from flameherd_backend.api.tree import Ids, Longs, Stacks
from flameherd_backend.decode.dictionary import UNKNOWN_LINE
from flameherd_backend.decode.wire import flat_positions
from flameherd_backend.errors import Problem
from flameherd_backend.store import sql
from flameherd_backend.store.database import Database, QueryLimits, Value
from flameherd_backend.store.results import Lists, Table

MAX_STACKS: Final = 300_000
"""Distinct stacks that a tree is made of; the smallest beyond it are counted as pruned."""
_MAX_IDS: Final = 100_000
WELL_KNOWN_UNITS: Final = {
    "cpu": "nanoseconds",
    "off_cpu": "nanoseconds",
    "lock_wait": "nanoseconds",
}


class Totals(NamedTuple):
    """Sums of a selection."""

    value: int
    samples: int
    unit: str


class Function(NamedTuple):
    """What a function is called."""

    name: str
    file: str
    mapping: str
    kind: str
    line: int
    unnamed: bool


class Selected(NamedTuple):
    """Stacks of a selection and a base, with the ids of the selection's, and the sums."""

    stacks: Stacks
    ids: Ids
    totals: Totals
    base: Totals | None


_UNKNOWN: Final = Function("[unknown]", "", "", "", 0, True)


class Reader:
    """Runs queries within the limits of a request."""

    def __init__(self, database: Database, limits: QueryLimits) -> None:
        self._database = database
        self._limits = limits
        self._of_some: list[Ids] = []
        """Stacks of viewers who may not see all: these alone may tell about functions."""

    def query(self, text: str, parameters: Mapping[str, Value]) -> Table:
        """Raises `StoreError` and its kinds."""
        return self._database.query(text, parameters, self._limits)

    def totals(self, selection: Selection) -> Totals:
        """Sums. Raises `Problem` 404 for a type that nobody has sent."""
        condition = condition_of(selection)
        found = self.query(sql.load("totals", where=str(condition)), condition.parameters)
        unit = found["unit"][0] or self.unit(selection)
        return Totals(int(found["value"][0]), int(found["count"][0]), unit)

    def unit(self, selection: Selection) -> str:
        """Of a type, whether the selection has samples of it or not. Raises `Problem` 404."""
        if selection.type in WELL_KNOWN_UNITS:
            return WELL_KNOWN_UNITS[selection.type]
        condition = Condition()
        seen_by(condition, selection.visible)
        condition.add(f"type = {condition.parameter(selection.type, 'String')}")
        found = self.query(sql.load("unit", where=str(condition)), condition.parameters)
        unit: str = found["unit"][0]
        if not unit:
            raise Problem(
                404,
                f"there is no profile type {selection.type[:64]!r}: /profile-types has those that there are",
                parameter="type",
            )
        return unit

    def stacks(self, selection: Selection, base: Selection | None = None) -> Selected:
        """Distinct stacks of a selection and of a base, side by side, and the sums of both."""
        ids, values, functions, ends, totals = self._stacks_of(selection)
        nothing = np.zeros(len(values), np.int64)
        if base is None:
            return Selected(Stacks(functions, ends, values, nothing), ids, totals, None)
        _, base_values, base_functions, base_ends, base_totals = self._stacks_of(base)
        offset = int(ends[-1]) if len(ends) else 0
        both = Stacks(
            np.concatenate((functions, base_functions)),
            np.concatenate((ends, base_ends + offset)),
            np.concatenate((values, np.zeros(len(base_values), np.int64))),
            np.concatenate((nothing, base_values)),
        )
        return Selected(both, ids, totals, base_totals)

    def _stacks_of(self, selection: Selection) -> tuple[Ids, Longs, Ids, Longs, Totals]:
        condition = condition_of(selection)
        found = self.query(
            sql.load("stacks", where=str(condition)),
            {**condition.parameters, "max_stacks": MAX_STACKS},
        )
        ids: Ids = found.get("stack_id", np.zeros(0, np.uint64))
        if selection.visible is not None:
            self._of_some.append(ids)
        values = found.get("value", np.zeros(0, np.int64)).astype(np.int64)
        if 0 < len(ids) < MAX_STACKS:
            totals = Totals(int(values.sum()), int(found["count"].sum()), found["unit"][0])
        else:
            totals = self.totals(selection)
        functions, ends = self._functions_of(ids)
        return ids, values, functions, ends, totals

    def _functions_of(self, ids: Ids) -> tuple[Ids, Longs]:
        """The functions of stacks, side by side, and where each stack's end; none where it is not defined."""
        starts, sizes = np.zeros(len(ids), np.int64), np.zeros(len(ids), np.int64)
        pieces: list[Ids] = []
        offset = 0
        text = sql.load("stack_functions")
        order = np.argsort(ids)
        for begin in range(0, len(ids), _MAX_IDS):
            found = self.query(text, {"ids": ids[begin : begin + _MAX_IDS].tolist()})
            if not len(found.get("stack_id", ())):
                continue
            lists: Lists = found["functions"]
            place = order[np.searchsorted(ids, found["stack_id"], sorter=order)]
            starts[place] = lists.starts() + offset
            sizes[place] = np.diff(lists.ends, prepend=0)
            pieces.append(lists.values)
            offset += len(lists.values)
        flat = np.concatenate([np.zeros(0, np.uint64), *pieces])
        return flat[flat_positions(starts, sizes)], np.cumsum(sizes)

    def functions(self, ids: Iterable[int]) -> dict[int, Function]:
        """What these functions are called; those without a definition are left out.

        Name, file, mapping and kind are what an id stands for. The line is what senders tell: for a viewer who may not
        see all, those of the stacks that were read.
        """
        wanted = list(ids)
        out: dict[int, Function] = {}
        text = sql.load("functions")
        for begin in range(0, len(wanted), _MAX_IDS):
            some = wanted[begin : begin + _MAX_IDS]
            found = self.query(text, {"ids": some})
            columns = [
                found.get(name, [])
                for name in ("function_id", "name", "file", "mapping", "kind", "line", "unnamed")
            ]
            told = self._told(some) if self._of_some else None
            for identity, name, file, mapping, kind, line, unnamed in zip(*columns, strict=True):
                shown = 0 if line == UNKNOWN_LINE else int(line)
                bare = bool(unnamed)
                if told is not None:
                    shown, bare = told.get(int(identity), (0, bare))
                out[int(identity)] = Function(name, file, mapping, kind, shown, bare)
        return out

    def _told(self, functions: list[int]) -> dict[int, tuple[int, bool]]:
        """Function → its first line and whether it has no name, as the frames of the stacks that were read say."""
        stacks = np.unique(np.concatenate(self._of_some))
        out: dict[int, tuple[int, bool]] = {}
        text = sql.load("visible_lines")
        for begin in range(0, len(stacks), _MAX_IDS):
            some = stacks[begin : begin + _MAX_IDS].tolist()
            found = self.query(text, {"ids": functions, "stacks": some})
            columns = (found.get(name, []) for name in ("function", "line", "unnamed"))
            for function, line, unnamed in zip(*columns, strict=True):
                before, bare = out.get(int(function), (0, False))
                lines = [number for number in (before, int(line)) if number]
                out[int(function)] = (min(lines, default=0), bare or bool(unnamed))
        return out


class Strings:
    """The `strings` of an answer: each text once, "" first."""

    def __init__(self) -> None:
        self._places = {"": 0}

    def place(self, text: str) -> int:
        """Where it is."""
        return self._places.setdefault(text, len(self._places))

    def places(self, texts: Iterable[str]) -> list[int]:
        """Of several."""
        return [self.place(text) for text in texts]

    def table(self) -> list[str]:
        """All, in order."""
        return list(self._places)


class Frames:
    """The `frames` of an answer: functions, of which number 0 is none."""

    def __init__(self, strings: Strings) -> None:
        self._strings = strings
        self._places: dict[int, int] = {}
        self._columns: dict[str, list[Any]] = {
            "id": [""], "name": [0], "file": [0], "line": [0], "mapping": [0], "kind": [0]
        }  # fmt: skip

    def add(self, ids: Sequence[int], known: Mapping[int, Function]) -> list[int]:
        """Places of functions in the table."""
        columns, place = self._columns, self._strings.place
        for identity in ids:
            if identity in self._places:
                continue
            function = known.get(identity, _UNKNOWN)
            self._places[identity] = len(columns["id"])
            columns["id"].append(f"{identity:016x}")
            columns["name"].append(place(function.name))
            columns["file"].append(place(function.file))
            columns["line"].append(function.line)
            columns["mapping"].append(place(function.mapping))
            columns["kind"].append(place(function.kind))
        return [self._places[identity] for identity in ids]

    def table(self) -> dict[str, list[Any]]:
        """The columns."""
        return self._columns


def distinct(*ids: Ids) -> list[int]:
    """Each once, as numbers."""
    return [int(identity) for identity in np.unique(np.concatenate(ids))]
