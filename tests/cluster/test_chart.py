"""The chart: what it makes, what it refuses, and that a real API server takes it."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from flameherd_backend.cli import parser as backend_parser
from flameherd_operator.cli import parser as operator_parser
from flameherd_operator.cli import settings_of
from flameherd_operator.defaults import read as read_defaults
from flameherd_operator.observed import Inputs, see
from flameherd_operator.render.agents import CAPABILITIES, daemonset_name
from flameherd_operator.render.desired import desired
from flameherd_operator.settings import STATUS_SERVICE, Settings

from tests.cluster import readme
from tests.cluster.api import GROUP, Api, Json, Refused, eventually
from tests.cluster.build import helm_binary
from tests.cluster.chart import (
    CHART,
    ROOT,
    SYSTEM,
    containers,
    expected,
    helm,
    named,
    rendered,
    snapshot,
    snapshots,
    template,
)
from tests.cluster.control_plane import ControlPlane
from tests.cluster.operating import Operator
from tests.go_build import go

pytestmark = pytest.mark.skipif(go() is None, reason="needs Go to build helm")
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
ALL = str(ROOT / "tests/cluster/charts/everything.values.yaml")
AGENTS = VALUES["agents"]["namespace"]["name"]


@pytest.mark.parametrize("values", [None, *snapshots()], ids=str)
def test_lint(values: Path | None) -> None:
    done = helm("lint", "--strict", str(CHART), *(["--values", str(values)] if values else []))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout


@pytest.mark.parametrize("values", snapshots(), ids=lambda path: path.name)
def test_snapshot(values: Path) -> None:
    assert expected(values).read_text() == snapshot(values), (
        "write them anew by `python -m tests.cluster.chart`, and read the difference"
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("backend.enable=false", "/backend"),
        ("agent.image.tag=1", "'agent'"),
        ("operator.replicas=two", "/operator/replicas"),
        ("backend.maxDisk=lots", "/backend/maxDisk"),
        ("operator.image.digest=sha256:12", "/operator/image/digest"),
        ("agents.pool.spec.tolerations[0].operatr=Exists", "/agents/pool/spec/tolerations/0"),
        ("clusterPolicy.spec.limits.frequencyHz.max=7000", "/clusterPolicy/spec/limits"),
        ("networkPolicy.pageFrom[0].podselector=x", "/networkPolicy/pageFrom/0"),
        ("operator.resources.limit.cpu=1", "/operator/resources"),
        ("agents.appArmorProfile=unconfined", "/agents/appArmorProfile"),
        (
            f"agents.namespace.name={SYSTEM}",
            "the agents' pods are privileged and need one of their own",
        ),
    ],
)
def test_wrong_values_are_refused_by_name(value: str, said: str) -> None:
    done = helm("template", "x", str(CHART), "--namespace", SYSTEM, "--set", value)
    assert done.returncode != 0
    assert said in done.stderr


def test_every_value_is_in_the_schema() -> None:
    """What values.yaml offers, the schema describes: nothing can be set that is not checked."""
    schema = json.loads((CHART / "values.schema.json").read_text())

    def walk(values: Json, described: Json, path: str) -> Iterator[str]:
        if "$ref" in described:
            described = schema["$defs"][described["$ref"].rpartition("/")[2]]
        for key, value in values.items():
            inner = described.get("properties", {}).get(key)
            if inner is None:
                if described.get("additionalProperties") is not False:
                    continue  # a free map, such as nodeSelector
                yield f"{path}{key}"
            elif isinstance(value, dict):
                yield from walk(value, inner, f"{path}{key}.")

    assert list(walk(VALUES, schema, "")) == []


def test_the_kinds_are_those_of_crds() -> None:
    made = {o["metadata"]["name"]: o for o in rendered() if o["kind"] == "CustomResourceDefinition"}
    files = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("*.yaml"))]
    assert len(files) == 3
    for body in files:
        found = made.pop(body["metadata"]["name"])
        assert found["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
        assert found == body
    assert not made
    assert "CustomResourceDefinition" not in template("--set", "crds.create=false")


def test_versions_agree() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    for part in ("operator", "agent", "backend", "policy"):
        project = tomllib.loads((ROOT / part / "pyproject.toml").read_text())["project"]
        assert project["version"] == chart["appVersion"] == chart["version"], part
    for name, _, container in containers(rendered()):
        assert container["image"].endswith(f":{chart['appVersion']}"), name


def test_images_of_a_mirror() -> None:
    images = {name: container["image"] for name, _, container in containers(rendered("-f", ALL))}
    prefix = "registry.example/mirror/flameherd/flameherd"
    assert images["flameherd-operator"] == f"{prefix}-operator@sha256:{'1' * 64}"
    assert images["flameherd-backend"] == f"{prefix}-backend:0.1.0-rc1"
    assert f"--image={prefix}-agent:0.1.0" in _arguments(rendered("-f", ALL), "flameherd-operator")
    for _, spec, _ in containers(rendered("-f", ALL)):
        assert spec["imagePullSecrets"] == [{"name": "mirror"}]


def _arguments(objects: list[Json], name: str) -> list[str]:
    (found,) = [c["args"] for n, _, c in containers(objects) if n == name]
    arguments: list[str] = found
    return arguments


@pytest.mark.parametrize("options", [(), ("-f", ALL)], ids=["default", "everything"])
def test_programs_understand_their_arguments(options: tuple[str, ...], tmp_path: Path) -> None:
    """By their own parsers: an option that was renamed would only show in a crash loop."""
    objects = rendered(*options)
    text = named(objects, "ConfigMap", "flameherd-defaults")["data"]["defaults.yaml"]
    file = tmp_path / "defaults.yaml"
    file.write_text(text)
    arguments = [
        f"--defaults={file}" if a.startswith("--defaults=") else a
        for a in _arguments(objects, "flameherd-operator")
    ]
    settings = settings_of(operator_parser().parse_args(arguments))
    assert settings.namespace == SYSTEM
    assert settings.defaults == read_defaults(file)
    agents = named(objects, "ServiceAccount", settings.service_account)
    assert agents["metadata"]["namespace"] == settings.agents_namespace
    ports = named(objects, "Service", STATUS_SERVICE)["spec"]["ports"]
    assert ports[0]["targetPort"] == settings.status_port
    backend = backend_parser().parse_args(_arguments(objects, "flameherd-backend"))
    assert backend.store == "/var/lib/flameherd/store"


def test_default_objects_are_what_the_values_say(tmp_path: Path) -> None:
    def defaults(*options: str) -> dict[str, Json]:
        text = named(rendered(*options), "ConfigMap", "flameherd-defaults")["data"]["defaults.yaml"]
        file = tmp_path / "defaults.yaml"
        file.write_text(text)
        return {document["kind"]: document["spec"] for document in read_defaults(file)}

    plain = defaults()
    assert plain["AgentPool"] == VALUES["agents"]["pool"]["spec"]
    endpoint = f"http://flameherd-backend.{SYSTEM}.svc:4317"
    assert plain["ClusterProfilingPolicy"] == {"defaults": {"export": {"endpoint": endpoint}}}
    full = defaults("-f", ALL)
    assert full["AgentPool"]["priorityClassName"] == "flameherd-agent"
    assert full["AgentPool"]["nodeSelector"] == plain["AgentPool"]["nodeSelector"]
    policy = full["ClusterProfilingPolicy"]
    assert policy["defaults"]["cpu"] == {"frequencyHz": 29}
    assert policy["defaults"]["export"]["endpoint"].startswith("https://")
    own = "clusterPolicy.spec.defaults.export.endpoint=http://c.obs.svc:4317"
    export = defaults("--set", own)["ClusterProfilingPolicy"]["defaults"]["export"]
    assert export == {"endpoint": "http://c.obs.svc:4317"}
    assert defaults("--set", "agents.pool.create=false,clusterPolicy.create=false") == {}


def test_what_openshift_allows_is_what_agents_ask_for() -> None:
    objects = rendered("-f", ALL)
    allowed = named(objects, "SecurityContextConstraints", "flameherd-agent")
    pod = agents_pod(Settings(se_linux_type="spc_t"))
    (container,) = pod["containers"]
    assert sorted(allowed["allowedCapabilities"]) == sorted(CAPABILITIES)
    assert container["securityContext"]["capabilities"]["add"] == list(CAPABILITIES)
    kinds = {next(key for key in volume if key != "name") for volume in pod["volumes"]}
    assert kinds <= set(allowed["volumes"])
    for name, spec, _ in containers(objects):
        assert "runAsUser" not in spec["securityContext"], name  # OpenShift gives it


def test_every_capability_is_explained() -> None:
    """The table of docs/security.md has those that agents get, and what only old kernels need."""
    table = (ROOT / "docs/security.md").read_text()
    rows = set(re.findall(r"^\| `CAP_(\w+)` \|", table, re.M))
    assert rows == {*CAPABILITIES, "SYS_RESOURCE"}
    text = (ROOT / "docs/install.md").read_text()
    assert all(f"`{name}`" in text for name in CAPABILITIES)


def agents_pod(settings: Settings) -> Json:
    """What the operator makes of the chart's default pool."""
    pool = see("AgentPool", {"metadata": {"name": "default", "uid": "u"}, "spec": {}})
    made = desired(Inputs(pools=(pool,), owner_uid="u"), settings)
    (found,) = [o for o in made.objects if o["metadata"]["name"] == daemonset_name("default")]
    pod: Json = found["spec"]["template"]["spec"]
    return pod


