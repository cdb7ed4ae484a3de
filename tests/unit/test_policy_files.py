"""Policies and AgentConfigs from files:

strict, every problem named; lenient from the API; compiled for a host.
"""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from flameherd_policy.agent_config import (
    MAX_SLOTS,
    AgentConfig,
    AgentEndpoint,
    AgentProtocol,
    Ceilings,
    PolicySlot,
    SlotSelector,
)
from flameherd_policy.base import Model, to_document, to_wire
from flameherd_policy.compile import content_version
from flameherd_policy.decode import decode
from flameherd_policy.durations import Duration
from flameherd_policy.endpoints import EndpointRule, Scheme
from flameherd_policy.errors import PolicyError
from flameherd_policy.load import (
    MAX_FILE_BYTES,
    agent_config_of,
    load_agent_config,
    load_file,
    load_text,
)
from flameherd_policy.policies import (
    Attributes,
    ClusterProfilingPolicy,
    Compression,
    ProfilingPolicy,
)
from flameherd_policy.selectors import LabelSelector
from hypothesis import given
from hypothesis import strategies as st

EXAMPLES = Path(__file__).parents[2] / "examples"

CLUSTER = """
apiVersion: flameherd.dev/v1alpha1
kind: ClusterProfilingPolicy
metadata: {name: NAME}
spec: SPEC
"""


def cluster(spec: str, name: str = "host") -> str:
    return CLUSTER.replace("NAME", name).replace("SPEC", spec)


def compiled(*documents: str) -> AgentConfig:
    return agent_config_of(load_text("---".join(documents).encode(), "f.yaml"), "f.yaml")


def problems(text: str | bytes) -> list[str]:
    data = text.encode() if isinstance(text, str) else text
    with pytest.raises(PolicyError) as caught:
        agent_config_of(load_text(data, "f.yaml"), "f.yaml")
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda p: p.name)
def test_examples_load_and_round_trip(path: Path) -> None:
    documents = load_file(path)
    assert documents
    again = load_text(json.dumps(to_document(documents[0])).encode(), "again")
    assert again == documents[:1]


def test_the_host_example_compiles() -> None:
    config = load_agent_config(EXAMPLES / "host.yaml")
    (slot,) = config.policies
    assert slot.name == "host"
    assert slot.selector == SlotSelector(host=True)
    assert slot.frequency_hz == 19
    assert slot.endpoint is None
    assert slot.clipped_by == ()
    assert config.version == content_version(config)
    assert len(config.version) == 16


def test_the_collector_example_may_use_loopback() -> None:
    config = load_agent_config(EXAMPLES / "host-to-collector.yaml")
    endpoint = config.endpoints[str(config.policies[0].endpoint)]
    assert endpoint.endpoint == "http://127.0.0.1:4317"
    assert endpoint.protocol is AgentProtocol.GRPC
    assert endpoint.compression is Compression.GZIP
    assert endpoint.interval == Duration.parse("10s")


def test_an_agent_config_file_is_taken_as_it_is() -> None:
    config = load_agent_config(EXAMPLES / "agent-config.yaml")
    assert [slot.name for slot in config.in_order()] == ["database", "host"]
    assert config.policies[0].period_ns == 52_631_579


def test_team_policies_are_refused_on_a_single_machine_by_name() -> None:
    with pytest.raises(PolicyError) as caught:
        load_agent_config(EXAMPLES / "team-policy.yaml")
    first, second = (str(problem) for problem in caught.value.problems)
    assert (
        "team-policy.yaml (ProfilingPolicy checkout): spec.podSelector: there are no pods" in first
    )
    assert "AgentPool default" in second


def test_host_absent_is_off_and_defaults_never_switch_on() -> None:
    assert compiled(cluster("{defaults: {cpu: {frequencyHz: 49}}}")).policies == ()
    assert compiled(cluster("{host: {}, defaults: {cpu: {frequencyHz: 49}}}")).policies == ()


def test_defaults_fill_what_is_present_by_priority() -> None:
    config = compiled(
        cluster("{host: {cpu: {}}}"),
        cluster("{priority: 1, defaults: {cpu: {frequencyHz: 29}}}", "low"),
        cluster("{priority: 2, defaults: {cpu: {frequencyHz: 39}}}", "high"),
    )
    assert [slot.frequency_hz for slot in config.policies] == [39]
    assert compiled(cluster("{host: {cpu: {}}}")).policies[0].frequency_hz == 19


