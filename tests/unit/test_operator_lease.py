"""Who holds the Lease: two operators against one stored object, with a clock of our own."""

import asyncio
import copy
from typing import Any

import pytest
from flameherd_operator.errors import ApiFailure, LeaseLost
from flameherd_operator.lease import Lease


class Stored:
    """One Lease as an API server keeps it: a write must name the version that it read."""

    def __init__(self) -> None:
        self.object: dict[str, Any] | None = None
        self.version = 0
        self.away = False
        self.code = 0

    def request(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        if self.away:
            raise ApiFailure(self.code, path, "no")
        if method == "GET":
            if self.object is None:
                raise ApiFailure(404, path, "not found")
            return copy.deepcopy(self.object)
        there = self.object["metadata"].get("resourceVersion") if self.object else None
        if (method == "POST") is (there is not None):
            raise ApiFailure(409, path, "exists")
        if method == "PUT" and body["metadata"]["resourceVersion"] != there:
            raise ApiFailure(409, path, "changed")
        self.version += 1
        self.object = copy.deepcopy(body)
        self.object["metadata"]["resourceVersion"] = str(self.version)
        return self.object


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def pair(duration_s: float = 10) -> tuple[Stored, Clock, Lease, Lease]:
    stored, clock = Stored(), Clock()
    first, second = (Lease(stored, "ns", name, duration_s, clock) for name in "ab")  # type: ignore[arg-type]
    return stored, clock, first, second


def holder(stored: Stored) -> Any:
    return stored.object and stored.object["spec"]["holderIdentity"]


def test_one_holds_it_and_renews_it() -> None:
    stored, clock, first, second = pair()
    assert first.attempt()
    for _ in range(20):
        clock.now += 4
        assert first.attempt()
        assert not second.attempt()
    assert holder(stored) == "a"


def test_it_is_taken_when_it_has_not_changed_for_its_duration() -> None:
    stored, clock, first, second = pair()
    assert first.attempt()
    clock.now += 500  # how old it is when it is first seen does not count
    assert not second.attempt()
    clock.now += 9
    assert not second.attempt()
    clock.now += 1
    assert second.attempt()
    assert holder(stored) == "b"
    assert stored.object is not None
    assert stored.object["spec"]["leaseTransitions"] == 2
    assert not first.attempt()


def test_a_released_one_is_taken_at_once() -> None:
    stored, _, first, second = pair()
    assert first.attempt()
    first.release()
    assert second.attempt()
    first.release()  # not its any more
    assert holder(stored) == "b"


def test_the_first_of_two_writes_wins() -> None:
    stored, _, first, second = pair()
    assert first.attempt()
    first.release()
    read = stored.request("GET", "")
    assert second.attempt()
    with pytest.raises(ApiFailure, match="changed"):
        stored.request("PUT", "", read)


def test_who_cannot_renew_ends_before_another_can_begin() -> None:
    stored, clock, first, second = pair(0.05)
    assert first.attempt()
    assert not second.attempt()
    stored.away = True
    clock.now += 0.05
    with pytest.raises(LeaseLost, match="could not be renewed"):
        asyncio.run(first.keep())


@pytest.mark.parametrize("code", [0, 403, 500, 503])
def test_a_short_outage_is_ridden_out(code: int) -> None:
    """403: an API server that has just begun has not read the roles yet."""
    stored, clock, first, _ = pair()
    stored.code = code
    assert first.attempt()
    stored.away = True
    clock.now += 5
    assert not first.attempt()
    stored.away = False
    assert first.attempt()
