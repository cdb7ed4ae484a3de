"""The one loop: something changed → everything is worked out anew → what differs is written.

Level-triggered: an event only says that something happened. What is wanted is computed from all
that is there, so that a lost event, a restart or a hand edit ends in the same state.

Watches lose deletions when they reconnect late, so everything watched is listed afresh now and
then, and before agents are taken away. What a list does not have is gone; what a list has and no
watch told of, twice in a row, means a watch has gone silent: the process ends, to be restarted.
"""

import asyncio
import concurrent.futures
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from flameherd_policy.resources import RESOURCES

from flameherd_operator.aggregate import Reported, aggregate
from flameherd_operator.client import Client, list_path
from flameherd_operator.defaults import identity, to_apply
from flameherd_operator.errors import ApiFailure, WatchSilent
from flameherd_operator.observed import (
    ClusterPolicy,
    Inputs,
    Owned,
    Policy,
    Pool,
    SecretData,
    SecretId,
    Serving,
)
from flameherd_operator.render.agents import daemonset_name
from flameherd_operator.render.desired import Desired, desired
from flameherd_operator.render.exports import secrets_of
from flameherd_operator.render.shards import shard_of
from flameherd_operator.reports import Reports
from flameherd_operator.settings import DEFAULT_NAME, PLURALS, Settings
from flameherd_operator.status import due, status_of
from flameherd_operator.verdict import Outcome, Verdict

logger = logging.getLogger(__name__)

_BACK_OFF_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
_WRITERS: Final = 8


class Watched(msgspec.Struct, kw_only=True):
    """What the watches have seen; `handlers` fills it from kopf's indexes."""

    policies: tuple[Policy, ...] = ()
    clusters: tuple[ClusterPolicy, ...] = ()
    pools: tuple[Pool, ...] = ()
    namespaces: tuple[tuple[str, str, Mapping[str, str]], ...] = ()
    """(uid, name, labels)."""
    owned: tuple[Owned, ...] = ()

    def uids(self) -> set[str]:
        parts = (self.policies, self.clusters, self.pools, self.owned)
        return {seen.uid for part in parts for seen in part} | {ns[0] for ns in self.namespaces}


class Reporting(msgspec.Struct, frozen=True):
    """What the reconciler needs of the receiver."""

    reports: Reports
    renew: Callable[[], Serving]
    """The certificate as it should be now; may block."""


