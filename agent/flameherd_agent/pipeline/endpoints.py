"""A policy's endpoint → an exporter's configuration. Whoever reads policies checks with it that an endpoint can work."""

from pathlib import Path

from flameherd_policy.agent_config import AgentConfig, AgentEndpoint
from flameherd_policy.endpoints import Source as Author

from flameherd_agent.pipeline.export.config import Compression, EndpointConfig, Protocol


def endpoint_config(
    name: str, endpoint: AgentEndpoint, author: Author = Author.FILE
) -> EndpointConfig:
    """The exporter's view of a policy's endpoint. Raises `UsageError` for what cannot work."""
    tls = endpoint.tls
    return EndpointConfig(
        name=name,
        protocol=Protocol(endpoint.protocol.value.lower()),
        url=endpoint.endpoint or "",
        source=author,
        path=Path(endpoint.path) if endpoint.path else None,
        compression=Compression(endpoint.compression.value.lower()),
        headers=tuple(sorted(endpoint.headers.items())),
        headers_file=Path(endpoint.headers_file) if endpoint.headers_file else None,
        ca_file=Path(tls.ca_file) if tls and tls.ca_file else None,
        cert_file=Path(tls.cert_file) if tls and tls.cert_file else None,
        key_file=Path(tls.key_file) if tls and tls.key_file else None,
        insecure_skip_verify=bool(tls and tls.insecure_skip_verify),
    )


def check_endpoints(config: AgentConfig) -> None:
    """Raises `UsageError` for an endpoint of a file that cannot work."""
    for name, endpoint in config.endpoints.items():
        endpoint_config(name, endpoint)
