"""Policies → slots of AgentConfig, each with a verdict. Pure.

A slot is told what is carried out in fact: defaults filled in, ceilings applied, and in words what
they took away. A policy that cannot work has no slot, and says why.
"""

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import msgspec
from flameherd_policy.agent_config import AgentEndpoint, Ceilings, PolicySlot, SlotSelector
from flameherd_policy.compile import clip_budget, clip_frequency, precedence
from flameherd_policy.policies import (
    DEFAULT_FREQUENCY_HZ,
    ClusterProfilingPolicy,
    Cpu,
    Export,
    ProfilingPolicy,
)
from flameherd_policy.quantities import Quantity
from flameherd_policy.status import Effective, EffectiveBudget, EffectiveCpu

from flameherd_operator.ceilings import Regime, in_namespace, on_hosts
from flameherd_operator.observed import ClusterPolicy, Inputs, Policy, Seen
from flameherd_operator.render.exports import Files, Unresolved, refused, resolve
from flameherd_operator.verdict import NOT_TRIED, RESOLVED, Outcome, Verdict

P = TypeVar("P", ProfilingPolicy, ClusterProfilingPolicy)
TO_PROGRAM: Final = Outcome(True, "Programmed", "in the configuration of the agents")
_OFF: Final = Outcome(False, "Off", "nothing is switched on: write cpu: {} to profile CPU time")
_SUSPENDED: Final = Outcome(False, "Suspended", "suspend is true: nothing is profiled")
_NO_ENDPOINT: Final = Outcome(
    False,
    "NoEndpoint",
    "neither the policy's export nor defaults.export of a ClusterProfilingPolicy says where "
    "profiles go",
)


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """A slot and all that goes with it into a shard."""

    slot: PolicySlot
    namespace: str
    """"" = the nodes' own processes."""
    endpoint: AgentEndpoint
    files: Files
    ceilings: Ceilings


class Planned(msgspec.Struct, frozen=True):
    """Slots in order of precedence, and the verdict on every policy by its uid."""

    slots: tuple[Slot, ...]
    verdicts: Mapping[str, Verdict]


def plan(inputs: Inputs, system_namespace: str) -> Planned:
    """What every policy comes to."""
    clusters = [seen.value for seen in inputs.clusters if seen.value is not None]
    regimes: dict[str, Regime] = {}
    slots: list[Slot] = []
    verdicts: dict[str, Verdict] = {}
    for seen in _in_order(inputs.clusters):
        verdict, slot = _host(seen, clusters, inputs, system_namespace)
        verdicts[seen.uid] = verdict
        slots += [slot] if slot else []
    for policy in _in_order(inputs.policies):
        regime = regimes.get(policy.namespace)
        if regime is None:
            regime = in_namespace(clusters, inputs.namespaces.get(policy.namespace, {}))
            regimes[policy.namespace] = regime
        verdict, slot = _namespaced(policy, regime, inputs, system_namespace)
        verdicts[policy.uid] = verdict
        slots += [slot] if slot else []
    return Planned(tuple(slots), verdicts)


def _in_order(many: Sequence[Seen[P]]) -> list[Seen[P]]:
    return sorted(many, key=lambda seen: precedence(seen.value) if seen.value else (0, "", ""))


def _invalid(seen: Policy | ClusterPolicy) -> Verdict:
    return Verdict(accepted=Outcome(False, "Invalid", seen.problem), resolved=NOT_TRIED)


def _namespaced(
    seen: Policy, regime: Regime, inputs: Inputs, system_namespace: str
) -> tuple[Verdict, Slot | None]:
    policy = seen.value
    if policy is None:
        return _invalid(seen), None
    spec = policy.spec
    own = spec.export is not None
    export = spec.export or regime.defaults.export
    if spec.suspend:
        return Verdict(programmed=_SUSPENDED), None
    if spec.cpu is None:
        return Verdict(programmed=_OFF), None
    if export is None:
        return Verdict(accepted=_NO_ENDPOINT, resolved=NOT_TRIED), None
    allowed = tuple(regime.ceilings.allowed_env(spec.attributes.env))
    left_out = [name for name in spec.attributes.env if name not in allowed]
    named = f"limits.envNames: {', '.join(left_out)} left out"
    return _carried_out(
        seen,
        regime,
        export,
        cpu=spec.cpu,
        budget=spec.budget.cpu_per_node if spec.budget is not None else None,
        whose=seen.namespace if own else system_namespace,
        by="" if own else regime.defaults.export_by,
        inputs=inputs,
        slot=PolicySlot(
            name=seen.key,
            selector=selector_of(policy, seen.namespace),
            frequency_hz=DEFAULT_FREQUENCY_HZ,
            priority=spec.priority,
            attributes=msgspec.structs.replace(spec.attributes, env=allowed),
            clipped_by=(named[:512],) if left_out else (),
        ),
    )