def test_alerts_are_about_metrics_that_there_are() -> None:
    """Each metric of an alert is written by the agent or the backend under this very name."""
    rules = named(rendered("-f", ALL), "PrometheusRule", "flameherd")["spec"]["groups"][0]["rules"]
    assert len(rules) >= 5
    sources = "".join(
        path.read_text()
        for folder in ("agent/flameherd_agent", "backend/flameherd_backend")
        for path in (ROOT / folder).rglob("*.py")
    )
    jobs = {"flameherd-agent", "flameherd-backend"}
    for rule in rules:
        metrics = set(re.findall(r"\bflameherd_\w+", rule["expr"]))
        assert all(f'"{metric}"' in sources for metric in metrics), rule["alert"]
        assert set(re.findall(r'job="([^"]+)"', rule["expr"])) <= jobs
    monitors = {
        o["metadata"]["name"]: o for o in rendered("-f", ALL) if o["kind"] == "ServiceMonitor"
    }
    assert set(monitors) == jobs
    for name, monitor in monitors.items():
        service = named(rendered("-f", ALL), "Service", name)
        assert (
            monitor["spec"]["selector"]["matchLabels"].items()
            <= service["metadata"]["labels"].items()
        )
        assert monitor["spec"]["endpoints"][0]["port"] in [
            p["name"] for p in service["spec"]["ports"]
        ]


