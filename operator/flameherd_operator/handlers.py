"""kopf's side: which objects are watched, and the indexes that they are kept in.

Only `index` and `event` handlers: they leave no annotation and no finalizer, so that deleting a
namespace or the operator never waits for us. Two operators of kopf's run side by side, because one
of them watches either the whole cluster or single namespaces, and we have rights on ConfigMaps,
Secrets and DaemonSets in the agents' namespace only.

The handlers are coroutines although they wait for nothing: kopf would run each call of a function in
a thread, and a start with 1,000 policies is 2,000 calls.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import kopf
from flameherd_policy.resources import GROUP, RESOURCES, VERSION

from flameherd_operator.observed import Owned, see
from flameherd_operator.reconcile import Watched
from flameherd_operator.settings import MANAGED_BY, MANAGER, PLURALS, Settings

_INACTIVITY_S: Final = 180.0
"""The API server sends a bookmark each minute: a watch without one for longer has gone silent."""
_NAMESPACES: Final = "namespaces"

Indexes = dict[str, Mapping[str, Any]]


class Watches:
    """What kopf sees. `run` it; `watched` is what it has seen so far."""

    def __init__(self, settings: Settings, poke: Callable[[], None]) -> None:
        self._settings = settings
        self._poke = poke
        self._indexes: Indexes = {}

    def watched(self) -> Watched | None:
        """Everything, at this moment; None before everything has been listed. Only from kopf's own
        thread.
        """
        # kopf calls no event handler before every index is complete, and there are always namespaces.
        if _NAMESPACES not in self._indexes:
            return None

        def values(index: str) -> tuple[Any, ...]:
            # A key is a uid, so that its store holds one value.
            return tuple(
                value for store in self._indexes.get(index, {}).values() for value in store
            )

        policies, clusters, pools = (values(resource.plural) for resource in RESOURCES)
        return Watched(
            policies=policies,
            clusters=clusters,
            pools=pools,
            namespaces=values(_NAMESPACES),
            owned=tuple(seen for _, plural in PLURALS.values() for seen in values(plural)),
        )

    async def run(self, kubeconfig: Path | None, liveness: str | None) -> None:
        """Until cancelled or a signal comes."""
        both = (
            kopf.operator(
                registry=self._custom(kubeconfig),
                settings=_kopf_settings(),
                standalone=True,
                clusterwide=True,
                liveness_endpoint=liveness,
            ),
            kopf.operator(
                registry=self._own(kubeconfig),
                settings=_kopf_settings(),
                standalone=True,
                namespaces=[self._settings.agents_namespace],
            ),
        )
        tasks = [asyncio.create_task(one) for one in both]
        try:
            # A signal ends one of them; the other one follows.
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _custom(self, kubeconfig: Path | None) -> kopf.OperatorRegistry:
        """The custom resources and the namespaces' labels, cluster-wide."""
        registry = _registry(kubeconfig)
        for resource in RESOURCES:
            place = (GROUP, VERSION, resource.plural)

            async def index(body: kopf.Body, kind: str = resource.kind, **_: Any) -> dict[str, Any]:
                seen = see(kind, body)
                return {seen.uid: seen}

            self._watch(registry, place, resource.plural, index)

        async def index_namespace(body: kopf.Body, **_: Any) -> dict[str, Any]:
            meta = body["metadata"]
            return {meta["uid"]: (meta["uid"], meta["name"], dict(meta.get("labels") or {}))}

        self._watch(registry, ("", "v1", _NAMESPACES), _NAMESPACES, index_namespace)
        return registry

    def _own(self, kubeconfig: Path | None) -> kopf.OperatorRegistry:
        """What we have made, in the agents' namespace."""
        registry = _registry(kubeconfig)
        for kind, (prefix, plural) in PLURALS.items():
            group = "apps" if prefix.startswith("/apis/") else ""

            async def index(body: kopf.Body, kind: str = kind, **_: Any) -> dict[str, Any]:
                meta = body["metadata"]
                if (meta.get("labels") or {}).get(MANAGED_BY) != MANAGER:
                    return {}
                version = meta["resourceVersion"]
                status = dict(body.get("status") or {})
                return {meta["uid"]: Owned(kind, meta["name"], meta["uid"], version, status)}

            self._watch(registry, (group, "v1", plural), plural, index)
        return registry

    def _watch(
        self,
        registry: kopf.OperatorRegistry,
        place: tuple[str, str, str],
        name: str,
        index: Callable[..., Awaitable[dict[str, Any]]],
    ) -> None:
        async def changed(**arguments: Any) -> None:
            self._indexes |= {
                key: arguments[key]
                for key in (*(r.plural for r in RESOURCES), _NAMESPACES, *_owned_plurals())
                if key in arguments
            }
            self._poke()

        kopf.index(*place, id=name, registry=registry)(index)
        kopf.on.event(*place, id=f"{name}-changed", registry=registry)(changed)


def _owned_plurals() -> tuple[str, ...]:
    return tuple(plural for _, plural in PLURALS.values())


def _registry(kubeconfig: Path | None) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    def login(**arguments: Any) -> kopf.ConnectionInfo | None:
        if kubeconfig is None:
            return kopf.login_with_service_account(**arguments)
        return kopf.login_with_kubeconfig(**arguments)

    kopf.on.login(registry=registry)(login)
    return registry


def _kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    # The kinds are known to be served before we start, and do not change.
    settings.scanning.disabled = True
    settings.watching.inactivity_timeout = _INACTIVITY_S
    return settings