def test_ceilings_clip_and_say_so() -> None:
    config = compiled(
        cluster("{host: {cpu: {frequencyHz: 997}}, limits: {frequencyHz: {max: 199}}}"),
        cluster("{limits: {frequencyHz: {max: 97}}}", "other"),
    )
    (slot,) = config.policies
    assert slot.frequency_hz == 97
    assert slot.clipped_by == ("limits.frequencyHz.max: 997 Hz lowered to 97 Hz",)
    assert config.ceilings.max_frequency_hz == 97


def test_ceilings_of_several_policies_intersect() -> None:
    config = compiled(
        cluster(
            "{limits: {envNames: [A, B], endpoints: [{scheme: https, host: '*.svc'}, {scheme: "
            "http, host: a.b}]}}"
        ),
        cluster(
            "{limits: {envNames: [B, C], endpoints: [{scheme: https, host: '*.obs.svc', port: "
            "4317}]}}",
            "b",
        ),
    )
    assert config.ceilings.env_names == ("B",)
    assert config.ceilings.allowed_env(["A", "B"]) == ("B",)
    assert config.ceilings.endpoints == (
        EndpointRule(scheme=Scheme.HTTPS, host="*.obs.svc", port=4317),
    )


def test_an_endpoint_outside_the_ceilings_is_a_problem() -> None:
    export = "defaults: {export: {endpoint: 'https://example.org'}}"
    found = problems(
        cluster(f"{{{export}, limits: {{endpoints: [{{scheme: https, host: a.svc}}]}}}}")
    )
    assert found == [
        "f.yaml (ClusterProfilingPolicy host): spec.defaults.export.endpoint: "
        "'https://example.org' is not among the allowed endpoints: https://a.svc"
    ]


def test_secrets_are_refused_on_a_single_machine() -> None:
    export = "{endpoint: 'https://example.org', headersSecretRef: {name: s}}"
    assert "there are no Secrets" in problems(cluster(f"{{defaults: {{export: {export}}}}}"))[0]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("{host: {cpu: "
        "{frequencyHz: 0}}}", "spec.host.cpu.frequencyHz: 0 is not between 1 and 997 (Hz)"),
        ("{host: {cpu: "
        "{frequencyHz: 1e9}}}", "spec.host.cpu.frequencyHz: '1e9' is not a whole number (Hz)"),
        ("{host: {cpu: "
        "{frequencyHz: true}}}", "spec.host.cpu.frequencyHz: true is not a whole number (Hz)"),
        (
            "{host: {cpu: {frequencyHZ: 5}}}",
            "spec.host.cpu.frequencyHZ: unknown field; did you mean frequencyHz?",
        ),
        (
            "{hots: {}}",
            "spec.hots: unknown field; did you mean host?",
        ),
        ("{host: "
        "{cpu: }}", "spec.host.cpu: null: write {} for the defaults, or leave the field out"),
        ("{host: {cpu: 19}}", "spec.host.cpu: 19 is not a map of fields"),
        ("[]", "spec: a list is not a map of fields"),
        (
            "{defaults: {export: {endpoint: 'http://a:1', interval: 10}}}",
            "spec.defaults.export.interval: 10 is not a duration in text such as 10s, 1m30s "
            "or 250ms",
        ),
        (
            "{defaults: {export: {endpoint: 'http://a:1', interval: 10ms}}}",
            "spec.defaults.export.interval: 10ms is not between 1s and 10m",
        ),
        (
            "{defaults: {export: {endpoint: 'http://a:1', protocol: grpc}}}",
            "spec.defaults.export.protocol: 'grpc' is not one of GRPC, HTTP; did you mean GRPC?",
        ),
        ("{defaults: {export: {}}}", "spec.defaults.export.endpoint: is required"),
        (
            "{defaults: {export: {endpoint: 'http://a:1', tls: {}}}}",
            "spec.defaults.export.tls: 'http://a:1' is plain text; write https:// or leave tls out",
        ),
        ("{limits: {envNames: [A, A]}}", "spec.limits.envNames[1]: 'A' is there twice"),
        (
            "{limits: {envNames: [1A]}}",
            "spec.limits.envNames[0]: '1A' is not the name of an environment variable",
        ),
    ],
)  # fmt: skip
def test_problems_name_the_field(spec: str, message: str) -> None:
    assert problems(cluster(spec)) == [
        f"f.yaml, document 1 (ClusterProfilingPolicy host): {message}"
    ]


