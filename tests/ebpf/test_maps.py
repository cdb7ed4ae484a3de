"""A hash map of the kernel whose elements are all in use: said, unless one becomes free while it is asked for again."""

import errno
import time
from collections.abc import Iterator

import pytest
from flameherd_agent.kernel.bpf import Map, MapDefinition, MapType

from tests.ebpf.recorded import needs_root

pytestmark = needs_root
KEYS = [number.to_bytes(4, "little") for number in range(3)]


@pytest.fixture
def full() -> Iterator[Map]:
    made = Map(MapDefinition("full", MapType.HASH, 4, 4, 2, 0))
    for key in KEYS[:2]:
        made.update(key, key)
    yield made
    made.close()


def test_a_full_map_says_so(full: Map) -> None:
    with pytest.raises(OSError, match="full") as raised:
        full.update(KEYS[2], KEYS[2])
    assert raised.value.errno == errno.E2BIG
    assert [full.lookup(key) for key in KEYS] == [KEYS[0], KEYS[1], None]


def test_an_element_that_becomes_free_is_taken(full: Map, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the lock of the free ones was held by another CPU."""

    def meanwhile(_seconds: float) -> None:
        full.delete(KEYS[0])

    monkeypatch.setattr(time, "sleep", meanwhile)
    full.update(KEYS[2], KEYS[2])
    assert [full.lookup(key) for key in KEYS] == [None, KEYS[1], KEYS[2]]
