"""Reading a BPF ring buffer (BPF_MAP_TYPE_RINGBUF, Linux ≥ 5.8) through its mapped pages.

Layout: one consumer page (ours to write: position), one producer page (position), then the data mapped twice in
a row, so that a record that wraps is contiguous. Each record has an 8-byte header: length with a busy bit (31) and
a discard bit (30).

The kernel populates such a mapping at once, so that it counts as resident however little of it is read: the data is
mapped only while it is being read, and only one copy of it (records that wrap are joined).
"""

import mmap
import struct
from collections.abc import Iterator
from typing import Final

from flameherd_agent.kernel.bpf import Map

_BUSY: Final = 1 << 31
_DISCARD: Final = 1 << 30
_HEADER: Final = 8


class RingBuffer:
    """The consumer of one ring. Its map's descriptor is readable when records wait (if the producer wakes)."""

    def __init__(self, ring: Map) -> None:
        self._map = ring
        self.size = ring.definition.entries
        self.fd = ring.fd
        self._consumer = mmap.mmap(ring.fd, mmap.PAGESIZE)
        self._producer = mmap.mmap(
            ring.fd, mmap.PAGESIZE, prot=mmap.PROT_READ, offset=mmap.PAGESIZE
        )

    def waiting_bytes(self) -> int:
        """Bytes between the consumer's and the producer's position."""
        consumed = int(struct.unpack_from("<Q", self._consumer)[0])
        produced = int(struct.unpack_from("<Q", self._producer)[0])
        return produced - consumed

    def read(self, limit: int = 1 << 20) -> Iterator[bytes]:
        """Every complete record, copied; stops after about `limit` bytes or at a record still being written."""
        if not self.waiting_bytes():
            return
        with mmap.mmap(self.fd, self.size, prot=mmap.PROT_READ, offset=2 * mmap.PAGESIZE) as data:
            consumed = int(struct.unpack_from("<Q", self._consumer)[0])
            produced = int(struct.unpack_from("<Q", self._producer)[0])
            stop_at = consumed + limit
            while consumed < produced and consumed < stop_at:
                at = consumed % self.size
                length = struct.unpack_from("<I", data, at)[0]
                if length & _BUSY:
                    break
                size = length & ~_DISCARD
                if not length & _DISCARD:
                    yield self._copy(data, (at + _HEADER) % self.size, size)
                consumed += (size + _HEADER + 7) // 8 * 8
                struct.pack_into("<Q", self._consumer, 0, consumed)

    def _copy(self, data: mmap.mmap, at: int, size: int) -> bytes:
        first = min(size, self.size - at)
        copied = data[at : at + first]
        if first < size:
            copied += data[: size - first]
        return copied

    def close(self) -> None:
        self._producer.close()
        self._consumer.close()
