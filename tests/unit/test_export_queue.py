"""The queue and the worker of an exporter, over a transport that the tests steer."""

import threading
import time
from collections.abc import Callable

import pytest
from flameherd_agent.pipeline.export import EndpointConfig, Exporter
from flameherd_agent.pipeline.export.transport import RefusedError, RetryableError, Sent
from flameherd_agent.pipeline.otlp import Batch, encode_batches

from tests.unit.profiles import numbered

FAST = {"url": "http://localhost:1", "retry_initial_s": 0.005, "retry_max_s": 0.02}


class Steered:
    """Answers by `outcome(batch)`; remembers what it was given."""

    def __init__(self, outcome: Callable[[Batch], Sent]) -> None:
        self.outcome = outcome
        self.seen: list[Batch] = []
        self.aborted = threading.Event()
        self.closed = False

    def send(self, batch: Batch, timeout_s: float) -> Sent:
        assert timeout_s > 0
        self.seen.append(batch)
        return self.outcome(batch)

    def abort(self) -> None:
        self.aborted.set()

    def close(self) -> None:
        self.closed = True


def config(**more: object) -> EndpointConfig:
    return EndpointConfig("test", **(FAST | more))  # type: ignore[arg-type]


def accept(batch: Batch) -> Sent:
    return Sent(len(batch.compressed))


def fail(_: Batch) -> Sent:
    raise RetryableError("away")


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_batches_arrive_in_order_and_are_counted() -> None:
    transport = Steered(accept)
    exporter = Exporter(config(), transport)
    for n in range(10):
        exporter.submit(numbered(n, samples=3))
    exporter.close()
    stats = exporter.stats()
    assert (stats.sent_batches, stats.sent_profiles, stats.sent_observations) == (10, 10, 30)
    assert stats.sent_bytes == sum(len(batch.compressed) for batch in transport.seen)
    assert (stats.queued_batches, stats.queued_bytes, stats.retries) == (0, 0, 0)
    assert transport.closed
    (first,) = encode_batches(numbered(0, samples=3))
    assert transport.seen[0].message_bytes == first.message_bytes


def test_nothing_to_send_starts_nothing() -> None:
    exporter = Exporter(config(), Steered(accept))
    exporter.submit([])
    exporter.close()
    assert exporter.stats().sent_batches == 0


def test_a_retryable_failure_is_retried_until_it_works() -> None:
    failures = iter(range(5))

    def outcome(batch: Batch) -> Sent:
        if next(failures, None) is not None:
            raise RetryableError("away")
        return accept(batch)

    transport = Steered(outcome)
    exporter = Exporter(config(), transport)
    exporter.submit(numbered(1))
    wait_for(lambda: exporter.stats().sent_batches == 1)
    stats = exporter.stats()
    assert (stats.retries, stats.failing, stats.last_error) == (5, False, "away")
    assert len({id(batch) for batch in transport.seen}) == 1
    exporter.close()


def test_a_refused_batch_is_dropped_and_the_next_one_sent() -> None:
    def outcome(batch: Batch) -> Sent:
        if batch is transport.seen[0]:
            raise RefusedError("no", "http_400")
        return accept(batch)

    transport = Steered(outcome)
    exporter = Exporter(config(), transport)
    exporter.submit(numbered(1, samples=7))
    exporter.submit(numbered(2))
    exporter.close()
    stats = exporter.stats()
    assert stats.dropped_batches == {"http_400": 1}
    assert stats.dropped_observations == {"http_400": 7}
    assert (stats.sent_batches, stats.retries) == (1, 0)


def test_a_partial_success_is_counted_and_not_sent_again() -> None:
    transport = Steered(lambda batch: Sent(1, 1, "one was bad"))
    exporter = Exporter(config(), transport)
    exporter.submit(numbered(1))
    exporter.close()
    stats = exporter.stats()
    assert (stats.sent_batches, stats.rejected_profiles, len(transport.seen)) == (1, 1, 1)
    assert "one was bad" in stats.last_error
    assert not stats.failing


@pytest.mark.parametrize("bound", ["queue_batches", "queue_bytes"])
def test_a_dead_endpoint_keeps_to_the_bound_and_drops_the_oldest(bound: str) -> None:
    (one,) = encode_batches(numbered(100))
    limit = 5 if bound == "queue_batches" else 5 * len(one.compressed) + len(one.compressed) // 2
    working = threading.Event()

    def outcome(batch: Batch) -> Sent:
        if not working.is_set():
            raise RetryableError("away")
        return accept(batch)

    transport = Steered(outcome)
    exporter = Exporter(config(**{bound: limit}), transport)
    for n in range(100, 200):
        exporter.submit(numbered(n))
        stats = exporter.stats()
        assert stats.queued_batches <= 6
        if bound == "queue_bytes":
            assert stats.queued_bytes <= limit
    transport.seen.clear()
    working.set()
    exporter.close()
    stats = exporter.stats()
    assert stats.sent_batches + stats.dropped_batches["queue_full"] == 100
    assert stats.sent_observations + stats.dropped_observations["queue_full"] == 100
    newest = [batch.message() for batch in transport.seen][-3:]
    for n, message in zip(range(197, 200), newest, strict=True):
        assert str(n).encode() in message


