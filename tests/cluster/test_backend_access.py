"""What signed-in people see is what the cluster's own authorization lets them: a real API server, a real backend."""

import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flameherd_agent.pipeline.otlp import encode

from tests.backend import truth as truths
from tests.backend.running import RunningBackend, request
from tests.cluster.api import Api, Json, eventually
from tests.cluster.control_plane import ControlPlane

RBAC = "/apis/rbac.authorization.k8s.io/v1"
VERSION = "rbac.authorization.k8s.io/v1"
AGENT = "agent-token-0123456789"
SIGNED_IN = ["--user-header", "X-Forwarded-User", "--groups-header", "X-Forwarded-Groups"]


def role(api: Api, name: str, rule: Json) -> None:
    body = {
        "apiVersion": VERSION,
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [rule],
    }
    api.apply(f"{RBAC}/clusterroles/{name}", body)


def bind(api: Api, name: str, to: str, subject: Json, namespace: str = "") -> None:
    kind = "RoleBinding" if namespace else "ClusterRoleBinding"
    body = {
        "apiVersion": VERSION,
        "kind": kind,
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": to},
        "subjects": [subject],
    }
    inside = f"/namespaces/{namespace}/rolebindings" if namespace else "/clusterrolebindings"
    api.apply(f"{RBAC}{inside}/{name}", body)


def somebody(kind: str, name: str) -> Json:
    return {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}


@pytest.fixture(scope="module")
def account(
    control_plane: ControlPlane, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder of a service account that may ask, as a kubelet mounts it."""
    api.namespace("observability")
    accounts = "/api/v1/namespaces/observability/serviceaccounts"
    for name in ("backend", "powerless"):
        body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
        api.apply(f"{accounts}/{name}", body)
    rule = {
        "apiGroups": ["authorization.k8s.io"],
        "resources": ["subjectaccessreviews"],
        "verbs": ["create"],
    }
    role(api, "flameherd-backend", rule)
    subject = {"kind": "ServiceAccount", "name": "backend", "namespace": "observability"}
    bind(api, "flameherd-backend", "flameherd-backend", subject)
    role(
        api,
        "see-profiles",
        {"apiGroups": ["flameherd.dev"], "resources": ["profiles"], "verbs": ["get"]},
    )
    bind(api, "ann", "see-profiles", somebody("User", "ann"), "shop")
    bind(api, "bankers", "see-profiles", somebody("Group", "bankers"), "bank")
    bind(api, "root", "see-profiles", somebody("User", "root"))
    folder = tmp_path_factory.mktemp("account")
    for name in ("backend", "powerless"):
        (folder / name).mkdir()
        token = api.create(f"{accounts}/{name}/token", {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}})  # fmt: skip
        (folder / name / "token").write_text(token["status"]["token"])
        (folder / name / "ca.crt").write_bytes(control_plane.admin.ca.read_bytes())
    return folder


@pytest.fixture
def in_a_pod(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", control_plane.url.rpartition(":")[2])


@pytest.fixture
def backend(account: Path, in_a_pod: None, tmp_path: Path) -> Iterator[RunningBackend]:
    del in_a_pod
    (tmp_path / "tokens").write_text(f"agent {AGENT} * -\n")
    options = [*SIGNED_IN, "--tokens", str(tmp_path / "tokens")]
    options += ["--kubernetes-access", str(account / "backend")]
    made, _ = truths.make(1, ["shop", "bank", ""])
    with RunningBackend(tmp_path / "store", options) as running:
        sent = running.post(encode(made).SerializeToString(), Authorization=f"Bearer {AGENT}")
        assert (sent.status, sent.body) == (200, b"")
        yield running
        assert running.stop() == 0


def ask(backend: RunningBackend, user: str, view: str, groups: str = "", **more: str) -> Any:
    """(status, answer) of a view to somebody whom the proxy has signed in."""
    query = urllib.parse.urlencode(
        {"type": "cpu", "from": "now-1h", **more} if view != "status" else {}
    )
    headers = {"X-Forwarded-User": user, "X-Forwarded-Groups": groups}
    answer = request(
        f"http://127.0.0.1:{backend.ports['page']}/api/v1/{view}?{query}", None, headers
    )
    return answer.status, answer.json()


def namespaces(backend: RunningBackend, user: str, groups: str = "") -> tuple[set[str], int]:
    """Those that have samples for somebody, and how many samples these are."""
    status, values = ask(backend, user, "labels/namespace/values", groups)
    assert status == 200, values
    total = ask(backend, user, "flamegraph", groups)[1]
    assert total["total"] == sum(value["total"] for value in values["values"])
    return {value["value"] for value in values["values"]}, total["samples"]


def test_people_see_the_namespaces_that_the_cluster_lets_them(backend: RunningBackend) -> None:
    everything, samples = namespaces(backend, "root")
    assert everything == {"shop", "bank", ""}
    assert namespaces(backend, "ann")[0] == {"shop"}
    assert namespaces(backend, "bob", "staff, bankers")[0] == {"bank"}
    assert namespaces(backend, "ann", "bankers")[0] == {"shop", "bank"}
    assert namespaces(backend, "eve") == (set(), 0)
    assert 0 < namespaces(backend, "ann")[1] < samples
    assert ask(backend, "ann", "status")[1]["viewer"] == {"name": "ann", "namespaces": ["shop"]}
    assert ask(backend, "ann", "flamegraph", match="namespace=bank")[0] == 403
    # Nobody signed in, or a sender's token: nothing to see.
    page = f"http://127.0.0.1:{backend.ports['page']}/api/v1/status"
    assert request(page).status == 401
    told = request(page, None, {"Authorization": f"Bearer {AGENT}"}).json()
    assert told["viewer"] == {"name": "agent", "namespaces": []}


def test_a_right_that_is_given_is_seen_soon(backend: RunningBackend, api: Api) -> None:
    assert namespaces(backend, "zoe")[0] == set()
    bind(api, "zoe", "see-profiles", somebody("User", "zoe"), "bank")
    eventually(lambda: namespaces(backend, "zoe")[0] == {"bank"}, "zoe sees bank")


@pytest.mark.parametrize("broken", ["away", "powerless"])
def test_who_cannot_be_asked_about_sees_nothing(
    account: Path, in_a_pod: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    del in_a_pod
    folder = account / ("powerless" if broken == "powerless" else "backend")
    if broken == "away":
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    options = [*SIGNED_IN, "--kubernetes-access", str(folder)]
    with RunningBackend(tmp_path / "store", options) as backend:
        status, answer = ask(backend, "root", "flamegraph")
        assert (status, answer["title"]) == (503, "Service Unavailable")
        assert "what you may see cannot be found out" in answer["detail"]
        said = backend.said()
    assert ("refused" if broken == "away" else "answered 403") in said
