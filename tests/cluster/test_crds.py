"""The custom resources on a real API server: what it takes, refuses, fills in and explains."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from flameherd_policy.decode import decode
from flameherd_policy.load import load_agent_config
from flameherd_policy.resources import RESOURCES

from tests.cluster.api import Api, Json, Refused
from tests.cluster.conftest import DEFINITIONS
from tests.cluster.control_plane import ControlPlane
from tests.cluster.objects import FULL, FULL_EXPORT, PATHS, object_of, spoiled
from tools.gen_crd import root_schema, rules_of

EXAMPLES = Path(__file__).parents[2] / "examples"
FOR_CLUSTERS = {"host.yaml", "team-policy.yaml"}
"""Others may be for a single machine only, where a file may name the machine itself."""

BAD: dict[str, list[Any]] = {
    "must be at most 63 lower-case": ["Web", "-web", "web."],
    "must be at most 253 lower-case": ["Token", "a..b", "a."],
    "is not a label key": ["a b", "-a", "A.b/c", "a/b/c"],
    "has more than 253 characters": [("a." * 130)[:254] + "/b"],
    "is not a label value": ["a b", "a.", "-"],
    "one of the keys is not a label key": [{"a b": "c"}],
    "one of the keys has more than 253 characters": [{("a." * 130)[:254] + "/b": "c"}],
    "one of the keys is longer than 317": [{"a" * 318: "c"}],
    "operators In and NotIn need": [{"values": []}, {"values": None}, {"operator": "NotIn", "values": None}],
    "operators Exists and DoesNotExist take": [{"operator": "Exists"}, {"operator": "DoesNotExist"}],
    "is not the name of an environment variable": ["1A", "A-B", "é"],
    "one of the keys is longer than 128": [{"a" * 129: "c"}],
    "one of the keys is not an attribute key": [{"Team": "c"}, {"a..b": "c"}, {"": "c"}],
    "one of the keys is set by the agent itself": [{"k8s.namespace.name": "bank"}, {"host.name": "x"}],
    "holds a character that is not text": ["a\0b"],
    "a gRPC endpoint has no path": [{"endpoint": "https://a.svc/v1"}, {"endpoint": "https://a.svc//"}],
    "tls goes with https:// only": [{"endpoint": "http://a.svc:4317"}],
    "is not http://host[:port]": ["a.svc:4317", "ftp://a.svc", "https://a.svc:0", "https://a.svc:65536", "https://[abc]", "https://[::::]", "https://a b", "HTTPS://a.svc", "https://"],
    "an endpoint has no query": ["https://user:pass@a.svc", "https://a.svc/?a=b", "https://a.svc/#a"],
    "the host looks like an IP address": ["https://127.1", "https://2130706433:4317", "https://0x7f.1", "https://1.2.3.256", "https://" + "a." * 126 + "ab", "https://" + "a." * 127 + "a"],
    "is the node itself or a link-local": ["https://localhost", "https://a.localhost.:4317", "https://127.0.0.1:4317", "https://169.254.169.254", "https://0.0.0.0", "https://[::1]:4317", "https://[::]", "https://[0:0:0:0:0:0:0:1]", "https://[fe80::1]"],
    "is not a duration from 1s to 10m": ["", "10", "-1s", "999ms", "11m", "1d", "1h", "10 s", "9999999s", "1.5s"],
    "is not a key of a Secret": ["a b", "a/b"],
    "is neither a host name": ["*", "*.", "a.*.b", "*.*.b", "a..b", "1.2.3", "a b", "https://a"],
    "the name of an AgentPool has at most 40": [{"metadata": {"name": "a" * 41}}],
    "operator Exists takes no value": [{"operator": "Exists"}],
    "operator Equal needs a key": [{"key": None}, {"key": None, "operator": None}],
    "a request is more than the limit": [{"requests": {"memory": "1Gi"}}, {"requests": {"cpu": 2}}, {"limits": {"cpu": "19m"}}],
    "one of the keys is longer than 63": [{"a" * 64: "1"}],
    "one of the keys is not a resource": [{"CPU": "1"}, {"cpu ": "1"}],
    "is not an amount: ": ["lots", "1e3", "-1", "", "1 Gi", -1],
    "is not an amount of CPU from": ["lots", "99u", "1001", "0", 0, -1, "1k", "1e3", "5 m", "5mm", 1001],
    "is not an image": ["a b", "-a", "a\n"],
    "is neither a number above 0 nor": ["0", "101%", "0%", "-1", "one", "1.5"],
}  # fmt: skip
"""Beginning of a rule's message → what it must refuse at every field that has the rule."""

