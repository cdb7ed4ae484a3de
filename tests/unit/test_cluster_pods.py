"""Pods as the API server tells them → attributes, by OpenTelemetry's rules."""

from typing import Any

import msgspec
import pytest
from flameherd_agent.cluster import objects
from flameherd_agent.cluster.pods import Pod, read_pod
from flameherd_policy.policies import Attributes
from hypothesis import given
from hypothesis import strategies as st

ID = "ab" * 32
OTEL = "resource.opentelemetry.io/"
LABELS = {
    "app.kubernetes.io/instance": "shop-prod",
    "app.kubernetes.io/name": "checkout",
    "app.kubernetes.io/version": "9",
}


def pod(**metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "web-1", "namespace": "shop", "uid": "u1", **metadata},
        "spec": {"containers": [{"name": "app", "image": "registry.example:5000/a/app:1.2"}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [{"name": "app", "containerID": f"containerd://{ID}"}],
        },
    }


def read(value: dict[str, Any]) -> Pod:
    return read_pod(msgspec.json.decode(msgspec.json.encode(value), type=objects.Pod))


def attributes(value: dict[str, Any], *labels: str, container: str = ID) -> dict[str, Any]:
    return read(value).attributes(container, Attributes(pod_labels=labels))[0]


def owner(kind: str, name: str, *, controller: bool = True) -> dict[str, Any]:
    return {"ownerReferences": [{"kind": kind, "name": name, "controller": controller}]}


WORKLOADS: list[tuple[dict[str, Any], dict[str, str], str]] = [
    ({}, {}, "web-1"),
    (
        owner("ReplicaSet", "web-7d4b9c") | {"labels": {"pod-template-hash": "7d4b9c"}},
        {"k8s.replicaset.name": "web-7d4b9c", "k8s.deployment.name": "web"},
        "web",
    ),
    # A ReplicaSet of nobody's: its pods have no hash, or another one.
    (owner("ReplicaSet", "web-7d4b9c"), {"k8s.replicaset.name": "web-7d4b9c"}, "web-7d4b9c"),
    (
        owner("ReplicaSet", "web-7d4b9c") | {"labels": {"pod-template-hash": "x"}},
        {"k8s.replicaset.name": "web-7d4b9c"},
        "web-7d4b9c",
    ),
    (owner("StatefulSet", "db"), {"k8s.statefulset.name": "db"}, "db"),
    (owner("DaemonSet", "log"), {"k8s.daemonset.name": "log"}, "log"),
    (owner("Job", "once"), {"k8s.job.name": "once"}, "once"),
    (
        owner("Job", "nightly-29393280") | {"creationTimestamp": "2025-11-20T00:00:03Z"},
        {"k8s.job.name": "nightly-29393280", "k8s.cronjob.name": "nightly"},
        "nightly",
    ),
    # Eight digits, but no minute near the pod's creation.
    (
        owner("Job", "load-20251120") | {"creationTimestamp": "2025-11-20T00:00:03Z"},
        {"k8s.job.name": "load-20251120"},
        "load-20251120",
    ),
    (owner("Node", "n1"), {}, "web-1"),
    (owner("StatefulSet", "db", controller=False), {}, "web-1"),
]


@pytest.mark.parametrize(("metadata", "workload", "service"), WORKLOADS)
def test_the_workload_without_a_right_on_it(
    metadata: dict[str, Any], workload: dict[str, str], service: str
) -> None:
    found = attributes(pod(**metadata))
    kinds = ("deployment", "replicaset", "statefulset", "daemonset", "job", "cronjob")
    assert {key: found[key] for kind in kinds if (key := f"k8s.{kind}.name") in found} == workload
    assert found["service.name"] == service


def test_a_container_and_its_pod() -> None:
    assert attributes(pod()) == {
        "k8s.namespace.name": "shop",
        "k8s.pod.name": "web-1",
        "k8s.pod.uid": "u1",
        "k8s.container.name": "app",
        "container.image.name": "registry.example:5000/a/app",
        "service.namespace": "shop",
        "service.name": "web-1",
        "service.version": "1.2",
        "service.instance.id": "shop.web-1.app",
    }


@pytest.mark.parametrize(
    ("image", "name", "version"),
    [
        ("nginx", "nginx", None),
        ("nginx:1.27", "nginx", "1.27"),
        ("registry:5000/nginx", "registry:5000/nginx", None),
        ("nginx@sha256:00ff", "nginx", "sha256:00ff"),
        ("a/b:1@sha256:00ff", "a/b", "1@sha256:00ff"),
    ],
)
def test_version_of_an_image(image: str, name: str, version: str | None) -> None:
    value = pod()
    value["spec"]["containers"][0]["image"] = image
    found = attributes(value)
    assert found["container.image.name"] == name
    assert found.get("service.version") == version


