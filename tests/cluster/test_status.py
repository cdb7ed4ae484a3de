"""Reports of agents on a real API server: whose they are, and what they make of statuses."""

import base64
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from flameherd_operator.settings import STATUS_SECRET, STATUS_SERVICE, STATUS_TRUST
from flameherd_policy.report import BudgetState, ExportState, PolicyDelta, StatusDelta, write_report

from tests.cluster.api import GROUP, Api, Json, Refused, eventually
from tests.cluster.control_plane import ControlPlane
from tests.cluster.objects import object_of
from tests.cluster.operating import ACCOUNT, AGENTS, SYSTEM, Operator, bind, grant
from tests.cluster.reporting import PODS, Reporting, make_agent, make_service, token_for
from tests.collector.collector import free_port

SHOP = f"{GROUP}/namespaces/shop/profilingpolicies"
BANK = f"{GROUP}/namespaces/bank/profilingpolicies"
EXPORT: Json = {"endpoint": "http://collector.obs.svc:4317"}
SLICE = f"/apis/discovery.k8s.io/v1/namespaces/{SYSTEM}/endpointslices/{STATUS_SERVICE}"


class Cluster:
    """An operator that takes reports, and the agents of two nodes."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane, self.api, self.folder = plane, plane.admin, folder
        self.port = free_port()
        self.operator = Operator(
            plane, folder, "--lease-duration", "2s", "--secrets-every", "2s",
            "--status-listen", f"127.0.0.1:{self.port}", "--status-address", "10.1.2.3",
        )  # fmt: skip

    def start(self) -> None:
        self.operator.start()
        self.agents = [self.agent(node) for node in ("n1", "n2")]
        eventually(lambda: self.operator.configs(), "the operator's configuration")

    def agent(self, node: str) -> Reporting:
        return Reporting(self.api, self.folder / node, self.port, node)

    def versions(self) -> dict[str, str]:
        """What agents would carry out now."""
        found = self.operator.owned("configmaps")
        return {name: one["data"]["version"] for name, one in found.items() if "binaryData" in one}

    def all_say(self, *policies: PolicyDelta) -> None:
        for agent in self.agents:
            agent.says(*policies, shards=self.versions())

    def status(self, path: str) -> Json:
        found: Json = self.api.get(path)["status"]
        return found

    def status_writes(self) -> list[Json]:
        """By the audit log."""
        lines = self.plane.audit_log.read_text().splitlines()
        events = (json.loads(line) for line in lines)
        return [
            event
            for event in events
            if event["user"]["username"] == ACCOUNT
            and event.get("objectRef", {}).get("subresource") == "status"
        ]


@pytest.fixture(scope="module")
def running(
    api: Api, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    grant(api)
    make_service(api)
    made = Cluster(control_plane, tmp_path_factory.mktemp("status"))
    made.start()
    try:
        yield made
    finally:
        made.operator.stop(signal.SIGKILL)
        for node in ("n1", "n2"):
            if api.find(f"/api/v1/nodes/{node}"):
                api.delete(f"/api/v1/nodes/{node}")
        api.delete(PODS, gracePeriodSeconds="0")


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    yield running
    assert running.operator.running, running.operator.log.read_text()[-3000:]
    for path in (SHOP, BANK):
        running.api.delete(path)
    eventually(lambda: not running.operator.slots(), "no slot is left")


def policy(name: str, namespace: str = "shop", **spec: Any) -> Json:
    spec = {"podSelector": {}, "cpu": {}, "export": EXPORT} | spec
    return object_of("ProfilingPolicy", spec, name, namespace)


def delta(name: str = "shop/p", **fields: Any) -> PolicyDelta:
    """A policy that profiles two pods well."""
    good: dict[str, Any] = {
        "pods_matched": 2, "pods_profiled": 2, "containers_matched": 2, "containers_profiled": 2,
        "samples": 600, "complete": 594, "truncated": 6, "kernel_ns": 12_000_000,
        "agent_ns": 18_000_000, "sent_bytes": 60_000, "export": ExportState.SENDING,
        "frequency_hz": 19,
    }  # fmt: skip
    return PolicyDelta(name=name, **(good | fields))


REPORT = write_report(StatusDelta(seconds=60.0))


def test_a_report_is_believed_of_the_tokens_node_only(cluster: Cluster) -> None:
    api, agent = cluster.api, cluster.agent("n1")
    pod = make_agent(api, "n1")
    eventually(lambda: agent.post(REPORT).taken, "the operator is ready")
    for namespace, name in ((AGENTS, "other"), ("shop", "flameherd-agent")):
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
        api.apply(f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}", account)
    gone = make_agent(api, "n1", "gone")
    of_the_gone = token_for(api, gone)
    api.delete(f"{PODS}/gone", gracePeriodSeconds="0")
    good = token_for(api, pod)
    head, middle, signature = good.split(".")
    forged = json.loads(base64.urlsafe_b64decode(middle + "=="))
    forged["kubernetes.io"]["node"]["name"] = "n2"
    encoded = base64.urlsafe_b64encode(json.dumps(forged).encode()).decode().rstrip("=")
    for token, code in (
        (token_for(api, pod, "https://kubernetes.default.svc"), "401 WrongAudience"),
        (token_for(api, None, account="other"), "403 WrongAccount"),
        (token_for(api, None, namespace="shop"), "403 WrongAccount"),
        (token_for(api, None), "401 Unauthorized: the token names no node"),
        (of_the_gone, "401 Unauthorized: the API server refuses the token"),
        (f"{head}.{encoded}.{signature}", "401 Unauthorized: the API server refuses the token"),
        (cluster.plane.token, "401 Unauthorized"),
    ):
        agent.use(token)
        outcome = agent.post(REPORT)
        assert not outcome.taken
        assert f"HTTP {code}" in outcome.error
    agent.use(good)
    assert eventually(lambda: agent.post(REPORT).taken, "the good one is taken")


def test_ready_means_that_agents_carry_it_out(cluster: Cluster) -> None:
    api, operator = cluster.api, cluster.operator
    api.create(SHOP, policy("p"))
    operator.waits_for(f"{SHOP}/p", "Programmed", "True", "Programmed")
    api.merge(f"{SHOP}/p", {"spec": {"cpu": {"frequencyHz": 7}}})
    eventually(lambda: operator.slots()["shop/p"]["frequencyHz"] == 7, "the edit")
    old = cluster.versions()
    cluster.all_say(delta())
    operator.waits_for(f"{SHOP}/p", "Ready", "True", "Programmed")
    status = cluster.status(f"{SHOP}/p")
    reporting = status["nodes"]["programmed"]
    assert status["nodes"] == {"desired": reporting, "programmed": reporting}
    assert status["pods"] == {"matched": 4, "profiled": 4}
    assert status["containers"] == {"matched": 4, "profiled": 4, "overlapped": 0}
    assert status["cost"] == {
        "cpuPerNodeMean": "500u",
        "cpuPerNodeMax": "500u",
        "samplesPerMinute": 1200,
        "bytesPerMinute": 120_000,
    }
    assert status["coverage"]["completePercent"] == 99
    assert status["lastReportTime"]
    conditions = operator.conditions(f"{SHOP}/p")
    assert conditions["Profiling"] == ("True", "Profiling")
    assert conditions["Exporting"] == ("True", "Exporting")
    assert conditions["Overlapped"] == ("False", "NotOverlapped")
    assert conditions["BudgetExceeded"] == ("False", "WithinBudget")
    # An edit is Ready once every agent has it.
    api.merge(f"{SHOP}/p", {"spec": {"cpu": {"frequencyHz": 9}}})
    operator.waits_for(f"{SHOP}/p", "Ready", "False", "Programming")
    cluster.agents[0].says(delta(), shards=cluster.versions())
    cluster.agents[1].says(delta(), shards=old)
    eventually(
        lambda: any(
            (node["name"], node["reason"]) == ("n2", "NotProgrammed")
            for node in cluster.status(f"{SHOP}/p").get("worstNodes", ())
        ),
        "the node that lags behind is told",
        timeout_s=180,
    )
    cluster.all_say(delta())
    operator.waits_for(f"{SHOP}/p", "Ready", "True", "Programmed")


def test_what_flips_is_told_and_the_rest_waits(cluster: Cluster) -> None:
    operator = cluster.operator
    cluster.api.create(SHOP, policy("p", budget={"cpuPerNode": "5m"}))
    operator.waits_for(f"{SHOP}/p", "Programmed", "True", "Programmed")
    assert operator.slots()["shop/p"]["cpuPerNode"] == "5m"
    cluster.all_say(delta(samples=0, pods_matched=0, pods_profiled=0, export=ExportState.IDLE))
    message = operator.waits_for(f"{SHOP}/p", "Profiling", "False", "NothingMatched")
    assert "kubectl get pods" in message
    cluster.all_say(delta())
    operator.waits_for(f"{SHOP}/p", "Profiling", "True", "Profiling")
    operator.waits_for(f"{SHOP}/p", "Exporting", "True", "Exporting")
    bad = delta(
        export=ExportState.FAILING,
        export_errors=3,
        export_error="169.254.169.254 is a link-local address; a policy may not export to it",
        budget=BudgetState.LOWERED,
        frequency_hz=3,
        containers_overlapped=1,
    )
    cluster.agents[0].says(bad, shards=cluster.versions())
    message = operator.waits_for(f"{SHOP}/p", "Exporting", "False", "ExportFailing")
    assert "n1: 169.254.169.254 is a link-local address" in message
    message = operator.waits_for(f"{SHOP}/p", "BudgetExceeded", "True", "RateLowered")
    assert "3 Hz" in message
    operator.waits_for(f"{SHOP}/p", "Overlapped", "True", "Overlapped")
    worst = cluster.status(f"{SHOP}/p")["worstNodes"]
    assert (worst[0]["name"], worst[0]["reason"]) == ("n1", "ExportFailing")
    # Numbers alone make no write before a minute is over.
    before = len(cluster.status_writes())
    cluster.agents[0].says(
        msgspec.structs.replace(bad, samples=9000, sent_bytes=10**7), shards=cluster.versions()
    )
    cluster.agents[0].says(delta(), shards=cluster.versions())
    operator.waits_for(f"{SHOP}/p", "BudgetExceeded", "False", "WithinBudget")
    assert len(cluster.status_writes()) <= before + 2


def test_agents_of_other_versions(cluster: Cluster) -> None:
    operator, agent = cluster.operator, cluster.agents[0]
    cluster.api.create(SHOP, policy("p"))
    operator.waits_for(f"{SHOP}/p", "Programmed", "True", "Programmed")
    shards = cluster.versions()
    newer = json.loads(write_report(StatusDelta(seconds=60.0, shards=shards, policies=(delta(),))))
    newer |= {"later": {"x": 1}}
    newer["policies"][0]["later"] = 5
    older = {"seconds": 60.0, "shards": shards, "policies": [{"name": "shop/p", "podsMatched": 7}]}
    eventually(lambda: agent.post(json.dumps(newer).encode()).taken, "the newer's report")
    cluster.agents[1].says(shards=shards)
    operator.waits_for(f"{SHOP}/p", "Profiling", "True", "Profiling")
    eventually(lambda: agent.post(json.dumps(older).encode()).taken, "the older's report")
    operator.waits_for(f"{SHOP}/p", "Profiling", "False", "Idle")
    assert cluster.status(f"{SHOP}/p")["pods"] == {"matched": 7, "profiled": 0}
    outcome = agent.post(b'{"seconds": "x"}')
    assert not outcome.taken
    assert "400 Unreadable" in outcome.error or "429" in outcome.error


def test_bad_objects_are_told_and_others_go_on(cluster: Cluster) -> None:
    api, operator = cluster.api, cluster.operator
    api.create(BANK, policy("good", "bank"))
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "wrong"}, "type": "Opaque"}
    bind(api, "ClusterRole", "flameherd-secret-reader", "shop")
    api.create("/api/v1/namespaces/shop/secrets", secret)
    bad: dict[str, tuple[Json, str, str]] = {
        "missing": ({"headersSecretRef": {"name": "none"}}, "ResolvedRefs", "SecretNotFound"),
        "type": ({"headersSecretRef": {"name": "wrong"}}, "ResolvedRefs", "SecretWrongType"),
        "outside": ({"endpoint": "https://example.com:4317"}, "Accepted", "EndpointNotAllowed"),
    }
    for name, (export, _, _) in bad.items():
        api.create(SHOP, policy(name, export=EXPORT | export))
    api.create(SHOP, policy("nothing", podSelector={"matchLabels": {"app": "none"}}))
    for name, (_, kind, reason) in bad.items():
        operator.waits_for(f"{SHOP}/{name}", kind, "False", reason)
        assert operator.conditions(f"{SHOP}/{name}")["Ready"] == ("False", reason)
    operator.waits_for(f"{BANK}/good", "Programmed", "True", "Programmed")
    eventually(lambda: {"bank/good", "shop/nothing"} <= set(operator.slots()), "both slots")
    cluster.all_say(delta("bank/good"))
    operator.waits_for(f"{SHOP}/nothing", "Profiling", "False", "NothingMatched")
    operator.waits_for(f"{BANK}/good", "Ready", "True", "Programmed")
    operator.waits_for(f"{BANK}/good", "Profiling", "True", "Profiling")
    api.delete("/api/v1/namespaces/shop/secrets/wrong")


def test_the_service_leads_to_the_holder_of_the_lease(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    api = cluster.api

    def addresses() -> list[str]:
        found = api.find(SLICE)
        return [] if found is None else [e["addresses"][0] for e in found["endpoints"]]

    eventually(lambda: addresses() == ["10.1.2.3"], "the endpoint")
    found = api.get(SLICE)
    assert found["metadata"]["labels"]["kubernetes.io/service-name"] == STATUS_SERVICE
    (owner,) = found["metadata"]["ownerReferences"]
    service = api.get(f"/api/v1/namespaces/{SYSTEM}/services/{STATUS_SERVICE}")
    assert owner["uid"] == service["metadata"]["uid"]
    secret = f"/api/v1/namespaces/{AGENTS}/secrets/{STATUS_SECRET}"
    before = api.get(secret)["data"]
    second = Operator(
        control_plane, tmp_path, "--lease-duration", "2s",
        "--status-listen", f"127.0.0.1:{cluster.port}", "--status-address", "10.1.2.4",
    )  # fmt: skip
    second.start()
    try:
        eventually(lambda: "another operator holds" in second.log.read_text(), "it waits")
        assert "taking reports" not in second.log.read_text()
        cluster.operator.stop(signal.SIGTERM)
        eventually(lambda: addresses() == ["10.1.2.4"], "the other one's endpoint")
        # It has the same certificate: agents need no new file.
        eventually(lambda: cluster.agents[0].post(REPORT).taken, "the other one takes reports")
        assert api.get(secret)["data"] == before
    finally:
        second.stop(signal.SIGTERM)
        cluster.operator.start()
    eventually(lambda: addresses() == ["10.1.2.3"], "the first one's endpoint again")


def test_what_is_deleted_by_hand_is_made_again(cluster: Cluster) -> None:
    api = cluster.api
    secret = f"/api/v1/namespaces/{AGENTS}/secrets/{STATUS_SECRET}"
    trust = f"/api/v1/namespaces/{AGENTS}/configmaps/{STATUS_TRUST}"
    before = api.get(secret)["data"], api.get(trust)["data"]
    for path in (secret, trust):
        api.delete(path)
    eventually(lambda: api.find(secret) and api.find(trust), "both are there again")
    assert (api.get(secret)["data"], api.get(trust)["data"]) == before


def test_a_missing_account_is_told(cluster: Cluster) -> None:
    api, operator = cluster.api, cluster.operator
    account = f"/api/v1/namespaces/{AGENTS}/serviceaccounts/flameherd-agent"
    body = {k: v for k, v in api.get(account).items() if k in ("apiVersion", "kind")}
    api.delete(account)
    try:
        api.create(SHOP, policy("p"))
        pool = f"{GROUP}/agentpools/default"
        message = operator.waits_for(pool, "Ready", "False", "NoServiceAccount")
        assert "helm upgrade" in message
        operator.waits_for(f"{SHOP}/p", "Programmed", "False", "NoServiceAccount")
        assert "shop/p" not in operator.slots()
    finally:
        api.apply(account, body | {"metadata": {"name": "flameherd-agent"}})
    operator.waits_for(f"{SHOP}/p", "Programmed", "True", "Programmed")


def test_rights(cluster: Cluster) -> None:
    """What reports need, and nothing beside it."""
    its = cluster.api.impersonate(ACCOUNT)
    slices = SLICE.rpartition("/")[0]
    forbidden: list[tuple[Api, str, str]] = [
        (its, "GET", f"/api/v1/namespaces/{SYSTEM}/services/other"),
        (its, "GET", f"/api/v1/namespaces/{SYSTEM}/pods"),
        (its, "PATCH", f"{slices}/other"),
        (its, "GET", slices),
        (its, "POST", "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices"),
    ]
    agent = cluster.api.impersonate(f"system:serviceaccount:{AGENTS}:flameherd-agent")
    forbidden += [
        (agent, "GET", f"/api/v1/namespaces/{AGENTS}/secrets/{STATUS_SECRET}"),
        (agent, "PATCH", f"{SHOP}/p/status"),
        (agent, "POST", "/apis/authentication.k8s.io/v1/tokenreviews"),
    ]
    for who, verb, path in forbidden:
        kind = "application/merge-patch+json" if verb == "PATCH" else "application/json"
        with pytest.raises(Refused) as caught:
            who.request(verb, path, None if verb == "GET" else {}, kind=kind)
        assert caught.value.code == 403, path
