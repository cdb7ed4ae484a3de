"""Builds the OpenTelemetry Collector that export tests send to.

It is the upstream collector from its Go modules (`src/go.mod` pins them), with an OTLP receiver
and a file exporter. A cold build, downloads included, takes about two minutes on two cores.

    python -m tests.collector.build        prints the binary's path
"""

from pathlib import Path

from tests.go_build import go_binary


def collector_binary() -> Path:
    """The path of the built collector. Raises `RuntimeError` with the build's output."""
    return go_binary("collector", Path(__file__).parent / "src")


if __name__ == "__main__":
    print(collector_binary())