def test_annotations_first_then_labels_that_were_asked_for() -> None:
    value = pod(labels=LABELS)
    assert attributes(value)["service.name"] == "web-1", "nobody consented to these labels"
    found = attributes(value, "app.kubernetes.io/name", "app.kubernetes.io/version")
    assert (found["service.name"], found["service.version"]) == ("checkout", "9")
    assert found["k8s.pod.label.app.kubernetes.io/name"] == "checkout"
    found = attributes(value, *LABELS)
    assert found["service.name"] == "shop-prod"
    value["metadata"]["annotations"] = {
        f"{OTEL}service.name": "cart",
        f"{OTEL}service.namespace": "web",
        f"{OTEL}service.instance.id": "7",
        f"{OTEL}deployment.environment.name": "prod",
        f"{OTEL}k8s.pod.name": "forged",
        f"{OTEL}host.name": "forged",
        f"{OTEL}Not A Key": "x",
        "other": "y",
    }
    found = attributes(value, *LABELS)
    assert found["service.name"] == "cart"
    assert found["service.namespace"] == "web"
    assert found["service.instance.id"] == "7"
    assert found["deployment.environment.name"] == "prod"
    assert found["k8s.pod.name"] == "web-1"
    assert "host.name" not in found
    assert not [key for key in found if "Not A Key" in key or key == "other"]


def test_annotations_that_were_asked_for_are_cut() -> None:
    value = pod(annotations={"team": "x" * 5000, "big": "y"})
    found, _ = read(value).attributes(ID, Attributes(pod_annotations=("team", "absent")))
    assert found["k8s.pod.annotation.team"] == "x" * 256
    assert "k8s.pod.annotation.big" not in found


def test_a_container_that_the_status_does_not_name_yet() -> None:
    found, whole = read(pod()).attributes("cd" * 32, Attributes())
    assert not whole
    assert found["k8s.pod.name"] == "web-1"
    assert not {"k8s.container.name", "service.instance.id", "container.image.name"} & set(found)


def test_init_and_ephemeral_containers_and_static_pods() -> None:
    value = pod(annotations={"kubernetes.io/config.hash": "0" * 32})
    value["spec"]["initContainers"] = [{"name": "setup", "image": "s:1"}]
    value["spec"]["ephemeralContainers"] = [{"name": "debug", "image": "d:1"}]
    value["status"]["initContainerStatuses"] = [{"name": "setup", "containerID": "cri-o://11"}]
    value["status"]["ephemeralContainerStatuses"] = [{"name": "debug", "containerID": "x://22"}]
    found = read(value)
    assert found.containers == {ID: "app", "11": "setup", "22": "debug"}
    assert found.images["debug"] == "d:1"
    assert (found.uid, found.cgroup_uid) == ("u1", "0" * 32)


@pytest.mark.parametrize(("phase", "ended"), [("Running", False), ("Failed", True), (None, False)])
def test_pods_that_will_not_run_again(phase: str | None, ended: bool) -> None:
    value = pod()
    value["status"]["phase"] = phase
    assert read(value).ended is ended


def test_a_pod_of_nothing_but_a_name() -> None:
    found = read({"metadata": {"name": "x"}})
    assert found.attributes(ID, Attributes()) == (
        {"k8s.namespace.name": "", "k8s.pod.name": "x", "k8s.pod.uid": "", "service.name": "x"},
        False,
    )


TEXT = st.dictionaries(st.text(max_size=40), st.text(max_size=400), max_size=200)


@given(TEXT, TEXT, st.text(max_size=80))
def test_whatever_a_tenant_writes_is_bounded(
    labels: dict[str, str], annotations: dict[str, str], name: str
) -> None:
    spoiled = {f"{OTEL}{key}": text for key, text in annotations.items()}
    value = pod(labels=labels, annotations=spoiled | annotations, **owner("Job", name))
    wanted = Attributes(pod_labels=tuple(labels)[:16], pod_annotations=tuple(annotations)[:16])
    found, _ = read(value).attributes(ID, wanted)
    assert found["k8s.namespace.name"] == "shop"
    assert len(found) < 100
    assert all(len(text) <= 256 for text in found.values() if isinstance(text, str))
