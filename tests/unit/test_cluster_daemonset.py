"""What the operator puts into a DaemonSet is what the agent wants."""

import argparse
from pathlib import Path
from typing import Any

import pytest
from flameherd_agent.app import DEFAULT_CACHE
from flameherd_agent.cluster.account import Account, in_cluster
from flameherd_agent.cluster.shards import EXPORT_FOLDER
from flameherd_agent.commands import agent
from flameherd_agent.errors import UsageError
from flameherd_agent.kernel.hostlock import DEFAULT_LOCK
from flameherd_operator.observed import Inputs, see
from flameherd_operator.render.desired import desired
from flameherd_operator.settings import Settings

KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def container() -> dict[str, Any]:
    return rendered(Settings())


def rendered(settings: Settings) -> dict[str, Any]:
    metadata = {"name": "default", "uid": "1", "generation": 1}
    pool = see("AgentPool", {"metadata": metadata, "spec": {}})
    made = desired(Inputs(owner_uid="u", pools=(pool,)), settings).objects
    (daemonset,) = (each for each in made if each["kind"] == "DaemonSet")
    found: dict[str, Any] = daemonset["spec"]["template"]["spec"]["containers"][0]
    return found


@pytest.fixture
def account(tmp_path: Path) -> Path:
    for name in ("token", "ca.crt"):
        (tmp_path / name).write_text("x\n")
    return tmp_path


def test_its_arguments_are_known(container: dict[str, Any]) -> None:
    parser = argparse.ArgumentParser()
    agent.register(parser.add_subparsers())
    parsed = parser.parse_args(container["args"])
    assert parsed.cluster
    assert parsed.config is None
    assert (parsed.lock, parsed.cache) == (DEFAULT_LOCK, DEFAULT_CACHE)
    port = parsed.listen.rpartition(":")[2]
    assert str(container["readinessProbe"]["httpGet"]["port"]) == port


def test_its_environment_is_enough(container: dict[str, Any], account: Path) -> None:
    env = {each["name"]: each["name"].lower() for each in container["env"]} | KUBERNETES
    found = in_cluster(account, env)
    assert (found.node, found.namespace) == ("flameherd_node", "flameherd_namespace")
    assert (found.host, found.port, found.token()) == ("10.0.0.1", 443, "x")
    fields = {
        each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"]
        for each in container["env"]
        if "fieldRef" in each.get("valueFrom", {})
    }
    assert fields["FLAMEHERD_NODE"] == "spec.nodeName"
    assert fields["FLAMEHERD_NAMESPACE"] == "metadata.namespace"


def test_the_clusters_name_comes_along(account: Path) -> None:
    container = rendered(Settings(cluster_name="prod"))
    stated = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    env = {**KUBERNETES, "FLAMEHERD_NODE": "n", "FLAMEHERD_NAMESPACE": "a", **stated}
    assert in_cluster(account, env).cluster == "prod"


def test_its_mounts_are_where_the_agent_looks(container: dict[str, Any]) -> None:
    mounts = {
        mount["mountPath"]: mount.get("readOnly", False) for mount in container["volumeMounts"]
    }
    assert mounts[str(EXPORT_FOLDER)]
    assert mounts["/sys/fs/cgroup"]
    assert not mounts[str(DEFAULT_LOCK.parent)]
    assert not mounts[str(DEFAULT_CACHE)]


@pytest.mark.parametrize("missing", [*KUBERNETES, "FLAMEHERD_NODE", "FLAMEHERD_NAMESPACE"])
def test_what_is_missing_is_named(account: Path, missing: str) -> None:
    env = {**KUBERNETES, "FLAMEHERD_NODE": "n", "FLAMEHERD_NAMESPACE": "a"}
    assert isinstance(in_cluster(account, env), Account)
    del env[missing]
    with pytest.raises(UsageError, match=missing):
        in_cluster(account, env)


def test_an_account_that_is_not_mounted_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="automountServiceAccountToken"):
        in_cluster(tmp_path, {**KUBERNETES, "FLAMEHERD_NODE": "n", "FLAMEHERD_NAMESPACE": "a"})
