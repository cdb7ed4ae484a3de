"""AgentPool: which nodes run an agent, and how. For the operator alone; no agent reads it."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta

from flameherd_policy.base import Model
from flameherd_policy.policies import ObjectMeta, ObjectName
from flameherd_policy.quantities import Quantity
from flameherd_policy.rules import Rule, matches, text
from flameherd_policy.selectors import LabelKey, LabelValue
from flameherd_policy.status import AgentPoolStatus

MAX_POOL_NAME: Final = 40
"""Leaves room for prefix and suffixes in the 63 characters of a pod's label and host name."""


class WhenIdle(StrEnum):
    """What becomes of the agents when no policy is left."""

    KEEP = "Keep"
    REMOVE = "Remove"


class TolerationOperator(StrEnum):
    """How a toleration compares."""

    EQUAL = "Equal"
    EXISTS = "Exists"


class TaintEffect(StrEnum):
    """Effects of a taint."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Toleration(Model, frozen=True):
    """A taint that agents put up with, as in a pod."""

    key: Annotated[LabelKey | None, Meta(description="Key of the taint; absent = all.")] = None
    operator: Annotated[TolerationOperator, Meta(description="How it compares.")] = (
        TolerationOperator.EQUAL
    )
    value: Annotated[LabelValue | None, Meta(description="Value of the taint, for Equal.")] = None
    effect: Annotated[TaintEffect | None, Meta(description="Absent = all.")] = None
    toleration_seconds: Annotated[
        Annotated[int, Meta(ge=0, le=2**31 - 1, extra={"unit": "seconds"})] | None,
        Meta(description="For NoExecute: how long. Absent = for ever."),
    ] = None

    RULES = (
        Rule(
            "!has(self.operator) || self.operator != 'Exists' || !has(self.value)",
            "operator Exists takes no value: leave value out, or write Equal",
        ),
        Rule(
            "(has(self.operator) && self.operator == 'Exists') || has(self.key)",
            "operator Equal needs a key: name the taint's key, or write Exists for all taints",
        ),
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.operator is TolerationOperator.EXISTS and self.value is not None:
            yield "value", "operator Exists takes no value"
        if self.operator is TolerationOperator.EQUAL and self.key is None:
            yield "key", "operator Equal needs a key"


ResourceName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=63,
        extra=text(
            "[a-z0-9](?:[-a-z0-9./]*[a-z0-9])?",
            "is not a resource: cpu, memory, ephemeral-storage or a vendor's domain/name",
        ),
    ),
]
Amount = Annotated[
    Quantity,
    Meta(
        extra={
            "cel": (
                matches(
                    r"[0-9]{1,15}(?:\.[0-9]{1,9})?(?:[numkMGTPE]|[KMGTPE]i)?",
                    "is not an amount: a number with a suffix, such as 20m, 0.5 or 64Mi",
                ),
            )
        }
    ),
]


class Resources(Model, frozen=True):
    """Requests and limits of the agent's container."""

    RULES = (
        Rule(
            "!has(self.requests) || !has(self.limits) || self.requests.all(name, "
            "!(name in self.limits) "
            "|| !isQuantity(string(self.requests[name])) || !isQuantity(string(self.limits[name])) "
            "|| quantity(string(self.requests[name]))"
            ".compareTo(quantity(string(self.limits[name]))) <= 0)",
            "a request is more than the limit of the same resource: lower the one or raise the "
            "other",
        ),
    )

    requests: Annotated[
        dict[ResourceName, Amount], Meta(max_length=8, description="`cpu`, `memory`, …")
    ] = {}
    limits: Annotated[
        dict[ResourceName, Amount], Meta(max_length=8, description="`cpu`, `memory`, …")
    ] = {}

    def problems(self) -> Iterator[tuple[str, str]]:
        for name, limit in self.limits.items():
            request = self.requests.get(name)
            if request is not None and not request <= limit:
                yield f"requests[{name}]", f"{request} is more than the limit, {limit}"


class UpdateStrategy(Model, frozen=True):
    """How a new version rolls out."""

    max_unavailable: Annotated[
        str,
        Meta(
            max_length=16,
            extra=text(
                "[1-9][0-9]{0,3}|(?:100|[1-9][0-9]?)%",
                "is neither a number above 0 nor a percentage from 1% to 100%",
            ),
            description="Nodes without an agent at one time: a number in quotes, or a percentage "
            "such as `10%`.",
        ),
    ] = "10%"


class AgentPoolSpec(Model, frozen=True):
    """Which nodes run an agent, and how."""

    node_selector: Annotated[
        dict[LabelKey, LabelValue],
        Meta(max_length=32, description="Labels of the nodes; `{}` = every node."),
    ] = {}
    tolerations: Annotated[
        tuple[Toleration, ...], Meta(max_length=32, description="Taints that agents put up with.")
    ] = ()
    resources: Annotated[Resources, Meta(description="Requests and limits of the agent.")] = (
        Resources()
    )
    priority_class_name: Annotated[
        ObjectName | None, Meta(description="PriorityClass of the agent's pods.")
    ] = None
    image: Annotated[
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=512,
                extra=text(
                    "[A-Za-z0-9][-A-Za-z0-9._/:@]*",
                    "is not an image: registry/name:tag, or registry/name@sha256:digest",
                ),
            ),
        ]
        | None,
        Meta(description="Image of the agent; absent = the operator's own version."),
    ] = None
    update_strategy: Annotated[UpdateStrategy, Meta(description="How a new version rolls out.")] = (
        UpdateStrategy()
    )
    when_idle: Annotated[
        WhenIdle,
        Meta(
            description="`Keep`: idle agents stay, with no perf event open. `Remove`: they go "
            "after 60 s."
        ),
    ] = WhenIdle.KEEP


class AgentPool(Model, frozen=True):
    """Cluster-wide: which nodes run an agent, and how. Pools alone choose nodes."""

    RULES = (
        Rule(
            f"size(self.metadata.name) <= {MAX_POOL_NAME}",
            f"the name of an AgentPool has at most {MAX_POOL_NAME} characters: it is part of its "
            "DaemonSet's name",
        ),
    )

    metadata: Annotated[ObjectMeta, Meta(description="Name.")]
    spec: Annotated[AgentPoolSpec, Meta(description="Which nodes run an agent, and how.")] = (
        AgentPoolSpec()
    )
    status: Annotated[
        AgentPoolStatus | None, Meta(description="What is; written by the operator.")
    ] = None

    def problems(self) -> Iterator[tuple[str, str]]:
        if len(self.metadata.name) > MAX_POOL_NAME:
            yield "metadata.name", f"an AgentPool's name has at most {MAX_POOL_NAME} characters"
        if self.metadata.namespace is not None:
            yield "metadata.namespace", "an AgentPool has no namespace"
