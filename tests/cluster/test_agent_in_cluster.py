"""The real agent on a node of a real API server, told by the real operator: which pods it samples,
and what its profiles carry. Containers are real cgroups with real programs; only the kubelet is
played by the test.
"""

import json
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flameherd_agent.metadata.hierarchy import parse_mountinfo
from flameherd_operator.render.shards import shard_of

from tests.cluster.agent_node import NODE, ClusterAgent, Node, Pod, node
from tests.cluster.api import GROUP, Api, Json, eventually
from tests.cluster.control_plane import ControlPlane
from tests.cluster.objects import PATHS, object_of
from tests.cluster.operating import AGENT_ACCOUNT, AGENTS, Operator, grant
from tests.cluster.sink import Resource, Sink, sink
from tests.programs.build import build

SHOP = f"{GROUP}/namespaces/shop/profilingpolicies"
BANK = f"{GROUP}/namespaces/bank/profilingpolicies"
CLUSTERS = PATHS["ClusterProfilingPolicy"]
STATIC = "09a70ae9ccc491e651e5c773579b3490"


class World:
    """An operator, an endpoint, and an agent on a node."""

    def __init__(
        self, plane: ControlPlane, operator: Operator, endpoint: Sink, agent: ClusterAgent
    ):
        self.plane, self.operator, self.sink, self.agent = plane, operator, endpoint, agent
        self.api = plane.admin
        self.export = {"endpoint": endpoint.url, "protocol": "HTTP", "interval": "1s"}

    def policy(self, path: str, name: str, labels: dict[str, str], hertz: int, **spec: Any) -> str:
        """Apply a policy; its path."""
        made = {"podSelector": {"matchLabels": labels}, "cpu": {"frequencyHz": hertz}} | spec
        namespace = path.split("/")[5]
        self.api.create(path, object_of("ProfilingPolicy", made, name, namespace))
        return f"{path}/{name}"

    def resources(self, pod: Pod) -> list[Resource]:
        """Of a pod, as far as they have arrived. Pods of other tests have the same names."""
        found = self.sink.by_pod().get(pod.name, [])
        return [resource for resource in found if resource["k8s.pod.uid"] == pod.uid]

    def profiled(self, pod: Pod, timeout_s: float = 120) -> Resource:
        """The first resource of a pod that arrives from now on."""
        self.sink.clear()
        return eventually(lambda: self.resources(pod), f"profiles of {pod.name}", timeout_s)[0]

    def told(self, pod: Pod, least: float) -> float:
        """CPU seconds that the profiles of a pod say it took, once they are at least so many."""
        what = f"{least:.1f} CPU seconds of {pod.name}"
        eventually(lambda: self.sink.cpu_seconds(pod.uid) >= least, what)
        return self.sink.cpu_seconds(pod.uid)

    def not_profiled(self, pod: Pod) -> None:
        """Nothing of a pod arrives any more, although the agent goes on exporting."""

        def gone() -> bool:
            self.sink.clear()
            time.sleep(3)
            return not self.resources(pod)

        eventually(gone, f"no profiles of {pod.name}")

    def told_nothing(self) -> bool:
        """Whether no ConfigMap has a slot. An API server that was away for longer than the Lease
        lasts ended the operator, and a kubelet would have started it again.
        """
        if not self.operator.running:
            assert "could not be renewed in time" in self.operator.log.read_text()
            self.operator.start()
        return not self.operator.slots()

    def up_to_date(self) -> bool:
        """Whether the agent carries out what the ConfigMaps say now."""
        found = self.operator.owned("configmaps")
        said = {n: c["data"]["version"] for n, c in found.items() if "version" in c.get("data", {})}
        return bool(self.agent.status()["cluster"]["shards"] == said)

    def samples(self, policy: str) -> int:
        found = self.agent.policies().get(policy)
        return int(found["samples"]) if found else 0


