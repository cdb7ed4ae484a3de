"""Sends profiles to endpoints: OTLP over gRPC and HTTP, or files of OTLP JSON."""

from flameherd_agent.pipeline.export.config import Compression, EndpointConfig, Protocol
from flameherd_agent.pipeline.export.exporter import EndpointStats, Exporter

__all__ = ["Compression", "EndpointConfig", "EndpointStats", "Exporter", "Protocol"]
