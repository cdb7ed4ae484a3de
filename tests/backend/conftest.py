"""The OpenTelemetry Collector of `tests/collector`, for the tests that let it pass profiles on."""

from tests.collector.conftest import _running, binary, collector, pki

__all__ = ["_running", "binary", "collector", "pki"]