RULES = [
    (resource.kind, path, message)
    for resource in RESOURCES
    for path, message in rules_of(root_schema(resource.model))
]


def refusal(api: Api, made: Json) -> Refused:
    with pytest.raises(Refused) as caught:
        api.create(PATHS[made["kind"]], made, dryRun="All")
    return caught.value


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda r: r.kind)
def test_the_kind_is_served_as_it_says(api: Api, resource: Any) -> None:
    definition = api.get(f"{DEFINITIONS}/{resource.plural}.flameherd.dev")
    conditions = {c["type"]: c["status"] for c in definition["status"]["conditions"]}
    # A schema that is not structural would have a condition of its own.
    assert conditions == {"NamesAccepted": "True", "Established": "True"}


@pytest.mark.parametrize("kind", sorted(FULL))
def test_an_object_with_every_field_is_kept_and_decoded(api: Api, kind: str) -> None:
    resource = next(r for r in RESOURCES if r.kind == kind)
    kept = api.create(PATHS[kind], object_of(kind, FULL[kind]), dryRun="All")
    assert kept["spec"] == FULL[kind]
    schema = root_schema(resource.model)["properties"]["spec"]
    assert sorted(FULL[kind]) == sorted(schema["properties"])
    kept.pop("apiVersion")
    kept.pop("kind")
    kept["metadata"].pop("managedFields", None)
    value, unknown = decode(resource.model, kept, lenient=True)
    assert unknown == ()
    assert value.metadata.name == "x"  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda p: p.name)
def test_examples_are_taken_or_for_one_machine(api: Api, path: Path) -> None:
    wrong = []
    for made in yaml.safe_load_all(path.read_text()):
        if made["kind"] not in PATHS:
            assert made["kind"] == "AgentConfig"  # a file, no custom resource
            continue
        try:
            api.create(PATHS[made["kind"]], made, dryRun="All", fieldValidation="Strict")
        except Refused as error:
            wrong += [message for _, message in error.causes]
    if wrong:
        assert path.name not in FOR_CLUSTERS
        assert [m for m in wrong if "is the node itself or a link-local" not in m] == []
        load_agent_config(path)  # it is good where it is meant for


@pytest.mark.parametrize(("kind", "path", "message"), RULES)
def test_each_rule_refuses_and_says_why(api: Api, kind: str, path: str, message: str) -> None:
    (values,) = (bad for start, bad in BAD.items() if message.startswith(start))
    for bad in values:
        refused = refusal(api, spoiled(kind, path, bad))
        assert refused.code == 422
        assert message in str(refused), bad
        where = path.removesuffix("{}").removesuffix("[]").strip(".")
        assert any(where.split("[]")[0].split("{}")[0] in field for field, _ in refused.causes)


def test_no_bad_value_is_left_over() -> None:
    assert [start for start in BAD if not any(m.startswith(start) for *_, m in RULES)] == []


@pytest.mark.parametrize(
    ("kind", "path", "bad", "message"),
    [
        ("ProfilingPolicy", "spec.cpu.frequencyHz", 0, "should be greater than or equal to 1"),
        ("ProfilingPolicy", "spec.cpu.frequencyHz", 998, "should be less than or equal to 997"),
        ("ProfilingPolicy", "spec.cpu.frequencyHz", "19", 'must be of type integer: "string"'),
        ("ProfilingPolicy", "spec.cpu.frequencyHz", 1.5, 'must be of type integer: "number"'),
        ("ProfilingPolicy", "spec.priority", 1001, "should be less than or equal to 1000"),
        ("ProfilingPolicy", "spec.export.protocol", "grpc", 'supported values: "GRPC", "HTTP"'),
        ("ProfilingPolicy", "spec.containerNames", ["a", "a"], 'Duplicate value: "a"'),
        ("ProfilingPolicy", "spec.containerNames", [f"c{n}" for n in range(33)], "32 items"),
        ("ProfilingPolicy", "spec.attributes.static{}", "x" * 257, "may not be more than 256"),
        ("ProfilingPolicy", "spec", {"podSelector": None}, "spec.podSelector: Required value"),
        ("ProfilingPolicy", ".", {"spec": None}, "spec: Required value"),
        ("ClusterProfilingPolicy", "spec.limits.frequencyHz", {"max": None}, "max: Required value"),
        ("AgentPool", "spec.whenIdle", "Go", 'supported values: "Keep", "Remove"'),
    ],
)
def test_bounds_are_enforced(api: Api, kind: str, path: str, bad: Any, message: str) -> None:
    assert message in str(refusal(api, spoiled(kind, path, bad)))


