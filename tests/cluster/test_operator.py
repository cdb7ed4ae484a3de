"""The operator on a real API server: policies become configuration, and stay so."""

import base64
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flameherd_operator.client import connect
from flameherd_operator.observed import see
from flameherd_operator.reconcile import Reconciler, Watched
from flameherd_operator.render.shards import shard_of
from flameherd_operator.settings import EXPORT_PATH, EXPORT_SECRET, SHARD_COUNT, Settings

from tests.cluster.api import GROUP, Api, Json, Refused, eventually
from tests.cluster.control_plane import ControlPlane
from tests.cluster.objects import PATHS, object_of
from tests.cluster.operating import ACCOUNT, AGENTS, SYSTEM, Operator, bind, grant

SHOP = f"{GROUP}/namespaces/shop/profilingpolicies"
BANK = f"{GROUP}/namespaces/bank/profilingpolicies"
POOLS, CLUSTERS = PATHS["AgentPool"], PATHS["ClusterProfilingPolicy"]
EXPORT: Json = {"endpoint": "http://collector.obs.svc:4317"}
DAEMONSETS = f"/apis/apps/v1/namespaces/{AGENTS}/daemonsets"
CONFIGMAPS = f"/api/v1/namespaces/{AGENTS}/configmaps"


@pytest.fixture(scope="module")
def running(
    api: Api, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operator]:
    grant(api)
    fast = (
        "--lease-duration",
        "2s",
        "--idle-after",
        "2s",
        "--resync-every",
        "5s",
        "--secrets-every",
        "2s",
    )
    made = Operator(control_plane, tmp_path_factory.mktemp("operator"), *fast)
    made.start()
    try:
        yield made
    finally:
        made.stop(signal.SIGKILL)


@pytest.fixture
def operator(running: Operator) -> Iterator[Operator]:
    """Running, with no object of ours; it must still run afterwards."""
    eventually(lambda: running.configs() and running.api.items(POOLS), "the operator is there")
    yield running
    assert running.running, running.log.read_text()[-3000:]
    for path in (SHOP, BANK, CLUSTERS):
        running.api.delete(path)
    for pool in running.api.items(POOLS):
        if pool["metadata"]["name"] != "default":
            running.api.delete(f"{POOLS}/{pool['metadata']['name']}")
    eventually(lambda: not running.slots(), "no slot is left")


def policy(name: str, namespace: str = "shop", **spec: Any) -> Json:
    spec = {"podSelector": {}, "cpu": {}, "export": EXPORT} | spec
    return object_of("ProfilingPolicy", spec, name, namespace)


def cluster_policy(name: str, **spec: Any) -> Json:
    return object_of("ClusterProfilingPolicy", spec, name)


