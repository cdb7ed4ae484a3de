"""What the operator writes into `status`: conditions, what is carried out in fact, and what agents
report of it.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from flameherd_policy.base import Model
from flameherd_policy.quantities import Quantity

Generation = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
BigCount = Annotated[int, Meta(ge=0, le=2**53)]
Percent = Annotated[int, Meta(ge=0, le=100)]


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Model, frozen=True):
    """One aspect of the state of an object, as everywhere in Kubernetes (`metav1.Condition`)."""

    type: Annotated[
        str, Meta(min_length=1, max_length=316, description="Which aspect: `Ready`, `Accepted`, …")
    ]
    status: Annotated[ConditionStatus, Meta(description="Whether it holds.")]
    observed_generation: Annotated[
        Generation, Meta(description="The `metadata.generation` that this was said of.")
    ]
    last_transition_time: Annotated[
        str,
        Meta(
            max_length=64, extra={"format": "date-time"}, description="When `status` last changed."
        ),
    ]
    reason: Annotated[str, Meta(min_length=1, max_length=1024, description="Why, in one word.")]
    message: Annotated[
        str, Meta(max_length=32768, description="Why, in a sentence that tells the mend.")
    ]


Conditions = Annotated[tuple[Condition, ...], Meta(max_length=16, extra={"key": "type"})]


class EffectiveCpu(Model, frozen=True):
    """CPU profiling as it is carried out."""

    frequency_hz: Annotated[
        Annotated[int, Meta(ge=1, le=997, extra={"unit": "Hz"})],
        Meta(description="Samples per second of CPU time, after defaults and ceilings."),
    ]


class EffectiveBudget(Model, frozen=True):
    """The CPU budget that is kept."""

    cpu_per_node: Annotated[Quantity, Meta(description="CPUs on each node, after ceilings.")]


class Effective(Model, frozen=True):
    """What defaults and ceilings make of the policy."""

    cpu: Annotated[EffectiveCpu | None, Meta(description="CPU profiling; absent = off.")] = None
    budget: Annotated[
        EffectiveBudget | None, Meta(description="The CPU budget; absent = there is none.")
    ] = None
    clipped_by: Annotated[
        tuple[Annotated[str, Meta(max_length=512)], ...],
        Meta(
            max_length=32, description="The ceilings that lowered or removed something, in words."
        ),
    ] = ()


class PoolNodes(Model, frozen=True):
    """Nodes of a pool."""

    desired: Annotated[Count, Meta(description="Nodes that should run an agent.")]
    ready: Annotated[Count, Meta(description="Nodes whose agent is sampling.")]


class PolicyNodes(Model, frozen=True):
    """Nodes of a policy."""

    desired: Annotated[Count, Meta(description="Nodes that should run an agent.")]
    programmed: Annotated[Count, Meta(description="Nodes whose agent carries the policy out.")]


class Pods(Model, frozen=True):
    """Pods of a policy."""

    matched: Annotated[Count, Meta(description="Pods that the policy selects.")]
    profiled: Annotated[Count, Meta(description="Pods that are sampled by it.")]


class Containers(Model, frozen=True):
    """Containers of a policy."""

    matched: Annotated[Count, Meta(description="Containers that the policy selects.")]
    profiled: Annotated[Count, Meta(description="Containers that are sampled by it.")]
    overlapped: Annotated[
        Count, Meta(description="Containers that another policy samples instead.")
    ]


class Cost(Model, frozen=True):
    """What profiling takes, in the last minute."""

    cpu_per_node_mean: Annotated[
        Quantity, Meta(description="CPUs, over the nodes where something is sampled.")
    ]
    cpu_per_node_max: Annotated[Quantity, Meta(description="CPUs, on the node where it is most.")]
    samples_per_minute: Annotated[
        BigCount, Meta(description="Samples on all nodes, to two digits.")
    ]
    bytes_per_minute: Annotated[
        BigCount, Meta(description="Bytes sent by all nodes, compressed, to two digits.")
    ]


class Coverage(Model, frozen=True):
    """What became of the samples of the last minute."""

    complete_percent: Annotated[Percent, Meta(description="Stacks that are whole to the root.")]
    truncated_percent: Annotated[Percent, Meta(description="Stacks whose root was not reached.")]
    unsymbolized_percent: Annotated[
        Percent, Meta(description="Stacks whose innermost function has no name.")
    ]
    lost_percent: Annotated[Percent, Meta(description="Samples without a stack.")]


class ExportErrors(Model, frozen=True):
    """Attempts to send that failed."""

    count: Annotated[BigCount, Meta(description="In the last minute, on all nodes; two digits.")]
    last: Annotated[
        Annotated[str, Meta(max_length=512)], Meta(description="One of them, with its node.")
    ]


class WorstNode(Model, frozen=True):
    """A node where something is wrong."""

    name: Annotated[Annotated[str, Meta(max_length=253)], Meta(description="Name of the node.")]
    reason: Annotated[
        Annotated[str, Meta(max_length=64)],
        Meta(
            description="`NotReporting`, `ExportFailing`, `NotProgrammed`, `OverBudget`, "
            "`RateLowered`, `SamplesLost`, `StacksTruncated` or `NotSymbolized`."
        ),
    ]
    message: Annotated[Annotated[str, Meta(max_length=512)], Meta(description="In a sentence.")]


class PolicyStatus(Model, frozen=True):
    """What the statuses of both kinds of policy begin with."""

    observed_generation: Annotated[
        Generation | None, Meta(description="The `metadata.generation` that this was said of.")
    ] = None
    conditions: Annotated[
        Conditions,
        Meta(
            description="`Ready`, `Accepted`, `ResolvedRefs`, `Programmed`; from what agents "
            "report: `Profiling`, `Exporting`, `Overlapped`, `BudgetExceeded`."
        ),
    ] = ()
    nodes: Annotated[PolicyNodes | None, Meta(description="How many nodes.")] = None
    cost: Annotated[Cost | None, Meta(description="What it takes, in the last minute.")] = None
    coverage: Annotated[Coverage | None, Meta(description="What became of the samples.")] = None
    export_errors: Annotated[
        ExportErrors | None, Meta(description="Attempts to send that failed; absent = none.")
    ] = None
    worst_nodes: Annotated[
        Annotated[tuple[WorstNode, ...], Meta(max_length=5, extra={"key": "name"})],
        Meta(description="Nodes where something is wrong, the worst first; at most five."),
    ] = ()
    last_report_time: Annotated[
        Annotated[str, Meta(max_length=64, extra={"format": "date-time"})] | None,
        Meta(description="When a node last reported, as of the last change of this status."),
    ] = None


class ProfilingPolicyStatus(PolicyStatus, frozen=True):
    """What became of a ProfilingPolicy."""

    effective: Annotated[
        Effective | None, Meta(description="What defaults and ceilings make of the policy.")
    ] = None
    pods: Annotated[Pods | None, Meta(description="How many pods.")] = None
    containers: Annotated[Containers | None, Meta(description="How many containers.")] = None


class ClusterProfilingPolicyStatus(PolicyStatus, frozen=True):
    """What became of a ClusterProfilingPolicy."""

    effective: Annotated[
        Effective | None, Meta(description="What ceilings make of `host`; absent = `host` is off.")
    ] = None


class AgentPoolStatus(Model, frozen=True):
    """What became of an AgentPool."""

    observed_generation: Annotated[
        Generation | None, Meta(description="The `metadata.generation` that this was said of.")
    ] = None
    conditions: Annotated[Conditions, Meta(description="`Ready`, `Accepted`, `Programmed`.")] = ()
    nodes: Annotated[PoolNodes | None, Meta(description="How many nodes.")] = None
