"""How much memory the worker child may use: RLIMIT_AS, set anew for each request.

The limit is what the idle child has, plus `HEADROOM_BYTES`, plus room for the sparse copies of the
files that the request opens (`snapshot.py`): those take address space by the file's size but memory
only for what is copied, which has a cap of its own.
"""

import resource
from pathlib import Path

HEADROOM_BYTES = 512 << 20
"""Names and rows of node take some 150 MB."""


class MemoryLimit:
    """Make it when everything is imported."""

    def __init__(self, headroom_bytes: int = HEADROOM_BYTES) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        self._idle = pages * resource.getpagesize() + headroom_bytes
        self._limit = 0
        self.begin()

    def begin(self, kept: int = 0) -> None:
        """A new request: no copies yet but those of `kept` bytes that earlier ones left."""
        self._set(self._idle + kept)

    def grow(self, size: int) -> None:
        """Room for the sparse copy of one more file of that size."""
        self._set(self._limit + size)

    def _set(self, limit: int) -> None:
        self._limit = limit
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
