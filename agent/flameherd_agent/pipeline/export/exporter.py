"""One endpoint's queue and the thread that empties it.

    submit ──encode──▶ queue (bounded: bytes, batches, age) ──▶ worker thread ──▶ transport
                         │ beyond the bound: the oldest is dropped and counted

An endpoint that is slow, away or hostile costs its own data only: `submit` never waits for the
network, memory is bounded by the queue, and every batch ends as sent or as dropped for a named
reason. Retries follow the OTLP specification: what may be sent again is the transport's judgement,
when is decided here (exponential back-off with jitter, the server's wish first). A partial success
is a success: what was rejected is counted, not sent again.
"""

import logging
import os
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from flameherd_agent.model import ResourceProfiles
from flameherd_agent.pipeline.export.config import EndpointConfig, Protocol
from flameherd_agent.pipeline.export.transport import (
    RefusedError,
    RetryableError,
    Sent,
    Transport,
)
from flameherd_agent.pipeline.otlp import Batch, encode_batches

_LOG: Final = logging.getLogger(__name__)
MAX_SERVER_DELAY_S: Final = 300.0
"""A server may ask for patience, but not for silence until the agent is restarted."""


@dataclass(frozen=True, slots=True)
class EndpointStats:
    """Counters since the exporter was made; `queued_*` are of now."""

    queued_batches: int
    queued_bytes: int
    """Compressed, the batch under way included."""
    sent_batches: int
    sent_profiles: int
    sent_observations: int
    """Ticks that were sent (entries, for values that are not counts)."""
    sent_bytes: int
    """Request bodies, as compressed on the wire."""
    retries: int
    rejected_profiles: int
    """Of batches that were accepted in part."""
    dropped_batches: Mapping[str, int]
    """By reason: `queue_full`, `too_large`, `expired`, `shutdown`, `forbidden_address`,
    `http_<status>`, `grpc_<code>`, `internal`."""
    dropped_observations: Mapping[str, int]
    last_error: str
    """Of the last attempt that failed or was accepted in part; "" if there was none."""
    last_error_unix_s: float
    failing: bool
    """Whether the latest attempt failed."""


@dataclass(slots=True)
class _Queued:
    batch: Batch
    since: float
    """Monotonic seconds."""


def _make_transport(config: EndpointConfig) -> Transport:
    # Imported when needed: gRPC costs 16 MB, which an agent without such an endpoint must not pay.
    if config.protocol is Protocol.GRPC:
        # It writes every failed connection to stderr itself; they are in the status that we report.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        from flameherd_agent.pipeline.export.grpc_transport import GrpcTransport

        return GrpcTransport(config)
    if config.protocol is Protocol.HTTP:
        from flameherd_agent.pipeline.export.http_transport import HttpTransport

        return HttpTransport(config)
    from flameherd_agent.pipeline.export.file_transport import FileTransport

    return FileTransport(config)