class Installed:
    """The chart on an API server of its own: no controller and no node, so that nothing runs."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.api = plane.admin

    def helm(self, *arguments: str) -> str:
        done = helm(*arguments, env={"KUBECONFIG": str(self.plane.kubeconfig)})
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installed]:
    plane = ControlPlane(control_plane._binary, tmp_path_factory.mktemp("chart"))
    try:
        plane.start()
        yield Installed(plane)
    finally:
        plane.stop()


def test_install_upgrade_uninstall(installed: Installed) -> None:
    """With the kinds and a policy there before and after."""
    api = installed.api
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.namespace(SYSTEM, label)
    said = installed.helm("install", "flameherd", str(CHART), "--namespace", SYSTEM)
    assert "kubectl port-forward" in said
    assert "kubectl label namespace" not in said
    _pods_are_admitted(api)
    _people_may(api)
    installed.helm(
        "upgrade", "flameherd", str(CHART), "--namespace", SYSTEM, "--set", "operator.replicas=1"
    )
    api.namespace("shop")
    policy: Json = {"apiVersion": "flameherd.dev/v1alpha1", "kind": "ProfilingPolicy"}
    policy |= {"metadata": {"name": "p"}, "spec": {"podSelector": {}}}
    policies = "/apis/flameherd.dev/v1alpha1/namespaces/shop/profilingpolicies"
    eventually(lambda: _served(api, policies), "the kinds are served")
    api.create(policies, policy)
    installed.helm("uninstall", "flameherd", "--namespace", SYSTEM)
    assert api.get(f"{policies}/p")["spec"]["podSelector"] == {}
    for path in (
        f"/api/v1/namespaces/{AGENTS}/serviceaccounts/flameherd-agent",
        f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/flameherd-operator",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/flameherd-operator",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/flameherd-edit",
    ):
        assert api.find(path) is None, path
    # A controller would end it: here is none.
    assert api.get(f"/api/v1/namespaces/{AGENTS}")["status"]["phase"] == "Terminating"


def _served(api: Api, path: str) -> bool:
    try:
        return "items" in api.get(path)
    except Refused as error:
        if error.code in (404, 429, 503):
            return False
        raise


def _pods_are_admitted(api: Api) -> None:
    """Pod Security lets the pods into their namespaces, and the agents into theirs only."""
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


def _people_may(api: Api) -> None:
    """The roles are aggregated into Kubernetes' own, and nobody may write a status."""
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    for name, into in (("view", {"view"}), ("edit", {"edit", "admin"})):
        role = api.get(f"{roles}/flameherd-{name}")
        prefix = "rbac.authorization.k8s.io/aggregate-to-"
        assert {
            k.removeprefix(prefix) for k in role["metadata"]["labels"] if k.startswith(prefix)
        } == into
        assert not any("/status" in r for rule in role["rules"] for r in rule["resources"])