def test_every_problem_of_every_document_is_told() -> None:
    found = problems(
        cluster("{hots: {}, priority: 99999}")
        + "---\nkind: Pod\n---\n"
        + cluster("{host: {cpu: 1}}")
    )
    assert [line.partition(": ")[0] for line in found] == [
        "f.yaml, document 1 (ClusterProfilingPolicy host)",
        "f.yaml, document 1 (ClusterProfilingPolicy host)",
        "f.yaml, document 2 (Pod)",
        "f.yaml, document 2 (Pod)",
        "f.yaml, document 3 (ClusterProfilingPolicy host)",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.yaml: holds no document"),
        ("a: 1\na: 2", "f.yaml, document 1: line 2, column 1: the key 'a' is there twice"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "f.yaml, document 1: the key 'c' is there twice"),
        ('{"a":' * 100_000, "f.yaml, document 1: is nested too deeply"),
        ("a: [", "f.yaml, document 1: line 1, column 5: "),
        ("- 1", "f.yaml, document 1: a list is not a document with apiVersion and kind"),
        ("[" * 100_000, "f.yaml, document 1: is nested too deeply"),
        ("? [a]\n: b", "f.yaml, document 1: line 1, column 3: a key that is not text"),
        ("!!python/object/apply:os.system [ls]", "f.yaml, document 1: line 1, column 1: could not"),
        (b"\xff", "f.yaml: is not UTF-8 text (byte 0)"),
        ("a: \x01", "f.yaml, document 1: is not YAML"),
    ],
)
def test_files_that_are_not_what_they_should_be(text: str | bytes, message: str) -> None:
    assert problems(text)[0].startswith(message)


