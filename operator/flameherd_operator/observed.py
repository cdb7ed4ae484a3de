"""Objects of the API server → what the operator thinks with. Pure.

A custom resource is decoded once, when it is seen. One that cannot be read keeps its place, with
what is wrong, so that it gets a condition and no other object suffers.
"""

from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec
from flameherd_policy.base import Model
from flameherd_policy.decode import decode
from flameherd_policy.errors import PolicyError
from flameherd_policy.policies import ClusterProfilingPolicy, ProfilingPolicy
from flameherd_policy.pools import AgentPool
from flameherd_policy.resources import RESOURCES, Resource

M = TypeVar("M", bound=Model)

_META: Final = ("name", "namespace", "uid", "creationTimestamp", "generation", "resourceVersion")
"""Labels and annotations mean nothing here and are anyone's text: they are not even read."""


class Seen(msgspec.Struct, Generic[M], frozen=True, kw_only=True):
    """One custom resource as it was last seen."""

    resource: Resource
    name: str
    namespace: str
    """"" = cluster-wide."""
    uid: str
    generation: int
    created: str
    version: str
    """resourceVersion."""
    value: M | None
    """None = it cannot be read."""
    problem: str
    unknown: tuple[str, ...]
    """Fields that this version of the operator does not know."""
    status: Mapping[str, Any]
    """What is written there now."""

    @property
    def key(self) -> str:
        """`namespace/name`, or `name`."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


Policy = Seen[ProfilingPolicy]
ClusterPolicy = Seen[ClusterProfilingPolicy]
Pool = Seen[AgentPool]
Anything = Policy | ClusterPolicy | Pool

_BY_KIND: Final = {resource.kind: resource for resource in RESOURCES}


def see(kind: str, body: Mapping[str, Any]) -> Seen[Any]:
    """A custom resource as the API gives it."""
    resource = _BY_KIND[kind]
    meta = body.get("metadata", {})
    wire = {"metadata": {key: meta[key] for key in _META if key in meta}}
    if body.get("spec") is not None:
        wire["spec"] = body["spec"]
    value: Model | None = None
    problem = ""
    unknown: tuple[str, ...] = ()
    try:
        value, unknown = decode(resource.model, wire, lenient=True)
    except PolicyError as error:
        problem = str(error)
    return Seen(
        resource=resource,
        name=str(meta.get("name", "")),
        namespace=str(meta.get("namespace") or ""),
        uid=str(meta.get("uid", "")),
        generation=int(meta.get("generation") or 0),
        created=str(meta.get("creationTimestamp") or "~"),
        version=str(meta.get("resourceVersion", "")),
        value=value,
        problem=problem,
        unknown=unknown,
        status=body.get("status") or {},
    )


class SecretData(msgspec.Struct, frozen=True):
    """A Secret that was read, or why it was not: `reason` is "" or a condition's reason."""

    data: Mapping[str, bytes]
    reason: str = ""
    message: str = ""

    def __repr__(self) -> str:
        """Without the data: reprs end up in logs."""
        return f"SecretData({self.reason or sorted(self.data)})"


SecretId = tuple[str, str]
"""(namespace, name)."""


class Serving(msgspec.Struct, frozen=True):
    """The certificate of the server that agents report to."""

    pems: Mapping[str, bytes]
    """Certificates and keys, by file name."""
    trust: str
    """The certificates alone."""

    def __repr__(self) -> str:
        """Without the keys."""
        return f"Serving({sorted(self.pems)})"


class Owned(msgspec.Struct, frozen=True):
    """An object of ours in the agents' namespace as it was last seen."""

    kind: str
    name: str
    uid: str
    version: str
    status: Mapping[str, Any] = {}


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """All that a reconcile looks at: the state of the cluster at one moment."""

    policies: tuple[Policy, ...] = ()
    clusters: tuple[ClusterPolicy, ...] = ()
    pools: tuple[Pool, ...] = ()
    namespaces: Mapping[str, Mapping[str, str]] = {}
    """Name → labels."""
    secrets: Mapping[SecretId, SecretData] = {}
    nodes: tuple[Mapping[str, str], ...] | None = None
    """Labels of each node; only looked at where there are several pools."""
    owned: tuple[Owned, ...] = ()
    owner_uid: str = ""
    """Of the agents' ServiceAccount; "" = there is none."""
    serving: Serving | None = None
    """None = agents do not report."""
    idle: bool = False
    """There has been nothing to profile for a while (`Settings.idle_s`)."""

    def everything(self) -> tuple[Anything, ...]:
        """Every custom resource."""
        return (*self.policies, *self.clusters, *self.pools)
