"""Flameherd on a node as its chart installs it, with an OpenTelemetry Collector as the place of all profiles."""

import json
import urllib.error
import urllib.request
from collections import Counter
from contextlib import suppress
from pathlib import Path

from flameherd_operator.render.agents import PORT, daemonset_name

from tests.cluster.api import GROUP, Json, eventually
from tests.cluster.node import Node
from tests.cluster.node_images import COLLECTOR
from tests.cluster.operating import AGENTS, SYSTEM
from tests.cluster.pods import Pods, container, pod, service
from tests.collector.collector import read_json_lines
from tests.otlp_reader import Observed

CHART = Path(__file__).parents[2] / "charts/flameherd"
AGENT = "app.kubernetes.io/name=flameherd-agent"
_RELEASE = "flameherd"
_OUT = "profiles.json"


class Sink:
    """A Collector in namespace `obs`; what it received is a file that the node shares with it."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.url = "http://collector.obs.svc:4317"
        self.output = folder / _OUT
        self._pods = Pods(node, "obs")
        self._node = node
        self._folder = folder

    def start(self) -> None:
        self._pods.ensure()
        self.output.touch()
        config = {
            "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": "0.0.0.0:4317"}}}},
            "exporters": {
                "file": {"path": f"/out/{_OUT}", "append": True, "flush_interval": "50ms"}
            },
            "service": {
                "telemetry": {"metrics": {"level": "none"}},
                "pipelines": {"profiles": {"receivers": ["otlp"], "exporters": ["file"]}},
            },
        }
        self._node.admin.create(
            "/api/v1/namespaces/obs/configmaps",
            {"metadata": {"name": "collector"}, "data": {"config.json": json.dumps(config)}},
        )
        options = ["--config=file:/config/config.json", "--feature-gates=service.profilesSupport"]
        made = container(
            "collector",
            ["/collector", *options],
            COLLECTOR,
            cpu="500m",
            volumeMounts=[
                {"name": "out", "mountPath": "/out"},
                {"name": "config", "mountPath": "/config"},
            ],
            readinessProbe={"tcpSocket": {"port": 4317}, "periodSeconds": 1},
        )
        body = pod("collector", {"app": "collector"}, made)
        body["spec"]["volumes"] = [
            {"name": "out", "hostPath": {"path": str(self._folder), "type": "Directory"}},
            {"name": "config", "configMap": {"name": "collector"}},
        ]
        self._pods.create(body)
        self._pods.create(service("collector", {"app": "collector"}, 4317))
        self._pods.running("app=collector")

    def clear(self) -> None:
        # Truncated, not removed: the Collector holds it open for appending.
        self.output.write_bytes(b"")

    def samples(self) -> list[Observed]:
        return read_json_lines(self.output)

    def by_pod(self) -> dict[str, dict[str, str | int]]:
        """Pod → the attributes of a resource of it; "" stands for samples that name no pod."""
        found = (dict(sample[0]) for sample in self.samples())
        return {str(resource.get("k8s.pod.name", "")): resource for resource in found}

    def cpu_seconds(self) -> Counter[str]:
        """Pod → samples times period of all that arrived."""
        total: Counter[str] = Counter()
        for resource, _, head, _, _, value in self.samples():
            total[str(dict(resource).get("k8s.pod.name", ""))] += value * head[4] / 1e9
        return total

    def functions(self, pod_name: str) -> set[str]:
        """Names in stacks of a pod."""
        return {
            line[0]
            for sample in self.samples()
            if dict(sample[0]).get("k8s.pod.name") == pod_name
            for frame in sample[3]
            for line in frame[4]
        }


class Installed:
    """The release. `install` and `uninstall` as a user does."""

    def __init__(self, node: Node, sink: Sink) -> None:
        self.node = node
        self.sink = sink
        self.api = node.admin
        self._forwards: dict[str, int] = {}

    def install(self, *options: str) -> str:
        export = {"endpoint": self.sink.url, "interval": "1s"}
        values = {
            "backend": {"enabled": False},
            "clusterPolicy": {"spec": {"defaults": {"export": export}}},
        }
        return self.node.helm(
            *("upgrade", "--install", _RELEASE, str(CHART), "--namespace", SYSTEM),
            *("--create-namespace", "--wait", "--timeout", "5m"),
            *("--set-json", f"backend={json.dumps(values['backend'])}"),
            *("--set-json", f"clusterPolicy={json.dumps(values['clusterPolicy'])}"),
            *options,
        )

    def uninstall(self) -> str:
        return self.node.helm("uninstall", _RELEASE, "--namespace", SYSTEM, "--wait")

    def agent(self) -> Json:
        """The pod of the agent, Ready."""

        def ready() -> Json | None:
            found = Pods(self.node, AGENTS).list(AGENT)
            for item in found:
                conditions = item["status"].get("conditions", [])
                if any(c["type"] == "Ready" and c["status"] == "True" for c in conditions):
                    return item if len(found) == 1 else None
            return None

        try:
            made = eventually(ready, "one agent is Ready", 240)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.troubles()}") from None
        assert made is not None
        return made

    def troubles(self) -> str:
        """What the operator and the agent say, and what became of their pods."""
        ask = self.node.kubectl
        told = [ask("get", "pods,daemonsets,agentpools", "-A", "-o", "wide", check=False)]
        for namespace, name in ((SYSTEM, "flameherd-operator"), (AGENTS, "flameherd-agent")):
            chosen = ("-n", namespace, "-l", f"app.kubernetes.io/name={name}")
            told.append(ask("describe", "pods", *chosen, check=False)[-3000:])
            told.append(ask("logs", *chosen, "--tail=40", check=False)[-4000:])
        return "\n".join(told)

    def status(self) -> Json:
        """The agent's own account."""
        address = self.agent()["status"]["podIP"]
        if address not in self._forwards:
            self._forwards[address] = self.node.forward(PORT, address)
        url = f"http://127.0.0.1:{self._forwards[address]}/status"

        def ask() -> Json | None:
            with (
                suppress(urllib.error.URLError, ConnectionError, TimeoutError),
                urllib.request.urlopen(url, timeout=20) as answer,
            ):
                found: Json = json.loads(answer.read())
                return found
            return None

        told = eventually(ask, "the agent tells its status")
        assert told is not None
        return told

    def perf_events(self) -> int:
        """perf events that the agent holds open."""
        container_id = self.agent()["status"]["containerStatuses"][0]["containerID"]
        name = container_id.removeprefix("containerd://")
        count = 0
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended in between
                if name in (process / "cgroup").read_text():
                    links = [str(fd.readlink()) for fd in (process / "fd").iterdir()]
                    count += links.count("anon_inode:[perf_event]")
        return count

    def policy(self, namespace: str, name: str, labels: dict[str, str], hertz: int) -> str:
        """Its path."""
        path = f"{GROUP}/namespaces/{namespace}/profilingpolicies"
        selector = {"matchLabels": labels} if labels else {}
        self.api.create(
            path,
            {
                "apiVersion": "flameherd.dev/v1alpha1",
                "kind": "ProfilingPolicy",
                "metadata": {"name": name},
                "spec": {"podSelector": selector, "cpu": {"frequencyHz": hertz}},
            },
        )
        return f"{path}/{name}"

    def daemonset(self) -> Json | None:
        name = daemonset_name("default")
        return self.api.find(f"/apis/apps/v1/namespaces/{AGENTS}/daemonsets/{name}")
