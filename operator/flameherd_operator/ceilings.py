"""Which ceilings and defaults hold in a namespace. Pure.

ClusterProfilingPolicies hold where their `namespaceSelector` selects. Ceilings intersect; what
nobody states is the built-in ceiling. Defaults go by precedence. The nodes' own processes (`host`)
belong to no namespace: for them the policies that select every namespace hold.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from flameherd_policy.agent_config import Ceilings
from flameherd_policy.compile import intersect, precedence
from flameherd_policy.endpoints import EndpointRule, Scheme
from flameherd_policy.policies import ClusterProfilingPolicy, Cpu, Export
from flameherd_policy.selectors import LabelSelector

BUILT_IN: Final = Ceilings(
    max_frequency_hz=97,
    env_names=(),
    endpoints=tuple(
        EndpointRule(scheme=scheme, host=host)
        for host in ("*.svc", "*.svc.cluster.local")
        for scheme in Scheme
    ),
)
"""Without any ClusterProfilingPolicy: modest rates, and nothing leaves the cluster."""


class Defaults(msgspec.Struct, frozen=True):
    """What policies leave open, and who said it."""

    cpu: Cpu | None = None
    export: Export | None = None
    export_by: str = ""
    """Name of the ClusterProfilingPolicy of `export`."""


class Regime(msgspec.Struct, frozen=True):
    """What holds in one namespace."""

    ceilings: Ceilings = BUILT_IN
    defaults: Defaults = Defaults()


def in_namespace(clusters: Iterable[ClusterProfilingPolicy], labels: Mapping[str, str]) -> Regime:
    """What holds in a namespace with these labels."""
    return _regime(c for c in clusters if c.spec.namespace_selector.matches(labels))


def on_hosts(clusters: Iterable[ClusterProfilingPolicy]) -> Regime:
    """What holds for the nodes' own processes."""
    return _regime(c for c in clusters if c.spec.namespace_selector == LabelSelector())


def _regime(chosen: Iterable[ClusterProfilingPolicy]) -> Regime:
    policies = sorted(chosen, key=precedence)
    cpus = (p.spec.defaults.cpu for p in policies if p.spec.defaults.cpu is not None)
    exports = (
        (p.spec.defaults.export, p.metadata.name)
        for p in policies
        if p.spec.defaults.export is not None
    )
    export, by = next(exports, (None, ""))
    return Regime(
        ceilings=intersect((p.spec.limits for p in policies), BUILT_IN),
        defaults=Defaults(next(cpus, None), export, by),
    )


def loosest(many: Iterable[Ceilings]) -> Ceilings:
    """What no slot of several namespaces exceeds: agents hold a whole shard against it."""
    every = tuple(dict.fromkeys(many)) or (BUILT_IN,)
    budgets = [c.max_cpu_per_node for c in every]
    return Ceilings(
        max_frequency_hz=max(c.max_frequency_hz for c in every),
        max_cpu_per_node=None if None in budgets else max(b for b in budgets if b is not None),
        env_names=tuple(sorted({n for c in every for n in c.env_names or ()})),
        endpoints=tuple(dict.fromkeys(rule for c in every for rule in c.endpoints or ())),
    )
