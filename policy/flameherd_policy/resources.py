"""The kinds as the API server knows them: plural and short names, scope, and the columns of
`kubectl get`.
"""

from typing import Final, NamedTuple

from flameherd_policy.base import Model
from flameherd_policy.policies import ClusterProfilingPolicy, ProfilingPolicy
from flameherd_policy.pools import AgentPool

GROUP: Final = "flameherd.dev"
VERSION: Final = "v1alpha1"
CATEGORY: Final = "flameherd"
EXPORT_SECRET_TYPE: Final = "flameherd.dev/export"  # noqa: S105 a type, not a secret
"""Only Secrets of this type are ever read: their author meant them to be sent."""


class Column(NamedTuple):
    """One column of `kubectl get`; `wide` = only with `-o wide`."""

    name: str
    kind: str
    path: str
    description: str
    wide: bool = False


class Resource(NamedTuple):
    """One kind of ours."""

    model: type[Model]
    plural: str
    short_name: str
    namespaced: bool
    columns: tuple[Column, ...]

    @property
    def kind(self) -> str:
        return self.model.__name__

    @property
    def singular(self) -> str:
        return self.kind.lower()


def _condition(name: str, field: str = "status") -> str:
    return f'.status.conditions[?(@.type=="{name}")].{field}'


_READY: Final = Column("Ready", "string", _condition("Ready"), "Whether it does what it says.")
_REASON: Final = Column("Reason", "string", _condition("Ready", "reason"), "Why it is so.")
_AGE: Final = Column("Age", "date", ".metadata.creationTimestamp", "Time since it was made.")
_PRIORITY: Final = Column("Priority", "integer", ".spec.priority", "The higher wins.", wide=True)

RESOURCES: Final = (
    Resource(
        ProfilingPolicy,
        "profilingpolicies",
        "profpol",
        True,
        (
            Column(
                "Hz",
                "integer",
                ".status.effective.cpu.frequencyHz",
                "Samples per second of CPU time, after defaults and ceilings.",
            ),
            Column("Pods", "integer", ".status.pods.profiled", "Pods that are sampled."),
            _READY,
            _REASON,
            Column(
                "CPU-per-node",
                "string",
                ".status.cost.cpuPerNodeMean",
                "CPUs that profiling takes, on the mean of nodes where something is sampled.",
                wide=True,
            ),
            Column("Suspended", "boolean", ".spec.suspend", "As if it were not there.", wide=True),
            _PRIORITY,
            Column("Endpoint", "string", ".spec.export.endpoint", "Where to.", wide=True),
            _AGE,
        ),
    ),
    Resource(
        ClusterProfilingPolicy,
        "clusterprofilingpolicies",
        "cprofpol",
        False,
        (
            Column(
                "Max-Hz", "integer", ".spec.limits.frequencyHz.max", "Ceiling of sampling rates."
            ),
            Column(
                "Host-Hz",
                "integer",
                ".status.effective.cpu.frequencyHz",
                "Sampling rate of the nodes' own processes.",
            ),
            _READY,
            _REASON,
            _PRIORITY,
            _AGE,
        ),
    ),
    Resource(
        AgentPool,
        "agentpools",
        "apool",
        False,
        (
            Column("Desired", "integer", ".status.nodes.desired", "Nodes that should have one."),
            Column("Sampling", "integer", ".status.nodes.ready", "Nodes whose agent samples."),
            _READY,
            _REASON,
            Column("When-Idle", "string", ".spec.whenIdle", "Without policies.", wide=True),
            _AGE,
        ),
    ),
)