def selector_of(policy: ProfilingPolicy, namespace: str) -> SlotSelector:
    """Which containers a policy of a namespace is about."""
    return SlotSelector(
        namespace=namespace,
        pod_selector=policy.spec.pod_selector,
        container_names=policy.spec.container_names,
    )


def _host(
    seen: ClusterPolicy,
    clusters: Sequence[ClusterProfilingPolicy],
    inputs: Inputs,
    system_namespace: str,
) -> tuple[Verdict, Slot | None]:
    policy = seen.value
    if policy is None:
        return _invalid(seen), None
    regime = on_hosts(clusters)
    default = policy.spec.defaults.export
    if default is not None:
        wrong = refused(default, regime.ceilings)
        if wrong is not None:
            return Verdict(accepted=wrong, resolved=NOT_TRIED), None
    host = policy.spec.host
    if host is None or host.cpu is None:
        resolved = RESOLVED
        if default is not None:
            try:
                resolve(default, system_namespace, inputs.secrets)
            except Unresolved as error:
                resolved = error.outcome
        said = Outcome(True, "Accepted", "its defaults and limits hold; host is off")
        return Verdict(resolved=resolved, programmed=said), None
    export = default or regime.defaults.export
    if export is None:
        return Verdict(accepted=_NO_ENDPOINT, resolved=NOT_TRIED), None
    return _carried_out(
        seen,
        regime,
        export,
        cpu=host.cpu,
        budget=None,
        whose=system_namespace,
        by="" if default else regime.defaults.export_by,
        inputs=inputs,
        slot=PolicySlot(
            name=seen.key,
            selector=SlotSelector(host=True),
            frequency_hz=DEFAULT_FREQUENCY_HZ,
            priority=policy.spec.priority,
        ),
    )


def _carried_out(
    seen: Policy | ClusterPolicy,
    regime: Regime,
    export: Export,
    *,
    cpu: Cpu,
    budget: Quantity | None,
    whose: str,
    by: str,
    inputs: Inputs,
    slot: PolicySlot,
) -> tuple[Verdict, Slot | None]:
    """`slot` with rate and endpoint; `whose` is the namespace of the export's Secrets, `by` the
    ClusterProfilingPolicy that the export comes from, if it does.
    """
    default = regime.defaults.cpu
    rates = [c.frequency_hz for c in (cpu, default) if c is not None and c.frequency_hz is not None]
    hertz, clipped = clip_frequency([*rates, DEFAULT_FREQUENCY_HZ][0], regime.ceilings)
    kept, lowered = clip_budget(budget, regime.ceilings)
    clipped = (*slot.clipped_by, *clipped, *lowered)
    effective = Effective(
        cpu=EffectiveCpu(frequency_hz=hertz),
        budget=EffectiveBudget(cpu_per_node=kept) if kept is not None else None,
        clipped_by=clipped,
    )
    wrong = refused(export, regime.ceilings)
    if wrong is not None:
        return Verdict(accepted=_from(wrong, by), resolved=NOT_TRIED, effective=effective), None
    try:
        resolved = resolve(export, whose, inputs.secrets)
    except Unresolved as error:
        return Verdict(resolved=_from(error.outcome, by), effective=effective), None
    ready = msgspec.structs.replace(
        slot,
        frequency_hz=hertz,
        cpu_per_node=kept,
        clipped_by=clipped,
        endpoint=by or seen.key,
    )
    return Verdict(programmed=TO_PROGRAM, effective=effective), Slot(
        slot=ready,
        namespace=seen.namespace,
        endpoint=resolved.endpoint,
        files=resolved.files,
        ceilings=regime.ceilings,
    )


def _from(outcome: Outcome, by: str) -> Outcome:
    """The same, with whose export it is."""
    if not by:
        return outcome
    said = f"{outcome.message} (defaults.export of ClusterProfilingPolicy {by})"
    return msgspec.structs.replace(outcome, message=said)
