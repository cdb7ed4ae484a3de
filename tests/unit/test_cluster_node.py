"""What a node makes of what it is told: without an API server, with real directories for cgroups."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from flameherd_agent.cluster import objects
from flameherd_agent.cluster.account import Account
from flameherd_agent.cluster.follower import Change
from flameherd_agent.cluster.node import REMEMBER_S, SHARD_GRACE_S, NodeView
from flameherd_agent.cluster.objects import ConfigMap
from flameherd_agent.cluster.shards import SHARD_COUNT, shard_names
from flameherd_agent.metadata.cgroup import ContainerRef
from flameherd_agent.metadata.hierarchy import PidsHierarchy
from flameherd_policy.endpoints import Source
from flameherd_policy.policies import Attributes

from tests.unit.test_cluster_shards import config_maps, document, packed, slot

ID = "a" * 64


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Told:
    """A view and the means to tell it things."""

    def __init__(self, mount: Path, clock: Clock) -> None:
        account = Account("127.0.0.1", 1, mount, "node-1", "agents", "prod")
        self.mount = mount
        self.view = NodeView(account, PidsHierarchy(mount, version=2), clock)

    def pods(self, *pods: dict[str, Any], gone: bool = False, whole: bool = False) -> None:
        read = [msgspec.json.decode(json.dumps(pod).encode(), type=objects.Pod) for pod in pods]
        self.view._inbox.put(Change("pods", whole, read, gone))
        self.view.refresh()

    def shard(self, made: ConfigMap | None, name: str = "flameherd-config-00") -> None:
        self.view._inbox.put(Change(name, True, [made] if made else []))
        self.view.refresh()

    def shards(self, *slots: Any) -> None:
        for name, made in config_maps(*slots).items():
            self.shard(made, name)

    def cgroup(self, path: str) -> int:
        folder = self.mount / path
        folder.mkdir(parents=True)
        self.view.refresh()
        return folder.stat().st_ino


def pod(uid: str, namespace: str = "shop", **labels: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"pod-{uid[:4]}",
            "namespace": namespace,
            "uid": uid,
            "labels": labels,
        },
        "spec": {"containers": [{"name": "app", "image": "app:1"}]},
        "status": {"containerStatuses": [{"name": "app", "containerID": f"containerd://{ID}"}]},
    }


UIDS = [f"{n:08d}-440c-66ac-9084-e0fc1d8a910c" for n in range(10)]


@pytest.fixture
def told(tmp_path: Path, clock: Clock) -> Iterator[Told]:
    made = Told(tmp_path, clock)
    yield made
    made.view.close()


def active(view: NodeView) -> set[str]:
    return {policy.name for policy in view.config.policies}


def test_only_what_can_sample_something_here_is_carried_out(told: Told) -> None:
    told.shards(slot("shop/a"), slot("shop/behind"), slot("bank/b", "bank"))
    assert active(told.view) == set(), "no pod is here"
    told.pods(pod(UIDS[0]), whole=True)
    assert active(told.view) == {"shop/a"}
    assert set(told.view.config.endpoints) == {"shop/a"}
    told.pods(pod(UIDS[1], "bank"))
    assert active(told.view) == {"shop/a", "bank/b"}
    told.pods(pod(UIDS[0]), gone=True)
    assert active(told.view) == {"bank/b"}
    assert told.view.author is Source.CR


def test_cgroups_follow_pods_and_pods_follow_cgroups(told: Told) -> None:
    told.shards(slot("shop/a"), slot("node", ""))
    early = told.cgroup(f"kubepods/burstable/pod{UIDS[0]}")
    assert told.view.cgroups == {}, "whose is not known yet"
    told.pods(pod(UIDS[0]), whole=True)
    assert told.view.cgroups == {early: "shop/a"}
    told.pods(pod(UIDS[1]))
    late = told.cgroup(f"kubepods/burstable/pod{UIDS[1]}")
    assert told.view.cgroups == {early: "shop/a", late: "shop/a"}
    assert told.view.host == "node"
    assert told.view.coverage()["shop/a"].pods_matched == 2


def test_it_is_ready_once_everything_was_heard_of(told: Told) -> None:
    assert told.view.ready() == (
        False,
        "the API server has not told of "
        f"{', '.join(sorted((*shard_names(), 'pods')))}: no answer yet",
    )
    for name in shard_names():
        told.shard(None, name)
    assert not told.view.synced
    told.pods(whole=True)
    assert told.view.ready()[0]
    assert len(told.view.versions()) == 0 < SHARD_COUNT


def test_a_shard_that_is_deleted_has_a_while_to_come_back(told: Told, clock: Clock) -> None:
    told.pods(pod(UIDS[0]), whole=True)
    made = packed(document())
    told.shard(made)
    assert active(told.view) == {"shop/p"}
    told.shard(None)
    clock.now += SHARD_GRACE_S
    assert not told.view.refresh()
    assert active(told.view) == {"shop/p"}
    told.shard(made)
    clock.now += 10 * SHARD_GRACE_S
    told.view.refresh()
    assert active(told.view) == {"shop/p"}, "it came back"
    told.shard(None)
    clock.now += SHARD_GRACE_S + 1
    assert told.view.refresh()
    assert active(told.view) == set()


def test_a_shard_that_cannot_be_read_leaves_the_one_before(told: Told) -> None:
    told.pods(pod(UIDS[0]), whole=True)
    told.shard(packed(document()))
    told.shard(ConfigMap(metadata=objects.Meta(name="x"), binary_data={"config.json.z": "AAAA"}))
    assert active(told.view) == {"shop/p"}
    assert "stays in force" in told.view.error
    told.shard(packed(document(frequencyHz=49)))
    assert told.view.config.policies[0].frequency_hz == 49
    assert not told.view.error


def test_pods_are_told_by_their_cgroup_and_remembered_for_a_while(told: Told, clock: Clock) -> None:
    ref = ContainerRef("", ID, UIDS[0])
    assert told.view.attributes(ref, Attributes()) == ({}, False)
    assert told.view.attributes(ContainerRef("docker", ID, None), Attributes()) == ({}, True)
    told.pods(pod(UIDS[0]), whole=True)
    known, whole = told.view.attributes(ref, Attributes())
    assert whole
    assert known["k8s.container.name"] == "app"
    told.pods(whole=True)
    assert told.view.attributes(ref, Attributes()) == (known, True), "its last samples"
    clock.now += REMEMBER_S + 1
    told.view.refresh()
    assert told.view.attributes(ref, Attributes()) == ({}, False)
    assert told.view.node_attributes()["k8s.cluster.name"] == "prod"


def test_labels_that_change_change_the_selection(told: Told) -> None:
    selector = {"podSelector": {"matchLabels": {"app": "web"}}, "namespace": "shop"}
    told.shard(packed(document(selector=selector)))
    cgroup = told.cgroup(f"kubepods/pod{UIDS[0]}")
    for labels, chosen in (({"app": "web"}, {cgroup: "shop/p"}), ({"app": "api"}, {}), ({}, {})):
        told.pods(pod(UIDS[0], **labels))
        assert told.view.cgroups == chosen
