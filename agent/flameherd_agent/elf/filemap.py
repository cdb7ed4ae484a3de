"""Read-only file mappings that hold no file descriptor.

Python's `mmap` keeps a duplicate of the descriptor for as long as the mapping lives (until 3.13
lets one turn that off), and the agent maps two files for each of hundreds of executables.
"""

import ctypes
import os

import numpy as np

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
        self.data: memoryview = np.asarray(_Pages(address, self.size)).data

    def shed(self) -> None:
        """Gives the resident pages back; they are read from the page cache when touched again."""
        _libc.madvise(self._address, self.size, _MADV_DONTNEED)
        self.is_read = False


class _Pages:
    """What views of a mapping keep alive through numpy's array interface: its end is the mapping's end.

    Not an array type of ctypes: those are never forgotten, one for each size.
    """

    def __init__(self, address: int, size: int) -> None:
        self._address = address
        self._size = size
        self.__array_interface__ = {
            "version": 3,
            "data": (address, True),  # read-only
            "shape": (size,),
            "typestr": "|u1",
        }

    def __del__(self) -> None:
        _libc.munmap(self._address, self._size)