def test_a_bound_that_is_lowered_holds_from_the_next_batch_on() -> None:
    exporter = Exporter(config(), Steered(fail))
    for n in range(5):
        exporter.submit(numbered(n))
    whole = exporter.stats().queued_bytes
    exporter.limit(whole // 2)
    exporter.submit(numbered(5))
    stats = exporter.stats()
    assert stats.queued_bytes <= whole // 2
    assert stats.dropped_batches["queue_full"] >= 3
    exporter.close(timeout_s=0.1)


def test_a_batch_under_way_is_not_dropped_for_newer_ones() -> None:
    release = threading.Event()

    def outcome(batch: Batch) -> Sent:
        release.wait(20)
        return accept(batch)

    transport = Steered(outcome)
    exporter = Exporter(config(queue_batches=2), transport)
    exporter.submit(numbered(0))
    wait_for(lambda: len(transport.seen) == 1)
    for n in range(1, 5):
        exporter.submit(numbered(n))
    assert exporter.stats().dropped_batches == {"queue_full": 3}
    release.set()
    exporter.close()
    assert exporter.stats().sent_batches == 2


def test_a_batch_over_the_bound_is_counted() -> None:
    exporter = Exporter(config(queue_bytes=100), Steered(accept))
    exporter.submit(numbered(1))
    exporter.close()
    assert exporter.stats().dropped_batches == {"too_large": 1}


def test_what_is_too_old_is_dropped() -> None:
    exporter = Exporter(config(max_age_s=0.02), Steered(fail))
    exporter.submit(numbered(1))
    wait_for(lambda: exporter.stats().queued_batches == 0)
    assert exporter.stats().dropped_batches == {"expired": 1}
    exporter.close()


def test_closing_counts_what_could_not_be_sent() -> None:
    exporter = Exporter(config(retry_initial_s=30, retry_max_s=30), Steered(fail))
    exporter.submit(numbered(1))
    exporter.submit(numbered(2))
    wait_for(lambda: exporter.stats().retries == 1)
    exporter.close(0.2)
    stats = exporter.stats()
    assert stats.retries == 2, "one more attempt at once, although a retry was 30 s away"
    assert stats.dropped_batches == {"shutdown": 2}
    exporter.submit(numbered(3))
    assert exporter.stats().dropped_batches == {"shutdown": 3}
    exporter.close()


def test_closing_does_not_go_against_the_servers_wish() -> None:
    def later(_: Batch) -> Sent:
        raise RetryableError("busy", after_s=100)

    transport = Steered(later)
    exporter = Exporter(config(), transport)
    exporter.submit(numbered(1))
    wait_for(lambda: exporter.stats().retries == 1)
    exporter.close(10)
    assert len(transport.seen) == 1
    assert exporter.stats().dropped_batches == {"shutdown": 1}


def test_closing_ends_a_send_that_hangs() -> None:
    def hang(_: Batch) -> Sent:
        transport.aborted.wait(20)
        raise RetryableError("aborted")

    transport = Steered(hang)
    exporter = Exporter(config(), transport)
    exporter.submit(numbered(1))
    wait_for(lambda: len(transport.seen) == 1)
    exporter.close(0.05)
    assert transport.aborted.is_set()
    assert exporter.stats().dropped_batches == {"shutdown": 1}


def test_a_defect_in_a_transport_costs_one_batch(caplog: pytest.LogCaptureFixture) -> None:
    def outcome(batch: Batch) -> Sent:
        if batch is transport.seen[0]:
            raise ZeroDivisionError
        return accept(batch)

    transport = Steered(outcome)
    exporter = Exporter(config(), transport)
    exporter.submit(numbered(1))
    exporter.submit(numbered(2))
    exporter.close()
    assert exporter.stats().dropped_batches == {"internal": 1}
    assert exporter.stats().sent_batches == 1
    assert "ZeroDivisionError" in caplog.text


def test_a_dead_endpoint_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    exporter = Exporter(config(), Steered(fail))
    exporter.submit(numbered(1))
    wait_for(lambda: exporter.stats().retries > 3)
    exporter.close(0.01)
    assert caplog.text.count("export to test fails: away") == 1
