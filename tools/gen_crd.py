"""crds/*.yaml, the chart's copies and docs/reference/kubernetes.md from the structs of
`flameherd_policy`.

The structs say types, bounds, defaults, sentences and CEL rules; here they become the structural
schema that the API server takes. What a schema cannot hold is a TypeError of this module, so that
the model and the CRDs never drift apart silently.

A default is written into the schema where it is a plain value, so that `kubectl get -o yaml` shows
it; a struct gets `{}` if that fills something. Lists, maps and texts must be bounded: without
bounds the API server estimates the cost of their rules far above its budget.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import msgspec.inspect as mi
import yaml
from flameherd_policy.base import Model, to_wire
from flameherd_policy.decode import type_info
from flameherd_policy.durations import Duration
from flameherd_policy.quantities import Quantity
from flameherd_policy.resources import CATEGORY, GROUP, RESOURCES, VERSION, Resource
from flameherd_policy.rules import Rule

ROOT = Path(__file__).resolve().parent.parent
CRDS = ROOT / "crds"
CHART_CRDS = ROOT / "charts/flameherd/files/crds"
"""The same files: a chart cannot ship what is outside of it."""
REFERENCE = ROOT / "docs/reference/kubernetes.md"

Schema = dict[str, Any]

_NOTE = "note"
"""Key of what a type adds to its field's description; taken out again by `_field`."""
_DURATION_TEXT = r"([0-9]{1,6}(ns|us|µs|ms|s|m|h))+"
"""Whole numbers, and no days: what CEL's duration(), Kubernetes and ours all read alike."""
_MAX_DURATION_TEXT = 20
"""Less than three terms of six digits: the sum stays below 2^63 ns."""
_MAX_QUANTITY_TEXT = 32


def generate() -> dict[Path, str]:
    """Every CRD and the reference page, by path."""
    files = {
        CRDS / f"{GROUP}_{resource.plural}.yaml": _CRD_HEAD + _yaml(crd(resource))
        for resource in RESOURCES
    }
    files |= {CHART_CRDS / path.name: content for path, content in files.items()}
    files[REFERENCE] = reference()
    return files


_CRD_HEAD = "# Generated from policy/ by `make generate`: do not edit.\n"


def _yaml(document: Schema) -> str:
    return yaml.safe_dump(document, sort_keys=False, width=110, allow_unicode=True)


def crd(resource: Resource) -> Schema:
    """The CustomResourceDefinition of one kind."""
    columns = [
        {
            "name": column.name,
            "type": column.kind,
            "jsonPath": column.path,
            "description": column.description,
            **({"priority": 1} if column.wide else {}),
        }
        for column in resource.columns
    ]
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": root_schema(resource.model)},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.singular,
                "shortNames": [resource.short_name],
                "categories": [CATEGORY],
            },
            "versions": [version],
        },
    }


def root_schema(model: type[Model]) -> Schema:
    """The schema of a whole object: Kubernetes itself knows apiVersion, kind and metadata."""
    info = type_info(model)
    assert isinstance(info, mi.StructType)
    ours = [field for field in info.fields if field.encode_name != "metadata"]
    schema = _struct(info, ours)
    schema["properties"] = {
        "apiVersion": {"type": "string", "description": f"Always {GROUP}/{VERSION}."},
        "kind": {"type": "string", "description": f"Always {model.__name__}."},
        "metadata": {"type": "object"},
    } | schema["properties"]
    return {"description": _prose(model.__doc__ or ""), **schema}


def _prose(docstring: str) -> str:
    return " ".join(docstring.split())


def _struct(info: mi.StructType, fields: Sequence[mi.Field]) -> Schema:
    required = [field.encode_name for field in fields if field.required]
    schema: Schema = {"type": "object"}
    if required:
        schema["required"] = required
    schema["properties"] = {field.encode_name: _field(info, field) for field in fields}
    rules = info.cls.RULES if issubclass(info.cls, Model) else ()
    return _with_rules(schema, rules)


