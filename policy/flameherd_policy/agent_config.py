"""AgentConfig: what agents are told, by the operator or by `flameherd agent --config FILE`.

It is the same for every node: policy slots with selectors that the agent evaluates against its own
node's containers and processes, endpoints by name, and the ceilings, which the agent checks again.
Nothing in it needs the API server to be understood. An agent reads one version up and down: it
decodes leniently what comes over the API, ignores unknown fields and reports them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, field

from flameherd_policy.base import Model
from flameherd_policy.durations import Duration
from flameherd_policy.endpoints import EndpointRule, parse_endpoint
from flameherd_policy.policies import (
    DEFAULT_INTERVAL,
    INTERVAL,
    MAX_FREQUENCY_HZ,
    Attributes,
    Compression,
    CpuAmount,
    DnsLabel,
    EnvName,
    FrequencyHz,
    Priority,
)
from flameherd_policy.quantities import Quantity
from flameherd_policy.selectors import LabelSelector

MAX_SLOTS: Final = 1023
"""One less than the kernel side's FH_MAX_SLOTS: slot 0 means "no policy"."""

_CONTAINER_ID = re.compile(r"[0-9a-f]{8,64}(?:-[0-9]{1,10})?", re.ASCII)


def _check_container_id(text: str) -> str | None:
    if _CONTAINER_ID.fullmatch(text):
        return None
    return f"{text!r} is not a container id: 8 to 64 digits of 0-9 and a-f, without the runtime"


FilePath = Annotated[str, Meta(min_length=1, max_length=4096)]
SlotName = Annotated[str, Meta(min_length=1, max_length=317)]
EndpointName = Annotated[str, Meta(min_length=1, max_length=317)]
HeaderName = Annotated[str, Meta(min_length=1, max_length=128)]
HeaderValue = Annotated[str, Meta(max_length=4096)]
ContainerId = Annotated[
    str, Meta(min_length=8, max_length=128, extra={"check": _check_container_id})
]
PidNumber = Annotated[int, Meta(ge=1, le=4194304)]


class SlotSelector(Model, frozen=True):
    """Which processes a slot samples:

    exactly one of `host`, `namespace`, `containerIds`, `pids`.
    """

    host: Annotated[
        bool, Meta(description="Every process of the machine that no other slot selects.")
    ] = False
    namespace: Annotated[DnsLabel | None, Meta(description="Pods of this namespace.")] = None
    pod_selector: Annotated[
        LabelSelector, Meta(description="With `namespace`: which pods; `{}` = all.")
    ] = LabelSelector()
    container_names: Annotated[
        tuple[DnsLabel, ...],
        Meta(
            max_length=32,
            extra={"set": True},
            description="With `namespace`: which containers; empty = all.",
        ),
    ] = ()
    container_ids: Annotated[
        tuple[ContainerId, ...],
        Meta(
            max_length=1024,
            extra={"set": True},
            description="Containers by id, or its first 8 digits or more.",
        ),
    ] = ()
    pids: Annotated[
        tuple[PidNumber, ...],
        Meta(
            max_length=1024, extra={"set": True}, description="Processes by id, and what they fork."
        ),
    ] = ()

    def problems(self) -> Iterator[tuple[str, str]]:
        ways = {
            "host": self.host,
            "namespace": self.namespace is not None,
            "containerIds": bool(self.container_ids),
            "pids": bool(self.pids),
        }
        chosen = [name for name, is_set in ways.items() if is_set]
        if len(chosen) != 1:
            has = " and ".join(chosen) or "none of them"
            yield "", f"exactly one of {', '.join(ways)} must be set; there is {has}"
        if self.namespace is None and (
            self.container_names or self.pod_selector != LabelSelector()
        ):
            yield "", "podSelector and containerNames go with namespace only"

    def selects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """True if it selects a pod of this namespace with these labels."""
        return self.namespace == namespace and self.pod_selector.matches(labels)

    def takes(self, container: str) -> bool:
        """True if it takes a container of this name in the pods that it selects."""
        return not self.container_names or container in self.container_names


class PolicySlot(Model, frozen=True):
    """One policy as an agent carries it out."""

    name: Annotated[
        SlotName,
        Meta(
            description="`namespace/name` of a ProfilingPolicy, `name` of a ClusterProfilingPolicy."
        ),
    ]
    selector: Annotated[SlotSelector, Meta(description="Which processes.")]
    frequency_hz: Annotated[FrequencyHz, Meta(description="Samples per second of CPU time.")]
    priority: Annotated[
        Priority,
        Meta(
            description="Of two slots on one process the higher wins, then the earlier in the list."
        ),
    ] = 0
    endpoint: Annotated[
        EndpointName | None,
        Meta(description="Key in `endpoints`; absent = not exported, only seen on the machine."),
    ] = None
    attributes: Annotated[Attributes, Meta(description="Additional resource attributes.")] = (
        Attributes()
    )
    cpu_per_node: Annotated[
        CpuAmount | None,
        Meta(description="CPU budget: the rate is lowered to keep to it. Absent = none."),
    ] = None
    clipped_by: Annotated[
        tuple[str, ...],
        Meta(
            max_length=32, description="The ceilings that lowered or removed something, in words."
        ),
    ] = ()

    @property
    def period_ns(self) -> int:
        """Nanoseconds of CPU time per sample."""
        return round(1e9 / self.frequency_hz)


class AgentProtocol(StrEnum):
    """How an agent sends: OTLP, or files."""

    GRPC = "GRPC"
    HTTP = "HTTP"
    FILE = "File"


