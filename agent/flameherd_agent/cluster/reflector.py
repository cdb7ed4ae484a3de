"""One list-then-watch of the API server, as a state machine: no socket, no clock of its own.

A list gives the objects and the version that they are of; a watch tells what changes after it, one
JSON document a line. Both end in many ways that are no news: a watch by its time limit, a version
that is too old (410, or an ERROR line with that code) by a new list, anything else by a pause that
grows. Watches can go silent, so one that says nothing for long, not even the bookmark that the
server sends each minute, is begun anew.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar
from urllib.parse import urlencode

import msgspec

from flameherd_agent.cluster.objects import Bookmark, Kind, ListOf, Status, WatchEvent

MAX_LIST_BYTES: Final = 64 << 20
MAX_LINE_BYTES: Final = 8 << 20
WATCH_S: Final = (240, 420)
"""A watch's time limit is drawn from here, so that not all agents begin anew at once."""
SILENT_S: Final = 180.0
"""Three bookmarks that did not come."""
ANSWER_S: Final = 60.0
"""A list or the head of a watch must have come by then."""
PAUSE_S: Final = (0.5, 30.0)
_GONE: Final = 410


Told = TypeVar("Told", contravariant=True)


class Sink(Protocol[Told]):
    """Takes what a reflector learns."""

    def replace(self, found: Sequence[Told]) -> None:
        """This is all there is."""

    def put(self, changed: Told) -> None:
        """An object came or changed."""

    def remove(self, gone: Told) -> None:
        """An object went."""


class Reflector(Generic[Kind]):
    """Follows the objects at `path` that `fields` (a field selector) selects."""

    def __init__(
        self,
        path: str,
        fields: str,
        kind: type[Kind],
        sink: Sink[Kind],
        draw: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self.path = path
        self._fields = fields
        self._list: msgspec.json.Decoder[Any] = msgspec.json.Decoder(ListOf[kind])  # type: ignore[valid-type]
        self._kind: msgspec.json.Decoder[Kind] = msgspec.json.Decoder(kind)
        self._event = msgspec.json.Decoder(WatchEvent)
        self._sink: Sink[Kind] = sink
        self._draw = draw
        self._version: str | None = None
        """None: a list is due."""
        self._fresh = False
        """The next list must not come from the server's cache, which may be older than what we know."""
        self._watching = False
        self._under_way = False
        self._status = 0
        self._body = bytearray()
        self._deadline = 0.0
        self._not_before = 0.0
        self._failures = 0
        self.listed = False
        """Whether there was ever an answer."""
        self.error = ""
        """What went wrong last; "" once it works again."""

    # What the follower asks

    def due_at(self) -> float:
        """When there is something to do: a request to send, or one to give up."""
        return self._deadline if self._under_way else self._not_before

    def request(self, now: float) -> str | None:
        """The target to ask for now; None if a request is under way or its time has not come."""
        if self._under_way or now < self._not_before:
            return None
        query = {"fieldSelector": self._fields}
        self._watching = self._version is not None
        if self._version is None:
            if not self._fresh:
                query["resourceVersion"] = "0"
        else:
            limit_s = round(self._draw(*WATCH_S))
            query |= {
                "watch": "1",
                "allowWatchBookmarks": "true",
                "resourceVersion": self._version,
                "timeoutSeconds": str(limit_s),
            }
        self._under_way = True
        self._status = 0
        self._body.clear()
        self._deadline = now + ANSWER_S
        return f"{self.path}?{urlencode(query)}"

    def overdue(self, now: float) -> bool:
        """The request under way says nothing: the caller cancels it."""
        if not self._under_way or now < self._deadline:
            return False
        self._failed(now, "no answer in time")
        return True

    # What comes

    def answered(self, status: int, now: float) -> None:
        self._status = status
        self._deadline = now + (SILENT_S if self._watching else ANSWER_S)

    def received(self, data: bytes, now: float) -> bool:
        """Whether the request may go on; if not, the caller cancels it."""
        self._body += data
        self._deadline = now + (SILENT_S if self._watching else ANSWER_S)
        if self._watching and self._status == 200:
            return self._lines(now)
        if len(self._body) > MAX_LIST_BYTES:
            self._failed(now, f"an answer of more than {MAX_LIST_BYTES >> 20} MiB")
            return False
        return True

    def ended(self, error: str, now: float) -> None:
        """The answer is complete, or broken off."""
        if not self._under_way:
            return
        if error:
            self._failed(now, error)
        elif self._status != 200:
            self._refused(now, self._status, bytes(self._body))
        elif self._watching:
            self._under_way = False
            # One that ends at once, again and again, is no time limit.
            self._not_before = now + PAUSE_S[0]
        else:
            self._take_list(now)

    def lost(self, now: float) -> None:
        """The connection is gone; the follower waits before there is another."""
        if self._under_way:
            self._under_way = False
            self._not_before = now

    # Inside

    def _take_list(self, now: float) -> None:
        try:
            found = self._list.decode(self._body)
        except msgspec.MsgspecError as error:
            self._failed(now, f"a list that cannot be read: {error}")
            return
        finally:
            self._body = bytearray()
        self._sink.replace(found.items or ())
        self._version = found.metadata.resource_version or "0"
        self._works()
        self._under_way = self._fresh = False
        self._not_before = now

    def _lines(self, now: float) -> bool:
        start = 0
        while (end := self._body.find(b"\n", start)) >= 0:
            line = bytes(self._body[start:end])
            start = end + 1
            if line.strip() and not self._take_line(line, now):
                return False
        del self._body[:start]
        if len(self._body) > MAX_LINE_BYTES:
            self._relist(now, f"an object of more than {MAX_LINE_BYTES >> 20} MiB")
            return False
        return True

    def _take_line(self, line: bytes, now: float) -> bool:
        try:
            event = self._event.decode(line)
            if event.type == "ERROR":
                status = msgspec.json.decode(event.object, type=Status)
                self._refused(now, status.code or 0, bytes(event.object))
                return False
            if event.type == "BOOKMARK":
                version = msgspec.json.decode(event.object, type=Bookmark).metadata.resource_version
            else:
                changed = self._kind.decode(event.object)
                version = changed.metadata.resource_version
                if event.type == "DELETED":
                    self._sink.remove(changed)
                elif event.type in ("ADDED", "MODIFIED"):
                    self._sink.put(changed)
        except msgspec.MsgspecError as error:
            self._relist(now, f"a line that cannot be read: {error}")
            return False
        self._version = version or self._version
        self._works()
        return True

    def _works(self) -> None:
        self.listed = True
        self._failures = 0
        self.error = ""

    def _refused(self, now: float, code: int, body: bytes) -> None:
        try:
            message = msgspec.json.decode(body, type=Status).message or ""
        except msgspec.MsgspecError:
            message = body[:200].decode(errors="replace")
        if code == _GONE:
            # No failure: the watch was away for too long.
            self._version, self._fresh, self._under_way = None, True, False
            self._not_before = now + self._draw(0.0, PAUSE_S[0])
            return
        self._failed(now, f"{code}: {message[:300]}")

    def _relist(self, now: float, error: str) -> None:
        self._version, self._fresh = None, True
        self._failed(now, error)

    def _failed(self, now: float, error: str) -> None:
        self._failures += 1
        self.error = f"{self.path} ({self._fields}): {error}"
        self._under_way = False
        self._body = bytearray()
        if self._failures > 2 and self._version is not None:
            self._version, self._fresh = None, True
        longest = min(PAUSE_S[1], PAUSE_S[0] * 2 ** min(self._failures, 10))
        self._not_before = now + self._draw(longest / 2, longest)