def _with_rules(schema: Schema, rules: tuple[Rule, ...]) -> Schema:
    if rules:
        schema["x-kubernetes-validations"] = [
            {"rule": rule.cel, "message": rule.message} for rule in rules
        ]
    return schema


def _field(info: mi.StructType, field: mi.Field) -> Schema:
    schema = _schema(field.type, {})
    note = schema.pop(_NOTE, "")
    description = schema.pop("description", "")
    if not description:
        raise TypeError(f"{info.cls.__name__}.{field.name} has no description")
    schema = {"description": f"{description} {note}".strip(), **schema}
    default = _default(field, schema)
    if default is not None:
        schema["default"] = default
    return schema


def _default(field: mi.Field, schema: Schema) -> object:
    """What the API server fills in, or None."""
    if field.required:
        return None
    value: Any = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    match value:
        case None | () | {}:
            return None
        case Model():
            if to_wire(value):
                raise TypeError(f"{field.name}: a struct's default must be its own defaults")
            fills = any("default" in item for item in schema["properties"].values())
            return {} if fills else None
        case bool() | int() | str():
            return getattr(value, "value", value)
        case Duration():
            return str(value)
    raise TypeError(f"{field.name}: {value!r} has no form in a schema")


def _schema(kind: mi.Type, extra: dict[str, Any]) -> Schema:
    """The schema of a type; `extra` is what annotations around it said."""
    match kind:
        case mi.Metadata():
            schema = _schema(kind.type, {**extra, **(kind.extra or {})})
            said = (kind.extra_json_schema or {}).get("description")
            return schema | {"description": said} if said else schema
        case mi.UnionType():  # only `X | None`
            inner = next(t for t in kind.types if not isinstance(t, mi.NoneType))
            return _schema(inner, extra)
        case mi.StructType():
            return _struct(kind, kind.fields)
        case mi.DictType():
            return _map(kind, extra)
        case mi.VarTupleType():
            return _list(kind, extra)
        case mi.EnumType():
            return {"type": "string", "enum": [str(member.value) for member in kind.cls]}
        case mi.CustomType() if kind.cls is Duration:
            return _duration(extra)
        case mi.CustomType() if kind.cls is Quantity:
            return _quantity(extra)
        case mi.BoolType():
            return {"type": "boolean"}
        case mi.IntType():
            return _integer(kind, extra)
        case mi.StrType():
            return _text(kind, extra)
    raise TypeError(f"{type(kind).__name__} has no form in a schema")


def _map(kind: mi.DictType, extra: dict[str, Any]) -> Schema:
    if kind.max_length is None:
        raise TypeError("a map without max_length: the API server refuses rules over it")
    key_extra = kind.key_type.extra or {} if isinstance(kind.key_type, mi.Metadata) else {}
    rules = tuple(rule.of_keys() for rule in key_extra.get("cel", ()))
    key = kind.key_type.type if isinstance(kind.key_type, mi.Metadata) else kind.key_type
    assert isinstance(key, mi.StrType)
    if key.max_length is None:
        raise TypeError("a map whose keys have no max_length")
    longest = Rule(f"size(self) <= {key.max_length}", f"is longer than {key.max_length} characters")
    schema: Schema = {
        "type": "object",
        "maxProperties": kind.max_length,
        "additionalProperties": _schema(kind.value_type, {}),
    }
    return _with_rules(schema, (*extra.get("cel", ()), longest.of_keys(), *rules))


def _list(kind: mi.VarTupleType, extra: dict[str, Any]) -> Schema:
    if kind.max_length is None:
        raise TypeError("a list without max_length: the API server refuses rules over it")
    schema: Schema = {
        "type": "array",
        "maxItems": kind.max_length,
        "items": _schema(kind.item_type, {}),
    }
    if "key" in extra:
        schema |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [extra["key"]]}
    else:
        schema["x-kubernetes-list-type"] = "set" if extra.get("set") else "atomic"
    return _with_rules(schema, extra.get("cel", ()))


