"""What the agent tells the operator, when, and that the operator's own server takes it."""

import random
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flameherd_agent.errors import UsageError
from flameherd_agent.kernel.sampler import SlotMeter
from flameherd_agent.model import Location, Profile, ResourceProfiles, Sample
from flameherd_agent.pipeline.export.exporter import EndpointStats
from flameherd_agent.status.push import Pusher
from flameherd_agent.status.reporter import INTERVAL_S, Now, Outcome, Reporter
from flameherd_agent.status.totals import Total, Totals
from flameherd_agent.types import FrameType, Line, SlotId
from flameherd_policy.report import BudgetState, ExportState, StatusDelta, read_report, write_report

from tests.unit.test_operator_receive import Server

NAMED = Location(FrameType.NATIVE, 1, lines=(Line("main"),))
UNNAMED = Location(FrameType.NATIVE, 2)


def profiles(policy: str, *samples: tuple[int, bool, bool]) -> ResourceProfiles:
    """(count, named, truncated) of each sample."""
    made = [
        Sample((NAMED if named else UNNAMED, NAMED), (), count, truncated)
        for count, named, truncated in samples
    ]
    return ResourceProfiles((), [Profile(made, 10**7, 0, 10**9)], policy)


def stats(**fields: Any) -> EndpointStats:
    none: dict[str, Any] = dict.fromkeys(EndpointStats.__dataclass_fields__, 0)
    none |= {"dropped_batches": {}, "dropped_observations": {}, "last_error": "", "failing": False}
    return EndpointStats(**(none | fields))


# Totals


def test_totals_are_of_policies_not_of_slots() -> None:
    totals = Totals()
    totals.begin("a", SlotId(1), SlotMeter(0, 100, 5000))
    totals.begin("b", SlotId(2), SlotMeter(0, 0, 0))
    found = totals.interval(
        {"a": SlotMeter(9, 110, 6000), "b": SlotMeter(9, 30, 900)},
        [profiles("a", (6, True, False), (2, False, True)), profiles("b", (24, True, False))],
        agent_ns=3200,
    )
    assert found == {"a": (800.0, 8), "b": (2400.0, 24)}
    assert totals.by_policy["a"] == Total(10, 6, 2, 2, 1000, 800.0)
    assert totals.by_policy["b"] == Total(30, 24, 0, 0, 900, 2400.0)
    # The policy goes and comes back to a slot that another has used.
    totals.begin("a", SlotId(3), SlotMeter(0, 7000, 7000))
    totals.interval({"a": SlotMeter(0, 7001, 7001)}, [profiles("gone", (5, True, False))], 100)
    assert totals.by_policy["a"] == Total(11, 6, 2, 2, 1001, 800.0)
    totals.forget(["b"])
    assert set(totals.by_policy) == {"b"}


def test_what_is_sent_is_shared_by_samples() -> None:
    totals = Totals()
    for number, name in enumerate(("a", "b", "c"), 1):
        totals.begin(name, SlotId(number), SlotMeter(0, 0, 0))
    both = ("a", "b")
    totals.interval({}, [profiles("a", (30, True, False)), profiles("b", (10, True, False))], 0)
    totals.endpoint("e", 1, stats(sent_bytes=4000, retries=2, dropped_batches={"expired": 1}), both)
    totals.interval({}, [], 0)
    totals.endpoint("e", 1, stats(sent_bytes=4400, retries=2, dropped_batches={"expired": 1}), both)
    totals.interval({}, [profiles("b", (1, True, False))], 0)
    totals.endpoint(
        "e", 1, stats(sent_bytes=4500, retries=3, dropped_batches={"shutdown": 9}), both
    )
    assert totals.by_policy["a"].sent_bytes == 3000
    assert totals.by_policy["b"].sent_bytes == 1500
    assert totals.by_policy["c"] == Total()
    # The endpoint has changed: another exporter, which counts from 0.
    totals.interval({}, [profiles("a", (1, True, False))], 0)
    totals.endpoint("e", 2, stats(sent_bytes=70), ("a",))
    assert totals.by_policy["a"].sent_bytes == 3070


# The reporter


class Fake:
    """A pusher whose outcome the test says, and a clock."""

    def __init__(self) -> None:
        self.time = 0.0
        self.sent: list[StatusDelta] = []
        self.answer: Outcome | None = None
        self.totals = Totals()
        self.totals.begin("shop/a", SlotId(1), SlotMeter(0, 0, 0))
        self.samples = 0
        self.budget = BudgetState.KEPT
        self.pods = 1
        self.reporter = Reporter(
            self,
            self.totals,
            self.now,
            lambda: self.time,
        )

    def now(self) -> Now:
        coverage: Mapping[str, Any] = {
            "shop/a": SimpleNamespace(
                pods_matched=self.pods, pods_profiled=self.pods, containers_matched=2,
                containers_profiled=1, containers_overlapped=1,
            )
        }  # fmt: skip
        endpoints = {"e": (stats(sent_batches=1), ("shop/a",))}
        rates = {"shop/a": (19, self.budget), "host": (19, BudgetState.KEPT)}
        return Now(rates, coverage, endpoints, {"cm": "v"}, ("n" * 999,))

    def send(self, report: StatusDelta) -> None:
        self.sent.append(read_report(write_report(report)))
        self.answer = None

    def outcome(self) -> Outcome | None:
        answer, self.answer = self.answer, None
        return answer

    def sample(self, count: int) -> None:
        self.samples += count
        meter = SlotMeter(0, self.samples, self.samples * 10)
        self.totals.interval({"shop/a": meter}, [profiles("shop/a", (count, True, False))], 50)

    def run(self, until: float, answer: Outcome | None = None) -> int:
        """Step every half second; how many reports were sent. `answer` comes at once."""
        before = len(self.sent)
        while self.time < until:
            self.time += 0.5
            sent = len(self.sent)
            self.reporter.step()
            if len(self.sent) > sent:
                self.answer = answer
        return len(self.sent) - before


