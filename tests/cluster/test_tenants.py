"""What a tenant may do to others: nothing. By impersonation, with the chart's own roles, and by what
agents are then told.

`ann` has `flameherd-edit` in namespace `shop`; `bank` is another's.
"""

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from flameherd_operator.render.shards import shard_of
from flameherd_operator.settings import EXPORT_SECRET, STATUS_SECRET

from tests.cluster.api import GROUP, Api, Json, Refused, eventually
from tests.cluster.control_plane import ControlPlane
from tests.cluster.objects import PATHS, object_of
from tests.cluster.operating import AGENTS, Operator, bind, grant

SHOP = f"{GROUP}/namespaces/shop/profilingpolicies"
BANK = f"{GROUP}/namespaces/bank/profilingpolicies"
CLUSTERS = PATHS["ClusterProfilingPolicy"]
EXPORT: Json = {"endpoint": "http://collector.obs.svc:4317"}
LIMITS: Json = {
    "frequencyHz": {"max": 49},
    "budget": {"maxCPUPerNode": "5m"},
    "envNames": ["REGION"],
    "endpoints": [{"scheme": "http", "host": "collector.obs.svc", "port": 4317}],
}


@pytest.fixture(scope="module")
def operator(
    api: Api, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operator]:
    grant(api)
    made = Operator(control_plane, tmp_path_factory.mktemp("operator"), "--secrets-every", "2s")
    made.start()
    api.create(CLUSTERS, object_of("ClusterProfilingPolicy", {"limits": LIMITS}, "ceilings"))
    bind(api, "ClusterRole", "flameherd-secret-reader", "bank")
    bind(api, "ClusterRole", "flameherd-secret-reader", "shop")
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "bank-token"},
        "type": "flameherd.dev/export",
        "stringData": {"authorization": "Bearer of-the-bank"},
    }
    api.create("/api/v1/namespaces/bank/secrets", secret)
    spec = {"podSelector": {}, "cpu": {}, "export": EXPORT}
    whole = spec | {"export": EXPORT | {"headersSecretRef": {"name": "bank-token"}}}
    api.create(BANK, object_of("ProfilingPolicy", whole, "its", "bank"))
    made.waits_for(f"{BANK}/its", "Programmed", "True", "Programmed")
    try:
        yield made
    finally:
        made.stop(signal.SIGKILL)
        for path in (f"{BANK}/its", f"{CLUSTERS}/ceilings"):
            api.delete(path)
        api.delete("/api/v1/namespaces/bank/secrets/bank-token")
        api.delete(SHOP)


@pytest.fixture
def ann(operator: Operator) -> Api:
    bind(operator.api, "ClusterRole", "flameherd-edit", "shop", user="ann")
    return operator.api.impersonate("ann")


def test_what_a_tenant_may_not_ask_for_is_refused(operator: Operator, ann: Api) -> None:
    agents = f"/api/v1/namespaces/{AGENTS}"
    spec = {"podSelector": {}, "cpu": {"frequencyHz": 1}}
    refused: list[tuple[str, str, Json | None]] = [
        ("PATCH", f"{BANK}/its", {"spec": {"cpu": {"frequencyHz": 997}}}),
        ("POST", BANK, object_of("ProfilingPolicy", spec, "mine", "bank")),
        ("DELETE", f"{BANK}/its", None),
        ("GET", f"{BANK}/its", None),
        ("PATCH", f"{SHOP}/x/status", {"status": {}}),
        ("POST", CLUSTERS, object_of("ClusterProfilingPolicy", {}, "mine")),
        ("PATCH", f"{CLUSTERS}/ceilings", {"spec": {"limits": None}}),
        ("POST", PATHS["AgentPool"], object_of("AgentPool", {}, "mine")),
        ("GET", "/api/v1/namespaces/bank/secrets/bank-token", None),
        ("GET", f"{agents}/secrets/{EXPORT_SECRET}", None),
        ("GET", f"{agents}/secrets/{STATUS_SECRET}", None),
        ("PATCH", f"{agents}/configmaps/{shard_of('bank')}", {"data": {}}),
        ("GET", f"{agents}/configmaps/{shard_of('bank')}", None),
    ]
    for verb, path, body in refused:
        kind = "application/merge-patch+json" if verb == "PATCH" else "application/json"
        with pytest.raises(Refused) as caught:
            ann.request(verb, path, body, kind=kind)
        assert caught.value.code == 403, (verb, path)


def test_what_a_tenant_asks_for_stays_below_the_ceilings(operator: Operator, ann: Api) -> None:
    def policy(name: str, **spec: Any) -> None:
        whole = {"podSelector": {}, "cpu": {}, "export": EXPORT} | spec
        ann.create(SHOP, object_of("ProfilingPolicy", whole, name))

    policy(
        "greedy",
        priority=1000,
        cpu={"frequencyHz": 997},
        budget={"cpuPerNode": "900"},
        attributes={"env": ["REGION", "DATABASE_PASSWORD"]},
    )
    policy("thief", export=EXPORT | {"headersSecretRef": {"name": "bank-token"}})
    policy("leak", export={"endpoint": "http://elsewhere.obs.svc:4317"})
    operator.waits_for(f"{SHOP}/greedy", "Programmed", "True", "Programmed")
    operator.waits_for(f"{SHOP}/thief", "ResolvedRefs", "False", "SecretNotFound")
    operator.waits_for(f"{SHOP}/leak", "Accepted", "False", "EndpointNotAllowed")
    eventually(lambda: "shop/greedy" in operator.slots(), "the slot")
    slots = operator.slots()
    assert set(slots) == {"shop/greedy", "bank/its"}
    greedy = slots["shop/greedy"]
    assert greedy["frequencyHz"] == 49
    assert greedy["cpuPerNode"] == "5m"
    assert greedy["attributes"]["env"] == ["REGION"]
    assert len(greedy["clippedBy"]) == 3
    # Whatever its priority, it selects in its own namespace only.
    assert greedy["selector"]["namespace"] == "shop"
    assert slots["bank/its"]["frequencyHz"] == 19
    endpoints = {name: e for c in operator.configs() for name, e in c.get("endpoints", {}).items()}
    assert "headersFile" not in endpoints[greedy["endpoint"]]
    effective = operator.api.get(f"{SHOP}/greedy")["status"]["effective"]
    assert effective["cpu"] == {"frequencyHz": 49}
    assert effective["budget"] == {"cpuPerNode": "5m"}