class Reconciler:
    """Carries out what the watches see. `run` it; `poke` it when something changed."""

    def __init__(
        self,
        client: Client,
        settings: Settings,
        watched: Callable[[], Watched | None],
        reporting: Reporting | None = None,
    ) -> None:
        self._client = client
        self._settings = settings
        self._watched = watched
        self._reporting = reporting
        self._written: dict[str, float] = {}
        """uid → monotonic time of its status's last write."""
        self._nodes: tuple[float, tuple[Mapping[str, str], ...]] = (float("-inf"), ())
        """When nodes were listed last, and their labels."""
        self._changed = asyncio.Event()
        self._secrets: dict[SecretId, tuple[float, SecretData]] = {}
        self._applied: dict[tuple[str, str], tuple[str, str]] = {}
        """(kind, name) → (hash of what we wrote, its resourceVersion then)."""
        self._defaulted: dict[str, tuple[str, int]] = {}
        """Kind → (uid, generation) of its default when we wrote it."""
        self._gone: set[str] = set()
        self._unseen: set[str] = set()
        self._stopped = threading.Event()
        """Set when we may not write any more: a reconcile under way ends without writing."""
        self._listed_at = float("-inf")
        self._idle_since = float("inf")
        self._pool = concurrent.futures.ThreadPoolExecutor(_WRITERS, thread_name_prefix="write")
        self.last_success = float("-inf")
        """Monotonic time of the last reconcile that came through."""

    def poke(self) -> None:
        """Something changed."""
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled; raises `WatchSilent`. Once it has ended, nothing more is written."""
        try:
            await self._run()
        finally:
            self._stopped.set()

    async def _run(self) -> None:
        failures = 0
        while True:
            settings = self._settings
            wait = min(settings.secrets_s, settings.resync_s, settings.idle_s)
            if self._reporting is not None:
                wait = min(wait, settings.status_s)
            if failures:
                wait = _BACK_OFF_S[min(failures, len(_BACK_OFF_S)) - 1]
            try:
                async with asyncio.timeout(wait):
                    await self._changed.wait()
            except TimeoutError:
                pass  # time for what no watch tells: Secrets, a fresh list, another try
            await asyncio.sleep(self._settings.debounce_s)
            self._changed.clear()
            watched = self._watched()
            if watched is None:
                continue
            try:
                await asyncio.to_thread(self._reconcile, watched)
                failures = 0
            except ApiFailure as error:
                failures += 1
                logger.warning("reconcile failed, to be tried again: %s", error)

    def _reconcile(self, watched: Watched) -> None:
        started = time.monotonic()
        if started - self._listed_at >= self._settings.resync_s:
            self._list(watched)
        inputs = self._inputs(watched)
        failed = self._make_defaults(inputs)  # their events bring us back
        wanted = desired(inputs, self._settings)
        wanted = self._when_idle(wanted, inputs, watched)
        if inputs.owner_uid:
            failed |= self._write(wanted, inputs.owned)
        else:
            failed |= self._ownerless(wanted)
        self._write_statuses(inputs, wanted, failed)
        self.last_success = time.monotonic()
        took = self.last_success - started
        logger.debug("reconciled %d policies in %.2f s", len(inputs.policies), took)
        if failed:
            raise ApiFailure(0, "apply", "; ".join(failed.values()))

    def listed(self, watched: Watched) -> Inputs:
        """What there is after a fresh list: without what is gone although a watch still has it."""
        self._list(watched)
        return self._inputs(watched)

    def _when_idle(self, wanted: Desired, inputs: Inputs, watched: Watched) -> Desired:
        """Agents of pools that go when idle go after a while, and after a fresh list."""
        now = time.monotonic()
        if wanted.busy:
            self._idle_since = float("inf")
            return wanted
        self._idle_since = min(self._idle_since, now)
        if now - self._idle_since < self._settings.idle_s:
            return wanted
        if self._listed_at < self._idle_since:
            inputs = self.listed(watched)
            wanted = desired(inputs, self._settings)
            if wanted.busy:
                return wanted
        return desired(msgspec.structs.replace(inputs, idle=True), self._settings)

    def _inputs(self, watched: Watched) -> Inputs:
        """All that a reconcile looks at; reads what is not watched."""
        settings = self._settings
        policies = tuple(seen for seen in watched.policies if seen.uid not in self._gone)
        clusters = tuple(seen for seen in watched.clusters if seen.uid not in self._gone)
        pools = tuple(seen for seen in watched.pools if seen.uid not in self._gone)
        nodes = None
        if len(pools) > 1:
            nodes = self._list_nodes()
        return Inputs(
            policies=policies,
            clusters=clusters,
            pools=pools,
            namespaces={
                name: labels for uid, name, labels in watched.namespaces if uid not in self._gone
            },
            secrets=self._read_secrets(_secrets_named(policies, clusters, settings.namespace)),
            nodes=nodes,
            owned=tuple(seen for seen in watched.owned if seen.uid not in self._gone),
            owner_uid=self._client.account_uid(settings.agents_namespace, settings.service_account),
            serving=None if self._reporting is None else self._reporting.renew(),
        )

    def _list_nodes(self) -> tuple[Mapping[str, str], ...]:
        """Labels of every node, at most so old as Secrets may be."""
        now = time.monotonic()
        if now - self._nodes[0] >= self._settings.secrets_s:
            metadata = self._client.metadata("/api/v1/nodes")
            self._nodes = (now, tuple(dict(meta.get("labels") or {}) for meta in metadata))
        return self._nodes[1]

    def _read_secrets(self, ids: Iterable[SecretId]) -> dict[SecretId, SecretData]:
        now = time.monotonic()
        kept = {}
        for key in sorted(set(ids)):
            read_at, _ = kept[key] = self._secrets.get(key, (float("-inf"), SecretData({})))
            if now - read_at >= self._settings.secrets_s:
                kept[key] = (now, self._client.secret(*key))
        self._secrets = kept
        return {key: data for key, (_, data) in kept.items()}

    def _list(self, watched: Watched) -> None:
        """Compare what is watched with what is there."""
        seen = watched.uids()
        paths = [list_path(resource) for resource in RESOURCES]
        agents = self._settings.agents_namespace
        ours = [f"{prefix}/namespaces/{agents}/{plural}" for prefix, plural in PLURALS.values()]
        custom = self._uids(paths)
        there = custom | self._uids(["/api/v1/namespaces", *ours])
        self._gone = seen - there
        unseen = custom - seen
        still = unseen & self._unseen
        if still:
            raise WatchSilent(f"{len(still)} objects exist that no watch has told of")
        self._unseen = unseen
        self._listed_at = time.monotonic()

    def _uids(self, paths: Iterable[str]) -> set[str]:
        return {meta["uid"] for path in paths for meta in self._client.metadata(path)}

    def _write(self, wanted: Desired, owned: tuple[Owned, ...]) -> dict[tuple[str, str], str]:
        """Apply what differs, remove what should not be there; (kind, name) → what failed."""
        versions = {(seen.kind, seen.name): seen.version for seen in owned}
        tasks = {}
        for made in wanted.objects:
            key = (made["kind"], made["metadata"]["name"])
            digest = hashlib.sha256(msgspec.json.encode(made)).hexdigest()
            if self._applied.get(key) != (digest, versions.get(key)):
                tasks[key] = self._submit(self._apply, made, digest)
        for old in wanted.remove:
            logger.info("removing %s %s", old.kind, old.name)
            place = self._settings.agents_namespace
            tasks[old.kind, old.name] = self._submit(
                self._client.remove, old.kind, place, old.name, old.uid
            )
        return dict(_failures(tasks))

    def _make_defaults(self, inputs: Inputs) -> dict[tuple[str, str], str]:
        """(kind, name) → what failed; a default that is refused harms nothing else."""
        if self._settings.defaults is None:
            if not inputs.pools:
                self._client.create_pool(DEFAULT_NAME)
            return {}
        failed = {}
        seen: tuple[Pool | ClusterPolicy, ...] = (*inputs.pools, *inputs.clusters)
        for document in to_apply(self._settings.defaults, seen, self._defaulted):
            kind = document["kind"]
            try:
                self._defaulted[kind] = identity(self._client.apply_default(document))
            except ApiFailure as error:
                failed[kind, DEFAULT_NAME] = str(error)
        return failed

    def _ownerless(self, wanted: Desired) -> dict[tuple[str, str], str]:
        """Nothing is made without an owner: an uninstall would leave it behind."""
        said = (
            f"the ServiceAccount {self._settings.service_account} of namespace "
            f"{self._settings.agents_namespace} is missing: `helm upgrade` makes it again"
        )
        return {(made["kind"], made["metadata"]["name"]): said for made in wanted.objects}

    def _submit(
        self, write: Callable[..., None], *arguments: object
    ) -> "concurrent.futures.Future[None]":
        def unless_stopped() -> None:
            if not self._stopped.is_set():
                write(*arguments)

        return self._pool.submit(unless_stopped)

    def _apply(self, made: Mapping[str, Any], digest: str) -> None:
        key = (made["kind"], made["metadata"]["name"])
        result = self._client.apply(made)
        before = self._applied.get(key)
        if before is None or before[0] != digest:
            logger.info("applied %s %s", *key)
        self._applied[key] = (digest, result["metadata"]["resourceVersion"])

    def _write_statuses(
        self, inputs: Inputs, wanted: Desired, failed: Mapping[tuple[str, str], str]
    ) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        began = time.monotonic()
        daemonsets = {seen.name: seen for seen in inputs.owned if seen.kind == "DaemonSet"}
        nodes = sum(int(d.status.get("desiredNumberScheduled", 0)) for d in daemonsets.values())
        reported = self._reported(inputs, wanted)
        tasks = {}
        for seen in inputs.everything():
            if seen.resource.kind == "AgentPool":
                place = ("DaemonSet", daemonset_name(seen.name))
            else:
                place = ("ConfigMap", shard_of(seen.namespace))
            verdict = wanted.verdicts[seen.uid]
            if place in failed:
                reason = "ApplyFailed" if inputs.owner_uid else "NoServiceAccount"
                verdict = _not_written(verdict, reason, failed[place])
            daemonset = daemonsets.get(place[1])
            status = status_of(seen, verdict, now, daemonset, reported.get(seen.uid), nodes)
            if due(status, seen, began - self._written.get(seen.uid, float("-inf"))):
                self._written[seen.uid] = began
                tasks[seen.resource.kind, seen.key] = self._submit(
                    self._client.write_status, seen, status
                )
        there = {seen.uid for seen in inputs.everything()}
        self._written = {uid: at for uid, at in self._written.items() if uid in there}
        broken = dict(_failures(tasks))
        if broken:
            raise ApiFailure(0, "write status", "; ".join(sorted(set(broken.values()))[:5]))

    def _reported(self, inputs: Inputs, wanted: Desired) -> dict[str, Reported]:
        """uid of a policy → what agents say of it; nothing where they do not report."""
        if self._reporting is None:
            return {}
        policies: tuple[Policy | ClusterPolicy, ...] = (*inputs.policies, *inputs.clusters)
        self._reporting.reports.know(frozenset(seen.key for seen in policies))
        now = time.time()
        places = {seen.key: shard_of(seen.namespace) for seen in policies}
        versions = {key: (place, wanted.versions[place]) for key, place in places.items()}
        sums = aggregate(self._reporting.reports.snapshot(now), versions, now)
        return {seen.uid: sums[seen.key] for seen in policies}


def _not_written(verdict: Verdict, reason: str, why: str) -> Verdict:
    if not verdict.programmed.good:
        return verdict
    return msgspec.structs.replace(verdict, programmed=Outcome(False, reason, why))


def _failures(
    tasks: Mapping[tuple[str, str], "concurrent.futures.Future[None]"],
) -> Iterator[tuple[tuple[str, str], str]]:
    for key, task in tasks.items():
        error = task.exception()
        if isinstance(error, ApiFailure):
            yield key, str(error)
        elif error is not None:
            raise error


def _secrets_named(
    policies: Iterable[Policy], clusters: Iterable[ClusterPolicy], system_namespace: str
) -> Iterator[SecretId]:
    for policy in policies:
        if policy.value is not None and policy.value.spec.export is not None:
            yield from secrets_of(policy.value.spec.export, policy.namespace)
    for cluster in clusters:
        if cluster.value is not None and cluster.value.spec.defaults.export is not None:
            yield from secrets_of(cluster.value.spec.defaults.export, system_namespace)
