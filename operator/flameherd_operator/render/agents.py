"""AgentPools → DaemonSets. Pure.

One agent per node: pools that select the same node are in conflict, and the younger one is not
rolled out. A policy never changes a DaemonSet: only pools roll.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from flameherd_policy.pools import AgentPool, AgentPoolSpec, Toleration
from flameherd_policy.report import AUDIENCE

from flameherd_operator.observed import Pool
from flameherd_operator.settings import (
    EXPORT_PATH,
    EXPORT_SECRET,
    STATUS_PATH,
    STATUS_TRUST,
    TRUST_KEY,
    Settings,
)

CAPABILITIES: Final = (
    "BPF",
    "PERFMON",
    "SYS_PTRACE",
    "SYSLOG",
    "DAC_READ_SEARCH",
    "CHECKPOINT_RESTORE",
)
"""What each serves is a table in docs/security.md."""
PORT: Final = 4041

Spec = dict[str, Any]


def daemonset_name(pool: str) -> str:
    return f"flameherd-agent-{pool}"


def conflicts(
    pools: Sequence[Pool], nodes: Sequence[Mapping[str, str]] | None
) -> dict[str, tuple[str, int]]:
    """uid of each pool that must wait → (the older pool, on how many nodes both are)."""
    found: dict[str, tuple[str, int]] = {}
    rolled_out: list[Pool] = []
    for pool in sorted(pools, key=lambda seen: (seen.created, seen.name)):
        if pool.value is None:
            continue
        for older in rolled_out:
            assert older.value is not None
            shared = sum(
                _selects(pool.value, labels) and _selects(older.value, labels)
                for labels in nodes or ()
            )
            if shared:
                found[pool.uid] = (older.name, shared)
                break
        else:
            rolled_out.append(pool)
    return found


def _selects(pool: AgentPool, labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in pool.spec.node_selector.items())


def daemonset_body(pool: Pool, settings: Settings, labels: Mapping[str, str]) -> Spec:
    """The body of a pool's DaemonSet, without metadata that all objects share."""
    assert pool.value is not None
    spec = pool.value.spec
    match = {"app.kubernetes.io/name": "flameherd-agent", "flameherd.dev/pool": pool.name}
    return {
        "spec": {
            "selector": {"matchLabels": match},
            "updateStrategy": {
                "type": "RollingUpdate",
                # No surge: two agents on one node would fight for the host lock.
                "rollingUpdate": {
                    "maxUnavailable": _int_or_text(spec.update_strategy.max_unavailable),
                    "maxSurge": 0,
                },
            },
            "template": {
                "metadata": {"labels": {**labels, **match}},
                "spec": _pod(spec, settings),
            },
        }
    }


def _int_or_text(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def _pod(spec: AgentPoolSpec, settings: Settings) -> Spec:
    pod: Spec = {
        "serviceAccountName": settings.service_account,
        "hostPID": True,
        "terminationGracePeriodSeconds": 30,
        "containers": [_container(spec, settings)],
        "volumes": [
            # A container's own mount shows its own part only.
            {"name": "cgroup", "hostPath": {"path": "/sys/fs/cgroup", "type": "Directory"}},
            {"name": "lock", "hostPath": {"path": "/run/flameherd", "type": "DirectoryOrCreate"}},
            {"name": "cache", "emptyDir": {"sizeLimit": "1Gi"}},
            {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
            # Optional: the agent starts before there is a credential.
            {"name": "export", "secret": {"secretName": EXPORT_SECRET, "optional": True}},
        ],
    }
    if settings.status_host:
        pod["volumes"].append(_status_volume())
    if spec.node_selector:
        pod["nodeSelector"] = dict(spec.node_selector)
    if spec.tolerations:
        pod["tolerations"] = [_toleration(toleration) for toleration in spec.tolerations]
    if spec.priority_class_name:
        pod["priorityClassName"] = spec.priority_class_name
    if settings.pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in settings.pull_secrets]
    return pod


def _status_volume() -> Spec:
    """What an agent reports with: its token, and what it trusts."""
    token = {"audience": AUDIENCE, "expirationSeconds": 3600, "path": "token"}
    trust = {
        "name": STATUS_TRUST,
        "items": [{"key": TRUST_KEY, "path": TRUST_KEY}],
        "optional": True,
    }
    sources = [{"serviceAccountToken": token}, {"configMap": trust}]
    return {"name": "status", "projected": {"sources": sources}}


def _container(spec: AgentPoolSpec, settings: Settings) -> Spec:
    reports = bool(settings.status_host)
    status = ["--status-url", f"https://{settings.status_names[0]}"] if reports else []

    def field(path: str) -> Spec:
        return {"valueFrom": {"fieldRef": {"fieldPath": path}}}

    return {
        "name": "agent",
        "image": spec.image or settings.image,
        "imagePullPolicy": "IfNotPresent",
        "args": ["agent", "--cluster", "--listen", f"0.0.0.0:{PORT}", *status],
        "env": [
            {"name": "FLAMEHERD_NODE", **field("spec.nodeName")},
            {"name": "FLAMEHERD_NAMESPACE", **field("metadata.namespace")},
            {"name": "FLAMEHERD_POD", **field("metadata.name")},
            *(
                [{"name": "FLAMEHERD_CLUSTER", "value": settings.cluster_name}]
                if settings.cluster_name
                else []
            ),
        ],
        "ports": [{"name": "metrics", "containerPort": PORT, "protocol": "TCP"}],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": PORT}, "periodSeconds": 5},
        "resources": _resources(spec),
        "securityContext": _security(settings),
        "volumeMounts": [
            {"name": "cgroup", "mountPath": "/sys/fs/cgroup", "readOnly": True},
            {"name": "lock", "mountPath": "/run/flameherd"},
            {"name": "cache", "mountPath": "/var/cache/flameherd"},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 the pod's own
            {"name": "export", "mountPath": EXPORT_PATH, "readOnly": True},
            *([{"name": "status", "mountPath": STATUS_PATH, "readOnly": True}] if reports else []),
        ],
    }


def _security(settings: Settings) -> Spec:
    """Root without its rights, and with the few capabilities that sampling takes."""
    context: Spec = {
        "runAsUser": 0,
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": list(CAPABILITIES)},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if settings.se_linux_type:
        context["seLinuxOptions"] = {"type": settings.se_linux_type}
    kind, _, name = settings.app_armor_profile.partition("/")
    if kind:
        context["appArmorProfile"] = {"type": kind, **({"localhostProfile": name} if name else {})}
    return context


def _resources(spec: AgentPoolSpec) -> Spec:
    sides = (("requests", spec.resources.requests), ("limits", spec.resources.limits))
    return {
        side: {name: str(amount) for name, amount in amounts.items()}
        for side, amounts in sides
        if amounts
    }


def _toleration(toleration: Toleration) -> Spec:
    made: Spec = {"operator": toleration.operator.value}
    if toleration.key is not None:
        made["key"] = toleration.key
    if toleration.value is not None:
        made["value"] = toleration.value
    if toleration.effect is not None:
        made["effect"] = toleration.effect.value
    if toleration.toleration_seconds is not None:
        made["tolerationSeconds"] = toleration.toleration_seconds
    return made
