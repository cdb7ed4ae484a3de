"""The policies of one machine → AgentConfig. Pure.

On a single machine there are no pods and no Secrets: ClusterProfilingPolicies with `host.cpu`
select the host's processes, their defaults say where profiles go, their ceilings clip. What only
makes sense in a cluster is refused with a sentence instead of being ignored.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from flameherd_policy.agent_config import (
    AgentConfig,
    AgentEndpoint,
    AgentProtocol,
    AgentTls,
    Ceilings,
    PolicySlot,
    SlotSelector,
)
from flameherd_policy.base import to_wire
from flameherd_policy.endpoints import EndpointRule, Source, check_endpoint
from flameherd_policy.errors import PolicyError, Problem
from flameherd_policy.policies import (
    DEFAULT_FREQUENCY_HZ,
    ClusterProfilingPolicy,
    Export,
    Limits,
    ProfilingPolicy,
)
from flameherd_policy.pools import AgentPool
from flameherd_policy.quantities import Quantity

OPEN: Final = Ceilings()
"""On a single machine, what no file limits is not limited."""

Policy = ProfilingPolicy | ClusterProfilingPolicy | AgentPool


def compile_host(documents: Sequence[Policy]) -> AgentConfig:
    """What an agent on this machine is told by these policies; raises `PolicyError` with every
    problem.

    Defaults go by priority (then older, then smaller name); ceilings of all policies intersect. A
    ceiling that a policy leaves open does not limit: the file belongs to the machine's
    administrator.
    """
    clusters = sorted(
        (d for d in documents if isinstance(d, ClusterProfilingPolicy)), key=precedence
    )
    found = list(_cluster_only(documents))
    ceilings = intersect(policy.spec.limits for policy in clusters)
    endpoints: dict[str, AgentEndpoint] = {}
    endpoint_name = None
    for policy in clusters:
        export = policy.spec.defaults.export
        if export is None or endpoint_name is not None:
            continue
        endpoint_name = policy.metadata.name
        found += _export_problems(policy, export, ceilings)
        endpoints[endpoint_name] = _endpoint(export)
    slots = []
    for policy in clusters:
        slot = _slot(policy, clusters, ceilings, endpoint_name)
        if slot is not None:
            slots.append(slot)
    for name in sorted({n for n in (p.metadata.name for p in clusters) if _count(clusters, n) > 1}):
        found.append(Problem("metadata.name", f"{name!r} is the name of two policies"))
    if found:
        raise PolicyError(found)
    config = AgentConfig(policies=tuple(slots), endpoints=endpoints, ceilings=ceilings)
    return msgspec.structs.replace(config, version=content_version(config))


def content_version(config: AgentConfig) -> str:
    """Names the content of a configuration: equal content, equal version."""
    wire = {key: value for key, value in to_wire(config).items() if key != "version"}
    # Not hashlib: it maps OpenSSL, 3.5 MB of memory, and nobody attacks his own version.
    data = msgspec.json.encode(wire, order="sorted")
    return f"{zlib.crc32(data):08x}{zlib.adler32(data):08x}"


def clip_frequency(wanted_hz: int, ceilings: Ceilings) -> tuple[int, tuple[str, ...]]:
    """The rate that is carried out, and why it is lower than what was wanted (or nothing)."""
    if wanted_hz <= ceilings.max_frequency_hz:
        return wanted_hz, ()
    return ceilings.max_frequency_hz, (
        f"limits.frequencyHz.max: {wanted_hz} Hz lowered to {ceilings.max_frequency_hz} Hz",
    )


def clip_budget(
    wanted: Quantity | None, ceilings: Ceilings
) -> tuple[Quantity | None, tuple[str, ...]]:
    """The CPU budget that is kept, and why it is less than what was wanted (or nothing)."""
    kept = ceilings.budget(wanted)
    if wanted is None or kept is None or wanted <= kept:
        return kept, ()
    return kept, (f"limits.budget.maxCPUPerNode: {wanted} lowered to {kept}",)


def precedence(policy: ProfilingPolicy | ClusterProfilingPolicy) -> tuple[int, str, str]:
    """Sort key: higher priority, then older, then smaller name.

    RFC 3339 times in UTC sort as text; absent = newest.
    """
    meta = policy.metadata
    return -policy.spec.priority, meta.creation_timestamp or "~", meta.name


def _count(policies: Sequence[ClusterProfilingPolicy], name: str) -> int:
    return sum(policy.metadata.name == name for policy in policies)


def _cluster_only(documents: Sequence[Policy]) -> Iterator[Problem]:
    for document in documents:
        label = f"{type(document).__name__} {document.metadata.name}"
        if isinstance(document, ProfilingPolicy):
            yield Problem(
                "spec.podSelector",
                "there are no pods on a single machine: use a ClusterProfilingPolicy with "
                "host.cpu, or an AgentConfig",
                label=label,
            )
        elif isinstance(document, AgentPool):
            yield Problem(
                "", "an AgentPool chooses nodes of a cluster: leave it out here", label=label
            )


def intersect(limits: Iterable[Limits], built_in: Ceilings = OPEN) -> Ceilings:
    """The ceilings that all of `limits` allow; `built_in` holds where none of them says anything."""
    stated = tuple(limits)
    rates = [limit.frequency_hz.max for limit in stated if limit.frequency_hz is not None]
    names = [limit.env_names for limit in stated if limit.env_names is not None]
    rules = [limit.endpoints for limit in stated if limit.endpoints is not None]
    budgets = [limit.budget.max_cpu_per_node for limit in stated if limit.budget is not None]
    return Ceilings(
        max_frequency_hz=min(rates, default=built_in.max_frequency_hz),
        max_cpu_per_node=min(budgets, default=built_in.max_cpu_per_node),
        env_names=tuple(n for n in names[0] if all(n in other for other in names))
        if names
        else built_in.env_names,
        endpoints=_intersect(rules) if rules else built_in.endpoints,
    )


def _intersect(rule_sets: Sequence[tuple[EndpointRule, ...]]) -> tuple[EndpointRule, ...]:
    """Rules that allow what every set allows."""
    result = rule_sets[0]
    for rules in rule_sets[1:]:
        both = (_both(one, other) for one in result for other in rules)
        result = tuple(dict.fromkeys(rule for rule in both if rule is not None))
    return result


def _both(one: EndpointRule, other: EndpointRule) -> EndpointRule | None:
    """The rule that allows what both allow;

    patterns are suffixes, so that one contains the other or they are apart.
    """
    if one.scheme is not other.scheme:
        return None
    if one.port is not None and other.port is not None and one.port != other.port:
        return None
    narrow, wide = sorted((one.host.lower(), other.host.lower()), key=_specificity, reverse=True)
    if narrow != wide and not (
        wide.startswith("*.") and narrow.removeprefix("*").endswith(wide[1:])
    ):
        return None
    return EndpointRule(scheme=one.scheme, host=narrow, port=one.port or other.port)


def _specificity(host: str) -> tuple[bool, int]:
    return not host.startswith("*."), len(host)


def _export_problems(
    policy: ClusterProfilingPolicy, export: Export, ceilings: Ceilings
) -> Iterator[Problem]:
    label = f"ClusterProfilingPolicy {policy.metadata.name}"
    path = "spec.defaults.export"
    wrong = check_endpoint(
        export.endpoint, export.protocol.value, source=Source.FILE, rules=ceilings.endpoints
    )
    if wrong is not None:
        yield Problem(f"{path}.endpoint", wrong, label=label)
    tls = export.tls
    for name, used, instead in (
        ("headersSecretRef", export.headers_secret_ref, "headersFile"),
        ("tls.caSecretRef", tls and tls.ca_secret_ref, "tls.caFile"),
        (
            "tls.clientCertSecretRef",
            tls and tls.client_cert_secret_ref,
            "tls.certFile and tls.keyFile",
        ),
    ):
        if used is not None:
            message = (
                f"there are no Secrets on a single machine: write an AgentConfig with {instead}"
            )
            yield Problem(f"{path}.{name}", message, label=label)


def _endpoint(export: Export) -> AgentEndpoint:
    skip = export.tls is not None and export.tls.insecure_skip_verify
    return AgentEndpoint(
        protocol=AgentProtocol(export.protocol.value),
        endpoint=export.endpoint,
        compression=export.compression,
        interval=export.interval,
        tls=AgentTls(insecure_skip_verify=True) if skip else None,
    )


def _slot(
    policy: ClusterProfilingPolicy,
    clusters: Sequence[ClusterProfilingPolicy],
    ceilings: Ceilings,
    endpoint: str | None,
) -> PolicySlot | None:
    host = policy.spec.host
    if host is None or host.cpu is None:
        return None
    defaults = (p.spec.defaults.cpu for p in clusters)
    rates = (cpu.frequency_hz for cpu in (host.cpu, *defaults) if cpu is not None)
    wanted = next((rate for rate in rates if rate is not None), DEFAULT_FREQUENCY_HZ)
    frequency, clipped = clip_frequency(wanted, ceilings)
    return PolicySlot(
        name=policy.metadata.name,
        selector=SlotSelector(host=True),
        frequency_hz=frequency,
        priority=policy.spec.priority,
        endpoint=endpoint,
        clipped_by=clipped,
    )
