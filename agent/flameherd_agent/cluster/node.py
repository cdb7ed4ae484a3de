"""What the cluster says of this node, for the agent's one loop: its configuration, which slot
samples each cgroup, and the attributes of containers.

`refresh` takes what the follower's thread and the cgroup tree have learned; it costs two system
calls when there is nothing. What the API server does not tell, because it is away or because the
operator is, stays as it was.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from flameherd_policy.agent_config import AgentConfig, PolicySlot
from flameherd_policy.endpoints import Source as Author
from flameherd_policy.policies import Attributes as WantedAttributes

from flameherd_agent.cluster import objects
from flameherd_agent.cluster.account import Account
from flameherd_agent.cluster.cgroup_tree import CgroupTree
from flameherd_agent.cluster.follower import Change, Follower, Inbox, Queued
from flameherd_agent.cluster.pods import Pod, read_pod
from flameherd_agent.cluster.reflector import Reflector
from flameherd_agent.cluster.selection import Choice, Coverage, choose, matching, samplers
from flameherd_agent.cluster.shards import Shard, merge, read_shard, shard_names
from flameherd_agent.metadata.cgroup import ContainerRef
from flameherd_agent.metadata.hierarchy import PidsHierarchy
from flameherd_agent.observe.logs import Log
from flameherd_agent.observe.metrics import Family, counter, gauge

log = Log(__name__)

SHARD_GRACE_S: Final = 30.0
"""A shard that was deleted counts for so long: the operator makes it anew at once."""
REMEMBER_S: Final = 120.0
"""A pod that is gone is remembered for its last samples' labels."""
MAX_REMEMBERED: Final = 1024
_PODS: Final = "pods"


@dataclass(frozen=True, slots=True)
class _Matched:
    """The policies that match a pod, and what that was computed from."""

    pod: Pod
    policies: tuple[PolicySlot, ...]


