"""A node without a kubelet: pods are written to the API server by the test, and their containers
are real cgroups, named as a kubelet names them, with real programs in them. On it runs the agent as
its DaemonSet runs it: its account's token, its environment, `--cluster`.
"""

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flameherd_agent.metadata.hierarchy import PidsHierarchy

from tests.cluster.api import Api, Json
from tests.cluster.control_plane import ControlPlane
from tests.cluster.operating import AGENTS
from tests.ebpf.agents import FLAMEHERD, Agent
from tests.programs.build import build
from tests.programs.running import Running, running_command

NODE = "node-1"


@dataclass
class Pod:
    """A pod as the API server has it, and its cgroup."""

    node: "Node"
    namespace: str
    name: str
    uid: str
    cgroup: str
    """Below the node's prefix."""
    ids: dict[str, str] = field(default_factory=dict)
    """Container → id."""

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"

    def container(self, name: str) -> str:
        """The container's cgroup, made."""
        self.ids[name] = secrets.token_hex(32)
        last = f"cri-containerd-{self.ids[name]}.scope" if self.node.systemd else self.ids[name]
        return self.node.make(f"{self.cgroup}/{last}")

    def tell(self, phase: str = "Running", kind: str = "containerStatuses") -> None:
        """Write the status that a kubelet would write: which container has which id."""
        statuses = [
            {
                "name": name,
                "containerID": f"containerd://{container_id}",
                "image": "registry.example/app:1",
                "imageID": "",
                "ready": True,
                "restartCount": 0,
            }
            for name, container_id in self.ids.items()
        ]
        self.node.api.merge(f"{self.path}/status", {"status": {"phase": phase, kind: statuses}})

    def label(self, **labels: str | None) -> None:
        self.node.api.merge(self.path, {"metadata": {"labels": labels}})

    def delete(self) -> None:
        self.node.api.delete(self.path, gracePeriodSeconds="0")


class Node:
    """Makes pods, cgroups and programs; `close` removes them all."""

    def __init__(
        self, api: Api, *, systemd: bool = False, name: str = NODE, mount: Path | None = None
    ) -> None:
        self.api = api
        self.systemd = systemd
        self.name = name
        self.mount = mount or PidsHierarchy.discover().mount
        self.prefix = f"/flameherd-test-{secrets.token_hex(4)}"
        self._made: list[Path] = []
        self._stack = ExitStack()
        self.make("")

    def make(self, path: str) -> str:
        """A cgroup and those above it; its path from the hierarchy's root."""
        whole = self.prefix + path
        parts = whole.strip("/").split("/")
        for count in range(1, len(parts) + 1):
            folder = self.mount.joinpath(*parts[:count])
            if not folder.exists():
                folder.mkdir()
                self._made.append(folder)
        return whole

    def pod(
        self,
        name: str,
        namespace: str = "shop",
        *,
        labels: dict[str, str] | None = None,
        containers: Sequence[str] = ("app",),
        qos: str = "burstable",
        config_hash: str = "",
        cgroup: bool = True,
        **metadata: Any,
    ) -> Pod:
        """Bound to this node, pending, with a cgroup as the kubelet's driver makes it."""
        annotations: Json = metadata.pop("annotations", {})
        if config_hash:
            mirror = {"kubernetes.io/config.hash": config_hash, "kubernetes.io/config.mirror": "x"}
            annotations = annotations | mirror
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "labels": labels or {},
                "annotations": annotations,
                **metadata,
            },
            "spec": {
                "nodeName": self.name,
                "containers": [
                    {"name": each, "image": "registry.example/app:1.2"} for each in containers
                ],
            },
        }
        made = self.api.create(f"/api/v1/namespaces/{namespace}/pods", body)
        uid = config_hash or made["metadata"]["uid"]
        path = self._pod_path(uid, qos)
        if cgroup:
            self.make(path)
        return Pod(self, namespace, name, made["metadata"]["uid"], path)

    def _pod_path(self, uid: str, qos: str) -> str:
        """kubelet's `pkg/kubelet/cm`: `kubepods/QOS/podUID`, or slices with `_` for `-`."""
        if not self.systemd:
            return f"/kubepods/{qos}/pod{uid}"
        slices = f"/kubepods.slice/kubepods-{qos}.slice"
        return f"{slices}/kubepods-{qos}-pod{uid.replace('-', '_')}.slice"

    def run(self, cgroup: str, executable: Path | None = None) -> Running:
        """A busy program in a cgroup, until the node is closed."""
        procs = self.mount.joinpath(*cgroup.strip("/").split("/"), "cgroup.procs")
        script = 'echo $$ > "$0" && exec "$1"'
        command = ["sh", "-c", script, str(procs), str(executable or build("pie"))]
        return self._stack.enter_context(running_command(command, "pie"))

    def busy_pod(self, name: str, namespace: str = "shop", **options: Any) -> Pod:
        """A pod with one busy container that the status tells of."""
        pod = self.pod(name, namespace, **options)
        self.run(pod.container("app"))
        pod.tell()
        return pod

    def close(self) -> None:
        self._stack.close()
        for folder in reversed(self._made):
            until = time.monotonic() + 20
            while folder.exists():
                with suppress(OSError):  # busy until the last process has been reaped
                    folder.rmdir()
                if time.monotonic() > until:
                    raise AssertionError(f"{folder} cannot be removed")
                time.sleep(0.05)