@pytest.fixture(scope="module")
def shared(
    api: Api, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    for namespace in ("shop", "bank", "kube-system"):
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        api.apply(f"/api/v1/namespaces/{namespace}/serviceaccounts/default", account)
    grant(api)
    operator = Operator(control_plane, tmp_path_factory.mktemp("operator"), "--resync-every", "30s")
    operator.start()
    try:
        with sink() as endpoint:
            host, port = endpoint.url.removeprefix("http://").split(":")
            rules = [{"scheme": "http", "host": host, "port": int(port)}]
            folder = tmp_path_factory.mktemp("agent")
            agent = ClusterAgent(folder, control_plane, folder / "cache")
            made = World(control_plane, operator, endpoint, agent)
            spec = {"limits": {"endpoints": rules}, "defaults": {"export": made.export}}
            api.create(CLUSTERS, object_of("ClusterProfilingPolicy", spec, "all"))
            try:
                yield made
            finally:
                made.agent.process.kill()
                made.agent.process.wait(60)
    finally:
        api.delete(f"{CLUSTERS}/all")
        operator.stop(signal.SIGKILL)


@pytest.fixture
def world(shared: World) -> Iterator[World]:
    """Without policies; the agent must be the same process afterwards."""
    eventually(shared.agent.ready, "the agent is ready")
    shared.sink.clear()
    yield shared
    for path in (SHOP, BANK):
        shared.api.delete(path)
    eventually(shared.told_nothing, "agents are told of nothing")
    eventually(shared.up_to_date, "and this one knows")
    eventually(lambda: not shared.agent.policies(), "no slot is left")
    assert shared.agent.process.poll() is None, shared.agent.log.read_text()[-3000:]


@pytest.fixture(params=[False, True], ids=["cgroupfs", "systemd"])
def any_node(request: pytest.FixtureRequest, api: Api) -> Iterator[Node]:
    with node(api, systemd=request.param) as made:
        yield made


@pytest.fixture
def one_node(api: Api) -> Iterator[Node]:
    with node(api) as made:
        yield made


def test_exactly_the_selected_pods_with_their_attributes(world: World, any_node: Node) -> None:
    web = any_node.busy_pod(
        "web-7d4b9c-x2z",
        labels={"app": "web", "pod-template-hash": "7d4b9c", "app.kubernetes.io/name": "front"},
        annotations={"resource.opentelemetry.io/service.version": "3.1", "team": "red"},
        ownerReferences=[
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-7d4b9c", "uid": "1",
             "controller": True}
        ],
    )  # fmt: skip
    other = any_node.busy_pod("other", labels={"app": "other"})
    bank = any_node.busy_pod("ledger", "bank", labels={"app": "web"})
    before = world.agent.status()["counters"]
    attributes = {"podLabels": ["app.kubernetes.io/name"], "podAnnotations": ["team"]}
    world.policy(SHOP, "web", {"app": "web"}, 97, attributes=attributes)
    found = world.profiled(web)
    expected = {
        "k8s.namespace.name": "shop",
        "k8s.pod.name": "web-7d4b9c-x2z",
        "k8s.pod.uid": web.uid,
        "k8s.container.name": "app",
        "k8s.node.name": NODE,
        "host.name": NODE,
        "k8s.deployment.name": "web",
        "k8s.replicaset.name": "web-7d4b9c",
        "k8s.pod.label.app.kubernetes.io/name": "front",
        "k8s.pod.annotation.team": "red",
        "container.id": web.ids["app"],
        "container.image.name": "registry.example/app",
        "service.name": "front",
        "service.namespace": "shop",
        "service.version": "3.1",
        "service.instance.id": "shop.web-7d4b9c-x2z.app",
        "flameherd.policy": "shop/web",
    }
    assert {key: found.get(key) for key in expected} == expected
    eventually(
        lambda: world.agent.status()["counters"]["UNSELECTED"] - before["UNSELECTED"] >= 1000,
        "ticks of others were seen",
    )
    assert set(world.sink.by_pod()) == {web.name}, "and of no other"
    # What was unwound is what the one policy sampled: nothing of the others.
    counters = world.agent.status()["counters"]
    taken = world.samples("shop/web")
    assert counters["SAMPLES"] - before["SAMPLES"] >= taken > 0
    assert {other.name, bank.name}.isdisjoint(world.sink.by_pod())


