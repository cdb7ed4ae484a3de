"""Agents as the operator knows them: pods on nodes, with tokens that the API server made for them.

No kubelet runs here, so the test does what a kubelet would do: it asks for a token that is bound to the
pod, and writes the ConfigMap's certificates into a file. What is sent goes through the agent's own
client.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from flameherd_agent.status.push import Pusher
from flameherd_agent.status.reporter import Outcome
from flameherd_operator.settings import STATUS_SERVICE, STATUS_TRUST, TRUST_KEY
from flameherd_policy.report import AUDIENCE, PolicyDelta, StatusDelta, write_report

from tests.cluster.api import Api, Json, Refused, eventually
from tests.cluster.operating import AGENTS, SYSTEM

ACCOUNTS = "/api/v1/namespaces/{}/serviceaccounts"
PODS = f"/api/v1/namespaces/{AGENTS}/pods"
HOST = f"{STATUS_SERVICE}.{SYSTEM}.svc"


def make_service(api: Api) -> None:
    """As the chart has it: no selector, the operator says where it leads."""
    port = {"name": "status", "port": 443, "targetPort": 8443}
    made = {"apiVersion": "v1", "kind": "Service", "spec": {"ports": [port]}}
    made["metadata"] = {"name": STATUS_SERVICE}
    api.apply(f"/api/v1/namespaces/{SYSTEM}/services/{STATUS_SERVICE}", made)


def make_agent(api: Api, node: str, pod: str = "") -> Json:
    """An agent's pod on a node; the pod as it is kept."""
    name = pod or f"flameherd-agent-{node}"
    found = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}
    api.apply(f"/api/v1/nodes/{node}", found)
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "serviceAccountName": "flameherd-agent",
            "containers": [{"name": "agent", "image": "registry.example/agent:1"}],
        },
    }
    try:
        return api.create(PODS, body)
    except Refused as error:
        if error.code != 409:
            raise
        return api.get(f"{PODS}/{name}")


def token_for(
    api: Api,
    pod: Json | None,
    audience: str = AUDIENCE,
    account: str = "flameherd-agent",
    namespace: str = AGENTS,
) -> str:
    """A token as a projected volume has it; without a pod it is bound to nothing."""
    spec: Json = {"audiences": [audience], "expirationSeconds": 3600}
    if pod is not None:
        meta = pod["metadata"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        spec["boundObjectRef"] = bound
    path = f"{ACCOUNTS.format(namespace)}/{account}/token"
    token: str = api.create(path, {"spec": spec})["status"]["token"]
    return token


class Reporting:
    """The agent of one node: its folder of token and certificates, and its client."""

    def __init__(self, api: Api, folder: Path, port: int, node: str) -> None:
        folder.mkdir(exist_ok=True)
        self.api, self.folder, self.node = api, folder, node
        self.use(token_for(api, make_agent(api, node)))
        self.trust()
        self._pusher = Pusher(f"https://{HOST}:{port}", folder)

    def use(self, token: str) -> None:
        (self.folder / "token").write_text(token)

    def trust(self) -> None:
        """What the kubelet writes, once the operator has made it."""
        path = f"/api/v1/namespaces/{AGENTS}/configmaps/{STATUS_TRUST}"
        found = eventually(lambda: self.api.find(path), "the certificates")
        assert found is not None
        (self.folder / "ca.crt").write_text(found["data"][TRUST_KEY])

    def post(self, body: bytes) -> Outcome:
        with _in_cluster_names():
            return self._pusher.post(body)

    def says(self, *policies: PolicyDelta, shards: dict[str, str], **fields: Any) -> None:
        """A report that is taken; one that comes too often is sent again."""
        report = StatusDelta(**({"seconds": 60.0} | fields), shards=shards, policies=policies)

        def taken() -> bool:
            outcome = self.post(write_report(report))
            assert outcome.taken or outcome.retry_s, outcome.error
            return outcome.taken

        eventually(taken, f"a report of {self.node} is taken")


@contextmanager
def _in_cluster_names() -> Iterator[None]:
    """The Service's name leads to this machine, as the cluster's DNS and kube-proxy do."""
    look_up = socket.getaddrinfo

    def resolve(host: Any, *arguments: Any, **more: Any) -> Any:
        return look_up("127.0.0.1" if host == HOST else host, *arguments, **more)

    with patch.object(socket, "getaddrinfo", resolve):
        yield
