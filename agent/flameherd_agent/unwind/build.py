"""Builds the unwind table of an ELF file from every source of rows that there is.

`.eh_frame` comes first, then rows that the caller brings (Go's pcsp tables, made by `symbols`,
which this layer must not import), then `.debug_frame`: a later source fills only what earlier ones
leave without information.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from flameherd_agent.elf.reader import ET_DYN, ET_EXEC, PF_X, PT_LOAD, ElfFile
from flameherd_agent.errors import ElfError
from flameherd_agent.unwind.eh_frame import (
    FrameRows,
    debug_frame_section,
    eh_frame_section,
    frame_rows,
)
from flameherd_agent.unwind.rules import RuleSet
from flameherd_agent.unwind.table import UnwindTable

MAX_ADDRESS = 1 << 56
"""User space of every 64-bit machine ends below it (x86-64 with five-level page tables)."""


class RowSource(NamedTuple):
    """Rows from elsewhere: from file address `pcs[i]` on, `rules[i]` holds. Sorted by pc.

    A rule of zeros ends what is known.
    """

    pcs: npt.NDArray[np.uint64]
    rules: npt.NDArray[np.void]
    """RULE_DTYPE[n]."""


def code_range(elf: ElfFile) -> tuple[int, int]:
    """(lowest, one past the highest) file address of the executable segments.

    Raises `ElfError` for a file without any, or with one beyond user space: it cannot be running.
    """
    code = [s for s in elf.segments if s.type == PT_LOAD and s.flags & PF_X and s.memsz]
    if not code or elf.type not in (ET_EXEC, ET_DYN):
        raise ElfError("no executable segment: neither a program nor a shared library")
    base, limit = min(s.vaddr for s in code), max(s.vaddr + s.memsz for s in code)
    if limit > MAX_ADDRESS:
        raise ElfError(f"code up to {limit:#x}: no process can map it")
    return base, limit


def build_table(elf: ElfFile, extra: Sequence[RowSource] = ()) -> UnwindTable:
    """The table of a file; it has no rows if nothing is known. Raises `ElfError`."""
    base, limit = code_range(elf)
    rules = RuleSet()
    rows = FrameRows(np.zeros(0, np.uint32), np.zeros(0, np.uint16))
    section = eh_frame_section(elf)
    if section is not None:
        rows = frame_rows(elf, section, rules, base, limit)
    for source in extra:
        rows = merge(rows, _relative(source, rules, base, limit))
    section = debug_frame_section(elf)
    if section is not None:
        rows = merge(rows, frame_rows(elf, section, rules, base, limit))
    return UnwindTable(base, rows.pcs, rows.rules, rules.table())


def merge(first: FrameRows, second: FrameRows) -> FrameRows:
    """The rows of `first`; where they hold no information, those of `second`."""
    if not len(second.pcs) or not len(first.pcs):
        return first if len(first.pcs) else second
    pcs = np.union1d(first.pcs, second.pcs)
    rules = _at(first, pcs)
    rules = np.where(rules == 0, _at(second, pcs), rules)
    changes = np.ones(len(pcs), bool)
    changes[1:] = rules[1:] != rules[:-1]
    return FrameRows(pcs[changes], rules[changes])


def _at(rows: FrameRows, pcs: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint16]:
    index = np.searchsorted(rows.pcs, pcs, "right") - 1
    return np.where(index >= 0, rows.rules[index], np.uint16(0))


def _relative(source: RowSource, rules: RuleSet, base: int, limit: int) -> FrameRows:
    """Rows of a caller, cut to the code and numbered."""
    inside = (source.pcs >= base) & (source.pcs < min(limit, base + (1 << 32)))
    pcs = (source.pcs[inside] - np.uint64(base)).astype(np.uint32)
    if (pcs[1:] <= pcs[:-1]).any():
        raise ElfError("rows of a caller are not sorted by address")
    numbers = rules.number(np.ascontiguousarray(source.rules[inside]))
    return FrameRows(pcs, numbers)