def test_two_policies_at_their_own_rates_tell_true_cpu_seconds(
    world: World, one_node: Node
) -> None:
    """From each container's first moment on: a policy that waits for it has it within that."""
    world.policy(SHOP, "p", {"app": "a"}, 97)
    world.policy(BANK, "p", {"app": "a"}, 23)
    shop = one_node.pod("shop-1", labels={"app": "a"})
    bank = one_node.pod("bank-1", "bank", labels={"app": "a"})
    eventually(lambda: len(world.agent.policies()) == 2, "both have pods here")
    programs = [(pod, one_node.run(pod.container("app"))) for pod in (shop, bank)]
    for pod, _ in programs:
        pod.tell()
    eventually(lambda: all(p.cpu_seconds() > 5 for _, p in programs), "CPU time", 300)
    spent = [(pod, program.cpu_seconds()) for pod, program in programs]
    for _, program in programs:
        program.process.kill()
    for pod, seconds in spent:
        assert world.told(pod, least=0.8 * seconds) < 1.3 * seconds, "some ran on a little"
    periods = {dict(sample[0])["k8s.pod.name"]: sample[2][4] for sample in world.sink.samples()}
    assert periods == {"shop-1": round(1e9 / 97), "bank-1": round(1e9 / 23)}


def test_labels_policies_and_pods_change_without_a_restart(world: World, one_node: Node) -> None:
    pod = one_node.busy_pod("web-1", labels={"app": "web"})
    idle = world.agent.perf_events()
    assert idle == 0, "nothing is selected: no perf event"
    path = world.policy(SHOP, "p", {"app": "web"}, 97)
    world.profiled(pod)
    assert world.agent.perf_events() > 0
    pod.label(app="api")
    eventually(lambda: not world.agent.policies(), "the label is another")
    eventually(lambda: world.agent.perf_events() == 0, "idle again")
    pod.label(app="web")
    world.profiled(pod)
    world.api.merge(path, {"spec": {"suspend": True}})
    eventually(lambda: not world.agent.policies(), "suspended")
    world.api.merge(path, {"spec": {"suspend": False, "cpu": {"frequencyHz": 49}}})
    world.profiled(pod)
    assert world.agent.policies()["shop/p"]["frequencyHz"] == 49
    late = one_node.busy_pod("web-2", labels={"app": "web"})
    world.profiled(late)
    late.delete()
    eventually(
        lambda: world.agent.status()["cluster"]["coverage"]["shop/p"]["pods_matched"] == 1,
        "a pod that was deleted leaves",
    )
    world.not_profiled(late)
    world.api.delete(path)
    eventually(lambda: world.agent.perf_events() == 0, "the last policy is gone")
    assert world.agent.ready()


def test_a_container_is_sampled_before_the_api_server_names_it(
    world: World, one_node: Node
) -> None:
    world.policy(SHOP, "p", {"app": "web"}, 97)
    pod = one_node.pod("web-1", labels={"app": "web"}, containers=("app", "side"))
    one_node.run(pod.container("app"))
    eventually(lambda: world.samples("shop/p") >= 5, "sampled without a status")
    pod.tell()
    assert world.profiled(pod)["k8s.container.name"] == "app"
    # Not in the status: an ephemeral container, or what `kubectl exec` starts in a cgroup below.
    one_node.run(pod.container("debug"))
    world.sink.clear()

    def unnamed() -> bool:
        return any("k8s.container.name" not in each for each in world.resources(pod))

    eventually(unnamed, "sent without the name, after an interval's wait")
    assert "flameherd_samples_pod_unknown_total" in world.agent.get("/metrics")
    unknown = world.agent.metrics()["flameherd_samples_pod_unknown_total",]
    assert unknown > 0
    pod.tell(kind="ephemeralContainerStatuses")
    child = one_node.make(f"{pod.cgroup}/{pod.ids['app']}/inner")
    one_node.run(child)
    eventually(
        lambda: world.agent.status()["cluster"]["coverage"]["shop/p"]["containers_profiled"] == 2,
        "both are named now",
    )