def test_readme(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """Every command of README's Kubernetes section. Here is no node: the operator runs as a process
    with the chart's rights, what kubelets and controllers would write is written for them, and the
    last command, which needs a pod, is only looked at.
    """
    plane = ControlPlane(control_plane._binary, tmp_path_factory.mktemp("readme"))
    operator = Operator(plane, tmp_path, "--lease-duration", "2s")
    *steps, forward = readme.commands()
    assert forward[:2] == ["kubectl", "port-forward"]
    try:
        plane.start()
        api = plane.admin
        api.namespace("shop")
        _run(plane, tmp_path, steps[:3])
        objects = rendered()
        assert named(objects, "Service", forward[4].partition("/")[2], forward[3])
        assert forward[5] in [
            str(p["port"]) for p in named(objects, "Service", "flameherd-backend")["spec"]["ports"]
        ]
        operator.start()
        eventually(lambda: operator.configs(), "every shard")
        _as_if_it_ran(operator)
        said = _run(plane, tmp_path, steps[3:])
        assert "Nothing is broken." in said
        assert "everything" in said
    finally:
        operator.stop(signal.SIGKILL)
        plane.stop()


def _run(plane: ControlPlane, folder: Path, steps: list[list[str]]) -> str:
    """What they print. helm and kubectl are those of the tests, the plugin is found by its name."""
    for name, binary in (("helm", helm_binary()), ("kubectl", plane._binary)):
        if not (folder / name).exists():
            (folder / name).symlink_to(binary)
    path = f"{folder}:{Path(sys.executable).parent}:{os.defpath}"
    said = ""
    for words in steps:
        done = subprocess.run(
            words,
            executable=str(folder / words[0]),
            env={"PATH": path, "HOME": str(folder), "KUBECONFIG": str(plane.kubeconfig)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        said += done.stdout
    return said


def _as_if_it_ran(operator: Operator) -> None:
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
    operator.waits_for(f"{GROUP}/agentpools/default", "Ready", "False", "Rolling")
    write(daemonset, numberReady=1, **scheduled)


def test_the_operator_makes_the_default_objects(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """From the chart's own file, with the chart's own rights, and keeps the fields that are in it."""
    plane = ControlPlane(control_plane._binary, tmp_path_factory.mktemp("defaults"))
    file = tmp_path / "defaults.yaml"
    text = named(rendered("-f", ALL), "ConfigMap", "flameherd-defaults")["data"]["defaults.yaml"]
    file.write_text(text)
    operator = Operator(plane, tmp_path, "--defaults", str(file), "--lease-duration", "2s")
    try:
        plane.start()
        api = plane.admin
        api.namespace(SYSTEM)
        Installed(plane).helm("install", "flameherd", str(CHART), "--namespace", SYSTEM)
        operator.start()
        _defaults_are_kept(api, operator)
    finally:
        operator.stop(signal.SIGKILL)
        plane.stop()


def _defaults_are_kept(api: Api, operator: Any) -> None:
    base = "/apis/flameherd.dev/v1alpha1"
    pool, policy = f"{base}/agentpools/default", f"{base}/clusterprofilingpolicies/default"
    eventually(lambda: api.find(pool), "the pool")
    assert api.get(pool)["spec"]["whenIdle"] == "Remove"
    eventually(lambda: api.find(policy), "the policy")
    assert api.get(policy)["spec"]["limits"]["frequencyHz"] == {"max": 49}
    operator.waits_for(policy, "Accepted", "True", "Accepted")
    api.merge(pool, {"spec": {"whenIdle": "Keep", "nodeSelector": {"disk": "ssd"}}})
    eventually(
        lambda: api.get(pool)["spec"]["whenIdle"] == "Remove", "what the values say is restored"
    )
    selector = api.get(pool)["spec"]["nodeSelector"]
    assert selector["disk"] == "ssd"  # what they do not say stays
    api.delete(policy)
    eventually(lambda: api.find(policy), "the policy again")
