"""Merging stacks into a tree, in numpy: all stacks go one level deeper at a time.

On each level the stacks' (node, function) pairs are sorted; equal ones become one child. That costs a
sort per level instead of a dict per frame. Sums are of whole numbers: nanoseconds stay exact.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Longs = NDArray[np.int64]
Ids = NDArray[np.uint64]

MAX_DEPTH: Final = 4096
"""Frames of one path; what is deeper is counted to the frame there."""


@dataclass(frozen=True, slots=True)
class Stacks:
    """Distinct stacks: functions leaf first, side by side; values of the selection and of the base."""

    functions: Ids
    """Ids of all stacks' functions, one stack after the other."""
    ends: Longs
    values: Longs
    base: Longs
    """Zeros without a comparison."""

    def __len__(self) -> int:
        return len(self.ends)

    def starts(self) -> Longs:
        """Where each stack begins."""
        return (
            np.concatenate((np.zeros(1, np.int64), self.ends[:-1])) if len(self.ends) else self.ends
        )


@dataclass(frozen=True, slots=True)
class Paths:
    """One path for each stack: `first[i]`, `first[i] + step`, … in `functions`, `length[i]` of them."""

    functions: Ids
    first: Longs
    length: Longs
    step: int
    values: Longs
    base: Longs


@dataclass(frozen=True, slots=True)
class Tree:
    """Nodes, parents before children; node 0 is the root, of function `function[0]`, which means nothing."""

    function: Ids
    parent: Longs
    value: Longs
    self_value: Longs
    base: Longs
    base_self: Longs

    def __len__(self) -> int:
        return len(self.parent)


def root_down(stacks: Stacks) -> Paths:
    """From the root of each stack to its leaf."""
    starts = stacks.starts()
    return Paths(
        stacks.functions, stacks.ends - 1, stacks.ends - starts, -1, stacks.values, stacks.base
    )


def around(stacks: Stacks, function: int) -> tuple[Paths, Paths]:
    """Stacks with `function` in them, from its outermost occurrence: to its callers, and to its callees."""
    at = np.flatnonzero(stacks.functions == np.uint64(function))
    owner = np.searchsorted(stacks.ends, at, side="right")
    # The last occurrence in a leaf-first stack is the outermost.
    last = np.flatnonzero(np.diff(owner, append=-1) != 0)
    owner, at = owner[last], at[last]
    values, base = stacks.values[owner], stacks.base[owner]
    callers = Paths(stacks.functions, at + 1, stacks.ends[owner] - at - 1, 1, values, base)
    callees = Paths(stacks.functions, at - 1, at - stacks.starts()[owner], -1, values, base)
    return callers, callees


def build(paths: Paths) -> Tree:
    """The tree of all paths."""
    ids, dense = np.unique(paths.functions, return_inverse=True)
    dense = dense.astype(np.int64)
    kinds = max(1, len(ids))
    length = np.minimum(paths.length, MAX_DEPTH)
    total, base_total = int(paths.values.sum()), int(paths.base.sum())
    functions: list[Longs] = [np.array([-1])]
    parents: list[Longs] = [np.array([-1])]
    values: list[Longs] = [np.array([total])]
    bases: list[Longs] = [np.array([base_total])]
    node = np.zeros(len(length), np.int64)
    count = 1
    active = np.flatnonzero(length > 0)
    depth = 0
    while active.size:
        key = node[active] * kinds + dense[paths.first[active] + depth * paths.step]
        order = np.argsort(key, kind="stable")
        ordered = key[order]
        begins = np.flatnonzero(np.diff(ordered, prepend=-1) != 0)
        distinct = ordered[begins]
        functions.append(distinct % kinds)
        parents.append(distinct // kinds)
        values.append(np.add.reduceat(paths.values[active][order], begins))
        bases.append(np.add.reduceat(paths.base[active][order], begins))
        which = np.zeros(len(order), np.int64)
        which[order] = np.cumsum(np.diff(ordered, prepend=ordered[0]) != 0)
        node[active] = count + which
        count += len(distinct)
        depth += 1
        active = active[length[active] > depth]
    self_value, base_self = np.zeros(count, np.int64), np.zeros(count, np.int64)
    np.add.at(self_value, node, paths.values)
    np.add.at(base_self, node, paths.base)
    dense_function = np.concatenate(functions)
    function = np.zeros(count, np.uint64)
    function[1:] = ids[dense_function[1:]]
    return Tree(
        function,
        np.concatenate(parents),
        np.concatenate(values),
        self_value,
        np.concatenate(bases),
        base_self,
    )


def prune(tree: Tree, max_nodes: int) -> tuple[Tree, int, int]:
    """The largest nodes, by the larger of both shares; with how many are left out, and the value that is missing.

    A node is never larger than its parent, so the largest ones are a tree.
    """
    if len(tree) <= max_nodes:
        return tree, 0, 0
    share = tree.value / max(1, int(tree.value[0]))
    weight = np.maximum(share, tree.base / max(1, int(tree.base[0])))
    kept = np.sort(np.argsort(-weight, kind="stable")[:max_nodes])
    place = np.full(len(tree), -1, np.int64)
    place[kept] = np.arange(len(kept))
    parent = tree.parent[kept]
    parent[1:] = place[parent[1:]]
    small = Tree(
        tree.function[kept],
        parent,
        tree.value[kept],
        tree.self_value[kept],
        tree.base[kept],
        tree.base_self[kept],
    )
    missing = int(small.value[0] - small.self_value.sum())
    return small, len(tree) - len(kept), missing


def distinct(keys: Longs) -> Longs:
    """Each key once, sorted. `np.unique` hashes, which takes several times as long."""
    ordered = np.sort(keys)
    first: Longs = ordered[np.diff(ordered, prepend=-1) != 0]
    return first


def per_function(stacks: Stacks) -> tuple[Ids, Longs, Longs, Longs, Longs]:
    """Each function's id, self, total, base self and base total; a stack counts once for a function in it."""
    ids, dense = np.unique(stacks.functions, return_inverse=True)
    starts = stacks.starts()
    sizes = stacks.ends - starts
    owner = np.repeat(np.arange(len(stacks)), sizes)
    own, own_base = np.zeros(len(ids), np.int64), np.zeros(len(ids), np.int64)
    filled = np.flatnonzero(sizes > 0)
    leaves = dense[starts[filled]]
    np.add.at(own, leaves, stacks.values[filled])
    np.add.at(own_base, leaves, stacks.base[filled])
    pairs = distinct(owner * max(1, len(ids)) + dense)
    stack, function = pairs // max(1, len(ids)), pairs % max(1, len(ids))
    total, base_total = np.zeros(len(ids), np.int64), np.zeros(len(ids), np.int64)
    np.add.at(total, function, stacks.values[stack])
    np.add.at(base_total, function, stacks.base[stack])
    return ids, own, total, own_base, base_total