@pytest.fixture
def fake() -> Fake:
    random.seed(3)
    return Fake()


GOOD = Outcome(True, interval_s=60)


def test_a_report_soon_and_then_one_a_minute(fake: Fake) -> None:
    fake.sample(10)
    assert fake.run(5, GOOD) == 1
    (first,) = fake.sent
    (policy,) = first.policies  # the host's has nothing here
    assert (policy.name, policy.samples, policy.complete, policy.lost) == ("shop/a", 10, 10, 0)
    assert (policy.pods_matched, policy.containers_overlapped) == (1, 1)
    assert policy.export is ExportState.SENDING
    assert first.shards == {"cm": "v"}
    assert len(first.notices[0]) == 200
    fake.sample(5)
    assert fake.run(50, GOOD) == 0
    assert fake.run(600, GOOD) in (9, 10, 11)
    assert fake.sent[1].policies[0].samples == 5
    assert fake.sent[1].seconds == pytest.approx(INTERVAL_S, rel=0.15)
    assert fake.sent[2].policies[0].samples == 0


def test_what_flips_is_told_at_once(fake: Fake) -> None:
    fake.run(5, GOOD)
    fake.budget = BudgetState.LOWERED
    assert fake.run(8, GOOD) == 1
    assert fake.sent[-1].policies[0].budget is BudgetState.LOWERED
    fake.pods = 0
    assert fake.run(11, GOOD) == 1
    assert fake.run(40, GOOD) == 0


def test_counts_wait_until_they_are_taken(fake: Fake) -> None:
    fake.sample(10)
    fake.run(2)
    assert fake.run(30) == 0  # one at a time
    fake.answer = Outcome(False, "away")
    fake.sample(7)
    assert fake.run(300, Outcome(False, "away")) in (6, 7, 8)
    assert fake.reporter.error == "away"
    assert fake.run(440, Outcome(False, "wait", retry_s=1000)) == 1
    assert fake.run(1300, GOOD) == 0
    count = fake.run(1600, GOOD)
    taken, *others = fake.sent[-count:]
    assert taken.policies[0].samples == 17
    assert taken.seconds > 1000
    assert others
    assert not any(report.policies[0].samples for report in others)
    assert fake.reporter.error == ""


def test_the_operator_may_ask_for_fewer(fake: Fake) -> None:
    assert fake.run(900, Outcome(True, interval_s=300)) in (3, 4)
    fake.reporter.step()
    assert Fake().run(60, Outcome(True, interval_s=0.0)) <= 3


# The request


def test_the_operators_server_takes_it(tmp_path: Path) -> None:
    server = Server(tmp_path)
    (tmp_path / "token").write_text("node-7\n")
    pusher = Pusher(f"https://localhost:{server.port}", tmp_path)
    report = write_report(StatusDelta(seconds=1.0))

    def client() -> None:
        outcome = pusher.post(report)
        assert (outcome.taken, outcome.retry_s) == (False, 5.0)
        assert "HTTP 503 NotReady: the operator has just begun" in outcome.error
        server.reports.know(frozenset())
        assert pusher.post(report) == Outcome(True, interval_s=60)
        assert server.reports.snapshot(server.now).nodes == ("node-7",)
        (tmp_path / "token").write_text("bad")
        assert "HTTP 401 Unauthorized" in pusher.post(report).error
        (tmp_path / "ca.crt").write_text(Server(tmp_path).trust.read_text())
        assert "certificate verify failed" in pusher.post(report).error

    server.run(client)
    assert "refused" in pusher.post(report).error
    (tmp_path / "token").unlink()
    assert "No such file" in pusher.post(report).error


def test_the_thread_sends_one_at_a_time(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.reports.know(frozenset())
    (tmp_path / "token").write_text("n")
    pusher = Pusher(f"https://localhost:{server.port}", tmp_path)

    def client() -> None:
        assert pusher.outcome() is None
        for _ in range(3):
            pusher.send(StatusDelta(seconds=1.0))
            outcome = None
            while outcome is None:
                outcome = pusher.outcome()
            assert outcome.taken
        assert pusher.outcome() is None
        pusher.close()

    server.run(client)
    assert server.receiver.taken == 3


@pytest.mark.parametrize("url", ["http://a", "https://", "https://a/b", "a"])
def test_urls_that_cannot_work(url: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--status-url"):
        Pusher(url, tmp_path)
