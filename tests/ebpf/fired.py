"""How often a `cpu-clock` event fired on each CPU, with no BPF program in the way.

    with Fired(period_ns) as fired:
        before = fired.count()
        …
        ticks = fired.count() - before

The kernel writes a record of 8 bytes for each overflow into a ring that is as large as the test is
long; nothing is read from it but how far it was written.
"""

import ctypes
import mmap
import os
import struct
from typing import Self

from flameherd_agent.kernel.perf import online_cpus

_PERF_EVENT_OPEN = 298  # x86-64
_EXCLUDE_IDLE = 1 << 7  # of the flag word
_RECORD_BYTES = 8  # a header: sample_type is 0
_DATA_HEAD = 1024  # struct perf_event_mmap_page, include/uapi/linux/perf_event.h
_LIBC = ctypes.CDLL(None, use_errno=True)


class Fired:
    """Use as a context manager. Counts up to `most` ticks of each CPU."""

    def __init__(self, period_ns: int, most: int = 1 << 17) -> None:
        self._rings: list[tuple[int, mmap.mmap]] = []
        # PERF_TYPE_SOFTWARE, PERF_ATTR_SIZE_VER0, PERF_COUNT_SW_CPU_CLOCK, period, then flags.
        attributes = struct.pack("<IIQQQQQIIQ", 1, 64, 0, period_ns, 0, 0, _EXCLUDE_IDLE, 0, 0, 0)
        for cpu in online_cpus():
            fd = _LIBC.syscall(_PERF_EVENT_OPEN, attributes, -1, cpu, -1, 8)
            if fd < 0:
                raise OSError(ctypes.get_errno(), "perf_event_open")
            self._rings.append((fd, mmap.mmap(fd, mmap.PAGESIZE + most * _RECORD_BYTES)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for fd, ring in self._rings:
            ring.close()
            os.close(fd)

    def count(self) -> int:
        """Ticks of all CPUs so far. Fails if a ring is full."""
        total = 0
        for _, ring in self._rings:
            (head,) = struct.unpack_from("<Q", ring, _DATA_HEAD)
            assert head < len(ring) - mmap.PAGESIZE - 4096, "the ring of ticks is full"
            total += head // _RECORD_BYTES
        return total