def _integer(kind: mi.IntType, extra: dict[str, Any]) -> Schema:
    if kind.ge is None or kind.le is None:
        raise TypeError("a number without bounds")
    schema: Schema = {
        "type": "integer",
        "format": "int32" if kind.le < 2**31 else "int64",
        "minimum": kind.ge,
    }
    if kind.le < 2**63 - 1:  # that one is a float to the API server, and wraps around
        schema["maximum"] = kind.le
    if "unit" in extra:
        schema[_NOTE] = f"In {extra['unit']}."
    return _with_rules(schema, extra.get("cel", ()))


def _text(kind: mi.StrType, extra: dict[str, Any]) -> Schema:
    if kind.max_length is None:
        raise TypeError("a text without max_length: the API server refuses rules over it")
    schema: Schema = {"type": "string", "maxLength": kind.max_length}
    if kind.min_length:
        schema["minLength"] = kind.min_length
    if "format" in extra:
        schema["format"] = extra["format"]
    return _with_rules(schema, extra.get("cel", ()))


def _duration(extra: dict[str, Any]) -> Schema:
    low, high = extra["ge"], extra["le"]
    rule = Rule(
        f"self.matches(r'^{_DURATION_TEXT}$') && duration(self) >= duration('{low}') "
        f"&& duration(self) <= duration('{high}')",
        f"is not a duration from {low} to {high}: whole numbers with the units h, m, s, ms, us, "
        "ns, such as 10s or 1m30s",
    )
    schema: Schema = {
        "type": "string",
        "maxLength": _MAX_DURATION_TEXT,
        _NOTE: f"A duration from {low} to {high}, such as 10s or 1m30s.",
    }
    return _with_rules(schema, (rule,))


def _quantity(extra: dict[str, Any]) -> Schema:
    rules = tuple(
        Rule(rule.cel.replace("self.", "string(self)."), rule.message)
        for rule in extra.get("cel", ())
    )
    schema: Schema = {
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "maxLength": _MAX_QUANTITY_TEXT,
    }
    return _with_rules(schema, rules)


def rules_of(schema: Schema, path: str = "") -> Iterator[tuple[str, str]]:
    """(path, message) of every CEL rule below a schema; `[]` and `{}` stand for any entry."""
    for rule in schema.get("x-kubernetes-validations", ()):
        yield path or ".", rule["message"]
    for name, item in schema.get("properties", {}).items():
        yield from rules_of(item, f"{path}.{name}" if path else name)
    if "items" in schema:
        yield from rules_of(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from rules_of(schema["additionalProperties"], f"{path}{{}}")


_REFERENCE_HEAD = f"""# Reference: the custom resources in a cluster

Generated from `policy/` by `make generate`: do not edit. The fields are in
[policy.md](policy.md), and in the cluster: `kubectl explain profilingpolicy.spec`. All kinds are
`{GROUP}/{VERSION}`; `kubectl get {CATEGORY}` lists all of them.

They need Kubernetes 1.29 or newer, for quantities in the rules.
"""


def reference() -> str:
    """docs/reference/kubernetes.md."""
    return "\n".join([_REFERENCE_HEAD, *map(_section, RESOURCES)])


def _section(resource: Resource) -> str:
    lines = [
        f"## {resource.kind}",
        "",
        _prose(resource.model.__doc__ or ""),
        "",
        f"`kubectl get {resource.plural}`, short `{resource.short_name}`; "
        f"{'one namespace each' if resource.namespaced else 'cluster-wide'}.",
        "",
        "| column | |",
        "| --- | --- |",
    ]
    lines += [
        f"| {column.name} | {column.description}{' With `-o wide`.' if column.wide else ''} |"
        for column in resource.columns
    ]
    lines += ["", "Refused by the API server, besides wrong types and values out of bounds:", ""]
    lines += ["| where | what the author is told |", "| --- | --- |"]
    for path, message in rules_of(root_schema(resource.model)):
        lines.append(f"| `{path}` | {message.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"
