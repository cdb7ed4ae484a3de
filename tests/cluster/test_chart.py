"""The chart: what it makes, what it refuses, and that a real API server takes it."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from flameherd_backend.cli import parser as backend_parser
from flameherd_operator.cli import parser as operator_parser
from flameherd_operator.cli import settings_of
from flameherd_operator.defaults import read as read_defaults
from flameherd_operator.render.agents import CAPABILITIES
from flameherd_operator.settings import STATUS_SERVICE, Settings

from tests.cluster.api import Json
from tests.cluster.chart import (
    CHART,
    ROOT,
    agents_pod,
    containers,
    expected,
    helm,
    named,
    rendered,
    snapshot,
    snapshots,
    template,
)
from tests.cluster.operating import SYSTEM
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
