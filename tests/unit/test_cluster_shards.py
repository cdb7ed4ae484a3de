"""The operator's ConfigMaps as agents read them: rendered by the operator's own code, then spoiled."""

import base64
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from flameherd_agent.cluster.objects import ConfigMap, Meta
from flameherd_agent.cluster.shards import (
    EXPORT_FOLDER,
    SHARD_KEY,
    Shard,
    merge,
    read_shard,
    shard_names,
)
from flameherd_operator.ceilings import BUILT_IN
from flameherd_operator.render.shards import shards
from flameherd_operator.render.slots import Slot
from flameherd_operator.settings import EXPORT_PATH, SHARD_COUNT, shard_name
from flameherd_policy.agent_config import (
    AgentConfig,
    AgentEndpoint,
    Ceilings,
    PolicySlot,
    SlotSelector,
)
from flameherd_policy.policies import Attributes
from flameherd_policy.quantities import Quantity
from hypothesis import given
from hypothesis import strategies as st

HERE = "http://collector.obs.svc:4317"


def slot(name: str, namespace: str = "shop", hertz: int = 19, **more: Any) -> Slot:
    selector = SlotSelector(namespace=namespace) if namespace else SlotSelector(host=True)
    policy = PolicySlot(
        name=name, selector=selector, frequency_hz=hertz, endpoint=more.pop("to", name), **more
    )
    return Slot(
        slot=policy,
        namespace=namespace,
        endpoint=AgentEndpoint(endpoint=HERE),
        files={},
        ceilings=BUILT_IN,
    )


def config_maps(*slots: Slot) -> dict[str, ConfigMap]:
    """As the API server gives back what the operator applied."""
    bodies = shards(slots).bodies
    return {
        name: ConfigMap(metadata=Meta(name=name), binary_data=dict(body["binaryData"]))
        for name, body in bodies.items()
    }


def read(*slots: Slot) -> list[Shard]:
    return [read_shard(made) for made in config_maps(*slots).values()]


def packed(document: Mapping[str, Any]) -> ConfigMap:
    data = base64.b64encode(zlib.compress(json.dumps(document).encode())).decode()
    return ConfigMap(metadata=Meta(name="x"), binary_data={SHARD_KEY: data})


def document(**fields: Any) -> dict[str, Any]:
    """One policy of `shop`, spoiled by `fields` of it."""
    policy: dict[str, Any] = {
        "name": "shop/p", "selector": {"namespace": "shop"}, "frequencyHz": 19, "endpoint": "e",
    }  # fmt: skip
    return {
        "apiVersion": "flameherd.dev/v1alpha1",
        "kind": "AgentConfig",
        "version": "1",
        "policies": [policy | fields],
        "endpoints": {"e": {"endpoint": HERE}},
    }


def test_names_and_places_are_the_operators() -> None:
    assert shard_names() == tuple(shard_name(number) for number in range(SHARD_COUNT))
    assert str(EXPORT_FOLDER) == EXPORT_PATH


def test_only_policies_of_namespaces_that_are_here_are_decoded() -> None:
    found = read(slot("shop/a"), slot("bank/b", "bank"), slot("nodes", ""))
    config = merge(found, {"shop"})
    assert sorted(policy.name for policy in config.policies) == ["nodes", "shop/a"]
    assert set(config.endpoints) == {"nodes", "shop/a"}
    decoded = {name for shard in found for name in shard._decoded}
    assert decoded == {"nodes", "shop/a"}
    assert sum(bool(shard.by_namespace) for shard in found) <= 3


def test_precedence_is_priority_then_the_operators_order() -> None:
    slots = [slot("shop/first"), slot("shop/second"), slot("shop/high", priority=5)]
    config = merge(read(*slots), {"shop"})
    order = [policy.name for policy in config.policies]
    assert order == ["shop/high", "shop/first", "shop/second"]


def test_endpoints_of_one_name_that_differ_do_not_mix() -> None:
    shop, bank = document(), document(name="bank/p", selector={"namespace": "bank"})
    bank["endpoints"]["e"] = {"endpoint": "http://other.obs.svc:4317"}
    config = merge([read_shard(packed(shop)), read_shard(packed(bank))], {"shop", "bank"})
    where = {p.name: config.endpoints[str(p.endpoint)].endpoint for p in config.policies}
    assert where == {"shop/p": HERE, "bank/p": "http://other.obs.svc:4317"}


def test_fields_of_a_later_version_are_ignored_and_told() -> None:
    shard = read_shard(packed(document(colour="red", selector={"namespace": "shop", "x": 1})))
    assert [p.name for p in merge([shard], {"shop"}).policies] == ["shop/p"]
    assert any("colour" in text and "later version" in text for text in shard.problems)
    later = document() | {"ceilings": {"maxFrequencyHz": 5, "moons": 2}, "extra": []}
    shard = read_shard(packed(later))
    assert merge([shard], {"shop"}).policies[0].frequency_hz == 5
    assert any("moons" in text for text in shard.problems)


VERSIONS = Path(__file__).with_name("agent_configs")


