"""The consumer of a BPF ring, on a file that is laid out like one and that the test produces into."""

import mmap
import os
import struct
from collections.abc import Iterator

import numpy as np
import pytest
from flameherd_agent.kernel.abi import CountValue, StackRecord
from flameherd_agent.kernel.bpf import Map, MapDefinition, MapType
from flameherd_agent.kernel.ringbuf import RingBuffer, record_struct
from hypothesis import given
from hypothesis import strategies as st

SIZE = 4 * mmap.PAGESIZE
BUSY, DISCARD = 1 << 31, 1 << 30


class Producer:
    """The kernel's part: a data area that is there twice, and two positions."""

    def __init__(self, start: int = 0) -> None:
        self.fd = os.memfd_create("ring")
        os.ftruncate(self.fd, 2 * mmap.PAGESIZE + 2 * SIZE)
        self.memory = mmap.mmap(self.fd, 2 * mmap.PAGESIZE + 2 * SIZE)
        self.position = start
        struct.pack_into("<Q", self.memory, 0, start)
        struct.pack_into("<Q", self.memory, mmap.PAGESIZE, start)

    def put(self, record: bytes, flags: int = 0) -> bool:
        """Whether there was room."""
        size = (len(record) + 8 + 7) // 8 * 8
        if self.position + size - self.consumed() > SIZE:
            return False
        data = struct.pack("<II", len(record) | flags, 0) + record
        for at, byte in enumerate(data):
            place = (self.position + at) % SIZE + 2 * mmap.PAGESIZE
            self.memory[place] = self.memory[place + SIZE] = byte
        self.position += size
        struct.pack_into("<Q", self.memory, mmap.PAGESIZE, self.position)
        return True

    def commit(self, position: int) -> None:
        """The record at a position is complete."""
        for copy in (0, SIZE):
            at = position % SIZE + 2 * mmap.PAGESIZE + copy
            (length,) = struct.unpack_from("<I", self.memory, at)
            struct.pack_into("<I", self.memory, at, length & ~BUSY)

    def consumed(self) -> int:
        return int(struct.unpack_from("<Q", self.memory)[0])

    def ring(self) -> RingBuffer:
        there = object.__new__(Map)
        there.definition = MapDefinition("ring", MapType.RINGBUF, 0, 0, SIZE, 0)
        there.fd = self.fd
        return RingBuffer(there)

    def close(self) -> None:
        self.memory.close()
        os.close(self.fd)


@pytest.fixture
def producer() -> Iterator[Producer]:
    made = Producer()
    yield made
    made.close()


def test_an_empty_ring(producer: Producer) -> None:
    assert list(producer.ring().read()) == []


def test_a_record_that_is_still_written_ends_the_reading(producer: Producer) -> None:
    ring = producer.ring()
    producer.put(b"first")
    at = producer.position
    producer.put(b"second", BUSY)
    producer.put(b"third")
    assert list(ring.read()) == [b"first"]
    assert list(ring.read()) == []
    producer.commit(at)
    assert list(ring.read()) == [b"second", b"third"]
    assert ring.waiting_bytes() == 0


def test_discarded_records_are_skipped(producer: Producer) -> None:
    producer.put(b"kept")
    producer.put(b"given up", DISCARD)
    producer.put(b"also kept")
    assert list(producer.ring().read()) == [b"kept", b"also kept"]
    assert producer.consumed() == producer.position


def test_a_limit_leaves_the_rest(producer: Producer) -> None:
    ring = producer.ring()
    for number in range(20):
        producer.put(bytes([number]) * 100)
    assert len(list(ring.read(limit=300))) == 3
    assert len(list(ring.read())) == 17


def test_what_was_taken_is_released_when_reading_is_given_up(producer: Producer) -> None:
    ring = producer.ring()
    for number in range(3):
        producer.put(bytes([number]))
    records = ring.read()
    assert next(records) == b"\0"
    records.close()
    assert list(ring.read()) == [b"\1", b"\2"]


@given(
    start=st.integers(0, 3 * SIZE // 8).map(lambda at: 8 * at),
    rounds=st.lists(st.lists(st.binary(max_size=SIZE // 3), max_size=8), max_size=6),
)
def test_everything_arrives_in_order_wherever_it_lies(
    start: int, rounds: list[list[bytes]]
) -> None:
    producer = Producer(start)
    ring = producer.ring()
    for records in rounds:
        accepted = [record for record in records if producer.put(record)]
        assert list(ring.read(SIZE)) == accepted
        assert producer.consumed() == producer.position
    ring.close()
    producer.close()


def test_one_record_by_the_layout_of_its_dtype() -> None:
    record = np.zeros(1, StackRecord)
    record["type"], record["user_frames"], record["stack"], record["layout"] = 1, 7, 1 << 63, 9
    wanted = (1, 0, 7, 1 << 63, 0, 0, 9, 0)
    assert record_struct(StackRecord).unpack(record.tobytes()) == wanted
    with pytest.raises(TypeError, match="no unsigned numbers"):
        record_struct(CountValue)