def test_unknown_fields_are_named(api: Api) -> None:
    made = spoiled("ProfilingPolicy", "spec", {"cpuu": {}})
    with pytest.raises(Refused, match=r'unknown field "spec.cpuu"'):
        api.create(PATHS["ProfilingPolicy"], made, dryRun="All", fieldValidation="Strict")


def test_defaults_are_filled_in_and_switch_nothing_on(api: Api) -> None:
    spec = {"podSelector": {}, "cpu": {}, "export": {"endpoint": "http://c.obs.svc", "tls": None}}
    kept = api.create(PATHS["ProfilingPolicy"], object_of("ProfilingPolicy", spec), dryRun="All")
    assert kept["spec"] == {
        "podSelector": {},
        "priority": 0,
        "suspend": False,
        "cpu": {},
        "export": {
            "endpoint": "http://c.obs.svc",
            "protocol": "GRPC",
            "compression": "Gzip",
            "interval": "10s",
        },
    }
    pool = object_of("AgentPool", {})
    del pool["spec"]
    kept = api.create(PATHS["AgentPool"], pool, dryRun="All")
    assert kept["spec"] == {"whenIdle": "Keep", "updateStrategy": {"maxUnavailable": "10%"}}
    made = object_of("ClusterProfilingPolicy", {})
    assert api.create(PATHS["ClusterProfilingPolicy"], made, dryRun="All")["spec"] == {
        "priority": 0
    }


def test_status_is_written_apart_and_checked(api: Api) -> None:
    path = PATHS["ProfilingPolicy"]
    made = object_of("ProfilingPolicy", {"podSelector": {}}, "status")
    made["status"] = {"observedGeneration": 9}
    assert "status" not in api.create(path, made)
    condition = {
        "type": "Ready",
        "status": "True",
        "observedGeneration": 1,
        "lastTransitionTime": "2026-11-01T00:00:00Z",
        "reason": "Programmed",
        "message": "",
    }
    status = {"conditions": [condition], "effective": {"cpu": {"frequencyHz": 19}}}
    kept = api.merge(f"{path}/status/status", {"status": status})
    assert kept["status"] == status
    assert kept["metadata"]["generation"] == 1
    for spoil in ({"status": "Maybe"}, {"lastTransitionTime": "today"}, {"reason": ""}):
        with pytest.raises(Refused):
            api.merge(f"{path}/status/status", {"status": {"conditions": [condition | spoil]}})
    api.delete(f"{path}/status")


def test_kubectl_lists_and_explains(api: Api, control_plane: ControlPlane) -> None:
    api.create(
        PATHS["ProfilingPolicy"],
        object_of("ProfilingPolicy", {"podSelector": {}, "export": FULL_EXPORT}, "listed"),
    )
    (head, *rows) = control_plane.kubectl("get", "profpol", "-A", "-o", "wide").splitlines()
    assert head.split() == [
        *("NAMESPACE", "NAME", "HZ", "PODS", "READY", "REASON", "CPU-PER-NODE", "SUSPENDED"),
        *("PRIORITY", "ENDPOINT", "AGE"),
    ]
    assert any(row.split()[1] == "listed" for row in rows)
    assert "profilingpolicy.flameherd.dev/listed" in control_plane.kubectl(
        "get", "flameherd", "-n", "shop", "-o", "name"
    )
    for short in ("cprofpol", "apool"):
        assert "error" not in control_plane.kubectl("get", short)
    api.delete(f"{PATHS['ProfilingPolicy']}/listed")


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda r: r.kind)
def test_every_field_is_explained(control_plane: ControlPlane, api: Api, resource: Any) -> None:
    def walk(schema: Json, path: str) -> None:
        fields = schema.get("properties") or schema.get("items", {}).get("properties") or {}
        if not fields:
            return
        said = " ".join(control_plane.kubectl("explain", path).split())
        for name, field in fields.items():
            assert name in said
            assert " ".join(field["description"].split()) in said, f"{path}.{name}"
            walk(field, f"{path}.{name}")

    schema = root_schema(resource.model)
    walk(schema["properties"]["spec"], f"{resource.plural}.spec")
    if resource.kind == "ProfilingPolicy":
        hz = control_plane.kubectl("explain", "profpol.spec.cpu.frequencyHz")
        assert "Samples per second of CPU time" in hz
        assert "In Hz." in " ".join(hz.split())