@pytest.mark.parametrize(
    ("file", "ignored"),
    [
        (
            "newer.json",
            ["offCPU", "nodeZones", "jobLabels", "proxy", "maxOffCPUEvents", "captures"],
        ),
        ("older.json", []),
    ],
)
def test_one_version_up_and_down(file: str, ignored: list[str]) -> None:
    """As an operator writes it that knows more fields, and one that knows no budgets yet."""
    shard = read_shard(packed(json.loads((VERSIONS / file).read_text())))
    config = merge([shard], {"shop"})
    (policy,) = config.policies
    assert (policy.name, policy.frequency_hz, policy.cpu_per_node) == ("shop/p", 49, None)
    assert policy.selector.pod_selector.matches({"app": "web"})
    assert not policy.selector.pod_selector.matches({})
    assert config.endpoints["shop/p"].endpoint == HERE
    told = " ".join(shard.problems)
    assert [name for name in ignored if name in told] == ignored
    assert bool(told) == bool(ignored)


def test_ceilings_hold_again() -> None:
    spoiled = document(frequencyHz=500, attributes={"env": ["TOKEN", "REGION"]}, cpuPerNode="50m")
    spoiled["ceilings"] = {"maxFrequencyHz": 97, "envNames": ["REGION"], "maxCPUPerNode": "5m"}
    shard = read_shard(packed(spoiled))
    (policy,) = merge([shard], {"shop"}).policies
    assert policy.frequency_hz == 97
    assert policy.attributes == Attributes(env=("REGION",))
    assert policy.cpu_per_node == Quantity.parse("5m")
    assert shard.problems


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"endpoint": "http://example.com:4317"}, "outside the cluster"),
    ({"endpoint": "http://127.0.0.1:4317"}, "loopback"),
    ({"endpoint": "http://169.254.169.254"}, "link-local"),
    ({"protocol": "File", "path": "/etc/cron.d/x"}, "file of the node"),
    ({"endpoint": HERE, "headersFile": "/etc/shadow"}, "/etc/shadow"),
    ({"endpoint": HERE, "headersFile": f"{EXPORT_PATH}/../x"}, "not in"),
    ({"endpoint": "https://c.obs.svc", "tls": {"caFile": "/ca.crt"}}, "/ca.crt"),
    ({"endpoint": "https://c.obs.svc", "tls": {"insecureSkipVerify": True}}, "gRPC always verif"),
]


@pytest.mark.parametrize(("endpoint", "message"), REFUSED)
def test_an_endpoint_that_no_operator_would_send_costs_its_policy(
    endpoint: dict[str, Any], message: str
) -> None:
    made = document()
    made["policies"].append({**made["policies"][0], "name": "shop/good", "endpoint": "good"})
    made["endpoints"] = {"e": endpoint, "good": {"endpoint": HERE}}
    shard = read_shard(packed(made))
    assert [p.name for p in merge([shard], {"shop"}).policies] == ["shop/good"]
    assert message in shard.problems[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"frequencyHz": 0},
        {"frequencyHz": "fast"},
        {"endpoint": "absent"},
        {"selector": {"pids": [1]}},
        {"selector": {"containerIds": ["0123456789ab"]}},
        {"selector": {"namespace": "shop", "podSelector": {"matchLabels": {"a": 1}}}},
        {"name": 5},
    ],
)
def test_a_policy_that_cannot_be_read_costs_itself(fields: dict[str, Any]) -> None:
    made = document(**fields)
    made["policies"].append(document(name="shop/good")["policies"][0])
    shard = read_shard(packed(made))
    names = [p.name for p in merge([shard], {"shop", ""}).policies]
    assert names == ["shop/good"]
    assert len(shard.problems) == (0 if "selector" in fields and "pids" in fields else 1) or (
        "selector" in fields
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "no binaryData"),
        ({SHARD_KEY: "%%%"}, "base64"),
        ({SHARD_KEY: base64.b64encode(b"plain").decode()}, "zlib"),
        ({SHARD_KEY: base64.b64encode(zlib.compress(b"[]")).decode()}, "AgentConfig"),
        ({SHARD_KEY: base64.b64encode(zlib.compress(b"{}")[:-3]).decode()}, "cut"),
        ({SHARD_KEY: base64.b64encode(zlib.compress(b"{}")).decode()}, "is of"),
    ],
)
def test_what_is_no_shard(data: dict[str, str] | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_shard(ConfigMap(metadata=Meta(name="x"), binary_data=data))


def test_a_bomb_is_refused_before_it_unfolds() -> None:
    bomb = base64.b64encode(zlib.compress(b"[" * (64 << 20), 9)).decode()
    with pytest.raises(ValueError, match="32 MiB"):
        read_shard(ConfigMap(metadata=Meta(name="x"), binary_data={SHARD_KEY: bomb}))


def test_ceilings_of_the_operator_come_along() -> None:
    (shard,) = (s for s in read(slot("shop/a")) if s.by_namespace)
    assert shard.ceilings == BUILT_IN != Ceilings()
    assert merge([], set()) == AgentConfig(version="00000000")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from([*document()["policies"][0], "priority", "x"]), JSON))
def test_any_policy_is_carried_out_or_told_of(fields: dict[str, Any]) -> None:
    shard = read_shard(packed(document(**fields)))
    config = merge([shard], {"shop"})
    unheard = fields.get("selector")
    assert config.policies or shard.problems or (isinstance(unheard, dict) and unheard)
