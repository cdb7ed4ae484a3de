"""Profiles that went through a real OpenTelemetry Collector are the ones that were sent."""

import shutil
import time
from pathlib import Path

import pytest
from flameherd_agent.model import ResourceProfiles
from flameherd_agent.pipeline.export import Compression, EndpointConfig, Exporter, Protocol

from tests.collector.certificates import issue, make_ca
from tests.collector.collector import Collector
from tests.collector.conftest import Pki
from tests.otlp_reader import expected
from tests.unit.profiles import numbered, resources

PROTOCOLS = [Protocol.GRPC, Protocol.HTTP]


def config(
    collector: Collector, pki: Pki, protocol: Protocol, security: str = "plain", **more: object
) -> EndpointConfig:
    settings: dict[str, object] = {
        "url": collector.url(protocol.value, security),
        "ca_file": None if security == "plain" else pki.server_ca.cert,
        "retry_initial_s": 0.05,
        "retry_max_s": 0.2,
    }
    if security == "mtls":
        settings |= {"cert_file": pki.client.cert, "key_file": pki.client.key}
    return EndpointConfig("test", protocol, **(settings | more))  # type: ignore[arg-type]


def wait_until_sent(exporter: Exporter, timeout_s: float = 30) -> None:
    end = time.monotonic() + timeout_s
    while exporter.stats().queued_batches:
        assert time.monotonic() < end, exporter.stats()
        time.sleep(0.02)


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("security", ["plain", "tls", "mtls"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_arrives_is_what_was_sent(
    collector: Collector, pki: Pki, protocol: Protocol, security: str, compression: Compression
) -> None:
    exporter = Exporter(config(collector, pki, protocol, security, compression=compression))
    exporter.submit(resources())
    exporter.close(20)
    stats = exporter.stats()
    assert (stats.sent_batches, stats.last_error) == (1, "")
    assert (stats.sent_profiles, stats.sent_observations) == (2, 19)
    assert stats.sent_bytes > 0
    assert stats.dropped_batches == {}
    sent = expected(resources())
    assert collector.received(len(sent)) == sent


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_many_batches_over_one_exporter(collector: Collector, pki: Pki, protocol: Protocol) -> None:
    sent = [numbered(n) for n in range(20)]
    exporter = Exporter(config(collector, pki, protocol))
    for profiles in sent:
        exporter.submit(profiles)
    exporter.close(20)
    assert exporter.stats().sent_batches == 20
    wanted = expected([resource for profiles in sent for resource in profiles])
    assert collector.received(len(wanted)) == wanted


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_more_than_one_message_holds(collector: Collector, pki: Pki, protocol: Protocol) -> None:
    big = numbered(0, samples=60_000)
    exporter = Exporter(config(collector, pki, protocol))
    exporter.submit(big)
    exporter.close(60)
    stats = exporter.stats()
    assert stats.sent_batches > 1
    assert stats.dropped_batches == {}
    wanted = expected(big)
    assert collector.received(len(wanted)) == wanted


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("security", "more"),
    [
        ("mtls", {"cert_file": None, "key_file": None}),
        ("tls", {"ca_file": None}),
        ("tls", {"ca_file": Path("/nonexistent/ca.crt")}),
    ],
    ids=["no client certificate", "unknown authority", "missing file"],
)
def test_a_failed_handshake_is_told_and_counted(
    collector: Collector, pki: Pki, protocol: Protocol, security: str, more: dict[str, object]
) -> None:
    exporter = Exporter(config(collector, pki, protocol, security, **more))
    exporter.submit(resources())
    exporter.close(1)
    stats = exporter.stats()
    assert stats.sent_batches == 0
    assert stats.retries > 0
    assert stats.dropped_batches == {"shutdown": 1}
    assert stats.dropped_observations == {"shutdown": 19}
    assert stats.failing
    assert stats.last_error
    assert not collector.output.read_text(encoding="utf-8")


def test_verification_can_be_skipped_over_http(collector: Collector, pki: Pki) -> None:
    skipping = config(collector, pki, Protocol.HTTP, "tls", ca_file=None, insecure_skip_verify=True)
    exporter = Exporter(skipping)
    exporter.submit(resources())
    exporter.close(20)
    assert exporter.stats().sent_batches == 1
    sent = expected(resources())
    assert collector.received(len(sent)) == sent


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_certificate_that_changes_is_used(
    collector: Collector, pki: Pki, protocol: Protocol, tmp_path: Path
) -> None:
    """A client whose certificate no server knows gets one that is known, without a restart."""
    stranger = issue(tmp_path, make_ca(tmp_path), "stranger")
    files = {"cert_file": stranger.cert, "key_file": stranger.key}
    exporter = Exporter(config(collector, pki, protocol, "mtls", **files))
    exporter.submit(resources())
    end = time.monotonic() + 20
    while not exporter.stats().retries:
        assert time.monotonic() < end
        time.sleep(0.02)
    shutil.copy(pki.client.key, stranger.key)
    shutil.copy(pki.client.cert, stranger.cert)
    wait_until_sent(exporter)
    exporter.close()
    assert exporter.stats().sent_batches == 1
    sent = expected(resources())
    assert collector.received(len(sent)) == sent


@pytest.mark.parametrize(
    "down_s", [5, pytest.param(60, marks=pytest.mark.soak)], ids=["5 s", "60 s"]
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_collector_that_is_away_loses_nothing_within_the_bound(
    stopped_collector: Collector, pki: Pki, protocol: Protocol, down_s: int
) -> None:
    """Away at the start, and away again later; a batch each 100 ms all the while."""
    endpoint = config(stopped_collector, pki, protocol, queue_batches=2 * 10 * down_s)
    exporter = Exporter(endpoint)
    sent: list[list[ResourceProfiles]] = []

    def submit_for(seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            sent.append(numbered(len(sent)))
            exporter.submit(sent[-1])
            time.sleep(0.1)

    submit_for(down_s)
    assert exporter.stats().failing
    assert exporter.stats().queued_batches == len(sent)
    stopped_collector.start()
    submit_for(1)
    wait_until_sent(exporter)
    stopped_collector.stop()
    submit_for(down_s)
    assert exporter.stats().queued_batches
    stopped_collector.start()
    wait_until_sent(exporter)
    exporter.close()
    stats = exporter.stats()
    assert stats.dropped_batches == {}
    assert stats.sent_batches == len(sent)
    assert not stats.failing
    wanted = expected([resource for profiles in sent for resource in profiles])
    assert set(stopped_collector.received(len(wanted))) == set(wanted)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_is_beyond_the_bound_is_counted(
    stopped_collector: Collector, pki: Pki, protocol: Protocol
) -> None:
    exporter = Exporter(config(stopped_collector, pki, protocol, queue_batches=4))
    sent = [numbered(n) for n in range(50)]
    for profiles in sent:
        exporter.submit(profiles)
    assert exporter.stats().queued_batches == 4
    stopped_collector.start()
    wait_until_sent(exporter)
    exporter.close()
    stats = exporter.stats()
    assert stats.dropped_batches == {"queue_full": 46}
    assert stats.sent_batches == 4
    assert stats.sent_observations + stats.dropped_observations["queue_full"] == 50
    got = stopped_collector.received(4)
    assert len(got) == 4
    # The newest are kept; the one that was under way may be an older one.
    assert set(expected([r for profiles in sent[-3:] for r in profiles])) <= set(got)
