"""Everything that should be there, and what became of each object. Pure.

The one function that a reconcile calls: equal inputs give equal bytes, so that what is already
there need not be written.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from flameherd_operator.observed import Inputs, Owned, Pool
from flameherd_operator.render.agents import conflicts, daemonset_body, daemonset_name
from flameherd_operator.render.secrets import credentials
from flameherd_operator.render.serving import serving_bodies
from flameherd_operator.render.shards import shards
from flameherd_operator.render.slots import TO_PROGRAM, plan
from flameherd_operator.settings import EXPORT_SECRET, MANAGED_BY, MANAGER, PLURALS, Settings
from flameherd_operator.verdict import NOT_TRIED, Outcome, Verdict

_TOO_MANY: Final = Outcome(
    False,
    "TooManyPolicies",
    "the configuration of this namespace is full: remove policies, or join several into one",
)
_TOO_LARGE: Final = Outcome(
    False, "TooMuchSecretData", "the credentials of all policies together exceed 900 kB"
)


class Desired(msgspec.Struct, frozen=True, kw_only=True):
    """What should be there."""

    objects: tuple[dict[str, Any], ...]
    remove: tuple[Owned, ...]
    """Objects of ours that should not be there any more."""
    verdicts: Mapping[str, Verdict]
    """uid of a custom resource → what became of it."""
    versions: Mapping[str, str]
    """ConfigMap → version of the configuration in it."""
    busy: bool
    """Something is profiled."""

    def __repr__(self) -> str:
        """Without the objects: one is a Secret."""
        return f"Desired({len(self.objects)} objects, {len(self.verdicts)} verdicts)"


def desired(inputs: Inputs, settings: Settings) -> Desired:
    """The whole state that these inputs ask for."""
    planned = plan(inputs, settings.namespace)
    held = credentials(planned.slots)
    fitting = [slot for slot in planned.slots if slot.slot.name not in held.left_out]
    shard = shards(fitting)
    verdicts = dict(planned.verdicts)
    for seen in inputs.everything():
        verdict = verdicts.get(seen.uid, Verdict())
        if verdict.programmed == TO_PROGRAM:
            too = {seen.key in shard.left_out: _TOO_MANY, seen.key in held.left_out: _TOO_LARGE}
            programmed = too.get(True, TO_PROGRAM)
            verdicts[seen.uid] = msgspec.structs.replace(verdict, programmed=programmed)
    objects = [
        _object("ConfigMap", name, body, inputs, settings) for name, body in shard.bodies.items()
    ]
    objects.append(_object("Secret", EXPORT_SECRET, held.body, inputs, settings))
    for kind, name, data in serving_bodies(inputs.serving):
        objects.append(_object(kind, name, data, inputs, settings))
    waiting = conflicts(inputs.pools, inputs.nodes)
    for pool in inputs.pools:
        verdict, body = _pool(pool, waiting.get(pool.uid), inputs, settings)
        verdicts[pool.uid] = verdict
        if body is not None:
            objects.append(_object("DaemonSet", daemonset_name(pool.name), body, inputs, settings))
    wanted = {(made["kind"], made["metadata"]["name"]) for made in objects}
    # A pool that cannot be read keeps the agents that it has.
    unread = {daemonset_name(pool.name) for pool in inputs.pools if pool.value is None}
    remove = tuple(
        owned
        for owned in inputs.owned
        if (owned.kind, owned.name) not in wanted and owned.name not in unread
    )
    return Desired(
        objects=tuple(objects),
        remove=remove,
        verdicts=verdicts,
        versions=shard.versions,
        busy=bool(planned.slots),
    )


def _labels() -> dict[str, str]:
    return {MANAGED_BY: MANAGER, "app.kubernetes.io/part-of": "flameherd"}


def _object(
    kind: str, name: str, body: Mapping[str, Any], inputs: Inputs, settings: Settings
) -> dict[str, Any]:
    prefix, _ = PLURALS[kind]
    owner = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "name": settings.service_account,
        "uid": inputs.owner_uid,
    }
    metadata = {
        "name": name,
        "namespace": settings.agents_namespace,
        "labels": _labels(),
        "ownerReferences": [owner],
    }
    version = prefix.removeprefix("/apis/").removeprefix("/api/")
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **body}


def _pool(
    pool: Pool, conflict: tuple[str, int] | None, inputs: Inputs, settings: Settings
) -> tuple[Verdict, dict[str, Any] | None]:
    if pool.value is None:
        return Verdict(accepted=Outcome(False, "Invalid", pool.problem), resolved=NOT_TRIED), None
    if conflict is not None:
        older, count = conflict
        message = (
            f"{count} nodes are also in the older pool {older}, and a node runs one agent: narrow "
            "the nodeSelector of one of the two"
        )
        return Verdict(accepted=Outcome(False, "Conflicted", message)), None
    if inputs.idle and pool.value.spec.when_idle.value == "Remove":
        idle = Outcome(True, "Idle", "no policy profiles anything, so there are no agents")
        return Verdict(programmed=idle), None
    rolled = Outcome(True, "Programmed", "the DaemonSet is as the pool says")
    return Verdict(programmed=rolled), daemonset_body(pool, settings, _labels())
