"""The operator's sixteen ConfigMaps → the slots that concern this node.

A shard holds the policies of many namespaces; a node has pods of few. So a shard is only split into
its policies when it arrives, and a policy is decoded when a pod of its namespace is here: 1,000
policies cost a node next to nothing.

What comes by the API server is held against the ceilings again, and against what the operator never
says: it may be stale, or of another version. That guards against mistakes; whoever can write the
ConfigMaps is believed. Unknown fields are left out and told of; what cannot be read costs its own
policy, and a shard that is no shard leaves the one before in force.
"""

import base64
import binascii
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

import msgspec
from flameherd_policy.agent_config import (
    MAX_SLOTS,
    AgentConfig,
    AgentEndpoint,
    AgentProtocol,
    Ceilings,
    PolicySlot,
)
from flameherd_policy.base import API_VERSION
from flameherd_policy.decode import decode
from flameherd_policy.endpoints import Source, check_endpoint
from flameherd_policy.errors import PolicyError

from flameherd_agent.cluster.objects import ConfigMap
from flameherd_agent.errors import UsageError
from flameherd_agent.pipeline.endpoints import endpoint_config

SHARD_COUNT: Final = 16
SHARD_KEY: Final = "config.json.z"
EXPORT_FOLDER: Final = PurePosixPath("/var/run/flameherd/export")
"""Where the Secret with the credentials is mounted."""
MAX_SHARD_BYTES: Final = 32 << 20
"""Of a shard's JSON. The operator packs at most 1,023 policies into one, about 1 KB each."""
MAX_PROBLEMS: Final = 50


def shard_names() -> tuple[str, ...]:
    """Fixed, like the rights on them."""
    return tuple(f"flameherd-config-{number:02d}" for number in range(SHARD_COUNT))


class _Selector(msgspec.Struct, frozen=True):
    host: bool = False
    namespace: str | None = None


class _Named(msgspec.Struct, frozen=True):
    name: str
    selector: _Selector = _Selector()


class _Document(msgspec.Struct, frozen=True, rename="camel"):
    """A shard, split but not decoded."""

    api_version: str = ""
    kind: str = ""
    version: str = ""
    policies: list[msgspec.Raw] = []
    endpoints: dict[str, msgspec.Raw] = {}
    ceilings: msgspec.Raw = msgspec.Raw(b"{}")


@dataclass(frozen=True, slots=True)
class _Slot:
    """A policy that was decoded and passed, with its endpoint."""

    policy: PolicySlot
    endpoint: AgentEndpoint | None


