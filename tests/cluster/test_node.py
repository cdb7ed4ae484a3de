"""The node of these tests is a real one: what the other tests take for granted."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.api import eventually
from tests.cluster.node import Node
from tests.cluster.pods import Pods, container, pod, service


@pytest.fixture(scope="module")
def pods(node: Node) -> Iterator[Pods]:
    made = Pods(node, "harness").ensure()
    yield made
    node.admin.delete("/api/v1/namespaces/harness")


def test_a_container_is_a_process_of_this_machine_in_a_cgroup_named_after_its_pod(
    node: Node, pods: Pods
) -> None:
    pods.create(pod("busy", {"app": "busy"}, container("c", ["/programs/hog"])))
    (made,) = pods.running("app=busy")
    container_id = made["status"]["containerStatuses"][0]["containerID"].removeprefix(
        "containerd://"
    )
    path = f"/kubepods/burstable/pod{made['metadata']['uid']}/{container_id}"
    found = [
        cgroup.parent
        for cgroup in Path("/proc").glob("[0-9]*/cgroup")
        if path in _text(cgroup) and "hog" in _text(cgroup.parent / "comm")
    ]
    assert len(found) == 1
    assert "ready" in pods.log("busy")
    pods.delete("app=busy")
    eventually(lambda: not found[0].exists(), "its process has ended")


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has ended in between
        return ""


def test_pods_find_services_by_name_and_reach_them(node: Node, pods: Pods) -> None:
    stay = ["/bin/bash", "-c", "while :; do sleep 1; done"]
    pods.create(pod("client", {"app": "client"}, container("c", stay, cpu="1")))
    pods.create(service("itself", {"app": "client"}, 8080))
    pods.running("app=client")
    look = ["exec", "client", "-n", "harness", "--", "/bin/bash", "-c"]
    api = "exec 3<>/dev/tcp/kubernetes.default.svc/443 && echo connected"
    eventually(
        lambda: "connected" in node.kubectl(*look, api, check=False),
        "the API server answers by the name and address of its Service",
    )
    known = node.kubectl(*look, "getent hosts itself; getent hosts itself.harness.svc")
    address = node.admin.get("/api/v1/namespaces/harness/services/itself")["spec"]["clusterIP"]
    assert known.split().count(address) == 2
    assert not node.kubectl(*look, "getent hosts nobody || true").strip()


def test_nothing_of_the_node_is_seen_outside(node: Node) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    assert "containerd" not in mounts
    assert "kubelet" not in mounts
    assert "node0" not in Path("/proc/net/dev").read_text()
    assert "node0" in node.run("cat", "/proc/net/dev")
