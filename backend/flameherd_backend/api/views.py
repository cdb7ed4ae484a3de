"""Views made of stacks: flame graph, functions, sandwich, executables, traces. Each is one request and one answer."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from flameherd_backend.api.parameters import Given
from flameherd_backend.api.reader import (
    MAX_STACKS,
    Frames,
    Function,
    Reader,
    Selected,
    Strings,
    distinct,
)
from flameherd_backend.api.selection import COLUMNS, Selection, condition_of
from flameherd_backend.api.tree import (
    Longs,
    Tree,
    around,
    build,
    per_function,
    prune,
    root_down,
)
from flameherd_backend.errors import Problem
from flameherd_backend.store import sql

Answer = dict[str, Any]

_SHARED_LABELS: Final = COLUMNS


def head(selected: Selected, selection: Selection, base: Selection | None) -> Answer:
    """What every answer about a selection begins with."""
    return {
        "window": selection.window(),
        "base_window": base.window() if base else None,
        "type": selection.type,
        "unit": selected.totals.unit,
        "total": selected.totals.value,
        "base_total": selected.base.value if selected.base else None,
        "samples": selected.totals.samples,
    }


def _nodes(tree: Tree, places: Mapping[int, int], has_base: bool) -> dict[str, list[int]]:
    frame = [0, *(places[identity] for identity in tree.function[1:].tolist())]
    columns = {
        "frame": frame,
        "parent": tree.parent.tolist(),
        "value": tree.value.tolist(),
        "self": tree.self_value.tolist(),
    }
    if has_base:
        columns["base_value"] = tree.base.tolist()
        columns["base_self"] = tree.base_self.tolist()
    return columns


def _named(reader: Reader, *trees: Tree) -> tuple[Strings, Frames, dict[int, int]]:
    """Names of the functions of trees."""
    ids = distinct(*(tree.function[1:] for tree in trees))
    strings = Strings()
    frames = Frames(strings)
    places = frames.add(ids, reader.functions(ids))
    return strings, frames, dict(zip(ids, places, strict=True))


def flamegraph(
    reader: Reader, given: Given, selection: Selection, base: Selection | None
) -> Answer:
    """The merged tree of all stacks, pruned to its largest nodes."""
    selected = reader.stacks(selection, base)
    stacks = selected.stacks
    answer = head(selected, selection, base)
    tree, nodes, missing = prune(
        build(root_down(stacks)), given.number("max_nodes", 4000, 100, 50_000)
    )
    strings, frames, places = _named(reader, tree)
    # Stacks beyond the cap on their number are part of the whole, and of what is left out.
    uncounted = answer["total"] - int(stacks.values.sum())
    columns = _nodes(tree, places, base is not None)
    columns["value"][0] += uncounted
    if base is not None:
        columns["base_value"][0] = answer["base_total"]
    answer |= {
        "strings": strings.table(),
        "frames": frames.table(),
        "nodes": columns,
        "pruned": {"nodes": nodes, "value": missing + uncounted},
    }
    return answer


def functions(reader: Reader, given: Given, selection: Selection, base: Selection | None) -> Answer:
    """The table of functions with self and total."""
    orders = ("self", "total", "name", "diff") if base else ("self", "total", "name")
    sort = given.choice("sort", orders, "self")
    limit = given.number("limit", 1000, 1, 10_000)
    search = given.text("search").casefold()
    selected = reader.stacks(selection, base)
    stacks = selected.stacks
    answer = head(selected, selection, base)
    ids, own, total, own_base, base_total = per_function(stacks)
    known: dict[int, Function] = {}
    chosen = np.arange(len(ids))
    if search or sort == "name":
        known = reader.functions(ids.tolist())
        chosen = np.array(
            [
                n
                for n, identity in enumerate(ids.tolist())
                if _contains(known.get(identity), search)
            ],
            np.int64,
        )
    count = len(chosen)
    if sort == "name":
        names = [(known[int(ids[n])].name if int(ids[n]) in known else "", int(n)) for n in chosen]
        chosen = np.array([n for _, n in sorted(names)], np.int64)
    else:
        change = own / max(1, answer["total"]) - own_base / max(1, answer["base_total"] or 0)
        by = {"self": own, "total": total, "diff": np.abs(change)}[sort][chosen]
        second = np.maximum(total, base_total)[chosen]
        chosen = chosen[np.lexsort((ids[chosen], -second, -by))]
    chosen = chosen[:limit]
    shown = [int(identity) for identity in ids[chosen]]
    strings = Strings()
    frames = Frames(strings)
    rows = {
        "frame": frames.add(shown, known or reader.functions(shown)),
        "self": own[chosen].tolist(),
        "total": total[chosen].tolist(),
    }
    if base is not None:
        rows |= {"base_self": own_base[chosen].tolist(), "base_total": base_total[chosen].tolist()}
    more = count > len(chosen)
    answer |= {
        "strings": strings.table(),
        "frames": frames.table(),
        "rows": rows,
        "count": count,
        "more": more,
    }
    return answer


def _contains(function: Function | None, search: str) -> bool:
    if not search:
        return True
    return function is not None and any(
        search in text.casefold() for text in (function.name, function.file, function.mapping)
    )


def sandwich(reader: Reader, given: Given, selection: Selection, base: Selection | None) -> Answer:
    """Who calls a function, and what it calls."""
    if not given.has("frame"):
        raise Problem(400, "frame: is missing", parameter="frame")
    function = given.frame("frame")
    max_nodes = given.number("max_nodes", 4000, 100, 50_000)
    selected = reader.stacks(selection, base)
    stacks = selected.stacks
    answer = head(selected, selection, base)
    known = reader.functions([function]) if np.any(stacks.functions == np.uint64(function)) else {}
    if not known:
        raise Problem(
            404, f"no stack of the selection has frame {function:016x}", parameter="frame"
        )
    halves = {}
    pruned = {"nodes": 0, "value": 0}
    for name, paths in zip(("callers", "callees"), around(stacks, function), strict=True):
        halves[name], nodes, missing = prune(build(paths), max_nodes)
        pruned["nodes"] += nodes
        pruned["value"] += missing
    own = np.array([function], np.uint64)
    ids = distinct(own, *(tree.function[1:] for tree in halves.values()))
    strings = Strings()
    frames = Frames(strings)
    places = dict(zip(ids, frames.add(ids, reader.functions(ids)), strict=True))
    answer |= {"strings": strings.table(), "frames": frames.table(), "frame": places[function]}
    for name, tree in halves.items():
        columns = _nodes(tree, places, base is not None)
        columns["frame"][0] = places[function]
        answer[name] = columns
    answer["pruned"] = pruned
    return answer


def _group_sums(keys: Longs, values: Longs, count: int) -> Longs:
    out = np.zeros(count, np.int64)
    np.add.at(out, keys, values)
    return out


def executables(
    reader: Reader, given: Given, selection: Selection, base: Selection | None
) -> Answer:
    """Mappings that occur in stacks."""
    del base
    limit = given.number("limit", 1000, 1, 10_000)
    selected = reader.stacks(selection)
    stacks = selected.stacks
    answer = head(selected, selection, None)
    ids, dense = np.unique(stacks.functions, return_inverse=True)
    known = reader.functions(ids.tolist())
    of_function = [known.get(identity) for identity in ids.tolist()]
    paths = sorted(
        {function.mapping for function in of_function if function is not None and function.mapping}
    )
    place = {path: number for number, path in enumerate(paths)}
    mapping = np.array([place.get(f.mapping, -1) if f else -1 for f in of_function], np.int64)
    count = len(paths)
    starts = stacks.starts()
    sizes = stacks.ends - starts
    filled = np.flatnonzero(sizes > 0)
    leaf = mapping[dense[starts[filled]]] if filled.size else np.zeros(0, np.int64)
    own = _group_sums(leaf[leaf >= 0], stacks.values[filled][leaf >= 0], count)
    owner = np.repeat(np.arange(len(stacks)), sizes)
    in_frames = mapping[dense]
    pairs = np.unique((owner * max(1, count) + in_frames)[in_frames >= 0])
    total = _group_sums(pairs % max(1, count), stacks.values[pairs // max(1, count)], count)
    named = mapping[mapping >= 0]
    distinct_functions = np.bincount(named, minlength=count)
    unnamed = np.array([bool(f and f.unnamed) for f in of_function], bool)[mapping >= 0]
    without = np.bincount(named[unnamed], minlength=count)
    kinds: list[dict[str, int]] = [{} for _ in paths]
    for number, function in zip(mapping.tolist(), of_function, strict=True):
        if number >= 0 and function is not None:
            kinds[number][function.kind] = kinds[number].get(function.kind, 0) + 1
    order = np.lexsort((np.arange(count), -total, -own))[:limit].tolist()
    build_ids = _build_ids(reader, selection) if order else {}
    strings = Strings()
    rows = {
        "name": strings.places(paths[n].rpartition("/")[2] or paths[n] for n in order),
        "path": strings.places(paths[n] for n in order),
        "build_id": strings.places(build_ids.get(paths[n], "") for n in order),
        "kind": strings.places(
            max(sorted(kinds[n]), key=lambda kind: kinds[n][kind]) for n in order
        ),
        "self": own[order].tolist(),
        "total": total[order].tolist(),
        "functions": distinct_functions[order].tolist(),
        "unnamed": without[order].tolist(),
    }
    answer |= {"strings": strings.table(), "rows": rows, "count": count, "more": count > len(order)}
    return answer


def _build_ids(reader: Reader, selection: Selection) -> dict[str, str]:
    """Of each path, if it is one build; "several" otherwise."""
    condition = condition_of(selection)
    found = reader.query(sql.load("build_ids", where=str(condition)), condition.parameters)
    out: dict[str, str] = {}
    for path, build_id in zip(found.get("mapping", []), found.get("build_id", []), strict=True):
        if build_id:
            out[path] = build_id if path not in out else "several"
    return out


def traces(reader: Reader, given: Given, selection: Selection, base: Selection | None) -> Answer:
    """Distinct stacks with their values, times and shared labels."""
    del base
    limit = given.number("limit", 100, 1, 1000)
    sort = given.choice("sort", ("value", "recent"), "value")
    search = given.text("search").casefold()
    selected = reader.stacks(selection)
    stacks, ids = selected.stacks, selected.ids
    answer = head(selected, selection, None)
    starts = stacks.starts()
    chosen = np.arange(len(stacks))
    if search:
        unique, dense = np.unique(stacks.functions, return_inverse=True)
        known = reader.functions(unique.tolist())
        hit = np.array(
            [_contains(known.get(identity), search) for identity in unique.tolist()], bool
        )
        owner = np.repeat(np.arange(len(stacks)), stacks.ends - starts)
        chosen = np.unique(owner[hit[dense]]) if len(unique) else chosen[:0]
    if sort == "recent":
        chosen = _by_recency(reader, selection, ids, chosen)
    count = len(chosen)
    shown = chosen[:limit]
    details = _details(reader, selection, [int(ids[n]) for n in shown])
    in_stacks = [stacks.functions[starts[n] : stacks.ends[n]].tolist() for n in shown]
    wanted = sorted({identity for stack in in_stacks for identity in stack})
    strings = Strings()
    frames = Frames(strings)
    known_frames = reader.functions(wanted)
    rows = [details[int(ids[n])] for n in shown]
    answer |= {
        "traces": {
            "id": [f"{int(ids[n]):016x}" for n in shown],
            **{
                name: [row[name] for row in rows]
                for name in ("value", "samples", "first", "last", "labels")
            },
            "stack": [frames.add(stack, known_frames) for stack in in_stacks],
        },
        "strings": strings.table(),
        "frames": frames.table(),
        "count": count,
        "more": count > limit,
    }
    return answer


def _by_recency(reader: Reader, selection: Selection, ids: Any, chosen: Longs) -> Longs:
    condition = condition_of(selection)
    text = sql.load("recent_stacks", where=str(condition))
    found = reader.query(text, {**condition.parameters, "max_stacks": MAX_STACKS})
    order = {int(identity): place for place, identity in enumerate(found.get("stack_id", []))}
    known = [n for n in chosen.tolist() if int(ids[n]) in order]
    return np.array(sorted(known, key=lambda n: order[int(ids[n])]), np.int64)


def _details(reader: Reader, selection: Selection, ids: list[int]) -> dict[int, Answer]:
    condition = condition_of(selection)
    labels = ", ".join(
        f"uniqExact({name}) AS n_{name}, any({name}) AS v_{name}" for name in _SHARED_LABELS
    )
    text = sql.load("traces", where=str(condition), labels=labels)
    found = reader.query(text, {**condition.parameters, "ids": ids}) if ids else {}
    out = {}
    for n, identity in enumerate(found.get("stack_id", [])):
        shared = {
            name: found[f"v_{name}"][n]
            for name in _SHARED_LABELS
            if found[f"n_{name}"][n] == 1 and found[f"v_{name}"][n]
        }
        out[int(identity)] = {
            "value": int(found["value"][n]),
            "samples": int(found["count"][n]),
            "first": int(found["first"][n]),
            "last": int(found["last"][n]),
            "labels": shared,
        }
    return out


View = Callable[[Reader, Given, Selection, Selection | None], Answer]
