"""The whole of it on a real node: the chart, the images, policies, and what arrives.

make test-cluster
"""

import os
import time
from collections.abc import Iterator

import pytest

from tests.cluster import node_images
from tests.cluster.api import GROUP, Json, eventually
from tests.cluster.installed import Installed, Sink
from tests.cluster.node import Node
from tests.cluster.operating import AGENTS, SYSTEM
from tests.cluster.pods import Pods, container, deployment, pod

TENANTS = ("shop", "bank")


@pytest.fixture(scope="module")
def installed(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    node.load(*node_images.own_images("operator", "agent"))
    sink = Sink(node, tmp_path_factory.mktemp("sink"))
    sink.start()
    made = Installed(node, sink)
    made.install()
    made.agent()
    yield made
    made.uninstall()


@pytest.fixture
def shop(installed: Installed) -> Pods:
    return Pods(installed.node, "shop").ensure()


@pytest.fixture
def bank(installed: Installed) -> Pods:
    return Pods(installed.node, "bank").ensure()


@pytest.fixture
def flameherd(installed: Installed) -> Iterator[Installed]:
    """Installed, without a policy and without tenants' pods; its agent never restarts meanwhile."""
    before = installed.agent()
    installed.sink.clear()
    yield installed
    for namespace in TENANTS:
        for path in (
            f"{GROUP}/namespaces/{namespace}/profilingpolicies",
            f"/apis/apps/v1/namespaces/{namespace}/deployments",
            f"/api/v1/namespaces/{namespace}/pods",
        ):
            if installed.api.find(f"/api/v1/namespaces/{namespace}"):
                installed.api.delete(path)
    after = installed.agent()
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert [c["restartCount"] for c in after["status"]["containerStatuses"]] == [
        c["restartCount"] for c in before["status"]["containerStatuses"]
    ]


def hog(name: str = "main", cpu: str = "200m") -> Json:
    return container(name, ["/programs/hog"], cpu=cpu)


def test_stacks_of_exactly_the_selected_pods_arrive(
    flameherd: Installed, shop: Pods, bank: Pods
) -> None:
    deep = container("cart", ["/programs/qsort"], cpu="200m")
    shop.create(deployment("cart", {"app": "cart"}, deep))
    shop.create(pod("other", {"app": "other"}, hog()))
    bank.create(pod("ledger", {"app": "cart"}, hog()))
    (cart,) = shop.running("app=cart")
    shop.running("app=other")
    bank.running("app=cart")
    earlier = int(flameherd.status()["counters"]["SAMPLES"])
    flameherd.policy("shop", "cart", {"app": "cart"}, 97)
    name = cart["metadata"]["name"]
    eventually(lambda: len(flameherd.sink.samples()) >= 50, "samples arrive", 180)
    assert set(flameherd.sink.by_pod()) == {name}
    found = flameherd.sink.by_pod()[name]
    expected = {
        "k8s.namespace.name": "shop",
        "k8s.pod.uid": cart["metadata"]["uid"],
        "k8s.container.name": "cart",
        "k8s.node.name": "node1",
        "k8s.deployment.name": "cart",
        "service.name": "cart",
        "container.id": cart["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2],
        "flameherd.policy": "shop/cart",
    }
    assert {key: found.get(key) for key in expected} == expected
    assert "main" in flameherd.sink.functions(name)
    # Of the others, ticks are seen and nothing is unwound: all samples are the one policy's.
    before = flameherd.status()["counters"]

    def ignored() -> int:
        return int(flameherd.status()["counters"]["UNSELECTED"] - before["UNSELECTED"])

    eventually(lambda: ignored() >= 1000, "a thousand ticks of others", 300)
    told = flameherd.status()
    taken = told["policies"]["shop/cart"]["samples"]
    assert taken > 0
    assert told["counters"]["SAMPLES"] - earlier <= taken + 1, (
        "one may be under way between the two"
    )
    assert set(flameherd.sink.by_pod()) == {name}


def test_two_policies_have_their_own_rates_and_true_cpu_seconds(
    flameherd: Installed, shop: Pods, bank: Pods
) -> None:
    shop.create(pod("s", {"app": "s"}, hog(cpu="600m")))
    bank.create(pod("b", {"app": "b"}, hog(cpu="400m")))
    shop.running("app=s")
    bank.running("app=b")
    flameherd.policy("shop", "p", {"app": "s"}, 97)
    flameherd.policy("bank", "p", {}, 43)
    eventually(lambda: {"s", "b"} <= set(flameherd.sink.by_pod()), "both are profiled", 180)
    used = {name: -_cpu_seconds(pods, name) for pods, name in ((shop, "s"), (bank, "b"))}
    flameherd.sink.clear()
    eventually(
        lambda: all(seen >= 8 for seen in _seen(flameherd)), "eight CPU seconds of each", 400
    )
    for pods, name in ((shop, "s"), (bank, "b")):
        used[name] += _cpu_seconds(pods, name)
    seen = dict(zip("sb", _seen(flameherd), strict=True))
    periods = {dict(s[0])["k8s.pod.name"]: s[2][4] for s in flameherd.sink.samples()}
    assert periods == {"s": round(1e9 / 97), "b": round(1e9 / 43)}
    # Eight seconds at 43 Hz are 344 samples. What was on its way at either end is a second of each.
    assert seen == pytest.approx(used, rel=0.2, abs=1.0)


def _seen(flameherd: Installed) -> tuple[float, float]:
    total = flameherd.sink.cpu_seconds()
    return total["s"], total["b"]


def _cpu_seconds(pods: Pods, name: str) -> float:
    """What the kernel says that the pod's one process has used."""
    (found,) = pods.running(f"app={name}")
    process = pods.process(found)
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_changes_take_effect_without_a_restart_of_the_agent(
    flameherd: Installed, shop: Pods
) -> None:
    shop.create(pod("web", {"app": "web"}, hog()))
    shop.running("app=web")
    eventually(lambda: flameherd.perf_events() == 0, "no policy: no perf event is open")
    path = flameherd.policy("shop", "web", {"app": "web"}, 97)
    _arrives(flameherd, "web")
    assert flameherd.perf_events() > 0
    label = "/api/v1/namespaces/shop/pods/web"
    flameherd.api.merge(label, {"metadata": {"labels": {"app": "api"}}})
    _stops(flameherd)
    flameherd.api.merge(label, {"metadata": {"labels": {"app": "web"}}})
    _arrives(flameherd, "web")
    flameherd.api.merge(path, {"spec": {"cpu": {"frequencyHz": 49}}})
    eventually(lambda: 49 in _rates(flameherd), "the rate is another")
    flameherd.api.merge(path, {"spec": {"suspend": True}})
    _stops(flameherd)
    flameherd.api.merge(path, {"spec": {"suspend": False}})
    _arrives(flameherd, "web")
    flameherd.api.delete(path)
    _stops(flameherd)
    eventually(lambda: flameherd.perf_events() == 0, "no policy: no perf event is open")


def _rates(flameherd: Installed) -> set[int]:
    return {slot["frequencyHz"] for slot in flameherd.status()["policies"].values()}


def _arrives(flameherd: Installed, name: str) -> None:
    flameherd.sink.clear()
    eventually(lambda: name in flameherd.sink.by_pod(), f"profiles of {name} arrive", 180)


def _stops(flameherd: Installed) -> None:
    eventually(lambda: not flameherd.status()["policies"], "the agent has no policy")

    def quiet() -> bool:
        flameherd.sink.clear()
        time.sleep(3)
        return not flameherd.sink.samples()

    eventually(quiet, "nothing arrives any more")


def test_deleting_a_namespace_with_policies_leaves_the_other_tenants_profiles(
    flameherd: Installed, shop: Pods, bank: Pods
) -> None:
    shop.create(pod("s", {"app": "s"}, hog()))
    bank.create(pod("b", {"app": "b"}, hog()))
    flameherd.policy("shop", "p", {}, 49)
    flameherd.policy("bank", "p", {}, 49)
    eventually(lambda: {"s", "b"} <= set(flameherd.sink.by_pod()), "both are profiled", 180)
    flameherd.api.delete("/api/v1/namespaces/shop")
    eventually(lambda: flameherd.api.find("/api/v1/namespaces/shop") is None, "shop is gone", 120)
    eventually(lambda: set(flameherd.status()["policies"]) == {"bank/p"}, "and its policy")
    _arrives(flameherd, "b")
    assert set(flameherd.sink.by_pod()) == {"b"}


def test_an_uninstalled_release_leaves_the_kinds_and_their_objects_and_a_new_one_takes_them_up(
    installed: Installed, shop: Pods
) -> None:
    api = installed.api
    shop.create(pod("web", {"app": "web"}, hog()))
    shop.running("app=web")
    path = installed.policy("shop", "web", {"app": "web"}, 97)
    _arrives(installed, "web")
    installed.uninstall()
    workloads = [
        f"/apis/apps/v1/namespaces/{namespace}/{kind}"
        for namespace in (SYSTEM, AGENTS)
        for kind in ("daemonsets", "deployments")
    ]
    eventually(lambda: not any(map(api.items, workloads)), "operator and agents are gone", 120)
    eventually(
        lambda: api.find(f"/api/v1/namespaces/{AGENTS}") is None, "the agents' namespace", 120
    )
    left = installed.node.kubectl("get", "clusterroles,clusterrolebindings", "-o", "name")
    assert "flameherd" not in left
    assert api.find(path) is not None
    for item in ("clusterprofilingpolicies/default", "agentpools/default"):
        assert api.find(f"{GROUP}/{item}") is not None
    installed.install()
    installed.agent()
    _arrives(installed, "web")
    api.delete(path)
    shop.delete("app=web")
