"""From overlapping candidates to ranges that do not overlap: which name an address has.

- One address, several names (aliases): stated size first, then public before local, then fewer
  leading underscores, then global before weak, then the order of tables: the same file gives the
  same names.
- A symbol without a size (hand-written assembly) reaches to the next symbol or the end of its
  section; inside a function of known size it is a label and is dropped.
- Beyond a stated size there is no name, unless an enclosing function goes on there.

Pure functions on arrays; nothing here reads a file.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]


class Ranges(NamedTuple):
    """Sorted, not overlapping. `symbol` is the index of the candidate that names the range."""

    start: U64
    end: U64
    symbol: I64


def resolve(
    start: U64,
    size: U64,
    limit: U64,
    binding: npt.NDArray[np.uint8],
    underscores: npt.NDArray[np.uint8],
) -> Ranges:
    """Chooses names for addresses; see the module's rules.

    `limit` is the end of the section of each candidate, `binding` its STB value, `underscores` how
    many its name starts with. Sizes that leave the section are cut. All arrays have one length.
    """
    end = start + np.minimum(size, limit - start)
    public = (binding == 1) | (binding == 2)
    rank = (
        (size == 0).astype(np.int64) * 64
        + (~public).astype(np.int64) * 32
        + np.minimum(underscores, 7).astype(np.int64) * 4
        + (binding != 1).astype(np.int64)
    )
    order: I64 = np.lexsort((rank, start))
    if not len(order):
        return Ranges(start[order], start[order], order)
    first = np.ones(len(order), np.bool_)
    first[1:] = np.diff(start[order]) != 0
    order = order[first]
    order = order[~_is_label(start[order], end[order], size[order])]
    s, e = start[order], end[order]
    following = np.append(s[1:], np.uint64(0xFFFF_FFFF_FFFF_FFFF))
    unsized = size[order] == 0
    e = np.where(unsized, limit[order], e)
    stop = np.minimum(e, following)
    tail_start, tail_end, tail_owner = _tails(np.where(unsized, stop, e), stop, following)
    all_start = np.concatenate((s, tail_start))
    all_end = np.concatenate((stop, tail_end))
    owner = np.concatenate((order, order[tail_owner]))
    by_start: I64 = np.argsort(all_start, kind="stable")
    by_start = by_start[all_end[by_start] > all_start[by_start]]
    return Ranges(all_start[by_start], all_end[by_start], owner[by_start])


def _is_label(start: U64, end: U64, size: U64) -> npt.NDArray[np.bool_]:
    """Candidates without a size that lie inside one with a size."""
    reach = np.maximum.accumulate(end)
    before = np.zeros(len(end), np.uint64)
    before[1:] = reach[:-1]
    inside: npt.NDArray[np.bool_] = (size == 0) & (start < before)
    return inside


def _tails(end: U64, stop: U64, following: U64) -> tuple[U64, U64, I64]:
    """What is left of an enclosing function behind a smaller one inside it.

    For each range the earlier one that reaches furthest; where the range stops before the next
    starts and that one goes on, it gets the gap. Returns starts, ends and the owners' positions.
    """
    reach = np.maximum.accumulate(end)
    is_new = np.ones(len(end), np.bool_)
    is_new[1:] = end[1:] > reach[:-1]
    holder = np.maximum.accumulate(np.where(is_new, np.arange(len(end)), 0))
    gap = np.flatnonzero((stop < following) & (reach > stop))
    return stop[gap], np.minimum(reach[gap], following[gap]), holder[gap]