class Exporter:
    """Sends what is submitted to one endpoint, in order. `submit` and `stats` may be called from
    any thread until `close`.
    """

    def __init__(self, config: EndpointConfig, transport: Transport | None = None) -> None:
        self.config = config
        self._transport = transport
        self._wake = threading.Condition()
        self._queue: deque[_Queued] = deque()
        self._queued_bytes = 0
        self._in_flight = False
        self._thread: threading.Thread | None = None
        self._deadline: float | None = None
        """Monotonic; set once by `close`."""
        self._sent: Counter[str] = Counter()
        self._dropped_batches: Counter[str] = Counter()
        self._dropped_observations: Counter[str] = Counter()
        self._last_error = ""
        self._last_error_unix_s = 0.0
        self._failing = False

    def submit(self, resources: Sequence[ResourceProfiles]) -> None:
        """Encodes and queues profiles; never blocks on the endpoint."""
        for batch in encode_batches(resources):
            self._enqueue(batch)

    def _enqueue(self, batch: Batch) -> None:
        size = len(batch.compressed)
        with self._wake:
            if self._deadline is not None:
                self._count_drop(batch, "shutdown")
                return
            if size > self.config.queue_bytes:
                self._count_drop(batch, "too_large")
                return
            self._queue.append(_Queued(batch, time.monotonic()))
            self._queued_bytes += size
            while (
                self._queued_bytes > self.config.queue_bytes
                or len(self._queue) > self.config.queue_batches
            ):
                # The batch under way cannot be taken back: the next one is the oldest.
                oldest = 1 if self._in_flight else 0
                if oldest == len(self._queue):
                    break
                self._drop(oldest, "queue_full")
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"export {self.config.name}"[:60], daemon=True
                )
                self._thread.start()
            self._wake.notify_all()

    def limit(self, queue_bytes: int) -> None:
        """From the next batch on, so much may wait."""
        with self._wake:
            if queue_bytes != self.config.queue_bytes:
                self.config = replace(self.config, queue_bytes=queue_bytes)

    def stats(self) -> EndpointStats:
        """A consistent snapshot."""
        with self._wake:
            return EndpointStats(
                queued_batches=len(self._queue),
                queued_bytes=self._queued_bytes,
                sent_batches=self._sent["batches"],
                sent_profiles=self._sent["profiles"],
                sent_observations=self._sent["observations"],
                sent_bytes=self._sent["bytes"],
                retries=self._sent["retries"],
                rejected_profiles=self._sent["rejected"],
                dropped_batches=dict(self._dropped_batches),
                dropped_observations=dict(self._dropped_observations),
                last_error=self._last_error,
                last_error_unix_s=self._last_error_unix_s,
                failing=self._failing,
            )

    def close(self, timeout_s: float = 5.0) -> None:
        """Sends what is queued within `timeout_s`, then drops and counts the rest. Idempotent."""
        with self._wake:
            if self._deadline is None:
                self._deadline = time.monotonic() + timeout_s
            self._wake.notify_all()
            thread, transport = self._thread, self._transport
        if thread is not None:
            thread.join(timeout_s)
            if thread.is_alive() and transport is not None:
                transport.abort()
                thread.join(1.0)
        with self._wake:
            # If the thread hangs (in the name resolver, say), the batch it holds counts as lost.
            self._in_flight = False
            while self._queue:
                self._drop(0, "shutdown")

    # Below: called with the lock held.

    def _count_drop(self, batch: Batch, reason: str) -> None:
        self._dropped_batches[reason] += 1
        self._dropped_observations[reason] += batch.observations

    def _drop(self, index: int, reason: str) -> None:
        batch = self._remove(index)
        self._count_drop(batch, reason)

    def _remove(self, index: int) -> Batch:
        batch = self._queue[index].batch
        del self._queue[index]
        self._queued_bytes -= len(batch.compressed)
        return batch

    def _failed(self, message: str) -> None:
        if not self._failing:
            _LOG.warning("export to %s fails: %s", self.config.name, message)
        self._failing = True
        self._note(message)

    def _note(self, message: str) -> None:
        self._last_error = message
        self._last_error_unix_s = time.time()

    def _succeeded(self, batch: Batch, sent: Sent) -> None:
        if self._failing:
            _LOG.info("export to %s works again", self.config.name)
        self._failing = False
        self._sent["batches"] += 1
        self._sent["profiles"] += batch.profiles
        self._sent["observations"] += batch.observations
        self._sent["bytes"] += sent.payload_bytes
        self._sent["rejected"] += sent.rejected_profiles
        if sent.rejected_profiles or sent.message:
            self._note(f"{sent.rejected_profiles} profiles rejected: {sent.message}")

    # Below: the worker thread, without the lock unless it says so.

    def _run(self) -> None:
        if self._transport is None:
            transport = _make_transport(self.config)
            with self._wake:
                self._transport = transport
        else:
            transport = self._transport
        attempt = 0
        while (batch := self._next()) is not None:
            delay = self._attempt(transport, batch, attempt)
            if delay is None:
                attempt = 0
            else:
                attempt += 1
                self._pause(*delay)
        transport.close()

    def _next(self) -> Batch | None:
        """The oldest batch, marked as under way; None if it is time to stop."""
        with self._wake:
            while True:
                now = time.monotonic()
                if self._deadline is not None and (not self._queue or now >= self._deadline):
                    return None
                if not self._queue:
                    self._wake.wait()
                elif now - self._queue[0].since > self.config.max_age_s:
                    self._drop(0, "expired")
                else:
                    self._in_flight = True
                    return self._queue[0].batch

    def _attempt(
        self, transport: Transport, batch: Batch, attempt: int
    ) -> tuple[float, bool] | None:
        """Sends once; returns the delay before the next attempt and whether the server set it,
        or None if the batch is done with.
        """
        timeout_s = self.config.timeout_s
        if self._deadline is not None:
            timeout_s = min(timeout_s, max(self._deadline - time.monotonic(), 0.01))
        outcome: Sent | RetryableError | RefusedError
        reason = ""
        try:
            outcome = transport.send(batch, timeout_s)
        except RetryableError as error:
            outcome = error
        except RefusedError as error:
            outcome, reason = error, error.reason
        except Exception as error:  # noqa: BLE001 - a defect in a transport costs one batch, not the endpoint
            _LOG.exception("export to %s: a batch is dropped", self.config.name)
            outcome, reason = RefusedError(repr(error), "internal"), "internal"
        with self._wake:
            self._in_flight = False
            # `close` may have given up on this batch while it was under way.
            if not self._queue or self._queue[0].batch is not batch:
                return None
            if isinstance(outcome, Sent):
                self._remove(0)
                self._succeeded(batch, outcome)
                return None
            self._failed(str(outcome))
            if isinstance(outcome, RefusedError):
                self._drop(0, reason)
                return None
            self._sent["retries"] += 1
        ceiling = min(self.config.retry_initial_s * 2 ** min(attempt, 20), self.config.retry_max_s)
        delay = random.uniform(0.5, 1.0) * ceiling  # noqa: S311 - spreads agents out, no secret
        if outcome.after_s is not None and outcome.after_s > 0:
            return max(min(outcome.after_s, MAX_SERVER_DELAY_S), delay), True
        return delay, False

    def _pause(self, delay_s: float, by_server: bool) -> None:
        """Waits; `close` cuts it short, except what the server asked for within the deadline."""
        until = time.monotonic() + delay_s
        with self._wake:
            was_open = self._deadline is None
            while (left := until - time.monotonic()) > 0:
                if self._deadline is not None:
                    if was_open and not by_server:
                        return  # one more attempt at once, then at the usual pace
                    if until >= self._deadline:
                        self._deadline = min(self._deadline, time.monotonic())
                        return
                self._wake.wait(left)
