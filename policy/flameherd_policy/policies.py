"""The custom resources: ProfilingPolicy, ClusterProfilingPolicy and AgentPool
(`flameherd.dev/v1alpha1`).

Every list, map and string is bounded, because CEL rules over unbounded ones are refused by the API
server. An absent part is off: `cpu` absent = no CPU profiling, `cpu: {}` = on with the default
rate; defaults fill what is present and never switch anything on. Fields are here once the agent can
do what they say: off-CPU, scraping, probes and captures come with their own work. `status`
is the operator's to write; nobody reads it to decide what is profiled.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, field

from flameherd_policy.base import Model
from flameherd_policy.durations import Duration
from flameherd_policy.endpoints import ENDPOINT_RULES, EndpointRule, parse_endpoint
from flameherd_policy.quantities import Quantity
from flameherd_policy.rules import NO_NUL, Rule, text
from flameherd_policy.selectors import (
    DNS_LABEL,
    DNS_SUBDOMAIN,
    LabelKey,
    LabelSelector,
    LabelValue,
)
from flameherd_policy.status import ClusterProfilingPolicyStatus, ProfilingPolicyStatus

MAX_FREQUENCY_HZ: Final = 997
DEFAULT_FREQUENCY_HZ: Final = 19
"""What `cpu: {}` means when no ClusterProfilingPolicy's defaults say otherwise."""

FrequencyHz = Annotated[int, Meta(ge=1, le=MAX_FREQUENCY_HZ, extra={"unit": "Hz"})]
Priority = Annotated[int, Meta(ge=-1000, le=1000)]
ObjectName = Annotated[str, Meta(min_length=1, max_length=253, extra=DNS_SUBDOMAIN)]
DnsLabel = Annotated[str, Meta(min_length=1, max_length=63, extra=DNS_LABEL)]

_CPU_TEXT: Final = r"[0-9]{1,4}(?:\.[0-9]{1,6})?[mu]?"
MIN_BUDGET: Final = Quantity.parse("100u")
MAX_BUDGET: Final = Quantity.parse("1000")
CpuAmount = Annotated[
    Quantity,
    Meta(
        extra={
            "ge": MIN_BUDGET,
            "le": MAX_BUDGET,
            "cel": (
                Rule(
                    f"self.matches(r'^(?:{_CPU_TEXT})$') "
                    f"&& quantity(string(self)).compareTo(quantity('{MIN_BUDGET}')) >= 0 "
                    f"&& quantity(string(self)).compareTo(quantity('{MAX_BUDGET}')) <= 0",
                    f"is not an amount of CPU from {MIN_BUDGET} to {MAX_BUDGET}: write 5m for half "
                    "a percent of one CPU",
                ),
            ),
        }
    ),
]

_RESERVED: Final = ("container.", "flameherd.", "host.", "k8s.", "process.", "profile.", "thread.")
_KEY: Final = text(
    r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*",
    "is not an attribute key: lower-case words with dots, such as team.name",
    Rule(
        rf"!self.matches(r'^(?:{'|'.join(name.removesuffix('.') for name in _RESERVED)})\.')",
        f"is set by the agent itself ({', '.join(_RESERVED)}…): choose another key",
    ),
)


def _check_attribute_key(key: str) -> str | None:
    if key.startswith(_RESERVED):
        return f"{key!r} is set by the agent itself ({', '.join(_RESERVED)}…): choose another key"
    wrong: str | None = _KEY["check"](key)
    return wrong


EnvName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=128,
        extra=text(r"[A-Za-z_][A-Za-z0-9_]*", "is not the name of an environment variable"),
    ),
]
AttributeKey = Annotated[
    str, Meta(min_length=1, max_length=128, extra=_KEY | {"check": _check_attribute_key})
]
AttributeValue = Annotated[
    str, Meta(max_length=256, extra=text(NO_NUL, "holds a character that is not text"))
]


class ObjectMeta(Model, frozen=True):
    """The part of Kubernetes' object metadata that means something here."""

    name: Annotated[ObjectName, Meta(description="Name of the object.")]
    namespace: Annotated[
        DnsLabel | None, Meta(description="Namespace; only for namespaced kinds.")
    ] = None
    labels: Annotated[dict[LabelKey, LabelValue], Meta(description="Labels; not used.")] = {}
    annotations: Annotated[
        dict[LabelKey, Annotated[str, Meta(max_length=262144)]],
        Meta(description="Annotations; not used."),
    ] = {}
    creation_timestamp: Annotated[
        Annotated[str, Meta(max_length=64)] | None,
        Meta(description="Set by Kubernetes: of two equal policies the older wins."),
    ] = None
    generation: Annotated[
        Annotated[int, Meta(ge=0, le=2**63 - 1)] | None, Meta(description="Set by Kubernetes.")
    ] = None
    uid: Annotated[
        Annotated[str, Meta(max_length=64)] | None, Meta(description="Set by Kubernetes.")
    ] = None
    resource_version: Annotated[
        Annotated[str, Meta(max_length=64)] | None, Meta(description="Set by Kubernetes.")
    ] = None


