"""Manifests of what runs on a node, and questions about it. Pure but for `Pods`."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.cluster.api import Json, Refused, eventually
from tests.cluster.node import Node
from tests.cluster.node_images import LOAD

RESTRICTED: Json = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def container(
    name: str, command: Sequence[str], image: str = LOAD, cpu: str = "50m", **more: object
) -> Json:
    """`cpu` is what it may use at most."""
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "Never",
        "command": list(command),
        "resources": {"requests": {"cpu": "10m"}, "limits": {"cpu": cpu}},
        **more,
    }


def pod_spec(*containers: Json) -> Json:
    # Programs that are a pod's first process get no default action of signals.
    return {"terminationGracePeriodSeconds": 1, "containers": list(containers)}


def pod(name: str, labels: Mapping[str, str], *containers: Json) -> Json:
    metadata = {"name": name, "labels": dict(labels)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec(*containers)}


def deployment(name: str, labels: Mapping[str, str], *containers: Json, replicas: int = 1) -> Json:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": dict(labels)},
            "template": {"metadata": {"labels": dict(labels)}, "spec": pod_spec(*containers)},
        },
    }


def service(name: str, selector: Mapping[str, str], port: int) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": dict(selector), "ports": [{"port": port}]},
    }


class Pods:
    """The pods of one namespace, by labels."""

    def __init__(self, node: Node, namespace: str) -> None:
        self._node = node
        self.namespace = namespace
        self._core = f"/api/v1/namespaces/{namespace}"

    def ensure(self, labels: Mapping[str, str] | None = None) -> "Pods":
        """The namespace is there, and its account, without which no pod is admitted."""
        self._node.admin.namespace(self.namespace, dict(labels or {}))
        path = f"{self._core}/serviceaccounts/default"
        eventually(lambda: self._node.admin.find(path), f"{self.namespace} has its account")
        return self

    def create(self, body: Json) -> None:
        kind = body["kind"].lower()
        apps = f"/apis/apps/v1/namespaces/{self.namespace}"
        core = apps if body["apiVersion"] == "apps/v1" else self._core
        self._node.admin.create(f"{core}/{kind}s", body)

    def list(self, selector: str) -> Sequence[Json]:
        """Those that are not being deleted."""
        found = self._node.admin.items(f"{self._core}/pods", labelSelector=selector)
        return [item for item in found if "deletionTimestamp" not in item["metadata"]]

    def running(self, selector: str, count: int = 1) -> Sequence[Json]:
        """That many, Ready; fails with their statuses."""

        def ready() -> Sequence[Json]:
            found = [item for item in self.list(selector) if _is_ready(item)]
            return found if len(found) == count else []

        try:
            return eventually(ready, f"{count} of {selector} in {self.namespace} are Ready", 180)
        except AssertionError as error:
            told = self._node.kubectl("-n", self.namespace, "describe", "pods", "-l", selector)
            raise AssertionError(f"{error}\n{told[-4000:]}") from None

    def delete(self, selector: str) -> None:
        self._node.admin.delete(f"{self._core}/pods", labelSelector=selector)
        eventually(
            lambda: not self._node.admin.items(f"{self._core}/pods", labelSelector=selector),
            f"{selector} in {self.namespace} are gone",
        )

    def process(self, item: Json) -> Path:
        """`/proc/PID` of the first process of a pod's only container."""
        container_id = item["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended in between
                if container_id in (process / "cgroup").read_text():
                    found.append(process)
        if not found:
            raise AssertionError(f"no process of {container_id}")
        return min(found, key=lambda path: int(path.name))

    def log(self, name: str) -> str:
        path = f"{self._core}/pods/{name}/log"
        try:
            answer = self._node.admin.get(path)
        except Refused as error:
            return str(error)
        return str(answer.get("text", answer))


def _is_ready(item: Json) -> bool:
    conditions = item.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
