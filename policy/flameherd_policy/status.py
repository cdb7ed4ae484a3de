"""What the operator writes into `status`: conditions, and what is carried out in fact.

Counts of pods, coverage and cost come with what agents report.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from flameherd_policy.base import Model

Generation = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]


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


class Effective(Model, frozen=True):
    """What defaults and ceilings make of the policy."""

    cpu: Annotated[EffectiveCpu | None, Meta(description="CPU profiling; absent = off.")] = None
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


class PolicyStatus(Model, frozen=True):
    """What the statuses of both kinds of policy begin with."""

    observed_generation: Annotated[
        Generation | None, Meta(description="The `metadata.generation` that this was said of.")
    ] = None
    conditions: Annotated[
        Conditions, Meta(description="`Ready`, `Accepted`, `ResolvedRefs`, `Programmed`.")
    ] = ()


class ProfilingPolicyStatus(PolicyStatus, frozen=True):
    """What became of a ProfilingPolicy."""

    effective: Annotated[
        Effective | None, Meta(description="What defaults and ceilings make of the policy.")
    ] = None


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
