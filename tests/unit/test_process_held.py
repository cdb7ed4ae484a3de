"""Cold samples that wait: kept as pages, equal pages once, oldest dropped first."""

import os
import struct

import numpy as np
from flameherd_agent.kernel.abi import ColdRecord, Limit
from flameherd_agent.process.held import PAGE, Held, HeldSamples
from hypothesis import given
from hypothesis import strategies as st

KERNEL = (0xFFFFFFFF81000000, 0xFFFFFFFF81000010)


def cold(stack: bytes, sp: int = 0x7FFF00000000, owner: object = None) -> Held:
    record = np.zeros(1, ColdRecord)
    record["registers"]["sp"] = sp
    record["stack_bytes"] = len(stack)
    record["kernel_frames"] = len(KERNEL)
    words = struct.pack("<2Q", *KERNEL).ljust(8 * int(Limit.COLD_KERNEL_WORDS), b"\0")
    return Held(record.tobytes() + words + stack, owner, 0)


@given(st.binary(max_size=3 * PAGE), st.integers(0, 2 * PAGE))
def test_what_is_kept_is_what_came(stack: bytes, below: int) -> None:
    held = HeldSamples()
    held.add(cold(stack, 0x7FFF00000000 + below))
    assert held.take(lambda _: False) == ([], 0)
    assert len(held) == 1
    (back,), dropped = held.take(lambda _: True)
    assert back.shrunk
    assert dropped == 0
    assert back.stack() == stack
    assert struct.unpack("<2Q", back.kernel_words()) == KERNEL
    assert int(back.record["stack_bytes"]) == len(stack)
    assert held.bytes == 0
    assert not held._pages


def test_equal_pages_are_kept_once() -> None:
    held = HeldSamples()
    common = os.urandom(4 * PAGE)
    for number in range(100):
        held.add(cold(struct.pack("<Q", number).ljust(PAGE, b"\0") + common))
    held.take(lambda _: False)
    assert held.bytes < 100 * (PAGE + 2048) + 4 * PAGE
    taken, _ = held.take(lambda sample: sample.stack()[0] % 2 == 0)
    assert len(taken) == 50
    assert all(sample.stack().endswith(common) for sample in taken)
    held.take(lambda _: True)
    assert held.bytes == 0


def test_the_oldest_go_beyond_the_cap() -> None:
    held = HeldSamples(limit_bytes=8 * PAGE)
    for number in range(10):
        held.add(cold(os.urandom(PAGE), owner=number))
    _, dropped = held.take(lambda _: False)
    left, none = held.take(lambda _: True)
    assert dropped + len(left) == 10
    assert none == 0
    assert [sample.owner for sample in left] == list(range(dropped, 10))
    assert 0 < dropped < 10


def test_what_is_ready_at_once_is_not_copied() -> None:
    held = HeldSamples()
    held.add(cold(b"x" * PAGE))
    (back,), _ = held.take(lambda _: True)
    assert not back.shrunk
    assert held.bytes == 0


def test_nothing_is_dropped_for_the_room_of_what_leaves() -> None:
    held = HeldSamples(limit_bytes=8 * PAGE)
    for number in range(4):
        held.add(cold(os.urandom(PAGE), owner=("old", number)))
    assert held.take(lambda _: False) == ([], 0)
    for number in range(4):
        held.add(cold(os.urandom(PAGE), owner=("new", number)))
    taken, dropped = held.take(lambda sample: sample.owner[0] == "old")
    assert len(taken) == 4
    assert all(len(sample.stack()) == PAGE for sample in taken)
    assert dropped == 0
    assert len(held) == 4
