"""What the operator and the agents make of it: configuration, agents, reports, backend, policies."""

import base64
import binascii
import json
import zlib
from collections.abc import Iterator
from typing import Any, Final

from flameherd_operator.errors import ApiFailure
from flameherd_operator.plugin.cluster import Cluster
from flameherd_operator.plugin.examine import Finding, Places, fail, ok, warn
from flameherd_operator.plugin.output import count
from flameherd_operator.plugin.reader import Json, items
from flameherd_operator.settings import (
    MANAGER,
    SHARD_COUNT,
    SHARD_KEY,
    STATUS_SERVICE,
    shard_name,
)

_BACKEND: Final = "flameherd-backend"
_MAX_JSON: Final = 64 << 20
_SHOWN: Final = 5


def shards(cluster: Cluster, places: Places) -> Iterator[Finding]:
    """All sixteen, readable?"""
    path = f"/api/v1/namespaces/{places.agents}/configmaps"
    found = {body["metadata"]["name"]: body for body in items(cluster.reader, path)}
    logs = f"kubectl logs -n {places.operator} deployment/{MANAGER}: it restores them"
    missing = [n for n in map(shard_name, range(SHARD_COUNT)) if n not in found]
    if missing:
        yield fail(f"{len(missing)} of {SHARD_COUNT} shards are missing: {missing[0]}, …", logs)
    policies = 0
    for name in map(shard_name, range(SHARD_COUNT)):
        if name in found:
            config = _unpack(found[name])
            if config is None:
                yield fail(f"{name} cannot be read", logs)
            else:
                policies += len(config.get("policies", ()))
    if not missing:
        yield ok(
            f"{SHARD_COUNT} shards tell agents of {count(policies, 'policy').replace('ys', 'ies')}"
        )


def _unpack(body: Json) -> Json | None:
    try:
        data = base64.b64decode(body["binaryData"][SHARD_KEY], validate=True)
        config = json.loads(zlib.decompressobj().decompress(data, _MAX_JSON))
    except (KeyError, ValueError, binascii.Error, zlib.error):
        return None
    return config if isinstance(config, dict) else None


def agents(cluster: Cluster, places: Places) -> Iterator[Finding]:
    """One on every node of every pool?"""
    pools = cluster.existing("AgentPool")
    if not pools:
        yield fail(
            "there is no AgentPool",
            "the operator makes `default`: agents.pool.create in the chart's values",
        )
    elif not sum(pool.status.nodes.desired for pool in pools if pool.status.nodes is not None):
        yield fail(
            "no node runs an agent",
            "compare nodeSelector and tolerations of the AgentPools with the nodes",
        )
    for pool in pools:
        state, message = pool.state()
        nodes = pool.status.nodes
        name = f"pool {pool.seen.name}"
        if nodes is None:
            yield warn(f"{name}: {state}", message)
        elif message:
            described = (
                f"kubectl describe pods -n {places.agents} -l flameherd.dev/pool={pool.seen.name}"
            )
            yield fail(f"{name}: {state}: {message}", described)
        elif not nodes.desired:
            yield warn(
                f"{name}: it selects no node",
                "compare its nodeSelector and tolerations with the nodes",
            )
        else:
            yield ok(f"{name}: {nodes.ready} of {nodes.desired} agents sample")
    yield from _restarts(cluster, places)


def _restarts(cluster: Cluster, places: Places) -> Iterator[Finding]:
    """Pods that wait, and why: what the pool's count does not say."""
    query = "labelSelector=app.kubernetes.io%2Fname%3Dflameherd-agent"
    path = f"/api/v1/namespaces/{places.agents}/pods"
    shown = 0
    for pod in items(cluster.reader, path, query):
        why = _waiting(pod)
        if why and shown < _SHOWN:
            shown += 1
            name = pod["metadata"]["name"]
            yield fail(f"{name} on {pod['spec'].get('nodeName', 'no node')}: {why}",
                f"kubectl logs -n {places.agents} {name} --previous, or kubectl describe")  # fmt: skip


def _waiting(pod: Json) -> str:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        waiting: dict[str, Any] = (status.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason", "")
        if reason not in ("", "ContainerCreating", "PodInitializing"):
            return f"{reason}: {waiting.get('message', '')}"[:300]
    return ""


def reports(cluster: Cluster, places: Places) -> Iterator[Finding]:
    """Does the status Service lead to the operator?"""
    path = f"/apis/discovery.k8s.io/v1/namespaces/{places.operator}/endpointslices"
    query = f"labelSelector=kubernetes.io%2Fservice-name%3D{STATUS_SERVICE}"
    slices = list(items(cluster.reader, path, query))
    addresses = [a for s in slices for e in s.get("endpoints") or () for a in e["addresses"]]
    if not addresses:
        yield warn(
            "the status Service leads nowhere: statuses have no counts and no cost",
            f"kubectl logs -n {places.operator} deployment/{MANAGER}",
        )
    else:
        yield ok(f"agents report to {', '.join(addresses)}")


def backend(cluster: Cluster, places: Places) -> Iterator[Finding]:
    """Ready, if it is there?"""
    try:
        body = cluster.reader.get(
            f"/apis/apps/v1/namespaces/{places.operator}/statefulsets/{_BACKEND}"
        )
    except ApiFailure as error:
        if error.code != 404:
            raise
        yield ok("none here: policies export elsewhere")
        return
    if (body.get("status") or {}).get("readyReplicas", 0):
        yield ok("ready")
    else:
        mend = (
            f"kubectl describe pod -n {places.operator} {_BACKEND}-0; without a StorageClass its volume "
            "waits for ever: backend.persistence in the chart's values"
        )
        yield fail("not ready: nothing is stored", mend)


def policies(cluster: Cluster, places: Places) -> Iterator[Finding]:
    """Do they do what they say?"""
    del places
    found = [*cluster.existing("ClusterProfilingPolicy"), *cluster.existing("ProfilingPolicy")]
    wrong = [(one.seen.key, *one.state()) for one in found if one.state()[1]]
    for key, state, message in wrong[:_SHOWN]:
        yield warn(f"{key}: {state}", message)
    if len(wrong) > _SHOWN:
        yield warn(f"and {len(wrong) - _SHOWN} more", "kubectl flameherd status -A")
    if not wrong:
        said = f"{len(found)} policies, all as they should be"
        yield ok(said if found else "there is none: nothing is profiled")