class AgentTls(Model, frozen=True):
    """TLS of an `https` endpoint, by files on the node."""

    ca_file: Annotated[
        FilePath | None, Meta(description="PEM certificates; absent = the system's.")
    ] = None
    cert_file: Annotated[FilePath | None, Meta(description="PEM certificate of the client.")] = None
    key_file: Annotated[FilePath | None, Meta(description="PEM key of the client.")] = None
    insecure_skip_verify: Annotated[
        bool, Meta(description="Do not check the server's certificate. For tests.")
    ] = False

    def problems(self) -> Iterator[tuple[str, str]]:
        if (self.cert_file is None) != (self.key_file is None):
            yield (
                "certFile" if self.cert_file is None else "keyFile",
                "certFile and keyFile go together",
            )


class AgentEndpoint(Model, frozen=True):
    """Where an agent sends profiles. Endpoints of equal content share one queue."""

    protocol: Annotated[AgentProtocol, Meta(description="OTLP transport, or `File`.")] = (
        AgentProtocol.GRPC
    )
    endpoint: Annotated[
        Annotated[str, Meta(min_length=1, max_length=512)] | None,
        Meta(description="For GRPC and HTTP: `https://host[:port]` or `http://host[:port]`."),
    ] = None
    path: Annotated[
        FilePath | None, Meta(description="For File: a file that OTLP messages are appended to.")
    ] = None
    compression: Annotated[Compression, Meta(description="Compression of messages.")] = (
        Compression.GZIP
    )
    interval: Annotated[Duration, Meta(extra=INTERVAL, description="Time between two exports.")] = (
        DEFAULT_INTERVAL
    )
    headers: Annotated[
        dict[HeaderName, HeaderValue], Meta(max_length=32, description="Headers of each request.")
    ] = {}
    headers_file: Annotated[
        FilePath | None,
        Meta(
            description="A file with one `name: value` a line: keeps credentials out of this one."
        ),
    ] = None
    tls: Annotated[AgentTls | None, Meta(description="TLS of an `https` endpoint.")] = None

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.protocol is AgentProtocol.FILE:
            if self.path is None:
                yield "path", "is required with protocol: File"
            for name, value in (("endpoint", self.endpoint), ("tls", self.tls)):
                if value is not None:
                    yield name, "does not go with protocol: File"
            return
        if self.path is not None:
            yield "path", f"goes with protocol: File only, not {self.protocol.value}"
        if self.endpoint is None:
            yield "endpoint", f"is required with protocol: {self.protocol.value}"
            return
        target = parse_endpoint(self.endpoint, self.protocol.value)
        if isinstance(target, str):
            yield "endpoint", target
        elif self.tls is not None and target.scheme.value == "http":
            yield "tls", f"{self.endpoint!r} is plain text; write https:// or leave tls out"

    def __repr__(self) -> str:
        """Without the headers: they hold credentials, and reprs end up in logs."""
        return f"AgentEndpoint({self.protocol.value} {self.endpoint or self.path})"


class Ceilings(Model, frozen=True):
    """What no slot may exceed, whatever it says. The agent holds slots against it again."""

    max_frequency_hz: Annotated[FrequencyHz, Meta(description="Of every slot.")] = MAX_FREQUENCY_HZ
    max_cpu_per_node: Annotated[
        CpuAmount | None,
        Meta(description="Of every slot's CPU budget, also of those without one; absent = none."),
    ] = field(default=None, name="maxCPUPerNode")
    endpoints: Annotated[
        Annotated[tuple[EndpointRule, ...], Meta(max_length=256)] | None,
        Meta(description="Endpoints that may be sent to; absent = any."),
    ] = None
    env_names: Annotated[
        Annotated[tuple[EnvName, ...], Meta(max_length=256)] | None,
        Meta(description="Environment variables that may be read; absent = those that slots name."),
    ] = None

    def budget(self, wanted: Quantity | None) -> Quantity | None:
        """The CPU budget of a slot that asks for this one."""
        stated = [amount for amount in (wanted, self.max_cpu_per_node) if amount is not None]
        return min(stated, default=None)

    def allowed_env(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """Those of `wanted` that may be read."""
        return tuple(n for n in wanted if self.env_names is None or n in self.env_names)


class AgentConfig(Model, frozen=True):
    """What an agent profiles and where it sends it."""

    version: Annotated[
        str,
        Meta(
            max_length=64,
            description="Names this content; agents report the one that they carry out.",
        ),
    ] = ""
    policies: Annotated[
        tuple[PolicySlot, ...], Meta(max_length=MAX_SLOTS, description="What is profiled.")
    ] = ()
    endpoints: Annotated[
        dict[EndpointName, AgentEndpoint],
        Meta(max_length=MAX_SLOTS, description="Where profiles go, by name."),
    ] = {}
    ceilings: Annotated[Ceilings, Meta(description="What no slot may exceed.")] = Ceilings()

    def problems(self) -> Iterator[tuple[str, str]]:
        seen: set[str] = set()
        for index, slot in enumerate(self.policies):
            if slot.name in seen:
                yield f"policies[{index}].name", f"{slot.name!r} is there twice"
            seen.add(slot.name)
            if slot.endpoint is not None and slot.endpoint not in self.endpoints:
                known = ", ".join(self.endpoints) or "none"
                yield (
                    f"policies[{index}].endpoint",
                    f"{slot.endpoint!r} is not in endpoints: {known}",
                )

    def in_order(self) -> list[PolicySlot]:
        """Slots by precedence: the first one that selects a process samples it."""
        return sorted(self.policies, key=lambda slot: -slot.priority)
