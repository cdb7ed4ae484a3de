"""Attributes of OTLP as the store keeps them: text → text, and the well-known ones as columns.

Values lose their type on the way (42 and "42" become one text): a label is something to group and
filter by. Whole numbers are decimal, booleans `true`/`false`, doubles as short as they round-trip,
arrays and maps JSON, bytes base64. Names and values are cut at a limit, and the number of
attributes is bounded, since both are a sender's to choose.
"""

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from flameherd_backend.errors import Refused

MAX_KEY_BYTES: Final = 256
MAX_VALUE_BYTES: Final = 4096
MAX_ATTRIBUTES: Final = 128
_MAX_DEPTH: Final = 8

Attributes = tuple[tuple[bytes, bytes], ...]
"""Sorted by key; UTF-8."""

_WORKLOADS: Final = (
    b"k8s.deployment.name",
    b"k8s.statefulset.name",
    b"k8s.daemonset.name",
    b"k8s.cronjob.name",
    b"k8s.job.name",
    b"k8s.replicaset.name",
)
COLUMNS: Final[dict[str, tuple[bytes, ...]]] = {
    "cluster": (b"k8s.cluster.name",),
    "namespace": (b"k8s.namespace.name",),
    "workload": _WORKLOADS,
    "pod": (b"k8s.pod.name",),
    "container": (b"k8s.container.name", b"container.name", b"container.id"),
    "node": (b"k8s.node.name", b"host.name"),
    "service": (b"service.name",),
}
"""Column of `samples` → resource attributes it is taken from: the first that is there."""


def cut(text: bytes, limit: int) -> bytes:
    """`text` in at most `limit` bytes, never within a character."""
    if len(text) <= limit:
        return text
    return text[:limit].decode("utf-8", "ignore").encode()


def _json(value: Any, strings: Sequence[bytes], depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise Refused(f"an attribute's value is nested more than {_MAX_DEPTH} deep")
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_json(item, strings, depth + 1) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {
            key_of(item, strings).decode(): _json(item.value, strings, depth + 1)
            for item in value.kvlist_value.values
        }
    if kind in ("int_value", "double_value", "bool_value"):
        return getattr(value, kind)
    return None if kind is None else value_of(value, strings).decode()


def value_of(value: Any, strings: Sequence[bytes]) -> bytes:
    """An `AnyValue` as text. `strings` is the message's string table."""
    kind = value.WhichOneof("value")
    if kind == "string_value":
        text = value.string_value.encode()
    elif kind == "string_value_strindex":
        text = _string(value.string_value_strindex, strings)
    elif kind == "int_value":
        text = b"%d" % value.int_value
    elif kind == "bool_value":
        text = b"true" if value.bool_value else b"false"
    elif kind == "double_value":
        text = repr(value.double_value).encode()
    elif kind == "bytes_value":
        text = base64.b64encode(value.bytes_value)
    elif kind is None:
        text = b""
    else:
        shown = json.dumps(_json(value, strings, 0), ensure_ascii=False, separators=(",", ":"))
        text = shown.encode()
    return cut(text, MAX_VALUE_BYTES)


def _string(index: int, strings: Sequence[bytes]) -> bytes:
    if not 0 <= index < len(strings):
        raise Refused(f"an attribute refers to string {index}, the string table has {len(strings)}")
    return strings[index]


def key_of(entry: Any, strings: Sequence[bytes]) -> bytes:
    """The key of a `KeyValue` or `KeyValueAndUnit`, as text or by index."""
    plain = getattr(entry, "key", "")
    text = plain.encode() if plain else _string(entry.key_strindex, strings)
    return cut(text, MAX_KEY_BYTES)


def collect(entries: Iterable[tuple[bytes, bytes]]) -> Attributes:
    """Sorted, bounded attributes; values of a key that repeats are joined by newlines."""
    seen: dict[bytes, bytes] = {}
    for key, value in entries:
        if not key:
            continue
        if key in seen:
            seen[key] = cut(seen[key] + b"\n" + value, MAX_VALUE_BYTES)
        elif len(seen) < MAX_ATTRIBUTES:
            seen[key] = value
        else:
            raise Refused(f"more than {MAX_ATTRIBUTES} attributes on one resource or profile")
    return tuple(sorted(seen.items()))


@dataclass(frozen=True, slots=True)
class Origin:
    """What all samples of one profile share: resource, scope and profile attributes."""

    id: int
    attributes: Attributes
    columns: tuple[bytes, ...]
    """In the order of `COLUMNS`."""
    executable: bytes
    instance: bytes
    """`service.instance.id`, else the pod; "" = the executable and pid of each sample."""

    @property
    def namespace(self) -> str:
        """The Kubernetes namespace that the sender claims; "" = none."""
        return self.columns[list(COLUMNS).index("namespace")].decode()


def origin(identity: int, attributes: Attributes) -> Origin:
    """The typed columns of a set of attributes."""
    known = dict(attributes)

    def first(keys: Iterable[bytes]) -> bytes:
        return next((known[key] for key in keys if known.get(key)), b"")

    columns = {name: first(keys) for name, keys in COLUMNS.items()}
    if columns["container"] == known.get(b"container.id", b"-"):
        columns["container"] = columns["container"][:12]
    return Origin(
        identity,
        attributes,
        tuple(columns.values()),
        known.get(b"process.executable.name", b""),
        known.get(b"service.instance.id", b"") or columns["pod"],
    )
