"""What a backend is told: by the command line (`cli.py`), and by tests."""

from dataclasses import dataclass, field
from pathlib import Path

from flameherd_backend.receive.grpc import TlsFiles
from flameherd_backend.receive.intake import IntakeLimits
from flameherd_backend.store.retention import Retention

DEFAULT_STORE = Path("/var/lib/flameherd/store")


@dataclass(frozen=True, slots=True)
class Settings:
    """One backend. Addresses are `host:port`; port 0 = any; "" = not at all."""

    store: str = str(DEFAULT_STORE)
    """A folder for the embedded engine, or a ClickHouse server's URL."""
    grpc: str = "127.0.0.1:4317"
    http: str = "127.0.0.1:4318"
    page: str = "127.0.0.1:4040"
    tls: TlsFiles | None = None
    tokens: Path | None = None
    user_header: str = ""
    groups_header: str = ""
    service_account: Path | None = None
    """The pod's: asks the API server what signed-in people may see. None: they see all."""
    retention: Retention = field(default_factory=lambda: Retention(3 * 86_400.0, 20 << 30))
    min_free_bytes: int = 512 << 20
    """Below so much free room on the store's disk, messages are sent away until there is more."""
    memory_bytes: int = 2 << 30
    """Cap of the embedded engine."""
    query_s: float = 10.0
    query_memory_bytes: int = 1 << 30
    queries: int = 4
    """At the same time."""
    workers: int = 1
    worker_memory_bytes: int = 2 << 30
    intake: IntakeLimits = field(default_factory=IntakeLimits)

    @property
    def is_server(self) -> bool:
        """Whether the store is a ClickHouse server."""
        return self.store.startswith(("http://", "https://"))
