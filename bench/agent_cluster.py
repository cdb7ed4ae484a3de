"""What the cluster's side costs an agent: `python -m bench.agent_cluster`.

A real API server with a full node (110 pods) in a cluster of 1,000 policies in 50 namespaces, of
which ten have pods here. In a process of its own: imports, the first sync, an edit, a pod that
changes, and how soon a container's cgroup has its slot.
"""

import json
import resource
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from flameherd_operator.ceilings import BUILT_IN
from flameherd_operator.render.shards import shards
from flameherd_operator.render.slots import Slot
from flameherd_policy.agent_config import AgentEndpoint, PolicySlot, SlotSelector
from flameherd_policy.selectors import LabelSelector

from tests.cluster.api import Api
from tests.cluster.build import kubernetes_binary
from tests.cluster.control_plane import ControlPlane
from tests.cluster.operating import AGENTS

NODE = "bench-node"
POLICIES, NAMESPACES, HERE, PODS = 1000, 50, 10, 110
CONTAINERS = 50


def slot(number: int) -> Slot:
    namespace = f"team-{number % NAMESPACES:02d}"
    selector = LabelSelector(match_labels={"app": f"app-{number // NAMESPACES}"})
    policy = PolicySlot(
        name=f"{namespace}/p{number}",
        selector=SlotSelector(namespace=namespace, pod_selector=selector),
        frequency_hz=19,
        endpoint=f"{namespace}/p{number}",
    )
    endpoint = AgentEndpoint(endpoint="http://collector.obs.svc:4317")
    return Slot(slot=policy, namespace=namespace, endpoint=endpoint, files={}, ceilings=BUILT_IN)


def apply_shards(api: Api, slots: list[Slot]) -> None:
    for name, body in shards(slots).bodies.items():
        made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, **body}
        api.apply(f"/api/v1/namespaces/{AGENTS}/configmaps/{name}", made)


def fill(api: Api) -> None:
    api.namespace(AGENTS)
    for number in range(HERE):
        name = f"team-{number:02d}"
        api.namespace(name)
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        api.apply(f"/api/v1/namespaces/{name}/serviceaccounts/default", account)
    for number in range(PODS):
        namespace = f"team-{number % HERE:02d}"
        metadata = {
            "name": f"pod-{number}",
            "labels": {"app": f"app-{number % 20}", "pod-template-hash": "7d4b9c"},
            "annotations": {"checksum/config": "0" * 64, "note": "x" * 500},
        }
        environment = [{"name": f"NAME_{n}", "value": "x" * 40} for n in range(30)]
        container = {"name": "app", "image": "registry.example/app:1", "env": environment}
        spec = {"nodeName": NODE, "containers": [container]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        api.create(f"/api/v1/namespaces/{namespace}/pods", body)
    apply_shards(api, [slot(number) for number in range(POLICIES)])


def rss_kb() -> int:
    text = Path("/proc/self/smaps_rollup").read_text()
    return int(text.split("Rss:")[1].split()[0])


def child(url: str, folder: str, mount: str) -> None:
    """In a process of its own, with what an agent has loaded anyhow. Prints JSON."""
    import flameherd_agent.service  # noqa: F401 an agent has it
    from flameherd_agent.metadata.hierarchy import PidsHierarchy

    def cpu_s() -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    before, began = rss_kb(), cpu_s()
    from flameherd_agent.cluster.account import Account
    from flameherd_agent.cluster.node import NodeView

    found = {"imports_mb": (rss_kb() - before) / 1024, "imports_cpu_s": cpu_s() - began}
    host, port = url.removeprefix("https://").split(":")
    began = cpu_s()
    view = NodeView(
        Account(host, int(port), Path(folder), NODE, AGENTS), PidsHierarchy(Path(mount), version=2)
    )
    view.start()

    def until(done: Callable[[], bool]) -> None:
        while not done():
            select.select(view.fds, [], [], 0.25)
            view.refresh()

    until(lambda: view.synced)
    found |= {"sync_cpu_s": cpu_s() - began, "with_sync_mb": (rss_kb() - before) / 1024}
    found["policies_here"] = len(view.config.policies)
    began = cpu_s()
    time.sleep(20)
    view.refresh()
    found["quiet_cpu_ms_per_min"] = 3000 * (cpu_s() - began)
    for what in ("edit", "pod"):
        sys.stdout.write(f"{what}\n")
        sys.stdout.flush()
        began = cpu_s()
        known = view.versions(), view.config

        def changed(known: tuple[object, object] = known) -> bool:
            return (view.versions(), view.config) != known

        until(changed)
        found[f"{what}_cpu_ms"] = 1000 * (cpu_s() - began)
    delays = []
    uids = [pod.uid for pod in view._pods.values()][:CONTAINERS]
    for uid in uids:
        made = Path(mount, f"kubepods/burstable/pod{uid}")
        started = time.perf_counter()
        made.mkdir(parents=True)
        number = made.stat().st_ino

        def has_its_slot(number: int = number) -> bool:
            return number in view.cgroups

        until(has_its_slot)
        delays.append(time.perf_counter() - started)
    found["cgroup_to_slot_ms"] = 1000 * sorted(delays)[len(delays) // 2]
    found["cgroup_to_slot_worst_ms"] = 1000 * max(delays)
    found["at_the_end_mb"] = (rss_kb() - before) / 1024
    view.close()
    sys.stdout.write(json.dumps(found) + "\n")


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        plane = ControlPlane(kubernetes_binary(), Path(scratch))
        plane.start()
        try:
            api = plane.admin
            fill(api)
            account, mount = Path(scratch, "account"), Path(scratch, "cgroup")
            account.mkdir()
            mount.mkdir()
            (account / "ca.crt").write_bytes(api.ca.read_bytes())
            (account / "token").write_text(plane.token)
            command = [
                sys.executable,
                "-m",
                "bench.agent_cluster",
                plane.url,
                str(account),
                str(mount),
            ]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    if line.startswith("edit"):
                        apply_shards(api, [slot(number) for number in range(POLICIES - 1)])
                    elif line.startswith("pod"):
                        labels = {"metadata": {"labels": {"app": "app-0"}}}
                        api.merge("/api/v1/namespaces/team-01/pods/pod-1", labels)
                    else:
                        for name, value in json.loads(line).items():
                            print(f"{name:24} {value:10.2f}")
        finally:
            plane.stop()


if __name__ == "__main__":
    if len(sys.argv) == 4:
        child(*sys.argv[1:])
    else:
        main()
