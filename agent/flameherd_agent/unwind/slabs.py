"""Unwind tables in the kernel: slabs of rows, the table directory and the one rule table.

A slab is an mmapable array of 1 MiB, room for some 250,000 rows (`packed.py`), made when it is needed: creating one
costs an RCU grace period (≈ 10 ms), filling one costs nothing. A table of more than `FH_TABLE_ROWS` is split: the
kernel side sees several tables, each behind its own mapping entry. Rules of all files are interned in one table of 16-byte rules, since files share them.

Cap and eviction: when `max_slabs` are full, tables that no live process maps go first, the least recently released
first. Evicted rows come free after a grace period, so the table that wanted them is refused now (its executable is
stepped by frame pointer, and counted) and taken at a later try.
"""

import itertools
import struct
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flameherd_agent.kernel.abi import Limit, Rule, Table, TableFlag, Words
from flameherd_agent.kernel.bpf import Map
from flameherd_agent.kernel.extents import Extents
from flameherd_agent.kernel.loader import Loaded, memlock_bytes
from flameherd_agent.types import FileAddress
from flameherd_agent.unwind.packed import pack, page_base, pages_up_to
from flameherd_agent.unwind.table import UnwindTable

NO_FILE_TABLE: Final = 0
"""Executable memory without a file: stepped by frame pointer."""

PENDING_TABLE: Final = 1
"""Not built yet: samples that meet it go cold."""

NO_ROWS_TABLE: Final = 2
"""Built, and there is nothing: stepped by frame pointer."""

_FIRST_TABLE: Final = 3


@dataclass(frozen=True, slots=True)
class LoadedPart:
    """One kernel table: it covers addresses in the file from `start` up to the next part."""

    table: int
    start: FileAddress
    slab: int
    first: int
    """Pair of words in the slab, as are:"""
    pairs: int


@dataclass(slots=True)
class _Entry:
    parts: tuple[LoadedPart, ...]
    users: int


