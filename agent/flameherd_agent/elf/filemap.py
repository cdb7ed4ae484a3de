"""Read-only file mappings that hold no file descriptor.

Python's `mmap` keeps a duplicate of the descriptor for as long as the mapping lives (until 3.13
lets one turn that off), and the agent maps two files for each of hundreds of executables.
"""

import ctypes
import os
from typing import Any

_PROT_READ = 1
_MAP_SHARED = 1
_MADV_DONTNEED = 4
_MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class FileMap:
    """The bytes of a file at the time of the call; unmapped when the last view of them is gone.

    Only for files that nobody truncates: reading past a file's new end raises SIGBUS.
    """

    def __init__(self, fd: int) -> None:
        self.size = os.fstat(fd).st_size
        if self.size == 0:
            raise OSError(0, "an empty file cannot be mapped")
        address = _libc.mmap(None, self.size, _PROT_READ, _MAP_SHARED, fd, 0)
        if address == _MAP_FAILED:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self._address = address
        self.is_read = True
        """Whether pages may be resident: whoever reads after `shed` says so."""
        block: Any = type("_Block", (_Unmapping, ctypes.c_char * self.size), {})
        self.data = memoryview(block.from_address(address)).cast("B").toreadonly()

    def shed(self) -> None:
        """Gives the resident pages back; they are read from the page cache when touched again."""
        _libc.madvise(self._address, self.size, _MADV_DONTNEED)
        self.is_read = False


class _Unmapping:
    """Mixed into the ctypes array that views keep alive: its end is the mapping's end."""

    def __del__(self) -> None:
        _libc.munmap(ctypes.addressof(self), ctypes.sizeof(self))  # type: ignore[arg-type]