def test_containers_are_chosen_by_name_once_it_is_known(world: World, one_node: Node) -> None:
    world.policy(SHOP, "web-only", {"app": "web"}, 97, containerNames=["app"], priority=5)
    world.policy(SHOP, "rest", {"app": "web"}, 49)
    pod = one_node.pod("web-1", labels={"app": "web"}, containers=("app", "side"))
    one_node.run(pod.container("app"))
    one_node.run(pod.container("side"))
    coverage = eventually(
        lambda: world.agent.status()["cluster"]["coverage"].get("shop/rest"), "both match"
    )
    assert coverage["containers_matched"] == 0, "no name is known yet"
    seen = world.agent.status()["ticks"]["seen"]
    eventually(lambda: world.agent.status()["ticks"]["seen"] - seen > 300, "ticks go on")
    assert not world.resources(pod), "nobody's"
    assert world.samples("shop/rest") == world.samples("shop/web-only") == 0
    pod.tell()

    def names() -> dict[Any, set[Any]]:
        found: dict[Any, set[Any]] = {}
        for resource in world.resources(pod):
            names = found.setdefault(resource["flameherd.policy"], set())
            names.add(resource.get("k8s.container.name"))
        return found

    eventually(lambda: len(names()) == 2, "profiles of both")
    assert names() == {"shop/web-only": {"app"}, "shop/rest": {"side"}}
    coverage = world.agent.status()["cluster"]["coverage"]
    assert coverage["shop/rest"]["containers_overlapped"] == 1
    assert coverage["shop/web-only"]["containers_profiled"] == 1


def unified() -> tuple[Path, Path]:
    """Where cgroup v1 with the pids controller is mounted, and where v2 is."""
    mounts = list(parse_mountinfo(Path("/proc/self/mountinfo").read_text()))
    v1 = [Path(m.point) for m in mounts if m.kind == "cgroup" and "pids" in m.options]
    v2 = [Path(m.point) for m in mounts if m.kind == "cgroup2"]
    if not v1:
        pytest.skip("cgroup v2 is all there is here: every other test runs on it")
    if not v2:
        pytest.skip("needs a cgroup2 mount beside v1")
    return v1[0], v2[0]


def test_on_the_unified_hierarchy(world: World, api: Api, tmp_path: Path) -> None:
    """An agent that sees no cgroup v1. The other one runs on: to it, these processes are the node's."""
    v1, v2 = unified()
    shutil.copytree(world.agent.config.parent / "cache", tmp_path / "cache")
    without = ("unshare", "--mount", "sh", "-c", 'umount -l "$0" && exec "$@"', str(v1))
    with node(api, systemd=True, mount=v2) as on_v2:
        agent = ClusterAgent(tmp_path, world.plane, tmp_path / "cache", through=without)
        try:
            pod = on_v2.busy_pod("web-1", labels={"app": "web"})
            inner = on_v2.make(f"{pod.cgroup}/cri-containerd-{pod.ids['app']}.scope/inner")
            on_v2.run(inner)
            world.policy(SHOP, "p", {"app": "web"}, 97)
            found = world.profiled(pod)
            assert found["k8s.container.name"] == "app"
            assert found["container.id"] == pod.ids["app"]
            assert agent.policies()["shop/p"]["samples"] > 0
        finally:
            agent.process.kill()
            agent.process.wait(60)


def test_a_static_pod_is_known_by_its_hash(world: World, any_node: Node) -> None:
    pod = any_node.pod(
        "etcd-node-1", labels={"tier": "x"}, config_hash=STATIC, qos="besteffort", cgroup=True
    )
    any_node.run(pod.container("app"))
    pod.tell()
    world.policy(SHOP, "static", {"tier": "x"}, 97)
    assert world.profiled(pod)["k8s.pod.uid"] == pod.uid


