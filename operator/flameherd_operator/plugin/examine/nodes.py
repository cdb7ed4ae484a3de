"""Where an agent cannot run: facts of nodes against what the agent needs."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from flameherd_operator.plugin.cluster import Cluster
from flameherd_operator.plugin.examine import Finding, Places, ok, warn
from flameherd_operator.plugin.output import count
from flameherd_operator.plugin.reader import Json, items

OLDEST_KERNEL: Final = (5, 10)
ARCHITECTURES: Final = ("amd64",)
_SERVERLESS: Final = (
    ("eks.amazonaws.com/compute-type", "fargate", "Fargate"),
    ("type", "virtual-kubelet", "virtual nodes"),
)


def nodes(cluster: Cluster, places: Places) -> Iterator[Finding]:
    """Which nodes cannot run an agent, and why."""
    del places
    reasons: Counter[str] = Counter()
    total = 0
    for node in items(cluster.reader, "/api/v1/nodes"):
        total += 1
        reason = unfit(node)
        if reason:
            reasons[reason] += 1
    for reason, number in reasons.most_common():
        yield warn(
            f"{count(number, 'node')}: {reason}",
            "docs/install.md names what is supported; agents.pool.spec.nodeSelector leaves them out",
        )
    yield ok(f"{total - reasons.total()} of {count(total, 'node')} can run an agent")


def unfit(node: Json) -> str:
    """Why no agent can run there; "" = one can."""
    labels = node["metadata"].get("labels") or {}
    for key, value, name in _SERVERLESS:
        if labels.get(key) == value:
            return f"{name} take no DaemonSet and no host access"
    info = (node.get("status") or {}).get("nodeInfo") or {}
    if "cloud.google.com/gke-provisioning" in labels and "gk3-" in node["metadata"]["name"]:
        return "GKE Autopilot refuses hostPID, hostPath and these capabilities"
    system = info.get("operatingSystem", "linux")
    if system != "linux":
        return f"the operating system is {system}"
    architecture = info.get("architecture", ARCHITECTURES[0])
    if architecture not in ARCHITECTURES:
        return f"there is no agent for {architecture} yet"
    kernel = info.get("kernelVersion", "")
    found = re.match(r"(\d+)\.(\d+)", kernel)
    if found and (int(found[1]), int(found[2])) < OLDEST_KERNEL:
        oldest = ".".join(map(str, OLDEST_KERNEL))
        return f"kernel {kernel} is older than {oldest}"
    return ""