class NodeView:
    """Made by the agent before its engine samples; `start` it, `refresh` it, `close` it."""

    def __init__(
        self,
        account: Account,
        hierarchy: PidsHierarchy,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.account = account
        self.hierarchy = hierarchy
        self._clock = clock
        self._inbox = Inbox()
        self._tree = CgroupTree(hierarchy)
        self._reflectors = self._make_reflectors()
        self._follower = Follower(account, list(self._reflectors.values()))
        self._pods: dict[str, Pod] = {}  # by uid
        self._by_cgroup: dict[str, Pod] = {}
        self._gone: dict[str, tuple[float, Pod]] = {}  # by cgroup uid
        self._shards: dict[str, Shard] = {}
        self._bad_shards: dict[str, str] = {}
        self._missing: dict[str, float] = {}
        self._namespaces: frozenset[str] = frozenset()
        self._merged = AgentConfig()
        self._by_namespace: dict[str, list[PolicySlot]] = {}
        self._matched: dict[str, _Matched] = {}
        self._heard: set[str] = set()
        self.config = AgentConfig()
        """The slots that can sample something on this node, and their endpoints."""
        self.choice = Choice()
        """Which of them samples which cgroup."""
        self.host: str | None = None
        """The slot of the node's own processes."""

    def _make_reflectors(self) -> dict[str, Reflector[Any]]:
        def queued(source: str) -> Queued[Any]:
            return Queued(source, self._inbox)

        folder = f"/api/v1/namespaces/{self.account.namespace}/configmaps"
        made: dict[str, Reflector[Any]] = {
            # The node's pods only: a token with this right could list all, and does not.
            _PODS: Reflector(
                "/api/v1/pods",
                f"spec.nodeName={self.account.node}",
                objects.Pod,
                queued(_PODS),
            )
        }
        for name in shard_names():
            made[name] = Reflector(folder, f"metadata.name={name}", objects.ConfigMap, queued(name))
        return made

    def start(self) -> None:
        """Begin to follow the API server."""
        self._follower.start()

    def close(self) -> None:
        self._follower.close()
        self._tree.close()
        self._inbox.close()

    @property
    def fds(self) -> list[int]:
        """Readable when `refresh` has something to do."""
        return [fd for fd in (self._inbox.fd, self._tree.fd) if fd is not None]

    # `configuration.Source`

    author: Final = Author.CR

    @property
    def cgroups(self) -> Mapping[int, str | None]:
        """{cgroup id: name of the slot that samples it, None = nobody}"""
        return self.choice.cgroups

    def ready(self) -> tuple[bool, str]:
        """Once everything was heard of. An API server that goes away later changes nothing."""
        if self.synced:
            return True, "ok"
        waits = sorted(set(self._reflectors) - self._heard)
        why = self._follower.error or "no answer yet"
        return False, f"the API server has not told of {', '.join(waits)}: {why}"

    def families(self) -> Iterator[Family]:
        """Metrics about the cluster's side."""
        yield gauge("flameherd_pods", "Pods of this node that are known", len(self._pods))
        yield counter(
            "flameherd_api_connections_total",
            "Connections to the API server",
            self._follower.connections,
        )
        yield gauge(
            "flameherd_api_failing",
            "1 while the API server is away or refuses",
            int(bool(self._follower.error)),
        )

    def status(self) -> Mapping[str, Any]:
        """What /status shows."""
        return {
            "cluster": {
                "node": self.account.node,
                "shards": self.versions(),
                "problems": list(self.problems()),
                "apiError": self._follower.error,
                "pods": len(self._pods),
                "coverage": msgspec.to_builtins(self.choice.coverage),
            }
        }

    # What others ask

    @property
    def synced(self) -> bool:
        """Whether pods and every shard have been heard of: only then is nothing to profile on purpose."""
        return len(self._heard) == len(self._reflectors)

    @property
    def error(self) -> str:
        """What is wrong with the API server or with what it tells; "" = nothing."""
        return self._follower.error or next(iter(self.problems()), "")

    def coverage(self) -> Mapping[str, Coverage]:
        """{policy: how it fares on this node}; policies that match no pod here are not in it."""
        return self.choice.coverage

    def versions(self) -> dict[str, str]:
        """{shard: version of the content that is carried out}"""
        return {name: shard.version for name, shard in self._shards.items()}

    def problems(self) -> Iterator[str]:
        """What was ignored or refused."""
        for name, why in self._bad_shards.items():
            yield f"{name}: {why}; the one before stays in force"
        for name, shard in self._shards.items():
            for problem in shard.problems:
                yield f"{name}: {problem}"

    def node_attributes(self) -> dict[str, str | int]:
        """Of every profile of this node. The agent's own host name is its pod's."""
        found: dict[str, str | int] = {
            "host.name": self.account.node,
            "k8s.node.name": self.account.node,
        }
        if self.account.cluster:
            found["k8s.cluster.name"] = self.account.cluster
        return found

    def attributes(
        self, container: ContainerRef, wanted: WantedAttributes
    ) -> tuple[dict[str, str | int], bool]:
        """`PodSource`: attributes of a container of this node, and whether no more will come."""
        uid = container.pod_uid
        pod = self._by_cgroup.get(uid or "")
        if pod is None and uid in self._gone:
            pod = self._gone[uid][1]
        if pod is None:
            return {}, uid is None
        return pod.attributes(container.container_id, wanted)

    # The loop's part

    def refresh(self) -> bool:
        """Take what is new; whether `config` or `choice` may have changed."""
        changed = False
        for change in self._inbox.take():
            self._heard.add(change.source)
            if change.source == _PODS:
                self._take_pods(change)
            else:
                self._take_shard(change)
            changed = True
        changed |= self._tree.refresh()
        changed |= self._expire()
        if changed:
            self._compute()
        return changed

    def _take_pods(self, change: Change[objects.Pod]) -> None:
        if change.whole:
            there = {seen.metadata.uid for seen in change.objects}
            for uid in set(self._pods) - there:
                self._forget(uid)
        for seen in change.objects:
            if change.gone:
                self._forget(seen.metadata.uid)
            else:
                pod = read_pod(seen)
                self._pods[pod.uid] = pod
                self._by_cgroup[pod.cgroup_uid] = pod

    def _forget(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        if pod is None:
            return
        if self._by_cgroup.get(pod.cgroup_uid) is pod:
            del self._by_cgroup[pod.cgroup_uid]
        self._gone.pop(pod.cgroup_uid, None)
        self._gone[pod.cgroup_uid] = (self._clock(), pod)
        if len(self._gone) > MAX_REMEMBERED:
            del self._gone[next(iter(self._gone))]

    def _take_shard(self, change: Change[objects.ConfigMap]) -> None:
        name = change.source
        self._namespaces = frozenset()  # merge anew
        if change.gone or not change.objects:
            if name in self._shards:
                self._missing.setdefault(name, self._clock())
            return
        self._missing.pop(name, None)
        try:
            self._shards[name] = read_shard(change.objects[-1])
            self._bad_shards.pop(name, None)
        except ValueError as error:
            self._bad_shards[name] = str(error)
            log.error("a shard is refused: the one before stays in force", shard=name, error=error)

    def _expire(self) -> bool:
        now = self._clock()
        for uid in [u for u, (since, _) in self._gone.items() if now - since > REMEMBER_S]:
            del self._gone[uid]
        overdue = [n for n, since in self._missing.items() if now - since > SHARD_GRACE_S]
        for name in overdue:
            del self._missing[name], self._shards[name]
            self._namespaces = frozenset()
            log.warning("a shard is gone: its policies end", shard=name)
        return bool(overdue)

    def _compute(self) -> None:
        namespaces = frozenset({""} | {pod.namespace for pod in self._pods.values()})
        if namespaces != self._namespaces:
            before = set(self.problems())
            self._merge(namespaces)
            for problem in self.problems():
                if problem not in before:
                    log.warning("configuration", problem=problem)
        self._match()
        pods = [(each.pod, each.policies) for each in self._matched.values()]
        self.host = next((s.name for s in self._merged.policies if s.selector.host), None)
        self.choice = choose(pods, self._tree.pods, self.host)
        self.config = self._here()

    def _merge(self, namespaces: frozenset[str]) -> None:
        merged = merge(self._shards.values(), namespaces - {""})
        self._namespaces = namespaces
        if merged == self._merged:
            return
        self._merged = merged
        self._matched.clear()
        self._by_namespace = {}
        for policy in merged.policies:
            if policy.selector.namespace is not None:
                self._by_namespace.setdefault(policy.selector.namespace, []).append(policy)

    def _match(self) -> None:
        """Selectors are evaluated only for pods that changed."""
        for uid in set(self._matched) - set(self._pods):
            del self._matched[uid]
        for uid, pod in self._pods.items():
            known = self._matched.get(uid)
            if known is None or known.pod is not pod:
                policies = matching(self._by_namespace.get(pod.namespace, ()), pod)
                self._matched[uid] = _Matched(pod, policies)

    def _here(self) -> AgentConfig:
        """The merged configuration without the slots that can sample nothing on this node."""
        useful = {self.host} | {
            policy.name
            for each in self._matched.values()
            if not each.pod.ended
            for policy in samplers(each.policies)
        }
        policies = tuple(p for p in self._merged.policies if p.name in useful)
        used = {policy.endpoint for policy in policies}
        endpoints = {n: e for n, e in self._merged.endpoints.items() if n in used}
        return msgspec.structs.replace(self._merged, policies=policies, endpoints=endpoints)