class Cpu(Model, frozen=True):
    """CPU profiling: where the processor's time goes. `{}` = on, at the default rate."""

    frequency_hz: Annotated[
        FrequencyHz | None,
        Meta(
            description="Samples per second of CPU time. Absent = the cluster's default, else 19."
        ),
    ] = None


class Budget(Model, frozen=True):
    """What profiling may take. The rate is lowered where it takes more, and raised again."""

    cpu_per_node: Annotated[
        CpuAmount,
        Meta(
            description="CPUs on each node, over a minute: the programs in the kernel and the "
            "policy's share of the agent. `5m` = half a percent of one CPU."
        ),
    ]


class Attributes(Model, frozen=True):
    """What is added to the resource attributes of the profiles."""

    pod_labels: Annotated[
        tuple[LabelKey, ...],
        Meta(
            max_length=16,
            extra={"set": True},
            description="Labels of the pod: `k8s.pod.label.KEY`.",
        ),
    ] = ()
    pod_annotations: Annotated[
        tuple[LabelKey, ...],
        Meta(
            max_length=16,
            extra={"set": True},
            description="Annotations of the pod: `k8s.pod.annotation.KEY`.",
        ),
    ] = ()
    env: Annotated[
        tuple[EnvName, ...],
        Meta(
            max_length=16,
            extra={"set": True},
            description="Environment variables of the process: "
            "`process.environment_variable.NAME`; "
            "only names that the administrator's `limits.envNames` allow.",
        ),
    ] = ()
    static: Annotated[
        dict[AttributeKey, AttributeValue], Meta(max_length=16, description="Fixed attributes.")
    ] = {}


class Protocol(StrEnum):
    """OTLP transports."""

    GRPC = "GRPC"
    HTTP = "HTTP"


class Compression(StrEnum):
    """Compression of OTLP messages."""

    NONE = "None"
    GZIP = "Gzip"


class SecretRef(Model, frozen=True):
    """A Secret of the policy's own namespace, of type `flameherd.dev/export`."""

    name: Annotated[ObjectName, Meta(description="Name of the Secret.")]


class SecretKeyRef(Model, frozen=True):
    """One key of a Secret of the policy's own namespace, of type `flameherd.dev/export`."""

    name: Annotated[ObjectName, Meta(description="Name of the Secret.")]
    key: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=253,
            extra=text(
                "[-._A-Za-z0-9]+",
                "is not a key of a Secret: letters, digits, '-', '_' and '.'",
            ),
            description="Key in the Secret.",
        ),
    ]


class Tls(Model, frozen=True):
    """TLS of an `https` endpoint."""

    ca_secret_ref: Annotated[
        SecretKeyRef | None,
        Meta(
            description="PEM certificates that the server's is checked against. Absent = the "
            "system's."
        ),
    ] = None
    client_cert_secret_ref: Annotated[
        SecretRef | None, Meta(description="`tls.crt` and `tls.key` of the client, for mutual TLS.")
    ] = None
    insecure_skip_verify: Annotated[
        bool, Meta(description="Do not check the server's certificate. For tests.")
    ] = False


INTERVAL: Final = {"ge": Duration.parse("1s"), "le": Duration.parse("10m")}
DEFAULT_INTERVAL: Final = Duration.parse("10s")


class Export(Model, frozen=True):
    """Where profiles are sent, as OTLP."""

    RULES = (
        Rule(
            "(has(self.protocol) && self.protocol == 'HTTP') "
            "|| !self.endpoint.matches(r'^[a-z]+://[^/]+/.')",
            "a gRPC endpoint has no path: leave it out, or write protocol: HTTP",
        ),
        Rule(
            "!has(self.tls) || self.endpoint.startsWith('https://')",
            "tls goes with https:// only: write https://, or leave tls out",
        ),
    )

    endpoint: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=512,
            extra={"cel": ENDPOINT_RULES},
            description="`https://host[:port]` (TLS) or `http://host[:port]` (plain text). "
            "Port: 4317 for GRPC, 4318 for HTTP.",
        ),
    ]
    protocol: Annotated[Protocol, Meta(description="OTLP transport.")] = Protocol.GRPC
    compression: Annotated[Compression, Meta(description="Compression of messages.")] = (
        Compression.GZIP
    )
    interval: Annotated[Duration, Meta(extra=INTERVAL, description="Time between two exports.")] = (
        DEFAULT_INTERVAL
    )
    headers_secret_ref: Annotated[
        SecretRef | None, Meta(description="Each key of the Secret is sent as a header.")
    ] = None
    tls: Annotated[Tls | None, Meta(description="TLS of an `https` endpoint.")] = None

    def problems(self) -> Iterator[tuple[str, str]]:
        target = parse_endpoint(self.endpoint, self.protocol.value)
        if isinstance(target, str):
            yield "endpoint", target
        elif self.tls is not None and target.scheme.value == "http":
            yield "tls", f"{self.endpoint!r} is plain text; write https:// or leave tls out"


