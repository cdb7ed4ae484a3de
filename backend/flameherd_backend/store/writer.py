"""The one writer: collects blocks of many messages into few inserts, and answers when they are stored.

A message is acknowledged only after its rows are in the store, so that a kill loses nothing that was
acknowledged. While one insert runs, the next messages gather; at most a few inserts a second keep
the number of parts low. Side tables come first and `samples` last: what a sample refers to is there
before it, and a failure in between leaves unused definitions only.

Blocks carry the epoch in which they were decoded. A failed insert starts a new epoch: definitions in
it may be lost, and blocks that rely on them come back as `Stale`, to be decoded again in full.

A sender whose message failed sends it again. So none of its rows may be there already: the insert into
`samples` is all or nothing, and where only the sums by minute failed behind it, the message is
stored and the sums are mended before the next one (`rollup.py`).
"""

import asyncio
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from flameherd_backend.decode.blocks import TABLES
from flameherd_backend.errors import BackendError, NotSummedUp, StoreError
from flameherd_backend.store import rollup
from flameherd_backend.store.database import Database

log = logging.getLogger(__name__)

MAX_COMMIT_BYTES: Final = 64 << 20
_MIN_INTERVAL_S: Final = 0.2


class Stale(BackendError):
    """Decoded before an insert failed: decode again."""


@dataclass(slots=True)
class _Waiting:
    blocks: Mapping[str, bytes]
    size: int
    epoch: int
    done: "asyncio.Future[None]"


@dataclass(slots=True)
class WriterStats:
    """What was written."""

    inserts: int = 0
    messages: int = 0
    bytes: int = 0
    failures: int = 0
    last_error: str = ""


class Writer:
    """`insert` from the event loop; a thread of its own does the writing."""

    def __init__(self, database: Database, loop: asyncio.AbstractEventLoop) -> None:
        self._database = database
        self._loop = loop
        self._lock = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._stopping = False
        self._sums_behind = False
        self._failing = False
        self.epoch = 0
        self.stats = WriterStats()
        self._thread = threading.Thread(target=self._run, name="writer")
        self._thread.start()

    def is_running(self) -> bool:
        """Whether what is given will be written."""
        return self._thread.is_alive()

    async def insert(self, blocks: Mapping[str, bytes], epoch: int) -> None:
        """Returns when the blocks are stored. Raises `StoreError`, or `Stale`."""
        if not blocks:
            return
        waiting = _Waiting(
            blocks, sum(map(len, blocks.values())), epoch, self._loop.create_future()
        )
        with self._lock:
            if self._stopping:
                raise StoreError("the store is closing")
            self._waiting.append(waiting)
            self._lock.notify()
        await waiting.done

    def close(self) -> None:
        """Writes what waits, then ends the thread. Call it off the event loop."""
        with self._lock:
            self._stopping = True
            self._lock.notify()
        self._thread.join()

    def _take(self) -> list[_Waiting]:
        with self._lock:
            while not self._waiting and not self._stopping:
                self._lock.wait()
            size = count = 0
            for waiting in self._waiting:
                if count and size + waiting.size > MAX_COMMIT_BYTES:
                    break
                size += waiting.size
                count += 1
            taken, self._waiting = self._waiting[:count], self._waiting[count:]
            return taken

    def _run(self) -> None:
        while taken := self._take():
            begun = time.monotonic()
            fresh = [waiting for waiting in taken if waiting.epoch == self.epoch]
            stale = [waiting for waiting in taken if waiting.epoch != self.epoch]
            self._settle(stale, Stale("an insert failed meanwhile"))
            try:
                self._mend()
                self._insert(fresh)
            except StoreError as error:
                self.epoch += 1
                self._failed(error)
                self._settle(fresh, error)
            else:
                self.stats.messages += len(fresh)
                self.stats.bytes += sum(waiting.size for waiting in fresh)
                self._settle(fresh, None)
                if self._failing and not self._sums_behind:
                    self._failing = False
                    log.info("inserts work again")
            with self._lock:
                if not self._stopping:
                    self._lock.wait_for(
                        lambda: self._stopping, max(0.0, begun + _MIN_INTERVAL_S - time.monotonic())
                    )

    def _insert(self, fresh: list[_Waiting]) -> None:
        for table in TABLES:
            blocks = [waiting.blocks[table] for waiting in fresh if table in waiting.blocks]
            if not blocks:
                continue
            try:
                self._database.insert(table, blocks)
            except NotSummedUp as error:
                self._failed(error)
                self._sums_behind = True
            self.stats.inserts += 1

    def _mend(self) -> None:
        if self._sums_behind:
            rollup.mend(self._database)
            self._sums_behind = False

    def _failed(self, error: StoreError) -> None:
        self.stats.failures += 1
        self.stats.last_error = str(error)
        if not self._failing:  # a full disk fails many times a second
            self._failing = True
            log.error("an insert failed: %s", error)

    def _settle(self, waiting: list[_Waiting], error: BackendError | None) -> None:
        def settle() -> None:
            for each in waiting:
                if each.done.cancelled():
                    continue
                if error is None:
                    each.done.set_result(None)
                else:
                    each.done.set_exception(error)

        if waiting:
            self._loop.call_soon_threadsafe(settle)