@contextmanager
def node(api: Api, **options: Any) -> Iterator[Node]:
    """Its pods are gone from the API server afterwards, too."""
    made = Node(api, **options)
    try:
        yield made
    finally:
        made.close()
        for namespace in ("shop", "bank", "kube-system"):
            pods = f"/api/v1/namespaces/{namespace}/pods"
            for item in api.items(pods, fieldSelector=f"spec.nodeName={made.name}"):
                api.delete(f"{pods}/{item['metadata']['name']}", gracePeriodSeconds="0")


class ClusterAgent(Agent):
    """`flameherd agent --cluster` as in a pod of the DaemonSet."""

    def __init__(
        self,
        folder: Path,
        plane: ControlPlane,
        cache: Path,
        lock: Path | None = None,
        through: Sequence[str] = (),
    ) -> None:
        self._lock = lock or folder / "agent.lock"
        self.account = folder / "account"
        self.account.mkdir(exist_ok=True)
        (self.account / "ca.crt").write_bytes(plane.admin.ca.read_bytes())
        self._plane = plane
        self.renew_token()
        super().__init__(folder, cache=cache, through=through)

    def renew_token(self) -> None:
        """As a kubelet does: a new file in the old one's place."""
        path = f"/api/v1/namespaces/{AGENTS}/serviceaccounts/flameherd-agent/token"
        asked = {"spec": {"expirationSeconds": 3600}}
        token = self._plane.admin.create(path, asked)["status"]["token"]
        fresh = self.account / "token.new"
        fresh.write_text(token)
        fresh.replace(self.account / "token")

    def arguments(self) -> list[str]:
        host, port = self._plane.url.removeprefix("https://").split(":")
        environment = {
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": port,
            "FLAMEHERD_NODE": NODE,
            "FLAMEHERD_NAMESPACE": AGENTS,
        }
        return [
            *self._through, "env", *(f"{key}={value}" for key, value in environment.items()),
            FLAMEHERD, "agent", "--cluster", "--service-account", str(self.account),
            "--lock", str(self._lock), "--listen", "127.0.0.1:0",
            "--cache", str(self._cache),
        ]  # fmt: skip

    def ready(self) -> bool:
        try:
            return self.get("/healthz").startswith("ok")
        except OSError:  # 503: not yet
            return False

    def policies(self) -> Json:
        found: Json = self.status()["policies"]
        return found

    def perf_events(self) -> int:
        """perf events that it holds open."""
        count = 0
        for fd in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                count += str(fd.readlink()) == "anon_inode:[perf_event]"
        return count
