"""Cold samples that wait for their executables.

A sample of a process that is too new for its tables carries the top of its stack, tens of kilobytes. While the worker
makes the tables, samples of a busy machine would add up to hundreds of megabytes; but most pages of a thread's stack are
the same from sample to sample. So a sample that has to wait is kept as pages, and equal pages are kept once. What is
beyond the cap is dropped, oldest first, and counted.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from flameherd_agent.kernel.abi import ColdRecord, Limit

HELD_BYTES: Final = 32 << 20
"""Cap of what is kept, in bytes."""
PAGE: Final = 4096
_HEAD: Final = ColdRecord.itemsize + 8 * int(Limit.COLD_KERNEL_WORDS)


class Held:
    """A cold sample. `owner` is whatever its receiver wants to find again."""

    __slots__ = ("_data", "_kernel", "_pages", "arrived_ns", "owner", "record")

    def __init__(self, data: bytes, owner: Any, arrived_ns: int) -> None:
        self.record = np.frombuffer(data, ColdRecord, 1)[0]
        self.owner = owner
        self.arrived_ns = arrived_ns
        self._data = data
        self._kernel = b""
        self._pages: tuple[bytes, ...] = ()

    def kernel_words(self) -> bytes:
        """The kernel frames, leaf first: little-endian u64 each."""
        size = 8 * int(self.record["kernel_frames"])
        at = ColdRecord.itemsize
        return self._data[at : at + size] if self._data else self._kernel

    def stack(self) -> bytes:
        """The copied bytes from sp on."""
        if self._data:
            return self._data[_HEAD : _HEAD + int(self.record["stack_bytes"])]
        return b"".join(self._pages)

    def split(self) -> tuple[bytes, ...]:
        """The stack's pages: the first one is cut where sp is."""
        stack = self.stack()
        first = PAGE - int(self.record["registers"]["sp"]) % PAGE
        starts = (0, *range(first, len(stack), PAGE))
        return tuple(
            stack[a:b] for a, b in zip(starts, (*starts[1:], len(stack)), strict=True) if a < b
        )

    def shrink(self, pages: tuple[bytes, ...]) -> None:
        """Keep these pages, equal to its own, instead of the record."""
        self._kernel = self.kernel_words()
        self.record = self.record.copy()  # no longer a view of the data
        self._pages = pages
        self._data = b""

    @property
    def shrunk(self) -> bool:
        return not self._data

    @property
    def pages(self) -> tuple[bytes, ...]:
        return self._pages


class HeldSamples:
    """The queue, oldest first."""

    def __init__(self, limit_bytes: int = HELD_BYTES) -> None:
        self._limit = limit_bytes
        self._queue: deque[Held] = deque()
        self._pages: dict[bytes, list[Any]] = {}  # page -> [the one that is kept, samples]
        self.bytes = 0
        """Kept for samples that have been through `take` without leaving."""

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, held: Held) -> None:
        """One more."""
        self._queue.append(held)

    def take(self, ready: Callable[[Held], bool]) -> tuple[list[Held], int]:
        """The samples that are ready, and how many were dropped to stay below the cap."""
        taken: list[Held] = []
        waiting: deque[Held] = deque()
        for held in self._queue:
            if ready(held):
                taken.append(held)
            else:
                waiting.append(held)
                if not held.shrunk:
                    self._keep(held)
        self._queue = waiting
        # First, so that nothing is dropped for the room of what leaves; those keep their pages themselves.
        for held in taken:
            self._release(held)
        dropped = 0
        while self.bytes > self._limit:
            self._release(self._queue.popleft())
            dropped += 1
        return taken, dropped

    def _keep(self, held: Held) -> None:
        kept = []
        for page in held.split():
            entry = self._pages.get(page)
            if entry is None:
                entry = self._pages[page] = [page, 0]
                self.bytes += len(page)
            entry[1] += 1
            kept.append(entry[0])
        self.bytes += _HEAD
        held.shrink(tuple(kept))

    def _release(self, held: Held) -> None:
        if not held.shrunk:
            return
        self.bytes -= _HEAD
        for page in held.pages:
            entry = self._pages[page]
            entry[1] -= 1
            if not entry[1]:
                del self._pages[page]
                self.bytes -= len(page)
