"""What one installation of the operator is told: where it works and what its agents run."""

from importlib.metadata import version
from typing import Any, Final

import msgspec

MANAGER: Final = "flameherd-operator"
"""Our field manager, and the value of `app.kubernetes.io/managed-by`."""
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
PLURALS: Final = {
    "ConfigMap": ("/api/v1", "configmaps"),
    "Secret": ("/api/v1", "secrets"),
    "DaemonSet": ("/apis/apps/v1", "daemonsets"),
}
"""What we make in the agents' namespace: kind → (path of its API, plural)."""
SHARD_COUNT: Final = 16
"""Fixed, like the shards' names: the agents' rights name each of them."""
SHARD_PREFIX: Final = "flameherd-config-"
SHARD_KEY: Final = "config.json.z"
EXPORT_SECRET: Final = "flameherd-export"  # noqa: S105 a name
EXPORT_PATH: Final = "/var/run/flameherd/export"
"""Where agents see the export Secret's files."""
STATUS_SERVICE: Final = "flameherd-status"
"""In the operator's namespace, by the chart: where agents report to."""
STATUS_SECRET: Final = "flameherd-status"  # noqa: S105 a name
STATUS_TRUST: Final = "flameherd-status-trust"
"""ConfigMap with what agents trust."""
TRUST_KEY: Final = "ca.crt"
STATUS_PATH: Final = "/var/run/flameherd/status"
"""Where agents see it, beside their token."""
DEFAULT_NAME: Final = "default"
"""Name of the AgentPool and of the ClusterProfilingPolicy that we make."""
Document = dict[str, Any]
"""A whole object as it is written."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One installation."""

    namespace: str = "flameherd-system"
    """The operator's own; Secrets of ClusterProfilingPolicies' exports are here."""
    agents_namespace: str = "flameherd-agents"
    """Where agents, their configuration and their credentials are; `privileged`."""
    service_account: str = "flameherd-agent"
    """The agents' account, made by the chart. It owns all that is made here, so that uninstalling
    the chart collects it."""
    image: str = f"flameherd/flameherd-agent:{version('flameherd-operator')}"
    """Of the agent, where a pool names none: the operator's own version."""
    pull_secrets: tuple[str, ...] = ()
    cluster_name: str = ""
    """`k8s.cluster.name` of every profile; "" = profiles carry none."""
    se_linux_type: str = ""
    """SELinux type of the agents; "" = the node's default, which may not read other processes."""
    app_armor_profile: str = ""
    """`Unconfined`, `RuntimeDefault` or `Localhost/NAME`; "" = the node's default, likewise."""
    defaults: tuple[Document, ...] | None = None
    """Objects to keep as they are here; None = an AgentPool, where there is none."""
    idle_s: float = 60.0
    """How long there must be no policy before agents of a pool with `whenIdle: Remove` go."""
    lease_s: float = 15.0
    """How long a holder of the Lease that says nothing is believed to work."""
    debounce_s: float = 1.0
    """Changes within this time are carried out together."""
    resync_s: float = 300.0
    """How often the watched objects are listed afresh."""
    secrets_s: float = 60.0
    """How long a Secret that was read is believed."""
    status_host: str = ""
    """Where reports of agents are taken; "" = nobody reports."""
    status_port: int = 8443
    status_address: str = ""
    """Of this pod: where the status Service leads; "" = it is left alone."""
    status_s: float = 15.0
    """How often reports are summed up, when none has changed a condition."""

    @property
    def status_names(self) -> tuple[str, ...]:
        """Host names of the status Service."""
        name = f"{STATUS_SERVICE}.{self.namespace}.svc"
        return name, f"{name}.cluster.local"


def shard_name(number: int) -> str:
    return f"{SHARD_PREFIX}{number:02d}"
