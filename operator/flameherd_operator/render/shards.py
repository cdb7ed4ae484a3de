"""Slots → AgentConfigs in sixteen ConfigMaps. Pure.

All policies of a namespace are in one shard, so that their order, which decides between two
policies on one container, needs no second place; an edit ships one shard. Compressed, 1,000 policies
are about 110 KB of the 1 MiB that a ConfigMap may hold; what does not fit is left out, from the end of
the order of precedence, and its policy says so.
"""

import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from flameherd_policy.agent_config import MAX_SLOTS, AgentConfig
from flameherd_policy.base import to_document
from flameherd_policy.compile import content_version

from flameherd_operator.ceilings import loosest
from flameherd_operator.render.slots import Slot
from flameherd_operator.settings import SHARD_COUNT, SHARD_KEY, shard_name

MAX_SHARD_BYTES: Final = 900_000
"""Compressed. A ConfigMap's limit, 1 MiB, counts the bytes before base64."""


class Shards(msgspec.Struct, frozen=True):
    """The ConfigMaps' bodies, without metadata that all objects share."""

    bodies: Mapping[str, dict[str, Any]]
    versions: Mapping[str, str]
    """ConfigMap → version of its content."""
    left_out: frozenset[str]
    """Names of slots that did not fit."""


def shard_of(namespace: str) -> str:
    """The ConfigMap that holds the policies of a namespace; "" = the nodes' own processes."""
    return shard_name(zlib.crc32(namespace.encode()) % SHARD_COUNT)


def shards(slots: Sequence[Slot]) -> Shards:
    """Every shard, also the empty ones: agents watch all of them by name."""
    groups: dict[str, list[Slot]] = {shard_name(number): [] for number in range(SHARD_COUNT)}
    for slot in slots:
        groups[shard_of(slot.namespace)].append(slot)
    bodies, versions = {}, {}
    left_out: set[str] = set()
    for name, group in groups.items():
        fitting = group[:MAX_SLOTS]
        while True:
            config = agent_config(fitting)
            data = compress(config)
            if len(data) <= MAX_SHARD_BYTES:
                break
            fitting = fitting[: len(fitting) * 3 // 4]
        left_out |= {slot.slot.name for slot in group[len(fitting) :]}
        versions[name] = config.version
        bodies[name] = {
            "binaryData": {SHARD_KEY: base64.b64encode(data).decode("ascii")},
            "data": {"version": config.version},
        }
    return Shards(bodies, versions, frozenset(left_out))


def agent_config(slots: Sequence[Slot]) -> AgentConfig:
    """What agents are told of these slots, which are in order of precedence."""
    config = AgentConfig(
        policies=tuple(slot.slot for slot in slots),
        endpoints={str(slot.slot.endpoint): slot.endpoint for slot in slots},
        ceilings=loosest(slot.ceilings for slot in slots),
    )
    return msgspec.structs.replace(config, version=content_version(config))


def compress(config: AgentConfig) -> bytes:
    """JSON, keys in order, zlib: equal configurations are equal bytes."""
    return zlib.compress(msgspec.json.encode(to_document(config), order="deterministic"), 6)
