"""The thread that keeps reflectors fed: one connection, begun anew whenever it is lost.

What reflectors learn goes into a queue, and an eventfd wakes the agent's loop: nothing of the
agent's state is touched from here. While the API server is away, the agent goes on with what it
has; attempts to come back are spread out, since every node's agent makes them.
"""

import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic

from flameherd_agent.cluster.account import Account
from flameherd_agent.cluster.http2 import Answered, Connection, ConnectionLost, Event, Received
from flameherd_agent.cluster.objects import Kind
from flameherd_agent.cluster.reflector import Reflector
from flameherd_agent.observe.logs import Log

log = Log(__name__)

_PAUSE_S: Final = (3.0, 30.0)
"""Before another connection, at random below the first, then twice that, up to the second."""
_CLOSE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Change(Generic[Kind]):
    """What a reflector learned, for the agent's loop. `whole`: `objects` is all there is."""

    source: str
    whole: bool
    objects: Sequence[Kind]
    gone: bool = False


@dataclass(slots=True)
class Inbox:
    """Changes on their way from the thread to the loop."""

    fd: int = field(default_factory=lambda: os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
    """Readable when there is something."""
    _changes: deque[Change[Any]] = field(default_factory=deque)

    def put(self, change: Change[Any]) -> None:
        self._changes.append(change)
        os.eventfd_write(self.fd, 1)

    def take(self) -> list[Change[Any]]:
        """Everything that has come, in order."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return []
        taken = []
        while self._changes:
            taken.append(self._changes.popleft())
        return taken

    def close(self) -> None:
        os.close(self.fd)


@dataclass(frozen=True, slots=True)
class Queued(Generic[Kind]):
    """The sink of one reflector: into the inbox, under a name."""

    source: str
    inbox: Inbox

    def replace(self, found: Sequence[Kind]) -> None:
        self.inbox.put(Change(self.source, True, found))

    def put(self, changed: Kind) -> None:
        self.inbox.put(Change(self.source, False, (changed,)))

    def remove(self, gone: Kind) -> None:
        self.inbox.put(Change(self.source, False, (gone,), gone=True))


class Follower:
    """Runs from `start` to `close`."""

    def __init__(
        self,
        account: Account,
        reflectors: Sequence[Reflector[Any]],
        *,
        connect: Callable[[Account], Connection] = Connection,
    ) -> None:
        self._account = account
        self._reflectors = reflectors
        self._connect = connect
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._error = ""
        self._thread = threading.Thread(target=self._run, name="flameherd-cluster", daemon=True)
        self.connections = 0
        """Made since the start."""

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread; what it waits for is cut."""
        self._stop.set()
        with self._lock:
            if self._connection is not None:
                self._connection.shut()
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_S)

    @property
    def error(self) -> str:
        """What is wrong now: with the connection, or with one of the reflectors; "" = nothing."""
        return self._error or next((r.error for r in self._reflectors if r.error), "")

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._follow()
            except ConnectionLost as error:
                if not self._stop.is_set():
                    self._tell(str(error))
            now = time.monotonic()
            for reflector in self._reflectors:
                reflector.lost(now)
            # A connection that held is no failure: come back soon, but not all agents at once.
            failures = 0 if now - began > _PAUSE_S[1] else failures + 1
            longest = min(_PAUSE_S[1], _PAUSE_S[0] * 2 ** min(failures, 10))
            self._stop.wait(random.uniform(0, longest))  # noqa: S311 spreads load, no secret

    def _tell(self, error: str) -> None:
        if error != self._error:
            log.warning("the API server is away: going on with what is known", error=error)
        self._error = error

    def _follow(self) -> None:
        connection = self._connect(self._account)
        with self._lock:
            self._connection = connection
        try:
            self.connections += 1
            streams: dict[int, Reflector[Any]] = {}
            while not self._stop.is_set():
                now = time.monotonic()
                self._send(connection, streams, now)
                due = min(reflector.due_at() for reflector in self._reflectors)
                for event in connection.poll(max(0.0, due - now)):
                    self._take(event, connection, streams)
        finally:
            with self._lock:
                self._connection = None
            connection.close()

    def _send(self, connection: Connection, streams: dict[int, Reflector[Any]], now: float) -> None:
        for stream, reflector in list(streams.items()):
            if reflector.overdue(now):
                del streams[stream]
                connection.cancel(stream)
        for reflector in self._reflectors:
            target = reflector.request(now)
            if target is not None:
                streams[connection.get(target)] = reflector

    def _take(
        self, event: Event, connection: Connection, streams: dict[int, Reflector[Any]]
    ) -> None:
        reflector = streams.get(event.stream)
        if reflector is None:
            return  # an answer that was given up
        now = time.monotonic()
        before = reflector.error
        if isinstance(event, Answered):
            reflector.answered(event.status, now)
        elif isinstance(event, Received):
            if not reflector.received(event.data, now):
                del streams[event.stream]
                connection.cancel(event.stream)
        else:
            del streams[event.stream]
            reflector.ended(event.error, now)
        if reflector.error and reflector.error != before:
            log.warning("the API server refuses", error=reflector.error)
        if self._error and reflector.listed and not reflector.error:
            log.info("the API server is back")
            self._error = ""
