"""Giving memory back that this process holds and does not use.

Starting takes more than running: the loader and the dynamic linker touch code that never runs again, each touch of a
file makes 16 pages resident, and the C library keeps what was freed. Without this, a third of the agent's resident
memory would be of that kind for as long as it runs. What is given back in error comes back by itself: pages of files
from the page cache, at a few microseconds each.
"""

import ctypes
import re
from pathlib import Path
from typing import Final

_MADV_DONTNEED: Final = 4
_HEAD: Final = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \d+ +/")
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def give_back() -> int:
    """Free blocks of the heap, and resident code and constants of libraries. Returns how many bytes of the latter.

    Costs about 2 ms now, and as much again for what is used soon: once in a minute, not in a loop.
    """
    _libc.malloc_trim(0)
    given = 0
    for start, end, resident in _file_pages(Path("/proc/self/smaps").read_text()):
        # Refused for locked memory, which is then kept: nothing is lost.
        if _libc.madvise(start, end - start, _MADV_DONTNEED) == 0:
            given += resident
    return given


def _file_pages(smaps: str) -> list[tuple[int, int, int]]:
    """(start, end, resident bytes) of private mappings of files that nobody can write or has written to (proc(5)).

    A page that was written to (relocations, a uprobe's breakpoint) is anonymous and would be lost: such mappings are
    left alone.
    """
    found: list[tuple[int, int, int]] = []
    place: tuple[int, int] | None = None
    resident = 0
    for line in smaps.splitlines():
        if (head := _HEAD.match(line)) is not None:
            shared_or_writable = "w" in head[3] or "s" in head[3]
            place = None if shared_or_writable else (int(head[1], 16), int(head[2], 16))
        elif line[:1].isdecimal() or line[:1] in "abcdef":
            place = None  # a mapping without a file
        elif place is not None and line.startswith("Rss:"):
            resident = int(line.split()[1]) * 1024
        elif place is not None and line.startswith("Anonymous:"):
            if line.split()[1] == "0" and resident:
                found.append((*place, resident))
            place = None
    return found
