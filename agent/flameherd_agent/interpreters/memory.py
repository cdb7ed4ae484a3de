"""Another process's memory, read without stopping it: process_vm_readv(2).

Everything read is untrusted: lengths are the caller's to bound, and what is there may change between two reads.
Needs CAP_SYS_PTRACE for other users' processes, like /proc/PID/maps.
"""

import ctypes
import errno
import mmap
import os
import struct
from typing import Final

from flameherd_agent.errors import FlameherdError
from flameherd_agent.types import Pid

_LIBC = ctypes.CDLL(None, use_errno=True)
MAX_READ: Final = 1 << 20
"""Bytes of one read."""
_USER_END: Final = 1 << 56


class MemoryGone(FlameherdError):
    """The memory cannot be read: it is not mapped, or the process has ended."""


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class ProcessMemory:
    """The memory of one process."""

    def __init__(self, pid: Pid) -> None:
        self.pid = pid

    def read_some(self, address: int, size: int) -> bytes:
        """Up to `size` bytes; fewer where the memory ends. Raises MemoryGone if there is none."""
        if not 0 < address < _USER_END or not 0 < size <= MAX_READ:
            raise MemoryGone(f"process {self.pid}: no memory of {size} bytes at {address:#x}")
        buffer = ctypes.create_string_buffer(size)
        local = _Iovec(ctypes.addressof(buffer), size)
        # A transfer ends between two of these, never inside one: so one for the first page, one for the rest.
        first = min(size, mmap.PAGESIZE - address % mmap.PAGESIZE)
        remote = (_Iovec * 2)(_Iovec(address, first), _Iovec(address + first, size - first))
        count = _LIBC.process_vm_readv(
            ctypes.c_int(self.pid),
            ctypes.byref(local),
            ctypes.c_ulong(1),
            remote,
            ctypes.c_ulong(2 if size > first else 1),
            ctypes.c_ulong(0),
        )
        if count <= 0:
            number = ctypes.get_errno() or errno.EFAULT
            raise MemoryGone(f"process {self.pid}: {address:#x}: {os.strerror(number)}")
        return buffer.raw[:count]

    def read(self, address: int, size: int) -> bytes:
        """`size` bytes. Raises MemoryGone."""
        data = self.read_some(address, size)
        if len(data) < size:
            raise MemoryGone(f"process {self.pid}: memory ends before {address + size:#x}")
        return data

    def word(self, address: int) -> int:
        """A 64-bit number."""
        return int(struct.unpack("<Q", self.read(address, 8))[0])
