"""Where the API server is and who we are: what Kubernetes puts into every pod.

The token is read for every request and the CA for every connection: kubelets renew both while the
pod runs.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flameherd_agent.errors import UsageError

DEFAULT_FOLDER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
NODE: Final = "FLAMEHERD_NODE"
NAMESPACE: Final = "FLAMEHERD_NAMESPACE"
CLUSTER: Final = "FLAMEHERD_CLUSTER"
_MAX_TOKEN_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Account:
    """The API server and our identity there."""

    host: str
    port: int
    folder: Path
    """Holds `token` and `ca.crt`."""
    node: str
    """The node that this agent runs on."""
    namespace: str
    """The agents' namespace: the shards are there."""
    cluster: str = ""
    """Name of the cluster, for `k8s.cluster.name`; "" = not told."""

    @property
    def ca_file(self) -> Path:
        return self.folder / "ca.crt"

    def token(self) -> str:
        """Raises OSError."""
        with (self.folder / "token").open() as file:
            return file.read(_MAX_TOKEN_BYTES).strip()


def in_cluster(folder: Path = DEFAULT_FOLDER, env: Mapping[str, str] = os.environ) -> Account:
    """By the environment of a pod. Raises `UsageError` that names what is missing."""

    def need(name: str, why: str) -> str:
        value = env.get(name, "")
        if not value:
            raise UsageError(f"--cluster: {name} is not set: {why}")
        return value

    by_kubernetes = "Kubernetes sets it in every pod; elsewhere use --config"
    port = need("KUBERNETES_SERVICE_PORT", by_kubernetes)
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"--cluster: KUBERNETES_SERVICE_PORT is {port!r}, which is no port")
    for name in ("token", "ca.crt"):
        if not (folder / name).exists():
            raise UsageError(
                f"--cluster: {folder / name} is not there: the pod needs a ServiceAccount with "
                "automountServiceAccountToken"
            )
    return Account(
        host=need("KUBERNETES_SERVICE_HOST", by_kubernetes),
        port=int(port),
        folder=folder,
        node=need(NODE, "set it to spec.nodeName by the downward API"),
        namespace=need(NAMESPACE, "set it to metadata.namespace by the downward API"),
        cluster=env.get(CLUSTER, ""),
    )
