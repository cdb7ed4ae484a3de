"""The thread between connection and reflectors: what it does when connections fail."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flameherd_agent.cluster import follower as module
from flameherd_agent.cluster.account import Account
from flameherd_agent.cluster.follower import Change, Follower, Inbox, Queued
from flameherd_agent.cluster.http2 import Answered, ConnectionLost, Ended, Event, Received
from flameherd_agent.cluster.objects import Pod
from flameherd_agent.cluster.reflector import Reflector

ACCOUNT = Account("api", 443, Path("/"), "n1", "agents")


class Line:
    """A connection whose answers the test gives."""

    def __init__(self) -> None:
        self.asked: dict[int, str] = {}
        self.cancelled: list[int] = []
        self.closed = False
        self._events: list[Event | ConnectionLost] = []
        self._there = threading.Condition()

    def say(self, *events: Event | ConnectionLost) -> None:
        with self._there:
            self._events += events
            self._there.notify_all()

    def get(self, target: str) -> int:
        stream = 2 * len(self.asked) + 1
        self.asked[stream] = target
        return stream

    def cancel(self, stream: int) -> None:
        self.cancelled.append(stream)

    def poll(self, timeout_s: float) -> list[Event]:
        with self._there:
            self._there.wait_for(lambda: self._events, min(timeout_s, 0.05))
            found, self._events = self._events, []
        for event in found:
            if isinstance(event, ConnectionLost):
                raise event
        return [event for event in found if not isinstance(event, ConnectionLost)]

    def shut(self) -> None:
        self.say(ConnectionLost("shut"))

    def close(self) -> None:
        self.closed = True


class Lines:
    """Connections as they are made; the first `refuse` of them cannot be."""

    def __init__(self) -> None:
        self.made: list[Line] = []
        self.refuse = 0

    def __call__(self, account: Account) -> Line:
        assert account is ACCOUNT
        if self.refuse:
            self.refuse -= 1
            raise ConnectionLost("refused")
        self.made.append(Line())
        return self.made[-1]


def until(check: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class World:
    def __init__(self) -> None:
        self.lines = Lines()
        self.inbox = Inbox()
        self.reflector = Reflector("/pods", "a=b", Pod, Queued("pods", self.inbox))
        self.follower = Follower(ACCOUNT, [self.reflector], connect=self.lines)  # type: ignore[arg-type]

    def line(self, count: int = 1) -> Line:
        until(lambda: len(self.lines.made) >= count)
        return self.lines.made[count - 1]

    def asked(self, line: Line, count: int = 1) -> str:
        until(lambda: len(line.asked) >= count)
        return list(line.asked.values())[count - 1]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(module, "_PAUSE_S", (0.01, 0.02))
    made = World()
    yield made
    made.follower.close()
    made.inbox.close()
    assert all(line.closed for line in made.lines.made)


def listed(stream: int, *names: str) -> tuple[Event, ...]:
    items = [{"metadata": {"name": name, "resourceVersion": "3"}} for name in names]
    body = json.dumps({"metadata": {"resourceVersion": "5"}, "items": items}).encode()
    return (
        Answered(stream, 200),
        Received(stream, body[:9]),
        Received(stream, body[9:]),
        Ended(stream),
    )


def taken(inbox: Inbox, count: int) -> list[Change[Pod]]:
    found: list[Change[Pod]] = []

    def enough() -> bool:
        found.extend(inbox.take())
        return len(found) >= count

    until(enough)
    return found


def test_lists_and_watches_go_into_the_inbox(world: World) -> None:
    world.follower.start()
    line = world.line()
    assert "resourceVersion=0" in world.asked(line)
    line.say(*listed(1, "a"))
    assert "watch=1" in world.asked(line, 2)
    event = {"type": "DELETED", "object": {"metadata": {"name": "a", "resourceVersion": "8"}}}
    line.say(Answered(3, 200), Received(3, json.dumps(event).encode() + b"\n"))
    whole, gone = taken(world.inbox, 2)
    assert (whole.whole, [pod.metadata.name for pod in whole.objects]) == (True, ["a"])
    assert (gone.gone, gone.source) == (True, "pods")
    assert not world.follower.error


def test_a_lost_connection_is_told_and_the_watch_goes_on_in_the_next(world: World) -> None:
    world.lines.refuse = 2
    world.follower.start()
    line = world.line()
    assert world.follower.error == "refused"
    world.asked(line)
    line.say(*listed(1, "a"))
    world.asked(line, 2)
    assert not world.follower.error
    line.say(ConnectionLost("gone"))
    second = world.line(2)
    assert "watch=1" in world.asked(second)
    assert "resourceVersion=5" in world.asked(second)
    assert world.follower.connections == 2
    until(lambda: world.follower.error == "gone")
    second.say(Answered(1, 200), Received(1, b'{"type":"BOOKMARK","object":{"metadata":{}}}\n'))
    until(lambda: not world.follower.error)


def test_a_watch_that_ends_badly_is_cancelled_and_told(world: World) -> None:
    world.follower.start()
    line = world.line()
    world.asked(line)
    line.say(*listed(1))
    world.asked(line, 2)
    line.say(Answered(3, 200), Received(3, b"nonsense\n"), Received(3, b"more\n"), Ended(3))
    until(lambda: line.cancelled == [3])
    assert "cannot be read" in world.follower.error
    world.asked(line, 3)
    assert world.follower.connections == 1, "the connection is good"


def test_closing_ends_a_wait(world: World) -> None:
    world.follower.start()
    world.asked(world.line())
    world.follower.close()
    assert world.lines.made[0].closed
