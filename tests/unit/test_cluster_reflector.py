"""A list-then-watch, event by event: what ends it, and how it goes on."""

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from flameherd_agent.cluster.objects import Pod
from flameherd_agent.cluster.reflector import (
    ANSWER_S,
    MAX_LINE_BYTES,
    PAUSE_S,
    SILENT_S,
    WATCH_S,
    Reflector,
)
from hypothesis import given
from hypothesis import strategies as st


class Recorded:
    """A sink that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[str]]] = []

    def replace(self, found: Sequence[Pod]) -> None:
        self.told.append(("replace", [pod.metadata.name for pod in found]))

    def put(self, changed: Pod) -> None:
        self.told.append(("put", [changed.metadata.name]))

    def remove(self, gone: Pod) -> None:
        self.told.append(("remove", [gone.metadata.name]))


def pod(name: str, version: str = "7") -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": name, "resourceVersion": version}}


def line(kind: str, value: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": value}).encode() + b"\n"


@pytest.fixture
def sink() -> Recorded:
    return Recorded()


@pytest.fixture
def reflector(sink: Recorded) -> Reflector[Pod]:
    return Reflector("/api/v1/pods", "spec.nodeName=n1", Pod, sink, draw=lambda low, high: high)


def asked(reflector: Reflector[Pod], now: float) -> dict[str, str]:
    target = reflector.request(now)
    assert target is not None
    assert urlsplit(target).path == "/api/v1/pods"
    return {key: values[0] for key, values in parse_qs(urlsplit(target).query).items()}


def answer(reflector: Reflector[Pod], body: bytes, now: float, status: int = 200) -> None:
    reflector.answered(status, now)
    reflector.received(body, now)
    reflector.ended("", now)


def listed(reflector: Reflector[Pod], now: float = 0.0, names: Sequence[str] = ("a",)) -> None:
    asked(reflector, now)
    items = [pod(name) for name in names]
    answer(
        reflector,
        json.dumps({"metadata": {"resourceVersion": "5"}, "items": items}).encode(),
        now,
    )


def test_a_list_from_the_cache_and_a_watch_from_its_version(
    reflector: Reflector[Pod], sink: Recorded
) -> None:
    assert asked(reflector, 0) == {"fieldSelector": "spec.nodeName=n1", "resourceVersion": "0"}
    assert reflector.request(0) is None, "one request at a time"
    assert not reflector.listed
    body = json.dumps({"metadata": {"resourceVersion": "5"}, "items": [pod("a"), pod("b")]})
    answer(reflector, body.encode(), 0)
    assert sink.told == [("replace", ["a", "b"])]
    assert reflector.listed
    assert asked(reflector, 0) == {
        "fieldSelector": "spec.nodeName=n1",
        "watch": "1",
        "allowWatchBookmarks": "true",
        "resourceVersion": "5",
        "timeoutSeconds": str(WATCH_S[1]),
    }


def test_events_in_pieces_move_the_version(reflector: Reflector[Pod], sink: Recorded) -> None:
    listed(reflector)
    asked(reflector, 1)
    reflector.answered(200, 1)
    text = line("ADDED", pod("b", "8")) + line("MODIFIED", pod("a", "9")) + b"\n"
    text += line("DELETED", pod("b", "11")) + line("BOOKMARK", pod("", "15"))
    for at in range(0, len(text), 7):
        assert reflector.received(text[at : at + 7], 1)
    assert sink.told[1:] == [("put", ["b"]), ("put", ["a"]), ("remove", ["b"])]
    reflector.ended("", 300)
    assert reflector.request(300) is None
    assert asked(reflector, 300 + PAUSE_S[0])["resourceVersion"] == "15"


def test_an_empty_list_may_have_null_items(reflector: Reflector[Pod], sink: Recorded) -> None:
    asked(reflector, 0)
    answer(reflector, b'{"metadata": {"resourceVersion": "5"}, "items": null}', 0)
    assert sink.told == [("replace", [])]


@pytest.mark.parametrize("how", ["line", "status"])
def test_a_version_that_is_too_old_is_listed_anew_and_not_from_the_cache(
    reflector: Reflector[Pod], how: str
) -> None:
    listed(reflector)
    asked(reflector, 1)
    gone = {"kind": "Status", "code": 410, "message": "too old resource version"}
    if how == "line":
        reflector.answered(200, 1)
        assert not reflector.received(line("ERROR", gone), 1)
    else:
        answer(reflector, json.dumps(gone).encode(), 1, status=410)
    assert not reflector.error, "it is no failure"
    assert asked(reflector, 2) == {"fieldSelector": "spec.nodeName=n1"}


def test_a_refusal_is_told_and_pauses_grow(reflector: Reflector[Pod]) -> None:
    now, pauses = 0.0, []
    for _ in range(9):
        asked(reflector, now)
        answer(reflector, b'{"kind": "Status", "code": 403, "message": "no right"}', now, 403)
        assert "403: no right" in reflector.error
        pauses.append(reflector.due_at() - now)
        now = reflector.due_at()
    assert pauses == sorted(pauses)
    assert pauses[0] <= 2 * PAUSE_S[0]
    assert pauses[-1] == PAUSE_S[1]
    listed(reflector, now)
    assert not reflector.error


def test_watches_that_fail_again_and_again_end_in_a_list(reflector: Reflector[Pod]) -> None:
    listed(reflector)
    now = 0.0
    for _ in range(3):
        assert "watch" in asked(reflector, now)
        answer(reflector, b"oops", now, 500)
        now = reflector.due_at()
    assert "watch" not in asked(reflector, now)


def test_a_silent_watch_is_given_up(reflector: Reflector[Pod]) -> None:
    listed(reflector)
    asked(reflector, 1)
    assert not reflector.overdue(ANSWER_S)
    reflector.answered(200, 1)
    assert not reflector.overdue(SILENT_S)
    reflector.received(line("BOOKMARK", pod("", "6")), 100)
    assert not reflector.overdue(100 + SILENT_S - 1)
    assert reflector.overdue(100 + SILENT_S)
    assert asked(reflector, 100 + SILENT_S + 30)["resourceVersion"] == "6"


def test_a_lost_connection_costs_no_version(reflector: Reflector[Pod]) -> None:
    listed(reflector)
    asked(reflector, 1)
    reflector.answered(200, 1)
    reflector.received(line("ADDED", pod("b", "8")) + b'{"type": "ADD', 1)
    reflector.lost(2)
    assert asked(reflector, 2)["resourceVersion"] == "8"
    reflector.answered(200, 2)
    assert reflector.received(line("ADDED", pod("c", "9")), 2), "half a line is forgotten"


def test_what_is_no_json_or_too_long_is_listed_anew(reflector: Reflector[Pod]) -> None:
    listed(reflector)
    asked(reflector, 1)
    reflector.answered(200, 1)
    assert not reflector.received(b"{nonsense}\n", 1)
    assert "cannot be read" in reflector.error
    listed(reflector, 100)
    asked(reflector, 100)
    reflector.answered(200, 100)
    piece = b" " * (MAX_LINE_BYTES // 4)
    assert [reflector.received(piece, 100) for _ in range(5)][-1] is False
    assert "MiB" in reflector.error


@given(st.lists(st.binary(max_size=60), max_size=6), st.sampled_from([200, 403, 410, 500]))
def test_whatever_comes_it_goes_on(pieces: list[bytes], status: int) -> None:
    sink = Recorded()
    reflector = Reflector("/x", "a=b", Pod, sink, draw=lambda low, high: high)
    now = 0.0
    for _ in range(3):
        assert reflector.request(now) is not None
        reflector.answered(status, now)
        alive = all(reflector.received(piece, now) for piece in pieces)
        if alive:
            reflector.ended("", now)
        now = reflector.due_at()
        assert now < 200
