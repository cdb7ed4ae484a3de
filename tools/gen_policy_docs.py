"""docs/reference/policy.md from the structs of `flameherd_policy`: one source for code, checks and
docs.

Types, bounds, units and defaults come from the annotations, sentences from docstrings and
descriptions.
"""

from pathlib import Path
from typing import Any

import msgspec
import msgspec.inspect as mi
from flameherd_policy.agent_config import AgentConfig
from flameherd_policy.base import API_VERSION, Model, to_wire
from flameherd_policy.decode import type_info
from flameherd_policy.durations import Duration
from flameherd_policy.policies import ClusterProfilingPolicy, ProfilingPolicy
from flameherd_policy.pools import AgentPool

OUTPUT = Path(__file__).resolve().parent.parent / "docs/reference/policy.md"
KINDS: tuple[type[Model], ...] = (ProfilingPolicy, ClusterProfilingPolicy, AgentPool, AgentConfig)

HEAD = f"""# Reference: policies and AgentConfig

Generated from `policy/` by `make generate`: do not edit. All kinds are `apiVersion: {API_VERSION}`.

In files, an unknown field is an error. From the Kubernetes API, it is ignored and reported.
A *duration* is text such as `1m30s`, `250ms`, `1d` (units d, h, m, s, ms, us, ns). A *quantity* is
Kubernetes' own: `5m`, `0.5`, `64Mi`.
"""


def generate() -> dict[Path, str]:
    """The reference page, by path."""
    todo: list[type[msgspec.Struct]] = list(KINDS)
    sections = [HEAD]
    for number, model in enumerate(todo):  # grows while it is walked
        if number == len(KINDS):
            sections.append("## Parts of the above\n")
        sections.append(_section(model, todo))
    return {OUTPUT: "\n".join(sections)}


def _section(model: type[msgspec.Struct], todo: list[type[msgspec.Struct]]) -> str:
    info = type_info(model)
    assert isinstance(info, mi.StructType)
    lines = [
        f"{'##' if model in KINDS else '###'} {model.__name__}",
        "",
        _prose(model.__doc__ or ""),
        "",
        "| field | type | default | |",
        "| --- | --- | --- | --- |",
    ]
    for field in info.fields:
        description = _description(field.type)
        cells = (f"`{field.encode_name}`", _type(field.type, todo), _default(field), description)
        lines.append("| " + " | ".join(_cell(text) for text in cells) + " |")
    return "\n".join(lines) + "\n"


def _prose(docstring: str) -> str:
    return " ".join(docstring.split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|") or " "


def _description(kind: mi.Type) -> str:
    if isinstance(kind, mi.Metadata):
        schema = kind.extra_json_schema or {}
        return str(schema.get("description") or _description(kind.type))
    return ""


def _default(field: mi.Field) -> str:
    if field.required:
        return "required"
    value: Any = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    match value:
        case None:
            return ""
        case Model():
            return "`{}`" if not to_wire(value) else f"`{to_wire(value)}`"
        case bool():
            return f"`{str(value).lower()}`"
        case () | {}:
            return "`[]`" if value == () else "`{}`"
        case "":
            return ""
    return f"`{value}`"


def _type(
    kind: mi.Type, todo: list[type[msgspec.Struct]], extra: dict[str, Any] | None = None
) -> str:
    extra = extra or {}
    match kind:
        case mi.Metadata():
            return _type(kind.type, todo, {**extra, **(kind.extra or {})})
        case mi.UnionType():
            inner = next(t for t in kind.types if not isinstance(t, mi.NoneType))
            return _type(inner, todo, extra)
        case mi.StructType():
            if kind.cls not in todo:
                todo.append(kind.cls)
            return f"[{kind.cls.__name__}](#{kind.cls.__name__.lower()})"
        case mi.VarTupleType():
            word = "set" if extra.get("set") else "list"
            return f"{word} of {_type(kind.item_type, todo)}{_at_most(kind.max_length)}"
        case mi.DictType():
            value = _type(kind.value_type, todo)
            return f"map of {_type(kind.key_type, todo)} to {value}{_at_most(kind.max_length)}"
        case mi.EnumType():
            return " or ".join(f"`{member.value}`" for member in kind.cls)
        case mi.CustomType() if kind.cls is Duration:
            bounds = f" {extra['ge']} … {extra['le']}" if "ge" in extra else ""
            return f"duration{bounds}"
        case mi.CustomType():
            return kind.cls.__name__.lower()
        case mi.BoolType():
            return "boolean"
        case mi.IntType():
            unit = f" {extra['unit']}" if "unit" in extra else ""
            return f"integer {kind.ge} … {kind.le}{unit}"
        case mi.StrType():
            return "text"
    raise TypeError(f"{type(kind).__name__} has no words in the reference")


def _at_most(length: int | None) -> str:
    return f", at most {length}" if length is not None else ""
