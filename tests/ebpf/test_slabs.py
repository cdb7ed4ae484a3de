"""Unwind tables in the kernel's maps say what the tables say: split ones too, and where others were evicted."""

import ctypes
import mmap
import struct
from collections.abc import Iterator

import numpy as np
import pytest
from flameherd_agent.kernel import extents
from flameherd_agent.kernel.abi import Limit, Rule, Table, TableFlag
from flameherd_agent.kernel.loader import Loaded, load
from flameherd_agent.unwind.slabs import LoadedPart, SlabStore
from flameherd_agent.unwind.table import UnwindTable

from tests.ebpf.recorded import OPTIONS, needs_root
from tests.unwinder.harness import library

pytestmark = needs_root
RULES = 40
BASE = 0x401234


@pytest.fixture
def loaded() -> Iterator[Loaded]:
    kernel = load(OPTIONS.cache)
    yield kernel
    kernel.close()


def table_of(rows: int, seed: int) -> UnwindTable:
    """Rows some 40 bytes apart, with a gap of several pages among them."""
    generator = np.random.default_rng(seed)
    steps = generator.integers(1, 80, rows)
    steps[rows // 2] = 5 << 16
    rules = np.zeros(RULES, Rule)
    rules["cfa_offset"][1:] = seed * RULES + np.arange(1, RULES)
    numbers = generator.integers(1, RULES, rows).astype(np.uint16)
    numbers[-1] = 0
    return UnwindTable(BASE, np.cumsum(steps).astype(np.uint32), numbers, rules)


def check(
    loaded: Loaded, store: SlabStore, parts: tuple[LoadedPart, ...], table: UnwindTable
) -> None:
    """By the C that runs in the kernel, on what its maps hold: the rule at random addresses and at all edges."""
    starts = [part.start for part in parts]
    ends = [*starts[1:], BASE + int(table.pcs[-1]) + 1]
    generator = np.random.default_rng(0)
    for part, low, high in zip(parts, starts, ends, strict=True):
        raw = loaded.maps["fh_tables"].lookup(struct.pack("<I", part.table))
        assert raw is not None
        entry = np.frombuffer(raw, Table)[0]
        assert entry["flags"] == TableFlag.READY
        assert entry["slab"] == part.slab
        with mmap.mmap(
            store.slab_fd(part.slab), 8 * int(Limit.SLAB_PAIRS), prot=mmap.PROT_READ
        ) as slab:
            words = np.frombuffer(slab[:], np.uint32)
        for pc in {low, high - 1, *generator.integers(low, high, 300).tolist()}:
            number = library().find_rule(
                ctypes.c_void_p(words.ctypes.data),
                int(Limit.SLAB_PAIRS),
                int(entry["first"]),
                int(entry["pages"]),
                int(pc) - int(entry["base"]),
            )
            rule = loaded.maps["fh_rules"].lookup(struct.pack("<I", number))
            assert rule == table.lookup(int(pc)).tobytes(), hex(int(pc))


def test_a_long_table_is_split_and_says_the_same(loaded: Loaded) -> None:
    store = SlabStore(loaded, 2)
    small, large = table_of(1001, 1), table_of(3 * int(Limit.TABLE_ROWS) + 1000, 2)
    first, second = store.acquire("small", small), store.acquire("large", large)
    assert first is not None
    assert second is not None
    assert len(second) == 4
    assert store.bytes_used() < 4.2 * (len(small) + len(large))
    check(loaded, store, first, small)
    check(loaded, store, second, large)
    store.close()


def test_rows_of_what_nobody_uses_make_room(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extents, "GRACE_NS", 0)
    store = SlabStore(loaded, 1)
    kept, large = table_of(1001, 1), table_of(3 * int(Limit.TABLE_ROWS), 2)
    used = store.acquire("kept", kept)
    assert used is not None
    assert store.acquire("large", large) is not None
    assert store.acquire("other", large) is None, "all that is loaded is in use"
    store.release("large")
    assert store.acquire("other", large) is None, "what is evicted now comes free for the next try"
    parts = store.acquire("other", large)
    assert parts is not None
    assert (store.evicted, store.refused) == (1, 2)
    check(loaded, store, parts, large)
    check(loaded, store, used, kept)
    store.close()
