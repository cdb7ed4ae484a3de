"""What is read of a cluster, at one moment.

What a user may not read is not an error by itself: a tenant sees his own namespace. `Cluster.notes`
says what is missing and what it means for the answer.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec
from flameherd_policy.agent_config import PolicySlot, SlotSelector
from flameherd_policy.compile import precedence
from flameherd_policy.decode import decode
from flameherd_policy.errors import PolicyError
from flameherd_policy.policies import DEFAULT_FREQUENCY_HZ
from flameherd_policy.resources import GROUP, RESOURCES, VERSION
from flameherd_policy.status import (
    AgentPoolStatus,
    ClusterProfilingPolicyStatus,
    Condition,
    ConditionStatus,
    ProfilingPolicyStatus,
)

from flameherd_operator.errors import ApiFailure
from flameherd_operator.observed import ClusterPolicy, Policy, see
from flameherd_operator.plugin.assign import Pod, pod_of
from flameherd_operator.plugin.reader import Json, Reader, items
from flameherd_operator.render.slots import selector_of

S = TypeVar("S", Policy, ClusterPolicy)
KINDS: Final = {resource.kind: resource for resource in RESOURCES}
_STATUS: Final = {
    "ProfilingPolicy": ProfilingPolicyStatus,
    "ClusterProfilingPolicy": ClusterProfilingPolicyStatus,
    "AgentPool": AgentPoolStatus,
}
_UNSEEN: Final = "the operator has not looked at this version of it yet: `kubectl flameherd doctor`"


class Existing(msgspec.Struct, frozen=True, kw_only=True):
    """A custom resource with the operator's word on it."""

    seen: Any
    """`Seen` of its kind."""
    status: Any
    """Of its kind's status model."""

    @property
    def current(self) -> bool:
        """The status is of the object as it is now."""
        return bool(self.status.observed_generation == self.seen.generation)

    def condition(self, kind: str) -> Condition | None:
        """One condition, if it is of the object as it is now."""
        if not self.current:
            return None
        return next((c for c in self.status.conditions if c.type == kind), None)

    @property
    def programmed(self) -> bool:
        """Agents are told of it."""
        found = self.condition("Programmed")
        return found is not None and found.status is ConditionStatus.TRUE

    def state(self) -> tuple[str, str]:
        """What to say of it in a word, and in a sentence ("" = nothing is wrong)."""
        if self.seen.value is None:
            return "Invalid", self.seen.problem
        ready = self.condition("Ready")
        if ready is None:
            return "NotSeen", _UNSEEN
        if ready.status is not ConditionStatus.TRUE:
            return ready.reason, ready.message
        for kind, wrong in (
            ("Exporting", ConditionStatus.FALSE),
            ("BudgetExceeded", ConditionStatus.TRUE),
            ("Profiling", ConditionStatus.FALSE),
            ("Overlapped", ConditionStatus.TRUE),
        ):
            found = self.condition(kind)
            if found is not None and found.status is wrong:
                return found.reason, found.message
        return "Ready", ""

    def slot(self) -> PolicySlot | None:
        """As agents are told of it, by the operator's own account; None = they are not."""
        policy, effective = self.seen.value, self.status.effective
        if policy is None or not self.programmed or effective is None or effective.cpu is None:
            return None
        namespaced = self.seen.resource.namespaced
        return PolicySlot(
            name=self.seen.key,
            selector=selector_of(policy, self.seen.namespace)
            if namespaced
            else SlotSelector(host=True),
            frequency_hz=effective.cpu.frequency_hz or DEFAULT_FREQUENCY_HZ,
            priority=policy.spec.priority,
            clipped_by=effective.clipped_by,
        )


class Cluster:
    """Reads through `reader`, and notes what it may not."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.notes: list[str] = []

    def existing(self, kind: str, namespace: str = "") -> list[Existing]:
        """Every object of a kind, in a namespace or everywhere; raises `ApiFailure`."""
        middle = f"/namespaces/{quote(namespace)}" if namespace else ""
        path = f"/apis/{GROUP}/{VERSION}{middle}/{KINDS[kind].plural}"
        try:
            return [existing(kind, body) for body in items(self.reader, path)]
        except ApiFailure as error:
            if error.code == 404:
                said = f"{error}: is Flameherd installed? `kubectl flameherd doctor` tells"
                raise ApiFailure(404, f"list {KINDS[kind].plural}", said) from error
            raise

    def permitted(self, kind: str, meaning: str) -> list[Existing] | None:
        """The same of a cluster-wide kind; None, with a note, where that may not be read."""
        try:
            return self.existing(kind)
        except ApiFailure as error:
            if error.code != 403:
                raise
            self.notes.append(f"you may not list {KINDS[kind].plural}: {meaning}")
            return None

    def permitted_everywhere(self) -> list[Existing]:
        """ProfilingPolicies of all namespaces; with a note, none, where these may not be listed."""
        return self.permitted("ProfilingPolicy", "only this namespace's measurements count") or []

    def pods(self, namespace: str) -> list[Pod]:
        """Of a namespace, or everywhere ("")."""
        middle = f"/namespaces/{quote(namespace)}" if namespace else ""
        return [pod_of(body) for body in items(self.reader, f"/api/v1{middle}/pods")]

    def pod(self, namespace: str, name: str) -> Pod:
        """One pod."""
        path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(name)}"
        return pod_of(self.reader.get(path))

    def namespace_labels(self, name: str) -> dict[str, str]:
        """For `namespaceSelector`; {} with a note where they may not be read."""
        try:
            found = self.reader.get(f"/api/v1/namespaces/{quote(name)}")
        except ApiFailure as error:
            if error.code not in (403, 404):
                raise
            self.notes.append(f"the labels of namespace {name} cannot be read: {error}")
            return {}
        labels: dict[str, str] = found["metadata"].get("labels") or {}
        return labels


def existing(kind: str, body: Json) -> Existing:
    """An object as the API gives it."""
    model: Any = _STATUS[kind]
    try:
        status = decode(model, body.get("status") or {}, lenient=True).value
    except PolicyError:  # of a version that says it otherwise: as if nothing were said
        status = model()
    return Existing(seen=see(kind, body), status=status)


def in_order(policies: Sequence[Existing]) -> list[Existing]:
    """By precedence; what cannot be read comes last."""
    readable = [one for one in policies if one.seen.value is not None]
    broken = [one for one in policies if one.seen.value is None]
    return sorted(readable, key=lambda one: precedence(one.seen.value)) + broken


def slots(policies: Sequence[Existing], hosts: Sequence[Existing] | None) -> Iterator[PolicySlot]:
    """What agents are told, in order of precedence; `hosts` are the cluster's policies."""
    for one in (*in_order(policies), *in_order(hosts or ())):
        slot = one.slot()
        if slot is not None:
            yield slot


def without_secrets(seen: S) -> S:
    """The same with exports that name no Secret: nobody but the operator reads these."""
    policy: Any = seen.value
    if policy is None:
        return seen
    spec = policy.spec
    if seen.resource.namespaced:
        if spec.export is None:
            return seen
        spec = msgspec.structs.replace(spec, export=_bare(spec.export))
    else:
        if spec.defaults.export is None:
            return seen
        defaults = msgspec.structs.replace(spec.defaults, export=_bare(spec.defaults.export))
        spec = msgspec.structs.replace(spec, defaults=defaults)
    return msgspec.structs.replace(seen, value=msgspec.structs.replace(policy, spec=spec))


def _bare(export: Any) -> Any:
    return msgspec.structs.replace(export, headers_secret_ref=None, tls=None)