@dataclass(slots=True)
class Shard:
    """One ConfigMap's content. Raises `ValueError` if it is none."""

    version: str
    by_namespace: dict[str, list[tuple[str, msgspec.Raw]]]
    """Namespace ("" = the nodes' own processes) → (name, policy), in order of precedence."""
    endpoints: Mapping[str, msgspec.Raw]
    ceilings: Ceilings
    problems: list[str] = field(default_factory=list)
    """What was left out, in words."""
    _decoded: dict[str, _Slot | None] = field(default_factory=dict)

    def slots(self, namespaces: Collection[str]) -> list[_Slot]:
        """Of these namespaces, in order of precedence within each."""
        found = []
        for namespace in namespaces:
            for name, raw in self.by_namespace.get(namespace, ()):
                if name not in self._decoded:
                    self._decoded[name] = self._decode(name, raw)
                slot = self._decoded[name]
                if slot is not None:
                    found.append(slot)
        return found

    def _decode(self, name: str, raw: msgspec.Raw) -> _Slot | None:
        try:
            policy = self._lenient(PolicySlot, raw, name)
            endpoint = None
            if policy.endpoint is not None:
                if policy.endpoint not in self.endpoints:
                    raise ValueError(f"its endpoint {policy.endpoint!r} is not in the shard")
                endpoint = self._lenient(AgentEndpoint, self.endpoints[policy.endpoint], name)
            wrong = refused(policy, endpoint, self.ceilings)
            if wrong is not None:
                raise ValueError(wrong)
            if endpoint is not None:
                endpoint_config(name, endpoint, Source.CR)
        except (ValueError, PolicyError, UsageError) as error:
            self._problem(f"policy {name} is left out: {error}")
            return None
        hertz = min(policy.frequency_hz, self.ceilings.max_frequency_hz)
        allowed = tuple(self.ceilings.allowed_env(policy.attributes.env))
        budget = self.ceilings.budget(policy.cpu_per_node)
        if hertz != policy.frequency_hz or allowed != policy.attributes.env:
            self._problem(f"policy {name} exceeds the ceilings that came with it: lowered")
        attributes = msgspec.structs.replace(policy.attributes, env=allowed)
        kept = msgspec.structs.replace(
            policy, frequency_hz=hertz, attributes=attributes, cpu_per_node=budget
        )
        return _Slot(kept, endpoint)

    def _lenient(self, model: type[Any], raw: msgspec.Raw, name: str) -> Any:
        value, unknown = decode(model, msgspec.json.decode(raw), lenient=True)
        if unknown:
            self._problem(
                f"policy {name}: fields of a later version are ignored: {', '.join(unknown)}"
            )
        return value

    def _problem(self, text: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(text)


def refused(policy: PolicySlot, endpoint: AgentEndpoint | None, ceilings: Ceilings) -> str | None:
    """Why a slot that came by the API server is not carried out, or None."""
    selector = policy.selector
    if not selector.host and selector.namespace is None:
        return "its selector names neither host nor namespace: others are for files only"
    if endpoint is None:
        return None
    if endpoint.protocol is AgentProtocol.FILE or endpoint.endpoint is None:
        return "it exports to a file of the node, which is for files only"
    wrong = check_endpoint(
        endpoint.endpoint, endpoint.protocol.value, source=Source.CR, rules=ceilings.endpoints
    )
    if wrong is not None:
        return wrong
    tls = endpoint.tls
    files = (endpoint.headers_file, *((tls.ca_file, tls.cert_file, tls.key_file) if tls else ()))
    for file in files:
        if file is not None and PurePosixPath(file).parent != EXPORT_FOLDER:
            return f"its credentials are in {file}, not in {EXPORT_FOLDER}"
    return None


def read_shard(seen: ConfigMap) -> Shard:
    """Raises `ValueError` that says what is wrong with it."""
    packed = (seen.binary_data or {}).get(SHARD_KEY)
    if packed is None:
        raise ValueError(f"it has no binaryData {SHARD_KEY}")
    try:
        inflate = zlib.decompressobj()
        text = inflate.decompress(base64.b64decode(packed, validate=True), MAX_SHARD_BYTES)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"{SHARD_KEY} is not zlib in base64: {error}") from error
    if not inflate.eof:
        raise ValueError(f"{SHARD_KEY} is cut, or longer than {MAX_SHARD_BYTES >> 20} MiB")
    try:
        document = msgspec.json.decode(text, type=_Document)
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        ceilings, unknown = decode(Ceilings, msgspec.json.decode(document.ceilings), lenient=True)
    except (msgspec.MsgspecError, PolicyError) as error:
        raise ValueError(f"{SHARD_KEY} is not an AgentConfig: {error}") from error
    if (document.api_version, document.kind) != (API_VERSION, AgentConfig.__name__):
        raise ValueError(f"{SHARD_KEY} is of {document.api_version} {document.kind}")
    shard = Shard(document.version, {}, document.endpoints, ceilings)
    known = {field.encode_name for field in msgspec.structs.fields(_Document)}
    later = sorted(set(fields) - known)
    if later:
        shard._problem(f"fields of a later version are ignored: {', '.join(later)[:300]}")
    if unknown:
        shard._problem(f"ceilings: fields of a later version are ignored: {', '.join(unknown)}")
    for raw in document.policies[:MAX_SLOTS]:
        try:
            named = msgspec.json.decode(raw, type=_Named)
        except msgspec.MsgspecError as error:
            shard._problem(f"a policy is left out: {error}")
            continue
        namespace = "" if named.selector.host else (named.selector.namespace or "")
        shard.by_namespace.setdefault(namespace, []).append((named.name, raw))
    return shard


def merge(shards: Iterable[Shard], namespaces: Collection[str]) -> AgentConfig:
    """The slots of these namespaces and of the host as one configuration, in order of precedence.

    Endpoints of one name may differ between shards for a moment, while the operator writes them.
    """
    slots: list[PolicySlot] = []
    endpoints: dict[str, AgentEndpoint] = {}
    versions: list[str] = []
    for shard in shards:
        versions.append(shard.version)
        for slot in shard.slots(("", *sorted(namespaces))):
            name = slot.policy.endpoint
            if name is not None and slot.endpoint is not None:
                while endpoints.get(name, slot.endpoint) != slot.endpoint:
                    name += "'"
                endpoints[name] = slot.endpoint
            slots.append(msgspec.structs.replace(slot.policy, endpoint=name))
    slots.sort(key=lambda slot: -slot.priority)
    unique = {slot.name: slot for slot in reversed(slots)}
    kept = tuple(slot for slot in slots if unique[slot.name] is slot)
    version = f"{zlib.crc32(' '.join(versions).encode()):08x}"
    return AgentConfig(version=version, policies=kept, endpoints=endpoints)
