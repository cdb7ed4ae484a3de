"""Fixtures: the collector, built once and running, and the certificates that it knows."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.collector.build import collector_binary
from tests.collector.certificates import Identity, issue, make_ca
from tests.collector.collector import Collector
from tests.go_build import go


@dataclass(frozen=True)
class Pki:
    """Who trusts whom: one authority signs the server, another one its clients."""

    server_ca: Identity
    server: Identity
    client_ca: Identity
    client: Identity


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    folder = tmp_path_factory.mktemp("pki")
    server_ca, client_ca = make_ca(folder, "server-ca"), make_ca(folder, "client-ca")
    names = "DNS:localhost,IP:127.0.0.1"
    return Pki(
        server_ca,
        issue(folder, server_ca, "server", names),
        client_ca,
        issue(folder, client_ca, "client"),
    )


@pytest.fixture(scope="session")
def binary() -> Path:
    if go() is None:
        pytest.skip("needs Go to build the OpenTelemetry Collector")
    return collector_binary()


@pytest.fixture(scope="session")
def _running(
    binary: Path, pki: Pki, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Collector]:
    made = Collector(binary, tmp_path_factory.mktemp("collector"), pki.server, pki.client_ca.cert)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def collector(_running: Collector) -> Collector:
    """Running, with nothing received yet."""
    _running.clear()
    return _running


@pytest.fixture
def stopped_collector(binary: Path, pki: Pki, tmp_path: Path) -> Iterator[Collector]:
    """Not started yet."""
    made = Collector(binary, tmp_path, pki.server, pki.client_ca.cert)
    yield made
    made.stop()