def test_missing_and_oversized_files(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot be read: No such file"):
        load_agent_config(tmp_path / "none")
    big = tmp_path / "big"
    big.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(PolicyError, match="is larger than 4 MiB"):
        load_agent_config(big)


def test_an_agent_config_and_policies_do_not_mix() -> None:
    config = "apiVersion: flameherd.dev/v1alpha1\nkind: AgentConfig\n"
    assert "not both" in problems(config + "---" + cluster("{}"))[0]
    assert "not several" in problems(config + "---\n" + config)[0]


def test_two_policies_of_one_name_are_a_problem() -> None:
    assert (
        "'host' is the name of two policies" in problems(cluster("{}") + "---" + cluster("{}"))[0]
    )


def test_the_api_is_read_leniently_and_says_what_it_left_out() -> None:
    wire = {
        "metadata": {"name": "p", "namespace": "n", "managedFields": []},
        "spec": {"podSelector": {}, "cpu": {"frequencyHz": 5, "jitter": 1}, "export": None},
        "status": {"phase": "x"},
    }
    value, unknown = decode(ProfilingPolicy, wire, lenient=True)
    assert value.spec.cpu is not None
    assert value.spec.cpu.frequency_hz == 5
    assert unknown == ("metadata.managedFields", "spec.cpu.jitter", "status.phase")
    with pytest.raises(PolicyError):
        decode(ProfilingPolicy, wire)


def test_lenient_is_not_careless() -> None:
    with pytest.raises(PolicyError, match="frequencyHz: 0 is not between"):
        decode(ClusterProfilingPolicy, {"metadata": {"name": "p"}, "spec": {"host": {"cpu":
        {"frequencyHz": 0}}}}, lenient=True)  # fmt: skip


def test_static_attributes_cannot_pose_as_another_tenant() -> None:
    with pytest.raises(PolicyError, match="is set by the agent itself"):
        decode(Attributes, {"static": {"k8s.namespace.name": "other"}})


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ({}, "there is none of them"),
        ({"host": True, "pids": [1]}, "there is host and pids"),
        ({"host": True, "containerNames": ["a"]}, "go with namespace only"),
        ({"pids": [0]}, "0 is not between 1 and 4194304"),
        ({"containerIds": ["docker://0f3d2c1b4a59"]}, "without the runtime"),
        ({"namespace": "A"}, "must be at most 63 lower-case"),
    ],
)
def test_wrong_slot_selectors(selector: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        decode(SlotSelector, selector)


def test_a_slot_must_name_a_known_endpoint_and_be_named_once() -> None:
    slot = {"name": "a", "selector": {"host": True}, "frequencyHz": 1, "endpoint": "x"}
    with pytest.raises(PolicyError) as caught:
        decode(
            AgentConfig,
            {"policies": [slot, slot], "endpoints": {"y": {"protocol": "File", "path": "/p"}}},
        )
    assert [str(p) for p in caught.value.problems] == [
        "policies[0].endpoint: 'x' is not in endpoints: y",
        "policies[1].name: 'a' is there twice",
        "policies[1].endpoint: 'x' is not in endpoints: y",
    ]


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ({}, "endpoint: is required with protocol: GRPC"),
        ({"protocol": "File"}, "path: is required"),
        ({"protocol": "File", "path": "/p", "endpoint": "http://a"}, "endpoint: does not go with"),
        ({"endpoint": "http://a", "path": "/p"}, "path: goes with protocol: File only"),
        ({"endpoint": "https://a", "tls": {"certFile": "/c"}}, "tls.keyFile: certFile and keyFile"),
    ],
)
def test_wrong_agent_endpoints(endpoint: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        decode(AgentEndpoint, endpoint)


TEXT = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
NAMES = st.from_regex(r"\A[a-z][a-z0-9]{0,10}\Z")
SELECTORS = st.one_of(
    st.just(SlotSelector(host=True)),
    st.builds(
        SlotSelector,
        namespace=NAMES,
        pod_selector=st.builds(LabelSelector, match_labels=st.dictionaries(NAMES, NAMES,
        max_size=3)), container_names=st.lists(NAMES, unique=True, max_size=3).map(tuple),
    ),
    st.builds(SlotSelector, pids=st.lists(st.integers(1, 4194304), unique=True, min_size=1,
    max_size=3).map(tuple)),
)  # fmt: skip
STATIC = st.dictionaries(NAMES, st.text(TEXT, max_size=9), max_size=2)
CONFIGS = st.builds(
    AgentConfig,
    version=st.text(TEXT, max_size=10),
    policies=st.lists(
        st.builds(
            PolicySlot,
            name=NAMES,
            selector=SELECTORS,
            frequency_hz=st.integers(1, 997),
            priority=st.integers(-1000, 1000),
            endpoint=st.sampled_from([None, "e"]),
            attributes=st.builds(Attributes, static=STATIC),
        ),
        max_size=4,
        unique_by=lambda slot: slot.name,
    ).map(tuple),
    endpoints=st.builds(
        AgentEndpoint,
        endpoint=st.sampled_from(["http://127.0.0.1:4317", "https://c.obs.svc"]),
        interval=st.integers(10**9, 600 * 10**9).map(Duration),
        compression=st.sampled_from(Compression),
    ).map(lambda endpoint: {"e": endpoint}),
    ceilings=st.builds(Ceilings, max_frequency_hz=st.integers(1, 997),
    env_names=st.sampled_from([None, (), ("A",)])),
)  # fmt: skip


@given(CONFIGS)
def test_configurations_round_trip_through_json_and_yaml(config: AgentConfig) -> None:
    document = to_document(config)
    assert load_text(json.dumps(document).encode(), "x") == [config]
    assert load_text(yaml.safe_dump(document).encode(), "x") == [config]
    assert content_version(config) == content_version(decode(AgentConfig, to_wire(config)).value)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["spec", "metadata", "name", "podSelector", "cpu", "frequencyHz", "export", "x", ""]
            ),
            inner,
            max_size=4,
        )
    ),
)


@given(JSON, st.booleans())
def test_no_data_escapes_as_anything_but_a_policy_error(data: object, lenient: bool) -> None:
    models: list[type[Model]] = [ProfilingPolicy, ClusterProfilingPolicy, AgentConfig]
    for model in models:
        with contextlib.suppress(PolicyError):
            decode(model, data, lenient=lenient)


def test_a_thousand_policies_fit() -> None:
    slots = [
        {"name": f"n/{i}", "selector": {"namespace": "n"}, "frequencyHz": 19}
        for i in range(MAX_SLOTS + 1)
    ]
    assert len(decode(AgentConfig, {"policies": slots[:-1]}).value.policies) == MAX_SLOTS
    with pytest.raises(PolicyError, match="1024 entries are more than 1023"):
        decode(AgentConfig, {"policies": slots})


def test_every_field_is_described() -> None:
    from tools.gen_policy_docs import generate

    (page,) = generate().values()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 60
    assert [row for row in rows if row.endswith("|   |")] == []


def test_credentials_do_not_show() -> None:
    endpoint = AgentEndpoint(endpoint="https://c.obs.svc", headers={"authorization": "secret"})
    config = AgentConfig(endpoints={"e": endpoint})
    assert "secret" not in repr(config)
    assert "https://c.obs.svc" in repr(config)
