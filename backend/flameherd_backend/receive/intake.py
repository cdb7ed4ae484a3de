"""The way of a message: admitted if there is room, decoded by a worker, stored, answered.

What is admitted and not answered yet is bounded in number and bytes: beyond, senders are told to come
again later, which costs nothing here. Nothing else queues: a message waits in memory either for a
worker or for the writer, and its sender waits for the answer.
"""

import random
from dataclasses import dataclass
from typing import Final

from flameherd_backend.decode.pool import DecoderPool, Request
from flameherd_backend.errors import Busy, Refused, StoreError, StoreFull, TooLarge
from flameherd_backend.store.writer import Stale, Writer

_MAX_DECODES: Final = 3
_FULL_RETRY_S: Final = 10.0
_ERROR_RETRY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """Bounds of what is taken in."""

    max_message_bytes: int = 16 << 20
    """As it comes, compressed or not."""
    max_decoded_bytes: int = 64 << 20
    """After decompression."""
    max_waiting: int = 2048
    max_waiting_bytes: int = 256 << 20


@dataclass(slots=True)
class IntakeStats:
    """What became of messages, profiles and rows."""

    messages: int = 0
    profiles: int = 0
    rejected_profiles: int = 0
    rows: int = 0
    refused: int = 0
    busy: int = 0
    store_errors: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """OTLP's partial success: how many profiles were rejected, and why; 0 and "" = all is well."""

    rejected: int
    reason: str


class Intake:
    """`take` messages from the receivers."""

    def __init__(self, pool: DecoderPool, writer: Writer, limits: IntakeLimits) -> None:
        self._pool = pool
        self._writer = writer
        self.limits = limits
        self.waiting = 0
        self.waiting_bytes = 0
        self.stats = IntakeStats()

    def admit(self, size: int, limit: int) -> "Admission":
        """Room for a message of `size` bytes, at most `limit`. Raises `TooLarge` or `Busy`."""
        if self.waiting >= self.limits.max_waiting:
            raise self._busy()
        admission = Admission(self, limit)
        admission.grow_to(size)
        self.waiting += 1
        return admission

    def _busy(self) -> Busy:
        self.stats.busy += 1
        # Spread, so that senders who were sent away together do not come back together.
        delay = 1.0 + self.waiting / self.limits.max_waiting * 4 + random.random() * 2  # noqa: S311
        return Busy("too many messages wait here", delay, throttled=True)

    def reserve(self, more: int) -> None:
        """Room for `more` bytes. Raises `Busy`."""
        if self.waiting_bytes + more > self.limits.max_waiting_bytes:
            raise self._busy()
        self.waiting_bytes += more

    def release(self, size: int) -> None:
        """A message is done with."""
        self.waiting -= 1
        self.waiting_bytes -= size

    async def take(self, request: Request) -> Outcome:
        """A message that has been admitted; returns when it is stored. Raises `Refused` or `Busy`."""
        try:
            return await self._take(request)
        except Refused:
            self.stats.refused += 1
            raise

    async def _take(self, request: Request) -> Outcome:
        for _ in range(_MAX_DECODES):
            epoch = self._writer.epoch
            answer = await self._pool.decode(request, epoch)
            try:
                await self._writer.insert(answer.blocks, epoch)
            except Stale:
                continue
            except StoreFull as error:
                self.stats.store_errors += 1
                raise Busy(f"the store has no room: {error}", _FULL_RETRY_S) from error
            except StoreError as error:
                self.stats.store_errors += 1
                raise Busy(f"the store does not take it: {error}", _ERROR_RETRY_S) from error
            self.stats.messages += 1
            self.stats.profiles += answer.profiles
            self.stats.rejected_profiles += answer.rejected
            self.stats.rows += answer.rows
            return Outcome(answer.rejected, answer.reason)
        raise Busy("the store failed several times", _ERROR_RETRY_S)


class Admission:
    """The room that one message has; a context manager that gives it back."""

    def __init__(self, intake: Intake, limit: int) -> None:
        self._intake = intake
        self._limit = limit
        self._size = 0

    def grow_to(self, size: int) -> None:
        """Raises `TooLarge` or `Busy`."""
        if size > self._limit:
            raise TooLarge(f"the message has {size} bytes or more; at most {self._limit} are taken")
        if size > self._size:
            self._intake.reserve(size - self._size)
            self._size = size

    def __enter__(self) -> "Admission":
        return self

    def __exit__(self, *exc: object) -> None:
        self._intake.release(self._size)
