"""The chart on a real API server: README's commands, what the operator makes of it, and its end.

Here is no controller and no node: the operator runs as a process with the chart's rights, and what
kubelets and controllers would write is written for them.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from flameherd_operator.settings import Settings

from tests.cluster import readme
from tests.cluster.api import GROUP, Json, Refused, eventually
from tests.cluster.build import helm_binary
from tests.cluster.chart import CHART, ROOT, agents_pod, named, rendered
from tests.cluster.control_plane import ControlPlane
from tests.cluster.operating import AGENTS, SYSTEM, Operator

POOL = f"{GROUP}/agentpools/default"
CLUSTER = f"{GROUP}/clusterprofilingpolicies/default"
POLICIES = f"{GROUP}/namespaces/shop/profilingpolicies"
*STEPS, FORWARD = readme.commands()
"""The last one needs a pod: it is only looked at."""


class Installation:
    """README's commands up to `helm install`, and an operator; `run` what follows."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane = plane
        self.api = plane.admin
        for name, binary in (("helm", helm_binary()), ("kubectl", plane._binary)):
            (folder / name).symlink_to(binary)
        self._folder = folder
        self.said = self.run(*STEPS[:3])
        defaults = self.api.get(f"/api/v1/namespaces/{SYSTEM}/configmaps/flameherd-defaults")
        (folder / "defaults.yaml").write_text(defaults["data"]["defaults.yaml"])
        options = ("--defaults", str(folder / "defaults.yaml"), "--lease-duration", "2s")
        self.operator = Operator(plane, folder, *options)

    def run(self, *commands: list[str], kubeconfig: Path | None = None, status: int = 0) -> str:
        """What they print. kubectl finds the plugin by its name."""
        said = ""
        for words in commands:
            done = subprocess.run(
                words,
                executable=str(self._folder / words[0]),
                env={
                    "PATH": f"{self._folder}:{Path(sys.executable).parent}:{os.defpath}",
                    "HOME": str(self._folder),
                    "KUBECONFIG": str(kubeconfig or self.plane.kubeconfig),
                },
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=400,
                check=False,
            )
            assert done.returncode == status, f"{words}: {done.stdout}{done.stderr}"
            said += done.stdout
        return said


