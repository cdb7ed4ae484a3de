"""README's Kubernetes section on a real node, with all three images: from nothing to a flame graph of
the namespace, and away again.
"""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import node_images, readme
from tests.cluster.api import GROUP, Json, eventually
from tests.cluster.build import helm_binary
from tests.cluster.chart import ROOT
from tests.cluster.node import Node
from tests.cluster.operating import AGENTS, SYSTEM
from tests.cluster.pods import Pods, container, deployment

pytestmark = pytest.mark.soak
"""The backend's image is 600 MB, its build some minutes; what else README does, other tests run."""

_USER = 65532
"""Of the backend's pod: kubelets do not hand volumes of this kind over to it."""


class Shell:
    """Where a user types README's commands."""

    def __init__(self, node: Node, folder: Path) -> None:
        (folder / "helm").symlink_to(helm_binary())
        (folder / "kubectl").symlink_to(node.plane._binary)
        self._folder = folder
        self._env = {
            "PATH": f"{folder}:{Path(sys.executable).parent}:{os.defpath}",
            "HOME": str(folder),
            "KUBECONFIG": str(node.plane.kubeconfig),
        }

    def run(self, *words: str) -> str:
        """What it prints."""
        done = subprocess.run(
            words,
            executable=str(self._folder / words[0]),
            env=self._env,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, *words: str) -> "subprocess.Popen[str]":
        """A command that stays."""
        return subprocess.Popen(
            words,
            executable=str(self._folder / words[0]),
            env=self._env,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )


@pytest.fixture(scope="module")
def shell(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A cluster with a busy pod in `shop`, room for a volume, and nothing of Flameherd."""
    node.load(*node_images.own_images())
    api = node.admin
    for namespace in (SYSTEM, AGENTS):
        path = f"/api/v1/namespaces/{namespace}"
        if api.find(path):
            api.delete(path)
            eventually(lambda path=path: api.find(path) is None, f"{namespace} is gone")  # type: ignore[misc]
    shop = Pods(node, "shop").ensure()
    shop.create(
        deployment("cart", {"app": "cart"}, container("cart", ["/programs/qsort"], cpu="200m"))
    )
    shop.running("app=cart")
    room = tmp_path_factory.mktemp("volume")
    os.chown(room, _USER, _USER)
    volume: Json = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "store"},
        "spec": {
            "capacity": {"storage": "100Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": str(room)},
        },
    }
    api.apply("/api/v1/persistentvolumes/store", volume)
    yield Shell(node, tmp_path_factory.mktemp("shell"))
    api.delete(f"{GROUP}/namespaces/shop/profilingpolicies")
    for path in (f"/api/v1/namespaces/{SYSTEM}", "/api/v1/persistentvolumes/store"):
        api.delete(path)
    api.delete("/apis/apps/v1/namespaces/shop/deployments/cart")


def test_readme(shell: Shell, node: Node) -> None:
    *steps, forward = readme.commands()
    for words in steps:
        said = shell.run(*words)
    assert "everything" in said
    # Any free port of this machine instead of the one that README names.
    process = shell.start(*forward[:-1], f":{forward[-1]}")
    try:
        assert process.stdout is not None
        found = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert found, "kubectl port-forward says its port"
        _flame_graph_of_shop(f"http://127.0.0.1:{found[1]}")
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)

    assert "Phase:          Succeeded" in shell.run("helm", "test", "flameherd", "-n", SYSTEM)
    status = json.loads(shell.run("kubectl", "flameherd", "status", "-n", "shop", "-o", "json"))
    assert [one["name"] for one in status["policies"]] == ["everything"]

    shell.run("helm", "uninstall", "flameherd", "-n", SYSTEM, "--wait")
    api = node.admin
    eventually(lambda: api.find(f"/api/v1/namespaces/{AGENTS}") is None, "the agents are gone")
    eventually(lambda: not Pods(node, SYSTEM).list(""), "operator and backend are gone")
    left = [o["metadata"]["name"] for o in api.items(f"{GROUP}/namespaces/shop/profilingpolicies")]
    assert left == ["everything"]
    (claim,) = api.items(f"/api/v1/namespaces/{SYSTEM}/persistentvolumeclaims")
    assert claim["status"]["phase"] == "Bound"

    install, doctor = steps[2:4]
    shell.run(*install)
    shell.run(*doctor)
    policy = f"{GROUP}/namespaces/shop/profilingpolicies/everything"

    def ready() -> bool:
        conditions = api.get(policy)["status"]["conditions"]
        return any(c["type"] == "Profiling" and c["status"] == "True" for c in conditions)

    eventually(ready, "what was left is profiled again", 240)
    shell.run("helm", "uninstall", "flameherd", "-n", SYSTEM, "--wait")
    eventually(lambda: api.find(f"/api/v1/namespaces/{AGENTS}") is None, "the agents are gone")


def _flame_graph_of_shop(url: str) -> None:
    """The page is there, and the API has named functions of the pod."""

    def get(path: str) -> bytes:
        with urllib.request.urlopen(url + path, timeout=60) as answer:
            data: bytes = answer.read()
            return data

    def functions() -> set[str]:
        try:
            types = json.loads(get("/api/v1/profile-types"))["types"]
            cpu = next((one["id"] for one in types), None)
            if cpu is None:
                return set()
            answer = json.loads(get(f"/api/v1/functions?type={cpu}&match=namespace%3Dshop"))
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return set()
        return set(answer["strings"])

    assert b"<html" in get("/")
    found = eventually(lambda: {n for n in functions() if "sort" in n}, "stacks of the pod", 240)
    assert found
