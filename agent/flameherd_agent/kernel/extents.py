"""First-fit allocation of extents in an array, with delayed reuse.

The kernel side reads unwind rows and mappings without locks. An extent that was replaced may still be in use by a
program that looked it up just before, or by a process entry that fork copied and that the agent has not heard of
yet; so a freed extent waits `GRACE_NS` before it is handed out again.
"""

from collections import deque
from typing import Final

GRACE_NS: Final = 2_000_000_000


class Extents:
    """Extents of an array of `capacity` elements. Times are CLOCK_MONOTONIC nanoseconds."""

    def __init__(self, capacity: int, *, first: int = 0) -> None:
        self._free: list[tuple[int, int]] = [(first, capacity - first)]  # (start, length), by start
        self._waiting: deque[tuple[int, int, int]] = deque()  # (when, start, length)
        self.capacity = capacity
        self.used = 0

    def allocate(self, length: int, now_ns: int) -> int | None:
        """Start of a free extent, or None when no gap is long enough."""
        self._collect(now_ns)
        for index, (start, size) in enumerate(self._free):
            if size >= length:
                if size == length:
                    del self._free[index]
                else:
                    self._free[index] = (start + length, size - length)
                self.used += length
                return start
        return None

    def free(self, start: int, length: int, now_ns: int) -> None:
        """Give an extent back; it is handed out again after the grace period."""
        if length:
            self._waiting.append((now_ns + GRACE_NS, start, length))

    def _collect(self, now_ns: int) -> None:
        collected = False
        while self._waiting and self._waiting[0][0] <= now_ns:
            _, start, length = self._waiting.popleft()
            self._free.append((start, length))
            self.used -= length
            collected = True
        if collected:
            self._free.sort()
            merged: list[tuple[int, int]] = []
            for start, length in self._free:
                if merged and merged[-1][0] + merged[-1][1] == start:
                    merged[-1] = (merged[-1][0], merged[-1][1] + length)
                else:
                    merged.append((start, length))
            self._free = merged