class ProfilingPolicySpec(Model, frozen=True):
    """What to profile in this namespace, and how."""

    pod_selector: Annotated[
        LabelSelector, Meta(description="Pods of this namespace; `{}` = every pod.")
    ]
    priority: Annotated[
        Priority,
        Meta(
            description="Of two policies on one container the higher wins, then the older, then "
            "the smaller name."
        ),
    ] = 0
    suspend: Annotated[bool, Meta(description="True = as if the policy were not there.")] = False
    container_names: Annotated[
        tuple[DnsLabel, ...],
        Meta(
            max_length=32, extra={"set": True}, description="Containers of the pods; empty = all."
        ),
    ] = ()
    cpu: Annotated[
        Cpu | None,
        Meta(description="CPU profiling; absent = off, `{}` = on at the cluster's default rate."),
    ] = None
    budget: Annotated[
        Budget | None,
        Meta(description="What it may take; absent = as much as the ceilings allow."),
    ] = None
    attributes: Annotated[
        Attributes, Meta(description="What is added to the attributes of the profiles.")
    ] = Attributes()
    export: Annotated[
        Export | None, Meta(description="Where to; absent = the cluster's default.")
    ] = None


class ProfilingPolicy(Model, frozen=True):
    """Namespaced: what to profile in this namespace, and how."""

    metadata: Annotated[ObjectMeta, Meta(description="Name and namespace.")]
    spec: Annotated[
        ProfilingPolicySpec, Meta(description="What to profile in this namespace, and how.")
    ]
    status: Annotated[
        ProfilingPolicyStatus | None, Meta(description="What is; written by the operator.")
    ] = None


class Defaults(Model, frozen=True):
    """What policies leave open. Fills what is present in a policy, never switches anything on."""

    cpu: Annotated[Cpu | None, Meta(description="Fills `cpu` of policies.")] = None
    export: Annotated[Export | None, Meta(description="For policies without `export`.")] = None


class Host(Model, frozen=True):
    """Profiling of the node itself: every process that no other policy selects."""

    cpu: Annotated[
        Cpu | None,
        Meta(description="CPU profiling; absent = off, `{}` = on at the default rate."),
    ] = None


class FrequencyLimit(Model, frozen=True):
    """Bounds of a sampling rate."""

    max: Annotated[FrequencyHz, Meta(description="Higher rates are lowered to this one.")]


class BudgetLimit(Model, frozen=True):
    """Bounds of a CPU budget."""

    max_cpu_per_node: Annotated[
        CpuAmount,
        Meta(
            description="Higher budgets are lowered to this one; policies without one get it. "
            "CPUs on each node."
        ),
    ] = field(name="maxCPUPerNode")


class Limits(Model, frozen=True):
    """Ceilings.

    Those of several ClusterProfilingPolicies intersect. Absent = the built-in ceiling.
    """

    frequency_hz: Annotated[
        FrequencyLimit | None, Meta(description="Of every sampling rate. Built in: 97 Hz.")
    ] = None
    budget: Annotated[
        BudgetLimit | None, Meta(description="Of every CPU budget. Built in: none.")
    ] = None
    endpoints: Annotated[
        Annotated[tuple[EndpointRule, ...], Meta(max_length=32)] | None,
        Meta(
            description="Endpoints that exports may go to. Built in: hosts that end in `.svc` or "
            "`.svc.cluster.local`."
        ),
    ] = None
    env_names: Annotated[
        Annotated[tuple[EnvName, ...], Meta(max_length=64, extra={"set": True})] | None,
        Meta(description="Environment variables that `attributes.env` may name. Built in: none."),
    ] = None


class ClusterProfilingPolicySpec(Model, frozen=True):
    """The administrator's defaults and ceilings, and profiling of the nodes themselves."""

    priority: Annotated[
        Priority,
        Meta(
            description="Of two defaults the one of higher priority wins, then the older, then "
            "the smaller name."
        ),
    ] = 0
    namespace_selector: Annotated[
        LabelSelector,
        Meta(description="Namespaces that defaults and limits hold for; `{}` = every one."),
    ] = LabelSelector()
    defaults: Annotated[Defaults, Meta(description="What policies leave open.")] = Defaults()
    host: Annotated[
        Host | None, Meta(description="Profiling of the node itself; absent = off.")
    ] = None
    limits: Annotated[Limits, Meta(description="Ceilings.")] = Limits()


class ClusterProfilingPolicy(Model, frozen=True):
    """Cluster-wide: the administrator's defaults and ceilings."""

    metadata: Annotated[ObjectMeta, Meta(description="Name.")]
    spec: Annotated[
        ClusterProfilingPolicySpec,
        Meta(
            description="The administrator's defaults and ceilings, and profiling of the nodes "
            "themselves."
        ),
    ]
    status: Annotated[
        ClusterProfilingPolicyStatus | None, Meta(description="What is; written by the operator.")
    ] = None

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.metadata.namespace is not None:
            yield "metadata.namespace", "a ClusterProfilingPolicy has no namespace"
