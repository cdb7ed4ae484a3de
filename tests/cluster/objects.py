"""Objects with every field set, and ways to spoil them."""

import copy
import re
from typing import Any

from tests.cluster.api import GROUP, Json

FULL_EXPORT: Json = {
    "endpoint": "https://collector.obs.svc:4317",
    "protocol": "GRPC",
    "compression": "Gzip",
    "interval": "10s",
    "headersSecretRef": {"name": "token"},
    "tls": {
        "caSecretRef": {"name": "ca", "key": "ca.crt"},
        "clientCertSecretRef": {"name": "client"},
        "insecureSkipVerify": False,
    },
}
FULL_SELECTOR: Json = {
    "matchLabels": {"app.kubernetes.io/name": "checkout"},
    "matchExpressions": [{"key": "tier", "operator": "In", "values": ["web", "worker"]}],
}
FULL: dict[str, Json] = {
    "ProfilingPolicy": {
        "podSelector": FULL_SELECTOR,
        "priority": 5,
        "suspend": False,
        "containerNames": ["web"],
        "cpu": {"frequencyHz": 49},
        "budget": {"cpuPerNode": "5m"},
        "attributes": {
            "podLabels": ["app.kubernetes.io/version"],
            "podAnnotations": ["team"],
            "env": ["REGION"],
            "static": {"team.name": "payments"},
        },
        "export": FULL_EXPORT,
    },
    "ClusterProfilingPolicy": {
        "priority": 1,
        "namespaceSelector": FULL_SELECTOR,
        "defaults": {"cpu": {"frequencyHz": 19}, "export": FULL_EXPORT},
        "host": {"cpu": {"frequencyHz": 19}},
        "limits": {
            "frequencyHz": {"max": 97},
            "budget": {"maxCPUPerNode": "50m"},
            "endpoints": [{"scheme": "https", "host": "*.obs.svc", "port": 4317}],
            "envNames": ["REGION"],
        },
    },
    "AgentPool": {
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [
            {
                "key": "dedicated",
                "operator": "Equal",
                "value": "batch",
                "effect": "NoExecute",
                "tolerationSeconds": 60,
            }
        ],
        "resources": {
            "requests": {"cpu": "20m", "memory": "96Mi"},
            "limits": {"cpu": 1, "memory": "256Mi"},
        },
        "priorityClassName": "system-node-critical",
        "image": "registry.example/flameherd-agent:1",
        "updateStrategy": {"maxUnavailable": "10%"},
        "whenIdle": "Keep",
    },
}
PATHS = {
    "ProfilingPolicy": f"{GROUP}/namespaces/shop/profilingpolicies",
    "ClusterProfilingPolicy": f"{GROUP}/clusterprofilingpolicies",
    "AgentPool": f"{GROUP}/agentpools",
}


def object_of(kind: str, spec: Json, name: str = "x", namespace: str = "shop") -> Json:
    """A whole object."""
    meta: Json = {"name": name}
    if kind == "ProfilingPolicy":
        meta["namespace"] = namespace
    return {
        "apiVersion": "flameherd.dev/v1alpha1",
        "kind": kind,
        "metadata": meta,
        "spec": copy.deepcopy(spec),
    }


def spoiled(kind: str, path: str, bad: Any) -> Json:
    """The full object with `bad` at `path`, which is as `rules_of` names it: `[]` and `{}` stand
    for the first entry. A dict is merged into what is there; None takes a field away.
    """
    made = object_of(kind, FULL[kind])
    if path == ".":
        return _merged(made, bad)
    steps: list[Any] = re.findall(r"\w+|\[\]|\{\}", path)
    node: Any = made
    for index, step in enumerate(steps):
        key = 0 if step == "[]" else next(iter(node)) if step == "{}" else step
        if index == len(steps) - 1:
            node[key] = _merged(node[key], bad) if isinstance(bad, dict) else bad
        node = node[key]
    return made


def _merged(old: Json, changes: Json) -> Json:
    merged = copy.deepcopy(old)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merged(merged[key], value)
        else:
            merged[key] = value
    return merged