def test_an_installation_without_policies(operator: Operator) -> None:
    found = operator.owned("configmaps")
    assert len(found) == SHARD_COUNT
    assert operator.slots() == {}
    account = operator.api.get(f"/api/v1/namespaces/{AGENTS}/serviceaccounts/flameherd-agent")
    daemonsets = eventually(lambda: operator.owned("daemonsets"), "a DaemonSet")
    assert list(daemonsets) == ["flameherd-agent-default"]
    for made in (*found.values(), *daemonsets.values(), *operator.owned("secrets").values()):
        (owner,) = made["metadata"]["ownerReferences"]
        assert owner["uid"] == account["metadata"]["uid"]
        assert made["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "flameherd-operator"
    pod = daemonsets["flameherd-agent-default"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "registry.example/agent:1"
    assert not pod["containers"][0]["securityContext"]["privileged"]
    assert not pod.get("hostNetwork")
    pool = f"{POOLS}/default"
    assert "DaemonSet" in operator.waits_for(pool, "Ready", "True", "Programmed")


def test_the_life_of_a_policy(operator: Operator) -> None:
    api, path = operator.api, f"{SHOP}/checkout"
    api.create(SHOP, policy("checkout", podSelector={"matchLabels": {"app": "checkout"}}))
    operator.waits_for(path, "Ready", "True", "Programmed")
    slot = operator.slots()["shop/checkout"]
    assert slot["frequencyHz"] == 19
    assert slot["selector"] == {
        "namespace": "shop",
        "podSelector": {"matchLabels": {"app": "checkout"}},
    }
    shard = next(c for c in operator.configs() if c.get("policies"))
    assert shard["endpoints"][slot["endpoint"]]["endpoint"] == EXPORT["endpoint"]
    before = {name: made["metadata"] for name, made in operator.owned("configmaps").items()}

    api.merge(path, {"spec": {"cpu": {"frequencyHz": 49}}})
    eventually(lambda: operator.slots()["shop/checkout"]["frequencyHz"] == 49, "the new rate")
    after = {name: made["metadata"] for name, made in operator.owned("configmaps").items()}
    changed = [n for n in after if after[n]["resourceVersion"] != before[n]["resourceVersion"]]
    assert changed == [shard_of("shop")]

    api.merge(path, {"spec": {"suspend": True}})
    operator.waits_for(path, "Ready", "False", "Suspended")
    assert operator.slots() == {}
    api.merge(path, {"spec": {"suspend": False, "cpu": None}})
    assert "write cpu: {}" in operator.waits_for(path, "Ready", "False", "Off")

    kept = api.get(path)
    assert "annotations" not in kept["metadata"]
    assert "finalizers" not in kept["metadata"]
    api.delete(path)
    assert api.find(path) is None


def test_ceilings_and_defaults_hold_where_they_select(operator: Operator) -> None:
    api = operator.api
    where = {"namespaceSelector": {"matchLabels": {"tenant": "shop"}}}
    limits = {"frequencyHz": {"max": 29}, "envNames": ["REGION"]}
    api.create(CLUSTERS, cluster_policy("shops", limits=limits, **where))
    api.create(
        CLUSTERS, cluster_policy("all", defaults={"export": EXPORT, "cpu": {"frequencyHz": 39}})
    )
    env = {"env": ["REGION", "TOKEN"]}
    for path, namespace in ((SHOP, "shop"), (BANK, "bank")):
        made = policy("p", namespace, attributes=env)
        del made["spec"]["export"]
        api.create(path, made)
        operator.waits_for(f"{path}/p", "Ready", "True", "Programmed")
    eventually(lambda: len(operator.slots()) == 2, "both slots")
    shop, bank = operator.slots()["shop/p"], operator.slots()["bank/p"]
    assert (shop["frequencyHz"], bank["frequencyHz"]) == (29, 39)
    assert shop["attributes"]["env"] == ["REGION"]
    assert "env" not in bank["attributes"]
    assert shop["clippedBy"] == [
        "limits.envNames: TOKEN left out",
        "limits.frequencyHz.max: 39 Hz lowered to 29 Hz",
    ]
    assert shop["endpoint"] == bank["endpoint"] == "all"
    assert api.get(f"{SHOP}/p")["status"]["effective"] == {
        "cpu": {"frequencyHz": 29},
        "clippedBy": shop["clippedBy"],
    }
    api.delete(f"{CLUSTERS}/shops")
    eventually(lambda: operator.slots()["shop/p"]["frequencyHz"] == 39, "the ceiling is gone")
    # A namespace whose labels change comes under other policies.
    api.create(CLUSTERS, cluster_policy("new", limits={"frequencyHz": {"max": 9}},
    namespaceSelector={"matchLabels": {"new": "yes"}}))  # fmt: skip
    api.merge("/api/v1/namespaces/bank", {"metadata": {"labels": {"new": "yes"}}})
    eventually(lambda: operator.slots()["bank/p"]["frequencyHz"] == 9, "bank's new ceiling")
    api.merge("/api/v1/namespaces/bank", {"metadata": {"labels": {"new": None}}})


def test_the_nodes_themselves(operator: Operator) -> None:
    host = {"cpu": {"frequencyHz": 7}}
    operator.api.create(CLUSTERS, cluster_policy("host", host=host))
    said = operator.waits_for(f"{CLUSTERS}/host", "Accepted", "False", "NoEndpoint")
    assert "defaults.export" in said
    operator.api.merge(f"{CLUSTERS}/host", {"spec": {"defaults": {"export": EXPORT}}})
    operator.waits_for(f"{CLUSTERS}/host", "Ready", "True", "Programmed")
    assert operator.slots()["host"]["selector"] == {"host": True}


def secret(name: str, data: dict[str, str], kind: str = "flameherd.dev/export") -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "type": kind,
        "stringData": data,
    }


def test_what_cannot_work_says_so_and_harms_nobody_else(operator: Operator) -> None:
    api, path = operator.api, f"{SHOP}/bad"
    secrets = "/api/v1/namespaces/shop/secrets"
    api.create(BANK, policy("good", "bank"))
    api.create(SHOP, policy("bad", export=EXPORT | {"headersSecretRef": {"name": "token"}}))
    said = operator.waits_for(path, "ResolvedRefs", "False", "SecretForbidden")
    assert "RoleBinding" in said
    bind(api, "ClusterRole", "flameherd-secret-reader", "shop")
    operator.waits_for(path, "Ready", "False", "SecretNotFound")
    api.create(secrets, secret("token", {"authorization": "Bearer s3cr3t"}, "Opaque"))
    said = operator.waits_for(path, "Ready", "False", "SecretWrongType")
    assert "flameherd.dev/export" in said
    api.delete(f"{secrets}/token")
    api.create(secrets, secret("token", {"authorization": "two\nlines"}))
    operator.waits_for(path, "Ready", "False", "SecretInvalid")
    assert list(operator.slots()) == ["bank/good"]

    value = base64.b64encode(b"Bearer s3cr3t\n").decode()
    api.merge(f"{secrets}/token", {"data": {"authorization": value}})
    operator.waits_for(path, "Ready", "True", "Programmed")
    slot = operator.slots()["shop/bad"]
    shard = next(c for c in operator.configs() if slot in c.get("policies", []))
    file = shard["endpoints"][slot["endpoint"]]["headersFile"]
    held = operator.owned("secrets")[EXPORT_SECRET]["data"]
    assert base64.b64decode(held[file.removeprefix(f"{EXPORT_PATH}/")]) == (
        b"authorization: Bearer s3cr3t\n"
    )
    assert "s3cr3t" not in json.dumps([operator.configs(), api.get(path)])
    assert "s3cr3t" not in operator.log.read_text()

    api.merge(path, {"spec": {"export": {"endpoint": "https://example.org"}}})
    said = operator.waits_for(path, "Accepted", "False", "EndpointNotAllowed")
    assert "limits.endpoints" in said
    assert list(operator.slots()) == ["bank/good"]
    eventually(lambda: not operator.owned("secrets")[EXPORT_SECRET].get("data"), "no credential")
    api.delete(f"{secrets}/token")


def test_what_is_deleted_or_edited_by_hand_is_restored(operator: Operator) -> None:
    api, shard = operator.api, shard_of("shop")
    api.create(SHOP, policy("p"))
    operator.waits_for(f"{SHOP}/p", "Ready", "True", "Programmed")

    def restored(what: str) -> None:
        eventually(lambda: "shop/p" in operator.slots(), what)

    api.delete(f"{CONFIGMAPS}/{shard}")
    restored("a deleted shard")
    api.merge(f"{CONFIGMAPS}/{shard}", {"binaryData": None})
    restored("an emptied shard")
    daemonset = f"{DAEMONSETS}/flameherd-agent-default"
    harms: tuple[Json, ...] = (
        {"spec": {"template": {"spec": {"hostPID": False}}}},
        {"spec": {"template": {"spec": {"serviceAccountName": "default"}}}},
        {"metadata": {"labels": {"app.kubernetes.io/managed-by": "me"}}},
        {"metadata": {"ownerReferences": []}},
    )
    for harm in harms:
        before = api.get(daemonset)
        api.merge(daemonset, harm)

        def as_before(before: Json = before) -> bool:
            now = api.get(daemonset)
            names = ("labels", "ownerReferences")
            same = all(now["metadata"].get(n) == before["metadata"].get(n) for n in names)
            return same and now["spec"] == before["spec"]

        eventually(as_before, f"undone: {harm}")
    api.delete(daemonset)
    eventually(lambda: api.find(daemonset), "a deleted DaemonSet")
    api.delete(f"/api/v1/namespaces/{AGENTS}/secrets/{EXPORT_SECRET}")
    eventually(lambda: operator.owned("secrets"), "a deleted Secret")
    status = f"{SHOP}/p/status"
    api.merge(status, {"status": {"conditions": [], "effective": None}})
    operator.waits_for(f"{SHOP}/p", "Ready", "True", "Programmed")


def node(name: str, **labels: str) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def test_pools_choose_nodes_and_never_share_one(operator: Operator) -> None:
    api = operator.api
    api.create("/api/v1/nodes", node("n1", disk="ssd"))
    spec = {
        "nodeSelector": {"disk": "ssd"},
        "image": "registry.example/agent:2",
        "tolerations": [{"operator": "Exists"}],
        "resources": {"limits": {"memory": "256Mi"}},
    }
    api.create(POOLS, object_of("AgentPool", spec, "ssd"))
    said = operator.waits_for(f"{POOLS}/ssd", "Ready", "False", "Conflicted")
    assert "older pool default" in said
    assert list(operator.owned("daemonsets")) == ["flameherd-agent-default"]

    api.merge(f"{POOLS}/default", {"spec": {"nodeSelector": {"disk": "hdd"}}})
    operator.waits_for(f"{POOLS}/ssd", "Ready", "True", "Programmed")
    pod = operator.owned("daemonsets")["flameherd-agent-ssd"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"disk": "ssd"}
    assert pod["containers"][0]["image"] == "registry.example/agent:2"
    assert pod["containers"][0]["resources"] == {"limits": {"memory": "256Mi"}}
    path = f"{DAEMONSETS}/flameherd-agent-ssd"
    counts = {"desiredNumberScheduled": 1, "numberReady": 0, "currentNumberScheduled": 1}
    api.merge(f"{path}/status", {"status": counts | {"numberMisscheduled": 0}})
    assert "0 of 1" in operator.waits_for(f"{POOLS}/ssd", "Ready", "False", "Rolling")
    assert api.get(f"{POOLS}/ssd")["status"]["nodes"] == {"desired": 1, "ready": 0}

    api.delete(f"{POOLS}/ssd")
    eventually(lambda: api.find(path) is None, "the DaemonSet of a pool that is gone")
    api.merge(f"{POOLS}/default", {"spec": {"nodeSelector": None}})
    api.delete("/api/v1/nodes/n1")


def test_idle_agents_go_if_the_pool_says_so(operator: Operator) -> None:
    api = operator.api
    api.merge(f"{POOLS}/default", {"spec": {"whenIdle": "Remove"}})
    eventually(lambda: not operator.owned("daemonsets"), "idle agents are gone")
    operator.waits_for(f"{POOLS}/default", "Ready", "True", "Idle")
    api.create(SHOP, policy("p"))
    eventually(lambda: operator.owned("daemonsets"), "agents are back")
    api.merge(f"{POOLS}/default", {"spec": {"whenIdle": "Keep"}})


def test_a_killed_operator_goes_on_where_things_are(operator: Operator) -> None:
    api = operator.api
    api.create(SHOP, policy("old"))
    operator.waits_for(f"{SHOP}/old", "Ready", "True", "Programmed")
    operator.stop(signal.SIGKILL)
    api.delete(f"{SHOP}/old")
    api.create(SHOP, policy("new"))
    api.delete(f"{DAEMONSETS}/flameherd-agent-default")
    operator.start()
    operator.waits_for(f"{SHOP}/new", "Ready", "True", "Programmed")
    assert list(operator.slots()) == ["shop/new"]
    eventually(lambda: operator.owned("daemonsets"), "the DaemonSet")
    assert operator.stop(signal.SIGTERM) == 0
    operator.start()


def test_a_second_operator_waits_for_the_first(
    operator: Operator, control_plane: ControlPlane, tmp_path: Path
) -> None:
    second = Operator(control_plane, tmp_path, "--lease-duration", "6s")
    second.start()
    try:
        eventually(lambda: "another operator holds" in second.log.read_text(), "it waits")
        assert "applied" not in second.log.read_text()
        operator.stop(signal.SIGTERM)
        eventually(lambda: "holding the Lease" in second.log.read_text(), "it takes over")
        operator.api.create(SHOP, policy("p"))
        operator.waits_for(f"{SHOP}/p", "Ready", "True", "Programmed")
        # Someone takes the Lease by force: the holder ends.
        lease = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/flameherd-operator"
        operator.api.merge(lease, {"spec": {"holderIdentity": "me", "leaseDurationSeconds": 1}})
        eventually(lambda: not second.running, "it ends")
        assert "another operator has taken the Lease" in second.log.read_text()
    finally:
        second.stop(signal.SIGKILL)
        operator.start()


def test_an_api_server_that_was_away(operator: Operator, control_plane: ControlPlane) -> None:
    api = operator.api
    api.create(SHOP, policy("before"))
    operator.waits_for(f"{SHOP}/before", "Ready", "True", "Programmed")
    control_plane.stop_apiserver()
    control_plane.start_apiserver()
    api.delete(f"{SHOP}/before")
    api.create(SHOP, policy("after"))

    def converged() -> bool:
        # Longer away than the Lease lasts: the operator ends, and a kubelet starts it again.
        if not operator.running:
            assert "could not be renewed in time" in operator.log.read_text()
            operator.start()
        return list(operator.slots()) == ["shop/after"]

    eventually(converged, "the state after the outage", 120)


def test_what_a_watch_missed_is_found_by_a_list(
    operator: Operator, control_plane: ControlPlane
) -> None:
    """A deletion that no watch told of, as after a long disconnection."""
    operator.api.create(SHOP, policy("real"))
    operator.waits_for(f"{SHOP}/real", "Ready", "True", "Programmed")
    real = see("ProfilingPolicy", operator.api.get(f"{SHOP}/real"))
    ghost = see("ProfilingPolicy", policy("ghost") | {"metadata": {"name": "ghost", "uid": "no"}})
    assert ghost.value is not None
    watched = Watched(policies=(real, ghost))
    reconciler = Reconciler(connect(control_plane.kubeconfig), Settings(), lambda: watched)
    inputs = reconciler.listed(watched)
    assert [seen.name for seen in inputs.policies] == ["real"]


def test_rights(operator: Operator) -> None:
    api = operator.api
    bind(api, "ClusterRole", "flameherd-edit", "shop", user="ann")
    ann = api.impersonate("ann")
    ann.create(SHOP, policy("p"))
    operator.waits_for(f"{SHOP}/p", "Ready", "True", "Programmed")
    its = api.impersonate(ACCOUNT)
    forbidden: list[tuple[Api, str, str, Json]] = [
        (ann, "PATCH", f"{SHOP}/p/status", {"status": {}}),
        (ann, "PATCH", f"{BANK}/p", {"spec": {}}),
        (ann, "POST", CLUSTERS, cluster_policy("x")),
        (ann, "POST", POOLS, object_of("AgentPool", {})),
        (ann, "PATCH", f"{CONFIGMAPS}/{shard_of('shop')}", {"data": {}}),
        (its, "PATCH", f"{SHOP}/p", {"spec": {"cpu": {"frequencyHz": 97}}}),
        (its, "POST", f"/api/v1/namespaces/{SYSTEM}/pods", {}),
        (its, "GET", "/api/v1/namespaces/bank/secrets/any", {}),
        (its, "GET", "/api/v1/pods", {}),
    ]
    for who, verb, path, body in forbidden:
        kind = "application/merge-patch+json" if verb == "PATCH" else "application/json"
        with pytest.raises(Refused) as caught:
            who.request(verb, path, body or None, kind=kind)
        assert caught.value.code == 403, path


def test_what_it_wrote_is_what_it_may(operator: Operator, control_plane: ControlPlane) -> None:
    """By the audit log of the whole module."""
    wrote = set()
    for line in control_plane.audit_log.read_text().splitlines():
        event = json.loads(line)
        if event["user"]["username"] != ACCOUNT or "impersonatedUser" in event:
            continue
        if event["verb"] in ("get", "list", "watch"):
            continue
        reference = event["objectRef"]
        assert event["responseStatus"]["code"] not in (401, 403), event
        resource = "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
        wrote.add((event["verb"], resource, reference.get("namespace") == AGENTS))
    assert wrote <= {
        *((verb, kind, True) for verb in ("patch", "delete")
          for kind in ("configmaps", "secrets", "daemonsets")),
        ("create", "agentpools", False),
        ("create", "leases", False),
        ("update", "leases", False),
        ("create", "tokenreviews", False),
        ("patch", "endpointslices", False),
        *(("patch", f"{kind}/status", False)
          for kind in ("profilingpolicies", "clusterprofilingpolicies", "agentpools")),
    }  # fmt: skip
    assert ("patch", "configmaps", True) in wrote