class SlabStore:
    """The kernel side's unwind tables, keyed by content."""

    def __init__(self, loaded: Loaded, max_slabs: int) -> None:
        self._outer = loaded.maps["fh_slabs"]
        self._template = loaded.slab
        self._tables = loaded.maps["fh_tables"]
        self._rules = loaded.maps["fh_rules"]
        self._max_slabs = min(max_slabs, int(Limit.MAX_SLABS))
        self._slabs: list[tuple[Map, Extents]] = []
        self._rule_ids: dict[bytes, int] = {bytes(Rule.itemsize): 0}
        self._free_tables = Extents(int(Limit.MAX_TABLES), first=_FIRST_TABLE)
        self._entries: dict[str, _Entry] = {}
        self._unused: OrderedDict[str, None] = OrderedDict()
        self._generation = itertools.count(1)
        self._kernel_bytes = 0
        self.refused = 0
        self.evicted = 0
        for table in (NO_FILE_TABLE, NO_ROWS_TABLE):
            self._describe(table, flags=TableFlag.NO_ROWS)

    def acquire(self, key: str, table: UnwindTable) -> tuple[LoadedPart, ...] | None:
        """Load `table` unless it is there, and count one more user. None: no room now; try again later."""
        entry = self._entries.get(key)
        if entry is None:
            parts = self._load(table)
            if parts is None:
                self.refused += 1
                return None
            entry = self._entries[key] = _Entry(parts, 0)
        entry.users += 1
        self._unused.pop(key, None)
        return entry.parts

    def release(self, key: str) -> None:
        """One user less. The rows stay until room is needed."""
        entry = self._entries[key]
        entry.users -= 1
        if entry.users == 0:
            self._unused[key] = None

    def bytes_used(self) -> int:
        """Bytes of loaded rows."""
        return sum(extents.used for _, extents in self._slabs) * Words.itemsize

    def kernel_bytes(self) -> int:
        """Kernel memory of all slabs, full or not."""
        return self._kernel_bytes

    def slab_fd(self, slab: int) -> int:
        """The map of one slab."""
        return self._slabs[slab][0].fd

    def rules_used(self) -> int:
        """Distinct rules so far."""
        return len(self._rule_ids)

    def _load(self, table: UnwindTable) -> tuple[LoadedPart, ...] | None:
        rules = self._intern(table)
        if rules is None:
            return None
        parts: list[LoadedPart] = []
        limit = int(Limit.TABLE_ROWS)
        for begin in range(0, len(table.pcs), limit):
            end = begin + limit
            # The last row of a part holds up to the first one of the next.
            last = int(table.pcs[end]) - 1 if end < len(table.pcs) else int(table.pcs[-1])
            pcs = table.pcs[begin:end]
            part = self._load_part(table.base, pcs, rules[table.rules[begin:end]], last)
            if part is None:
                for loaded in parts:
                    self._unload_part(loaded)
                return None
            parts.append(part)
        return tuple(parts)

    def _load_part(
        self, base: int, pcs: NDArray[Any], rules: NDArray[Any], last: int
    ) -> LoadedPart | None:
        """Rows for addresses up to `base + last`."""
        now = time.monotonic_ns()
        low = page_base(int(pcs[0]))
        pages = pages_up_to(last - low)
        words = pack(pcs - np.uint32(low), rules, pages).view(Words)
        index = self._free_tables.allocate(1, now)
        if index is None:
            return None
        place = self._place(len(words), now)
        if place is None:
            self._free_tables.free(index, 1, now)
            return None
        slab, first = place
        self._slabs[slab][0].write(first, words)
        # No mapping refers to this index yet, so nobody sees the record half written.
        self._describe(
            index,
            base=base + low,
            slab=slab,
            first=2 * first,
            pages=pages,
            generation=next(self._generation),
            flags=TableFlag.READY,
        )
        return LoadedPart(index, FileAddress(base + int(pcs[0])), slab, first, len(words))

    def _describe(self, index: int, **fields: int) -> None:
        """Write one entry of `fh_tables`; fields that are not named are 0."""
        record = np.zeros(1, Table)
        for name, value in fields.items():
            record[name] = value
        self._tables.write(index, record)

    def _place(self, pairs: int, now_ns: int) -> tuple[int, int] | None:
        while True:
            for number, (_, extents) in enumerate(self._slabs):
                first = extents.allocate(pairs, now_ns)
                if first is not None:
                    return number, first
            if len(self._slabs) < self._max_slabs:
                self._add_slab()
            else:
                # What is evicted comes free after the grace period: make room for the next try, not for this one.
                self._evict(pairs)
                return None

    def _add_slab(self) -> None:
        definition = self._template
        slab = Map(
            type(definition)(
                definition.name,
                definition.type,
                definition.key_bytes,
                definition.value_bytes,
                int(Limit.SLAB_PAIRS),
                definition.flags,
            )
        )
        number = len(self._slabs)
        self._outer.update(struct.pack("<I", number), struct.pack("<I", slab.fd))
        self._slabs.append((slab, Extents(int(Limit.SLAB_PAIRS))))
        self._kernel_bytes += memlock_bytes(slab.fd)

    def _evict(self, pairs: int) -> None:
        """Drop the tables that have been unused longest, until `pairs` of words come free."""
        freed = 0
        while self._unused and freed < pairs:
            key, _ = self._unused.popitem(last=False)
            for part in self._entries.pop(key).parts:
                self._unload_part(part)
                freed += part.pairs
            self.evicted += 1

    def _unload_part(self, part: LoadedPart) -> None:
        now = time.monotonic_ns()
        self._describe(part.table, flags=0)
        self._free_tables.free(part.table, 1, now)
        self._slabs[part.slab][1].free(part.first, part.pairs, now)

    def _intern(self, table: UnwindTable) -> NDArray[Any] | None:
        """Global index of each local rule, or None when the rule table is full."""
        result = np.zeros(len(table.rule_table), np.uint16)
        known = len(self._rule_ids)
        fresh: list[int] = []
        is_full = False
        for local, rule in enumerate(table.rule_table):
            raw = rule.tobytes()
            index = self._rule_ids.get(raw)
            if index is None:
                index = len(self._rule_ids)
                if index >= Limit.MAX_RULES:
                    is_full = True
                    break
                self._rule_ids[raw] = index
                fresh.append(local)
            result[local] = index
        # Also when the table is full: what was numbered stays, for others that have the same rules.
        self._rules.write(known, table.rule_table[fresh])
        return None if is_full else result

    def close(self) -> None:
        for slab, _ in self._slabs:
            slab.close()
