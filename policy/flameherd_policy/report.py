"""StatusDelta: what an agent reports to the operator, about once a minute and when something flips.

Counts are of the time since the report before was taken, gauges are of now, and a policy that has
nothing on the node is left out. So a report stands for itself: one that is lost, or told twice,
spoils nothing, and an operator that has just begun knows a cluster after a minute. Which node it is
of is not in it: the token says so.

Decoded by msgspec itself, not by `decode`: a machine wrote it, and 5,000 nodes send 80 a second.
Fields of later versions are ignored, fields of earlier ones have their defaults.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from flameherd_policy.agent_config import MAX_SLOTS, SlotName
from flameherd_policy.base import Model

MAX_REPORT_BYTES: Final = 512 * 1024
"""Of a report's JSON: 1,023 policies with an error each are half of it."""
MAX_ERROR: Final = 200
PATH: Final = "/v1/status"
"""Of the operator's server, by POST."""
AUDIENCE: Final = "flameherd-status"
"""Of the agents' tokens: the API server takes them for nothing else."""

Number = Annotated[int, Meta(ge=0, le=2**53)]
Small = Annotated[int, Meta(ge=0, le=1_000_000)]
ErrorText = Annotated[str, Meta(max_length=MAX_ERROR)]


class BudgetState(StrEnum):
    """What a CPU budget does on a node."""

    KEPT = "Kept"
    """The rate is what the policy says, or there is no budget."""
    LOWERED = "Lowered"
    """The rate is lower, so that the budget is kept."""
    FLOOR = "Floor"
    """Even the lowest rate costs more than the budget."""


class ExportState(StrEnum):
    """How sending goes."""

    IDLE = "Idle"
    """Nothing has been sent so far."""
    SENDING = "Sending"
    FAILING = "Failing"
    """The latest attempt failed."""


class PolicyDelta(Model, frozen=True):
    """One policy on one node."""

    name: Annotated[SlotName, Meta(description="`namespace/name`, or `name` of a cluster policy.")]
    frequency_hz: Annotated[Small, Meta(description="The rate at which it samples now.")] = 0
    pods_matched: Annotated[Small, Meta(description="Pods that it selects.")] = 0
    pods_profiled: Annotated[Small, Meta(description="Pods that it samples.")] = 0
    containers_matched: Annotated[Small, Meta(description="Containers that it selects.")] = 0
    containers_profiled: Annotated[Small, Meta(description="Containers that it samples.")] = 0
    containers_overlapped: Annotated[
        Small, Meta(description="Containers that another policy samples instead.")
    ] = 0
    samples: Annotated[Number, Meta(description="Samples that were accepted.")] = 0
    complete: Annotated[Number, Meta(description="Of these: whole to the root.")] = 0
    truncated: Annotated[Number, Meta(description="Of these: the root was not reached.")] = 0
    lost: Annotated[Number, Meta(description="Of these: no stack arrived.")] = 0
    unsymbolized: Annotated[
        Number, Meta(description="Of those with a stack: the innermost function has no name.")
    ] = 0
    kernel_ns: Annotated[Number, Meta(description="CPU time of the programs in the kernel.")] = 0
    agent_ns: Annotated[Number, Meta(description="Its share of the agent's CPU time.")] = 0
    sent_bytes: Annotated[Number, Meta(description="Its share of what was sent.")] = 0
    export: Annotated[ExportState, Meta(description="How sending goes.")] = ExportState.IDLE
    export_errors: Annotated[Number, Meta(description="Attempts to send that failed.")] = 0
    export_error: Annotated[ErrorText, Meta(description="The latest of them.")] = ""
    budget: Annotated[BudgetState, Meta(description="What the CPU budget does.")] = BudgetState.KEPT


class StatusDelta(Model, frozen=True):
    """One node, as its agent sees it."""

    seconds: Annotated[
        Annotated[float, Meta(gt=0, le=86400)], Meta(description="The time that counts are of.")
    ]
    agent_version: Annotated[Annotated[str, Meta(max_length=64)], Meta(description="Its own.")] = ""
    shards: Annotated[
        dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=64)]],
        Meta(max_length=64, description="Name → version of the configuration that it carries out."),
    ] = {}
    notices: Annotated[
        tuple[ErrorText, ...],
        Meta(max_length=16, description="What it could not carry out, or does not know."),
    ] = ()
    policies: Annotated[
        tuple[PolicyDelta, ...],
        Meta(max_length=MAX_SLOTS, description="Those that have something on the node."),
    ] = ()

    def flips(self) -> frozenset[tuple[str, ...]]:
        """What conditions depend on: the operator is told at once when this changes."""
        return frozenset(self._flips())

    def _flips(self) -> Iterator[tuple[str, ...]]:
        yield from (("shard", *shard) for shard in self.shards.items())
        for one in self.policies:
            yield (
                one.name,
                one.export.value,
                one.budget.value,
                str(one.containers_overlapped > 0),
                str(one.pods_profiled > 0),
                str(one.pods_matched > 0),
            )


_DECODER: Final = msgspec.json.Decoder(StatusDelta)


def read_report(data: bytes) -> StatusDelta:
    """Raises `ValueError` that names the field."""
    if len(data) > MAX_REPORT_BYTES:
        raise ValueError(f"a report of {len(data)} bytes is more than {MAX_REPORT_BYTES}")
    report: StatusDelta = _DECODER.decode(data)  # its errors are ValueErrors
    if len({one.name for one in report.policies}) < len(report.policies):
        raise ValueError("policies: one name is there twice")
    return report


def write_report(report: StatusDelta) -> bytes:
    """JSON. Policies from the end on are left out when it would be more than is taken."""
    while len(data := msgspec.json.encode(report)) > MAX_REPORT_BYTES:
        fewer = report.policies[: len(report.policies) * 3 // 4]
        report = msgspec.structs.replace(report, policies=fewer)
    return data
