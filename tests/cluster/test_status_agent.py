"""The whole way: real programs in a pod's cgroup → the real agent → the real operator → `status`.

Only the kubelet is played by the test, and the cluster's DNS by a hosts file of the agent's own.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from flameherd_operator.settings import STATUS_TRUST, TRUST_KEY

from tests.cluster.agent_node import NODE, ClusterAgent, Node, node
from tests.cluster.api import GROUP, Api, Json, eventually
from tests.cluster.control_plane import ControlPlane
from tests.cluster.objects import PATHS, object_of
from tests.cluster.operating import AGENTS, Operator, grant
from tests.cluster.reporting import HOST, PODS, make_agent, make_service, token_for
from tests.cluster.sink import sink
from tests.collector.collector import free_port

SHOP = f"{GROUP}/namespaces/shop/profilingpolicies"
CLUSTERS = PATHS["ClusterProfilingPolicy"]


class ReportingAgent(ClusterAgent):
    """With the DaemonSet's option, token and certificates for reports."""

    def __init__(self, folder: Path, plane: ControlPlane, port: int) -> None:
        api = plane.admin
        self._port = port
        self._folder = folder
        self._status = folder / "status"
        self._status.mkdir()
        path = f"/api/v1/namespaces/{AGENTS}/configmaps/{STATUS_TRUST}"
        trust = eventually(lambda: api.find(path), "the operator's certificate")
        assert trust is not None
        (self._status / "ca.crt").write_text(trust["data"][TRUST_KEY])
        (self._status / "token").write_text(token_for(api, make_agent(api, NODE)))
        (folder / "hosts").write_text(f"127.0.0.1 localhost {HOST}\n")
        super().__init__(folder, plane, folder / "cache")

    def arguments(self) -> list[str]:
        hosts = 'mount --bind "$0" /etc/hosts && exec "$@"'
        return [
            *("unshare", "--mount", "--propagation", "private"),
            *("sh", "-c", hosts, str(self._folder / "hosts"), *super().arguments()),
            *("--status-url", f"https://{HOST}:{self._port}"),
            *("--status-folder", str(self._status)),
        ]


class World:
    """An operator, an endpoint, a node with an agent that reports."""

    def __init__(self, operator: Operator, agent: ReportingAgent, made: Node, dead: str) -> None:
        self.operator, self.agent, self.node, self.dead = operator, agent, made, dead
        self.api = operator.api

    def policy(self, name: str, app: str, **spec: object) -> str:
        """Apply a policy; its path."""
        whole = {"podSelector": {"matchLabels": {"app": app}}, "cpu": {"frequencyHz": 997}} | spec
        self.api.create(SHOP, object_of("ProfilingPolicy", whole, name))
        return f"{SHOP}/{name}"

    def status(self, path: str) -> Json:
        found: Json = self.api.get(path)["status"]
        return found


@pytest.fixture(scope="module")
def world(
    api: Api, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    api.apply("/api/v1/namespaces/shop/serviceaccounts/default", account)
    grant(api)
    make_service(api)
    # No kubelet here: how many nodes a DaemonSet is on is what other tests have written into its status.
    api.delete(f"/apis/apps/v1/namespaces/{AGENTS}/daemonsets")
    port = free_port()
    operator = Operator(
        control_plane, tmp_path_factory.mktemp("operator"), "--status-listen", f"127.0.0.1:{port}"
    )
    operator.start()
    try:
        with sink() as endpoint, node(api) as made:
            host, good = endpoint.url.removeprefix("http://").split(":")
            away = free_port()
            rules = [{"scheme": "http", "host": host, "port": each} for each in (int(good), away)]
            export = {"endpoint": endpoint.url, "protocol": "HTTP", "interval": "1s"}
            limits = {"endpoints": rules, "frequencyHz": {"max": 997}}
            spec = {"limits": limits, "defaults": {"export": export}}
            api.create(CLUSTERS, object_of("ClusterProfilingPolicy", spec, "all"))
            agent = ReportingAgent(tmp_path_factory.mktemp("agent"), control_plane, port)
            try:
                yield World(operator, agent, made, f"http://{host}:{away}")
            finally:
                agent.process.kill()
                agent.process.wait(60)
    finally:
        for path in (f"{CLUSTERS}/all", f"/api/v1/nodes/{NODE}"):
            if api.find(path):
                api.delete(path)
        api.delete(SHOP)
        api.delete(PODS, gracePeriodSeconds="0")
        operator.stop(signal.SIGKILL)


def test_a_policys_status_is_what_its_agent_sees(world: World) -> None:
    pod = world.node.busy_pod("web", labels={"app": "web"})
    path = world.policy("web", "web", budget={"cpuPerNode": "500u"})
    wait = world.operator.waits_for
    wait(path, "Ready", "True", "Programmed")
    wait(path, "Profiling", "True", "Profiling")
    wait(path, "Exporting", "True", "Exporting")
    message = wait(path, "BudgetExceeded", "True", "RateLowered")
    assert "on 1 nodes the rate is lowered" in message
    status = world.status(path)
    assert status["effective"]["budget"] == {"cpuPerNode": "500u"}
    assert status["nodes"] == {"desired": 1, "programmed": 1}
    assert status["pods"] == {"matched": 1, "profiled": 1}
    assert status["containers"] == {"matched": 1, "profiled": 1, "overlapped": 0}
    assert status["cost"]["samplesPerMinute"] > 0
    assert status["cost"]["cpuPerNodeMax"] != "0u"
    assert status["worstNodes"][0]["name"] == NODE

    # Another policy on the same pod has nothing to sample.
    other = world.policy("younger", "web", priority=-1)
    wait(other, "Overlapped", "True", "Overlapped")
    wait(other, "Profiling", "False", "Overlapped")

    # The pod's label changes: nothing is matched any more.
    pod.label(app="else")
    wait(path, "Profiling", "False", "NothingMatched")
    wait(other, "Overlapped", "False", "NotOverlapped")
    assert world.agent.process.poll() is None


def test_an_endpoint_that_is_away_is_told_with_its_node(world: World) -> None:
    world.node.busy_pod("lost", labels={"app": "lost"})
    path = world.policy("lost", "lost", export={"endpoint": world.dead, "protocol": "HTTP"})
    message = world.operator.waits_for(path, "Exporting", "False", "ExportFailing")
    assert message.startswith("sending fails on 1 nodes; node-1: ")
    assert "refused" in message
    assert world.operator.conditions(path)["Profiling"] == ("True", "Profiling")
    worst = world.status(path)["worstNodes"]
    assert (worst[0]["name"], worst[0]["reason"]) == (NODE, "ExportFailing")


def test_reports_are_counted_and_an_operator_that_is_away_harms_nothing(world: World) -> None:
    def reports(outcome: str) -> float:
        return world.agent.metrics().get(("flameherd_status_reports_total", outcome), 0)

    assert reports("taken") >= 1
    path = f"{SHOP}/web"
    world.operator.waits_for(path, "Profiling", "False", "NothingMatched")
    world.operator.stop(signal.SIGKILL)
    before = world.agent.samples()
    world.node.busy_pod("meanwhile", labels={"app": "web"})
    eventually(lambda: reports("failed") >= 1, "a report that nobody takes")
    eventually(lambda: world.agent.samples() > before, "samples without an operator")
    world.operator.start()
    # What happened meanwhile is told.
    world.operator.waits_for(path, "Profiling", "True", "Profiling")
    assert world.status(path)["pods"] == {"matched": 1, "profiled": 1}
