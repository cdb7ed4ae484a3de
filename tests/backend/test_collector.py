"""What a real OpenTelemetry Collector passes on is stored as what the agent sent."""

import time
from pathlib import Path

from flameherd_agent.pipeline.otlp import encode

from tests.backend.running import RunningBackend, request
from tests.backend.stored import StoredTables, as_stored
from tests.backend.test_receive import recent
from tests.collector.collector import Collector
from tests.otlp_reader import expected
from tests.unit import profiles


def test_profiles_through_a_collector_arrive_the_same(collector: Collector, tmp_path: Path) -> None:
    """The Collector decodes them, and encodes them again as OTLP JSON, strings moved into the dictionary."""
    made = recent(profiles.resources())
    sent = encode(made).SerializeToString()
    url = collector.url("http", "plain") + "/v1development/profiles"
    assert request(url, sent, {"Content-Type": "application/x-protobuf"}).status == 200
    until = time.monotonic() + 60
    while not collector.output.read_bytes().endswith(b"}\n"):
        assert time.monotonic() < until, "the collector wrote nothing"
        time.sleep(0.05)
    lines = [line for line in collector.output.read_bytes().splitlines() if line]
    with RunningBackend(tmp_path / "store") as backend:
        for line in lines:
            answer = backend.post(line, Content_Type="application/json")
            assert (answer.status, answer.body) == (200, b"{}")
        backend.stop()
    assert StoredTables(tmp_path / "store").observed() == as_stored(expected(made))
