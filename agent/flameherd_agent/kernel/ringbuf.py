"""Reading a BPF ring buffer (BPF_MAP_TYPE_RINGBUF, Linux ≥ 5.8) through its mapped pages.

Layout: one consumer page (ours to write: position), one producer page (position), then the data mapped twice in
a row, so that a record that wraps is contiguous. Each record has an 8-byte header: length with a busy bit (31) and
a discard bit (30). The second mapping is not used here: records that wrap are joined, which keeps the agent's
resident set at one copy.
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
        self._data = self._map_data()
        self._touched = 0

    def _map_data(self) -> mmap.mmap:
        return mmap.mmap(
            self._map.fd,
            mmap.PAGESIZE + 2 * self.size,
            prot=mmap.PROT_READ,
            offset=mmap.PAGESIZE,
        )

    def waiting_bytes(self) -> int:
        """Bytes between the consumer's and the producer's position."""
        consumed = int(struct.unpack_from("<Q", self._consumer)[0])
        produced = int(struct.unpack_from("<Q", self._data)[0])
        return produced - consumed

    def read(self, limit: int = 1 << 20) -> Iterator[bytes]:
        """Every complete record, copied; stops after about `limit` bytes or at a record still being written."""
        consumed = int(struct.unpack_from("<Q", self._consumer)[0])
        produced = int(struct.unpack_from("<Q", self._data)[0])
        stop_at = consumed + limit
        while consumed < produced and consumed < stop_at:
            at = consumed % self.size
            length = struct.unpack_from("<I", self._data, mmap.PAGESIZE + at)[0]
            if length & _BUSY:
                break
            size = length & ~_DISCARD
            if not length & _DISCARD:
                yield self._copy((at + _HEADER) % self.size, size)
            consumed += (size + _HEADER + 7) // 8 * 8
            struct.pack_into("<Q", self._consumer, 0, consumed)
            self._touched += size

    def _copy(self, at: int, size: int) -> bytes:
        base = mmap.PAGESIZE
        first = min(size, self.size - at)
        data = self._data[base + at : base + at + first]
        if first < size:
            data += self._data[base : base + size - first]
        return data

    def shed(self) -> None:
        """Map the data anew if pages were read: they stop counting as resident until they are read again."""
        if self._touched:
            self._data.close()
            self._data = self._map_data()
            self._touched = 0

    def close(self) -> None:
        self._data.close()
        self._consumer.close()
