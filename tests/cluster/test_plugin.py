"""`kubectl flameherd`, started by kubectl itself, against a real API server and a running operator."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.api import GROUP, Api, Json, eventually
from tests.cluster.control_plane import ControlPlane
from tests.cluster.objects import object_of
from tests.cluster.operating import AGENTS, SYSTEM, Operator, bind, grant

SHOP = f"{GROUP}/namespaces/shop/profilingpolicies"
CLUSTERS = f"{GROUP}/clusterprofilingpolicies"
EXPORT: Json = {"endpoint": "http://collector.obs.svc:4317"}
COST: Json = {
    "cpuPerNodeMean": "2m", "cpuPerNodeMax": "3m", "samplesPerMinute": 1140, "bytesPerMinute": 57000,
}  # fmt: skip
"""Two containers at 19 Hz that use half a CPU each, on two nodes."""


class Plugin:
    """`kubectl flameherd …` as a user types it."""

    def __init__(self, plane: ControlPlane, folder: Path, kubeconfig: Path) -> None:
        (folder / "kubectl").unlink(missing_ok=True)
        (folder / "kubectl").symlink_to(plane._binary)
        self._env = {
            "KUBECONFIG": str(kubeconfig),
            "HOME": str(folder),
            # kubectl finds the plugin by its name, and the plugin finds kubectl.
            "PATH": f"{folder}:{Path(sys.executable).parent}:{os.defpath}",
        }

    def run(self, *arguments: str, status: int = 0) -> tuple[str, str]:
        """(standard output, standard error)."""
        done = subprocess.run(
            ["kubectl", "flameherd", *arguments],
            env=self._env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            executable=str(Path(self._env["PATH"].partition(":")[0]) / "kubectl"),
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout, done.stderr

    def data(self, *arguments: str, status: int = 0) -> Any:
        """What `-o json` says."""
        return json.loads(self.run(*arguments, "-o", "json", status=status)[0])


def pod(name: str, node: str, containers: tuple[str, ...], **labels: str) -> Json:
    images = [{"name": c, "image": "registry.example/x:1"} for c in containers]
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"nodeName": node, "containers": images, "automountServiceAccountToken": False},
    }


def node(name: str, architecture: str = "amd64", kernel: str = "6.1.0-25-amd64") -> Json:
    info = dict.fromkeys(
        (
            "machineID", "systemUUID", "bootID", "osImage", "containerRuntimeVersion",
            "kubeletVersion", "kubeProxyVersion",
        ),
        "-",
    )  # fmt: skip
    info |= {"architecture": architecture, "kernelVersion": kernel, "operatingSystem": "linux"}
    return {"metadata": {"name": name}, "status": {"nodeInfo": info}}


@pytest.fixture(scope="module")
def cluster(
    api: Api, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operator]:
    """An operator, three nodes, pods of `shop` and their policies."""
    grant(api)
    made = Operator(
        control_plane, tmp_path_factory.mktemp("plugin-operator"), "--lease-duration", "2s"
    )
    made.start()
    # A worker of admission wants the account that a controller would make.
    account: Json = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    api.apply("/api/v1/namespaces/shop/serviceaccounts/default", account)
    nodes = [node("n1"), node("n2"), node("n3", architecture="arm64")]
    pods = [
        pod("web-1", "n1", ("web", "proxy"), app="web"),
        pod("web-2", "n2", ("web",), app="web"),
        pod("db-0", "n1", ("db",), app="db"),
        pod("job-1", "n2", ("job",), app="job"),
    ]
    for body in nodes:
        created = api.create("/api/v1/nodes", body)
        assert created["metadata"]["name"] == body["metadata"]["name"]
    for body in pods:
        api.create("/api/v1/namespaces/shop/pods", body)
    job = "/api/v1/namespaces/shop/pods/job-1/status"
    api.merge(job, {"status": {"phase": "Succeeded"}})
    policies: dict[str, Json] = {
        "all": {"podSelector": {}, "cpu": {}, "export": EXPORT},
        "web": {
            "podSelector": {"matchLabels": {"app": "web"}},
            "containerNames": ["web"],
            "priority": 10,
            "cpu": {"frequencyHz": 49},
            "export": EXPORT,
        },
        "off": {"podSelector": {}},
    }
    for name, spec in policies.items():
        api.create(SHOP, object_of("ProfilingPolicy", spec, name))
    for name in ("all", "web"):
        made.waits_for(f"{SHOP}/{name}", "Programmed", "True", "Programmed")
    made.waits_for(f"{SHOP}/off", "Ready", "False", "Off")
    counts = {
        "cost": COST,
        "nodes": {"desired": 2, "programmed": 2},
        "pods": {"matched": 3, "profiled": 2},
        "containers": {"matched": 4, "profiled": 2, "overlapped": 2},
        "coverage": {"completePercent": 99, "truncatedPercent": 1, "unsymbolizedPercent": 0,
        "lostPercent": 0},
    }  # fmt: skip
    # As agents would have it written: here is no node to run one.
    api.merge(f"{SHOP}/all/status", {"status": counts})
    try:
        yield made
    finally:
        made.stop(signal.SIGKILL)
        for path in (SHOP, CLUSTERS, "/api/v1/namespaces/shop/pods"):
            api.delete(path, gracePeriodSeconds="0")
        for body in nodes:
            api.delete(f"/api/v1/nodes/{body['metadata']['name']}")
        # One of these tests has written how many nodes it is on.
        api.delete(f"/apis/apps/v1/namespaces/{AGENTS}/daemonsets")


@pytest.fixture
def plugin(cluster: Operator, control_plane: ControlPlane, tmp_path: Path) -> Plugin:
    return Plugin(control_plane, tmp_path, control_plane.kubeconfig)


def test_status_says_who_is_profiled_at_what_cost(plugin: Plugin) -> None:
    lines = plugin.run("status", "-n", "shop")[0].splitlines()
    header = lines[0].split()
    rows = {line.split()[1]: dict(zip(header, line.split(), strict=False)) for line in lines[1:4]}
    assert rows["web"]["HZ"] == "49"
    everything = rows["all"]
    assert (everything["PODS"], everything["CONTAINERS"], everything["CPU/NODE"]) == (
        "2/3",
        "2/4",
        "2m",
    )
    assert (everything["SAMPLES/MIN"], everything["BYTES/MIN"]) == ("1.14k", "57k")
    assert rows["off"]["STATE"] == "Off"
    assert any("shop/off: Off: nothing is switched on: write cpu: {}" in line for line in lines)
    data = plugin.data("status", "-A")
    found = {p["name"]: p for p in data["policies"]}
    assert list(found) == ["web", "all", "off"]  # in order of precedence
    assert found["off"]["state"] == "Off"
    assert found["all"]["cost"] == COST
    assert [p["name"] for p in data["agentPools"]] == ["default"]
    assert "nothing is profiled" in plugin.run("status", "-n", "bank")[0]


def test_explain_says_which_policy_wins_and_why(plugin: Plugin) -> None:
    data = plugin.data("explain", "pod/web-1", "-n", "shop")
    containers = {c["container"]: c for c in data["containers"]}
    assert (containers["web"]["policy"], containers["web"]["frequencyHz"]) == ("shop/web", 49)
    assert "before shop/all" in containers["web"]["why"]
    assert (containers["proxy"]["policy"], containers["proxy"]["frequencyHz"]) == ("shop/all", 19)
    policies = {p["policy"]: p for p in data["policies"]}
    assert policies["shop/all"]["samples"] == ["proxy"]
    assert "Off" in policies["shop/off"]["why"]

    data = plugin.data("explain", "db-0", "-n", "shop")
    policies = {p["policy"]: p for p in data["policies"]}
    assert policies["shop/web"]["why"] == "podSelector wants app=web: it is db"
    assert policies["shop/all"]["samples"] == ["db"]

    text = plugin.run("explain", "pod/web-2", "-n", "shop")[0]
    assert "shop/web takes precedence on web" in text
    assert "It has ended" in plugin.run("explain", "pod/job-1", "-n", "shop")[0]
    said = plugin.run("explain", "pod/none", "-n", "shop", status=2)[1]
    assert 'pods "none" not found' in said


def written(folder: Path, **spec: Any) -> str:
    path = folder / "policy.json"
    body = object_of(
        "ProfilingPolicy", {"podSelector": {}, "cpu": {}, "export": EXPORT} | spec, "new"
    )
    path.write_text(json.dumps(body))
    return str(path)


def test_dry_run_says_what_it_would_match_and_cost(
    plugin: Plugin, api: Api, tmp_path: Path
) -> None:
    high = written(tmp_path, priority=20, cpu={"frequencyHz": 38})
    data = plugin.data("dry-run", "-f", high)
    assert data["accepted"]
    assert {p["pod"]: p["containers"] for p in data["pods"]} == {
        "web-1": ["web", "proxy"], "web-2": ["web"], "db-0": ["db"],
    }  # fmt: skip
    assert data["nodes"] == {"n1": 3, "n2": 1}
    assert data["takesFrom"] == {"shop/all": 2, "shop/web": 2}
    cost = data["estimate"]
    # At twice the rate and with twice the containers: four times the samples, at the same cost each.
    assert cost["samplesPerMinute"] == pytest.approx(4 * COST["samplesPerMinute"])
    assert cost["bytesPerMinute"] == pytest.approx(4 * COST["bytesPerMinute"])
    assert cost["basis"] == "measured in this namespace by: shop/all"
    # What is measured is on one node (n1: proxy, db): 2 ms a second for 1,140 samples a minute.
    assert cost["cpuPerNodeMax"] == pytest.approx(0.002 * 4 * 3 / 4)

    low = plugin.data("dry-run", "-f", written(tmp_path))
    assert low["takesFrom"] == {}
    assert low["overlappedBy"] == {"shop/all": 2, "shop/web": 2}
    text = plugin.run("dry-run", "-f", written(tmp_path, containerNames=["web"], priority=11))[0]
    assert "Matches 3 pods; samples 2 containers of 2 pods on 2 nodes." in text
    assert "Takes 2 containers from shop/web." in text
    assert api.find(f"{SHOP}/new") is None


def test_dry_run_holds_a_policy_against_the_cluster(
    plugin: Plugin, api: Api, tmp_path: Path
) -> None:
    ceiling = object_of("ClusterProfilingPolicy", {"limits": {"frequencyHz": {"max": 29}}}, "low")
    api.create(CLUSTERS, ceiling)
    try:
        data = plugin.data("dry-run", "-f", written(tmp_path, cpu={"frequencyHz": 97}))
        assert data["effective"]["cpu"]["frequencyHz"] == 29
        assert data["effective"]["clippedBy"] == ["limits.frequencyHz.max: 97 Hz lowered to 29 Hz"]
    finally:
        api.delete(f"{CLUSTERS}/low")
    outside = {"endpoint": "https://elsewhere.example:4317"}
    text = plugin.run("dry-run", "-f", written(tmp_path, export=outside), status=1)[0]
    assert "It would profile nothing: EndpointNotAllowed" in text
    wrong = plugin.run("dry-run", "-f", written(tmp_path, frequency=3), status=2)[1]
    assert "spec.frequency" in wrong
    (tmp_path / "pool.yaml").write_text(
        "{apiVersion: flameherd.dev/v1alpha1, kind: AgentPool, metadata: {name: x}}"
    )
    said = plugin.run("dry-run", "-f", str(tmp_path / "pool.yaml"), status=2)[1]
    assert "only these are tried" in said


def test_a_tenant_sees_his_namespace(
    plugin: Plugin, api: Api, control_plane: ControlPlane, tmp_path: Path
) -> None:
    user = "system:serviceaccount:shop:default"
    # No controller aggregates roles here, so that Kubernetes' own `view` is empty.
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]
    role: Json = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role"}
    role |= {"metadata": {"name": "pods"}, "rules": rules}
    api.apply("/apis/rbac.authorization.k8s.io/v1/namespaces/shop/roles/pods", role)
    bind(api, "Role", "pods", "shop", user)
    bind(api, "ClusterRole", "flameherd-view", "shop", user)
    request = {"spec": {"expirationSeconds": 3600}}
    path = "/api/v1/namespaces/shop/serviceaccounts/default/token"
    token = api.create(path, request)["status"]["token"]
    tenant = Plugin(control_plane, tmp_path, control_plane.kubeconfig_for("tenant", token))
    assert "shop" in tenant.run("status", "-n", "shop")[0]
    assert "forbidden" in tenant.run("status", "-n", "bank", status=2)[1]
    text, notes = tenant.run("explain", "pod/web-1", "-n", "shop")
    assert "shop/web" in text
    assert "you may not list clusterprofilingpolicies" in notes
    data, notes = tenant.run("dry-run", "-f", written(tmp_path, priority=20), "-o", "json")
    assert json.loads(data)["estimate"]["samplesPerMinute"] > 0
    assert "the built-in ceilings" in notes


def test_doctor_finds_what_is_broken(plugin: Plugin, cluster: Operator, api: Api) -> None:
    def checks(status: int) -> dict[str, list[Json]]:
        found: dict[str, list[Json]] = {}
        for one in plugin.data("doctor", status=status):
            found.setdefault(one["check"], []).append(one)
        return found

    # No Deployment and no backend are here, and the namespaces have no labels.
    eventually(lambda: cluster.configs(), "every shard")
    assert [one["message"] for one in checks(1)["agents"] if one["level"] == "FAIL"] == [
        "no node runs an agent"
    ]
    daemonset = f"/apis/apps/v1/namespaces/{AGENTS}/daemonsets/flameherd-agent-default/status"
    counts = {"currentNumberScheduled": 2, "numberMisscheduled": 0, "desiredNumberScheduled": 2}
    api.merge(daemonset, {"status": counts | {"numberReady": 0}})
    pool = f"{GROUP}/agentpools/default"
    cluster.waits_for(pool, "Ready", "False", "Rolling")
    assert any("0 of 2 nodes" in one["message"] for one in checks(1)["agents"])
    api.merge(daemonset, {"status": counts | {"numberReady": 2}})
    plugin.run("doctor", "--wait", "2m")
    found = checks(0)
    assert found["agents"][0]["message"] == "pool default: 2 of 2 agents sample"
    assert [one["level"] for one in found["kinds"]] == ["ok"] * 3
    assert [one["level"] for one in found["rights"]] == ["ok"]
    assert found["configuration"][0]["message"] == "16 shards tell agents of 2 policies"
    assert "holds the Lease" in found["operator"][1]["message"]
    levels = {one["message"]: one["level"] for one in found["nodes"]}
    assert levels == {
        "1 node: there is no agent for arm64 yet": "warn",
        "2 of 3 nodes can run an agent": "ok",
    }
    assert any("Off" in one["message"] for one in found["policies"])
    mends = [one["mend"] for one in found["namespaces"]]
    assert f"kubectl label --overwrite namespace {SYSTEM}" in mends[0]

    cluster.stop(signal.SIGKILL)
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles/flameherd-operator"
    api.merge(roles, {"rules": []})
    api.delete(f"/api/v1/namespaces/{AGENTS}/configmaps/flameherd-config-03")
    try:
        broken = eventually(lambda: _broken(plugin), "the Lease is too old", 60)
        assert any("flameherd-operator may not list profilingpolicies" in line for line in broken)
        assert any("1 of 16 shards are missing: flameherd-config-03" in line for line in broken)
        text = plugin.run("doctor", status=1)[0]
        assert "To do:" in text
        assert "broken." in text
    finally:
        grant(api)
        cluster.start()
        eventually(lambda: cluster.configs(), "every shard again")


def _broken(plugin: Plugin) -> list[str]:
    found = [one["message"] for one in plugin.data("doctor", status=1) if one["level"] == "FAIL"]
    return found if any("has not renewed the Lease" in line for line in found) else []


def test_errors_name_what_and_where(plugin: Plugin, tmp_path: Path) -> None:
    said = plugin.run("status", "--context", "nowhere", status=2)[1]
    assert "nowhere" in said
    said = plugin.run("explain", "deploy/web", "-n", "shop", status=2)[1]
    assert "only pods are explained" in said
    missing = plugin.run("dry-run", "-f", str(tmp_path / "none.yaml"), status=2)[1]
    assert "cannot be read" in missing
