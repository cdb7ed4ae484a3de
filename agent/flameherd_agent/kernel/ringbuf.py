"""Reading a BPF ring buffer (BPF_MAP_TYPE_RINGBUF, Linux ≥ 5.8) through its mapped pages.

Layout: one consumer page (ours to write: position), one producer page (position), then the data mapped twice in
a row, so that a record that wraps is contiguous. Each record has an 8-byte header: length with a busy bit (31) and
a discard bit (30).

The kernel populates such a mapping at once, so that it counts as resident however little of it is read: only the data
that waits is mapped, and only while it is being read.
"""

import mmap
import struct
from collections.abc import Generator
from typing import Any, Final

import numpy as np

from flameherd_agent.kernel.bpf import Map

_BUSY: Final = 1 << 31
_DISCARD: Final = 1 << 30
_HEADER: Final = 8
_LENGTH: Final = struct.Struct("<I")
_POSITION: Final = struct.Struct("<Q")
_RELEASE_BYTES: Final = 64 << 10
"""Read bytes are handed back to the kernel in portions of this size."""


def record_struct(dtype: np.dtype[Any]) -> struct.Struct:
    """The layout of a record for one at a time: a tenth of what a numpy record of one element costs."""
    fields = (dtype.fields or {}).values()
    codes = "".join(kind.char for kind, *_ in fields)
    layout = f"<{codes.replace('L', 'Q')}"
    if not set(codes) <= set("BHILQ") or struct.calcsize(layout) != dtype.itemsize:
        raise TypeError(f"{dtype} has padding, or fields that are no unsigned numbers")
    return struct.Struct(layout)


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
        consumed = int(_POSITION.unpack_from(self._consumer)[0])
        return int(_POSITION.unpack_from(self._producer)[0]) - consumed

    def read(self, limit: int = 1 << 20) -> Generator[bytes, None, None]:
        """Every complete record, copied; stops after about `limit` bytes or at a record still being written."""
        consumed = int(_POSITION.unpack_from(self._consumer)[0])
        waiting = int(_POSITION.unpack_from(self._producer)[0]) - consumed
        if not waiting:
            return
        # The kernel maps the data twice in a row: what wraps is contiguous.
        offset = consumed % self.size
        at = offset % mmap.PAGESIZE
        end = at + waiting
        start = 2 * mmap.PAGESIZE + offset - at
        with mmap.mmap(self.fd, end, prot=mmap.PROT_READ, offset=start) as data:
            stop_at = min(end, at + limit)
            released = at
            try:
                while at < stop_at:
                    length = int(_LENGTH.unpack_from(data, at)[0])
                    if length & _BUSY:
                        break
                    begin = at + _HEADER
                    size = length & ~_DISCARD
                    at = (begin + size + 7) & ~7
                    if not length & _DISCARD:
                        yield data[begin : begin + size]
                    if at - released >= _RELEASE_BYTES:
                        self._release(at - released)
                        released = at
            finally:
                self._release(at - released)

    def _release(self, size: int) -> None:
        """Let the kernel write over `size` bytes more."""
        position = int(_POSITION.unpack_from(self._consumer)[0]) + size
        _POSITION.pack_into(self._consumer, 0, position)

    def close(self) -> None:
        self._producer.close()
        self._consumer.close()