def test_expressions_select_as_the_api_server_does(world: World, one_node: Node) -> None:
    """The API server itself is asked which of the pods a selector selects."""
    pods = {
        name: one_node.pod(name, labels=labels, cgroup=False)
        for name, labels in {
            "none": {},
            "web": {"app": "web"},
            "api": {"app": "api", "tier": ""},
            "old": {"app": "web", "tier": "old"},
        }.items()
    }
    cases = {
        "in": ("app in (web,api)", {"key": "app", "operator": "In", "values": ["web", "api"]}),
        "not-in": ("app notin (web)", {"key": "app", "operator": "NotIn", "values": ["web"]}),
        "there": ("tier", {"key": "tier", "operator": "Exists"}),
        "absent": ("!tier", {"key": "tier", "operator": "DoesNotExist"}),
        "empty": ("tier in ()", {"key": "tier", "operator": "In", "values": [""]}),
    }
    for name, (_, expression) in cases.items():
        world.policy(SHOP, name, {}, 19, podSelector={"matchExpressions": [expression]})
    expected = {
        f"shop/{name}": len(world.api.items("/api/v1/namespaces/shop/pods", labelSelector=text))
        for name, (text, _) in cases.items()
    }
    assert set(expected.values()) - {0, len(pods)}, "the cases tell pods apart"

    def matched() -> dict[str, int]:
        coverage = world.agent.status()["cluster"]["coverage"]
        return {name: coverage.get(name, {}).get("pods_matched", 0) for name in expected}

    eventually(lambda: matched() == expected, f"{matched()} is {expected}")


def test_the_api_server_goes_away_and_comes_back(
    world: World, one_node: Node, control_plane: ControlPlane
) -> None:
    pod = one_node.busy_pod("web-1", labels={"app": "web"})
    world.policy(SHOP, "p", {"app": "web"}, 97)
    world.profiled(pod)
    control_plane.stop_apiserver()
    try:
        eventually(lambda: world.agent.status()["cluster"]["apiError"], "it is noticed")
        world.profiled(pod)
        assert world.agent.ready(), "what is known is carried out"
        one_node.run(pod.container("again"))  # a container that starts meanwhile
        again = pod.ids["again"]
        world.sink.clear()
        eventually(
            lambda: again in {each["container.id"] for each in world.resources(pod)},
            "a new container of a known pod",
        )
    finally:
        control_plane.start_apiserver()
    world.agent.renew_token()
    late = one_node.busy_pod("web-2", labels={"app": "web"})
    world.profiled(late)
    eventually(lambda: not world.agent.status()["cluster"]["apiError"], "all is well again")


def test_a_nodes_own_processes_and_pods_that_nobody_told_of(
    world: World, one_node: Node, tmp_path: Path
) -> None:
    # Every program of this machine is sampled, and intervals wait for the names of all of them.
    patience_s = 400.0
    own = tmp_path / f"tool-{uuid.uuid4()}"
    shutil.copy2(build("pie"), own)
    one_node.run(one_node.make("/system.slice/tool.service"), own)
    told = one_node.busy_pod("web-1", labels={"app": "web"})
    uid, container = str(uuid.uuid4()), "f" * 64
    one_node.run(one_node.make(f"/kubepods/burstable/pod{uid}/{container}"))
    spec = {"host": {"cpu": {"frequencyHz": 49}}, "defaults": {"export": world.export}}
    world.api.create(CLUSTERS, object_of("ClusterProfilingPolicy", spec, "host"))
    try:
        found = world.profiled(told, patience_s)
        assert found["flameherd.policy"] == "host"
        assert found["k8s.container.name"] == "app"

        def seen() -> dict[Any, Resource]:
            resources = [dict(sample[0]) for sample in world.sink.samples()]
            return {r.get("container.id") or r["process.executable.name"]: r for r in resources}

        eventually(lambda: {container, own.name} <= set(seen()), "both", patience_s)
        unknown = seen()[container]
        assert unknown["k8s.pod.uid"] == uid
        assert "k8s.pod.name" not in unknown
        assert unknown["k8s.node.name"] == NODE
        assert seen()[own.name]["k8s.node.name"] == NODE
        # A policy of its own takes the pod from the node's.
        world.policy(SHOP, "p", {"app": "web"}, 97)
        eventually(
            lambda: world.profiled(told, patience_s)["flameherd.policy"] == "shop/p",
            "the pod's policy",
            patience_s,
        )
    finally:
        world.api.delete(f"{CLUSTERS}/host")
    eventually(lambda: "host" not in world.agent.policies(), "host is off", patience_s)