@pytest.fixture(scope="module")
def installation(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    plane = ControlPlane(control_plane._binary, tmp_path_factory.mktemp("installation"))
    try:
        plane.start()
        made = Installation(plane, tmp_path_factory.mktemp("commands"))
        made.operator.start()
        try:
            eventually(lambda: made.operator.configs(), "every shard")
            yield made
        finally:
            made.operator.stop(signal.SIGKILL)
    finally:
        plane.stop()


def test_readme(installation: Installation) -> None:
    """Every command of its Kubernetes section."""
    assert "kubectl port-forward" in installation.said
    assert "kubectl label namespace" not in installation.said  # README has done it
    assert FORWARD[:2] == ["kubectl", "port-forward"]
    service = named(rendered(), "Service", FORWARD[4].partition("/")[2], FORWARD[3])
    assert FORWARD[5] in [str(port["port"]) for port in service["spec"]["ports"]]
    installation.api.namespace("shop")
    as_if_it_ran(installation.operator)
    said = installation.run(*STEPS[3:])
    assert "Nothing is broken." in said
    assert "everything" in said


def as_if_it_ran(operator: Operator) -> None:
    """What controllers and kubelets would have written."""
    apps, api = "/apis/apps/v1/namespaces", operator.api

    def write(path: str, **status: int) -> None:
        eventually(lambda: api.find(f"{apps}/{path}"), path)
        api.merge(f"{apps}/{path}/status", {"status": status})

    write(f"{SYSTEM}/deployments/flameherd-operator", replicas=2, readyReplicas=2)
    write(f"{SYSTEM}/statefulsets/flameherd-backend", replicas=1, readyReplicas=1)
    daemonset = f"{AGENTS}/daemonsets/flameherd-agent-default"
    scheduled = {"currentNumberScheduled": 1, "desiredNumberScheduled": 1, "numberMisscheduled": 0}
    write(daemonset, numberReady=0, **scheduled)
    operator.waits_for(POOL, "Ready", "False", "Rolling")
    write(daemonset, numberReady=1, **scheduled)


def test_the_operator_keeps_the_default_objects(installation: Installation) -> None:
    api = installation.api
    values = {"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux"}
    eventually(lambda: api.find(POOL), "the pool")
    assert api.get(POOL)["spec"]["nodeSelector"] == values
    installation.operator.waits_for(CLUSTER, "Accepted", "True", "Accepted")
    endpoint = f"http://flameherd-backend.{SYSTEM}.svc:4317"
    assert api.get(CLUSTER)["spec"]["defaults"]["export"]["endpoint"] == endpoint
    labels = {"kubernetes.io/arch": "arm64", "disk": "ssd"}
    api.merge(POOL, {"spec": {"nodeSelector": labels, "priorityClassName": "high"}})

    def spec() -> Json:
        found: Json = api.get(POOL)["spec"]
        return found

    arch = "kubernetes.io/arch"
    eventually(lambda: spec()["nodeSelector"][arch] == "amd64", "what the values say is restored")
    assert spec()["nodeSelector"]["disk"] == "ssd"  # what they do not say stays
    assert spec()["priorityClassName"] == "high"
    api.merge(POOL, {"spec": {"nodeSelector": {"disk": None}, "priorityClassName": None}})
    api.delete(CLUSTER)
    eventually(lambda: api.find(CLUSTER), "the policy again")


def test_pod_security_admits_the_pods(installation: Installation) -> None:
    """Each into its own namespace, and the agents into theirs only."""
    api = installation.api
    assert (
        api.get(f"/api/v1/namespaces/{AGENTS}")["metadata"]["labels"][
            "pod-security.kubernetes.io/enforce"
        ]
        == "privileged"
    )
    plain = {"automountServiceAccountToken": False, "serviceAccountName": "default"}
    account: Json = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    for space in (SYSTEM, AGENTS):
        api.apply(f"/api/v1/namespaces/{space}/serviceaccounts/default", account)

    def admit(space: str, spec: Json) -> None:
        body = {"metadata": {"name": "x"}, "spec": spec | plain}
        api.create(f"/api/v1/namespaces/{space}/pods", body, dryRun="All")

    for path in ("deployments/flameherd-operator", "statefulsets/flameherd-backend"):
        made = api.get(f"/apis/apps/v1/namespaces/{SYSTEM}/{path}")
        spec = made["spec"]["template"]["spec"]
        claims = [c["metadata"]["name"] for c in made["spec"].get("volumeClaimTemplates", ())]
        spec["volumes"] += [{"name": name, "emptyDir": {}} for name in claims]
        admit(SYSTEM, spec)
    agent = agents_pod(Settings(se_linux_type="spc_t", app_armor_profile="Unconfined"))
    agent["volumes"] = [v for v in agent["volumes"] if "projected" not in v]
    admit(AGENTS, agent)
    with pytest.raises(Refused, match="violates PodSecurity") as refused:
        admit(SYSTEM, agent)
    for reason in ("hostPID", "hostPath", "capabilities"):
        assert reason in str(refused.value)


def test_roles_for_people(installation: Installation) -> None:
    """Aggregated into Kubernetes' own; nobody may write a status."""
    api = installation.api
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    for name, into in (("view", {"view"}), ("edit", {"edit", "admin"})):
        role = api.get(f"{roles}/flameherd-{name}")
        prefix = "rbac.authorization.k8s.io/aggregate-to-"
        assert {
            k.removeprefix(prefix) for k in role["metadata"]["labels"] if k.startswith(prefix)
        } == into
        assert not any("/status" in r for rule in role["rules"] for r in rule["resources"])


def test_helm_test_may_look_at_everything(installation: Installation) -> None:
    """The doctor with the rights of the hook's account, which no kubelet runs here: every check can
    be made.
    """
    api = installation.api
    hooks = [o for o in rendered() if o["metadata"]["name"] == "flameherd-test"]
    (pod,) = [o for o in hooks if o["kind"] == "Pod"]
    assert pod["spec"]["containers"][0]["command"][:2] == ["kubectl-flameherd", "doctor"]
    for made in hooks:
        if made["kind"] != "Pod":
            meta = made["metadata"]
            space = f"/namespaces/{meta['namespace']}" if "namespace" in meta else ""
            prefix = (
                "/api/v1" if made["kind"] == "ServiceAccount" else f"/apis/{made['apiVersion']}"
            )
            api.apply(f"{prefix}{space}/{made['kind'].lower()}s/{meta['name']}", made)
    path = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/flameherd-test/token"
    token = api.create(path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    kubeconfig = installation.plane.kubeconfig_for("helm-test", token)
    as_if_it_ran(installation.operator)
    doctor = ["kubectl", "flameherd", "doctor", "--wait", "2m", "-o", "json"]
    found = json.loads(installation.run(doctor, kubeconfig=kubeconfig))
    assert len({one["check"] for one in found}) == 11
    assert [one for one in found if one["level"] in ("?", "FAIL")] == []


def test_upgrade_and_uninstall(installation: Installation) -> None:
    """The kinds and the policies stay, and nothing else that would do anything."""
    api = installation.api
    api.namespace("shop")
    applied = ["kubectl", "apply", "-n", "shop", "-f", "examples/namespace.yaml"]
    value = "clusterPolicy.spec.limits.frequencyHz.max=49"
    release = ["flameherd", str(CHART), "--namespace", SYSTEM]
    installation.run(applied, ["helm", "upgrade", *release, "--set", value])
    defaults = api.get(f"/api/v1/namespaces/{SYSTEM}/configmaps/flameherd-defaults")["data"]
    assert '"max":49' in defaults["defaults.yaml"]
    installation.run(["helm", "uninstall", "flameherd", "--namespace", SYSTEM])
    assert api.find(f"{POLICIES}/everything") is not None
    for path in (
        f"/api/v1/namespaces/{AGENTS}/serviceaccounts/flameherd-agent",
        f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/flameherd-operator",
        f"/apis/apps/v1/namespaces/{SYSTEM}/statefulsets/flameherd-backend",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/flameherd-operator",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/flameherd-edit",
    ):
        assert api.find(path) is None, path
    # A controller would end it: here is none.
    assert api.get(f"/api/v1/namespaces/{AGENTS}")["status"]["phase"] == "Terminating"