def test_a_shard_that_is_spoiled_or_deleted_by_hand(world: World, one_node: Node) -> None:
    pod = one_node.busy_pod("web-1", labels={"app": "web"})
    world.policy(SHOP, "p", {"app": "web"}, 97)
    world.profiled(pod)
    world.operator.stop(signal.SIGKILL)
    shard = f"/api/v1/namespaces/{AGENTS}/configmaps/{shard_of('shop')}"
    try:
        world.api.merge(shard, {"binaryData": {"config.json.z": "AAAA"}})
        eventually(lambda: "zlib" in world.agent.status()["configError"], "it says so")
        world.profiled(pod)
        world.api.delete(shard)
        world.profiled(pod)
    finally:
        world.operator.start()
    eventually(lambda: not world.agent.status()["configError"], "the operator has mended it")
    world.profiled(pod)


def test_what_was_taken_is_sent_at_the_end_and_the_next_agent_waits(
    world: World, one_node: Node, tmp_path: Path
) -> None:
    pod = one_node.pod("web-1", labels={"app": "web"})
    program = one_node.run(pod.container("app"))
    pod.tell()
    slow = world.export | {"interval": "10s"}
    world.policy(SHOP, "p", {"app": "web"}, 97, export=slow)
    first = world.agent
    shutil.copytree(first.config.parent / "cache", tmp_path / "cache")
    at_the_end: list[Resource] = []

    def in_mid_interval() -> bool:
        """Something has been taken since the last export, and not been sent."""
        world.profiled(pod)
        time.sleep(1)
        world.sink.clear()
        spent = program.cpu_seconds()
        eventually(lambda: program.cpu_seconds() - spent > 0.3, "CPU time")
        return not world.resources(pod)

    def hand_over() -> None:
        log = tmp_path / "agent.log"
        eventually(lambda: log.exists() and "waiting for the other" in log.read_text(), "it waits")
        eventually(in_mid_interval, "something to send")
        first.process.send_signal(signal.SIGTERM)
        first.process.wait(60)
        at_the_end.extend(world.resources(pod))

    thread = threading.Thread(target=hand_over)
    thread.start()
    lock = first.config.parent / "agent.lock"
    world.agent = ClusterAgent(tmp_path, world.plane, tmp_path / "cache", lock=lock)
    thread.join()
    assert first.process.returncode == 0
    assert at_the_end, "what was taken was sent"
    eventually(world.agent.ready, "the next one is ready")
    world.profiled(pod)


def test_what_it_asked_for(world: World, control_plane: ControlPlane) -> None:
    """By the audit log of the whole module: pods of its node, shards by name, nothing else."""
    asked: set[tuple[str, str]] = set()
    answered: set[tuple[str, str]] = set()
    for line in control_plane.audit_log.read_text().splitlines():
        event: Json = json.loads(line)
        if event["user"]["username"] != AGENT_ACCOUNT or event["stage"] != "ResponseComplete":
            continue
        reference = event["objectRef"]
        target = event["requestURI"]
        if reference["resource"] == "pods":
            assert f"fieldSelector=spec.nodeName%3D{NODE}" in target
        else:
            assert reference["resource"] == "configmaps"
            assert f"fieldSelector=metadata.name%3D{reference['name']}" in target
            assert reference["namespace"] == AGENTS
        asked.add((event["verb"], reference["resource"]))
        # An API server that has just begun does not know of rights yet.
        if event["responseStatus"]["code"] == 200:
            answered.add((event["verb"], reference["resource"]))
    assert asked == answered
    assert asked == {(verb, kind) for verb in ("list", "watch") for kind in ("pods", "configmaps")}
