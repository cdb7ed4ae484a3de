"""The endpoints, in one table: what each takes, which view answers it, how OpenAPI describes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from flameherd_backend import __version__
from flameherd_backend.api import views
from flameherd_backend.api.labels import labels, timeline
from flameherd_backend.api.parameters import PARAMETERS, SELECTION
from flameherd_backend.api.views import View

PREFIX: Final = "/api/v1"
_NO_BASE: Final = tuple(name for name in SELECTION if not name.startswith("base_"))


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`view`: None for those that `app.py` answers by itself."""

    path: str
    text: str
    members: Mapping[str, str]
    """Of the answer: name → JSON Schema type."""
    view: View | None = None
    own: tuple[str, ...] = ()
    """Parameters besides the selection's."""
    selects: bool = True
    compares: bool = False
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Of parameters, where they are narrower than in `PARAMETERS`."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """All that are allowed."""
        return (
            (*_NO_BASE, *(n for n in SELECTION if n not in _NO_BASE and self.compares))
            if self.selects
            else ()
        ) + self.own


_HEAD: Final = {
    "window": "object", "base_window": "object", "type": "string", "unit": "string", "total": "integer",
    "base_total": "integer", "samples": "integer", "strings": "array", "frames": "object",
}  # fmt: skip


def _limit(highest: int, default: int) -> dict[str, Mapping[str, Any]]:
    return {"limit": {"type": "integer", "minimum": 1, "maximum": highest, "default": default}}


ENDPOINTS: Final = (
    Endpoint("/status", "What is stored, and who asks.",
             {"version": "string", "now": "integer", "newest": "integer", "oldest": "integer", "samples": "integer",
              "retention_ms": "integer", "viewer": "object"}, selects=False),
    Endpoint("/profile-types", "Types of profiles with samples in the window.",
             {"window": "object", "types": "array"}, own=("from", "to"), selects=False),
    Endpoint("/labels", "Labels, with how many values each has.", {"window": "object", "labels": "array"}, labels),
    Endpoint("/labels/{name}/values", "Values of a label, the largest first.",
             {"window": "object", "label": "string", "values": "array", "more": "boolean"},
             own=("search", "limit"), schemas=_limit(1000, 100)),
    Endpoint("/timeline", "Values over time, in all or by a label.",
             {"window": "object", "type": "string", "unit": "string", "total": "integer", "start": "integer",
              "step": "integer", "series": "array", "rest": "array"},
             timeline, ("step", "points", "by", "limit"), schemas=_limit(20, 8)),
    Endpoint("/flamegraph", "All stacks merged, pruned to the largest nodes.",
             {**_HEAD, "nodes": "object", "pruned": "object"}, views.flamegraph, ("max_nodes",), compares=True),
    Endpoint("/functions", "Functions with self and total.",
             {**_HEAD, "rows": "object", "count": "integer", "more": "boolean"}, views.functions,
             ("sort", "search", "limit"), compares=True,
             schemas={**_limit(10_000, 1000), "sort": {"enum": ["self", "total", "name", "diff"], "default": "self"}}),
    Endpoint("/sandwich", "Who calls a function, and what it calls.",
             {**_HEAD, "frame": "integer", "callers": "object", "callees": "object", "pruned": "object"},
             views.sandwich, ("frame", "max_nodes"), compares=True),
    Endpoint("/executables", "Mappings that occur in stacks.",
             {**{name: kind for name, kind in _HEAD.items() if name != "frames"}, "rows": "object", "count": "integer", "more": "boolean"}, views.executables, ("limit",),
             schemas=_limit(10_000, 1000)),
    Endpoint("/traces", "Distinct stacks with values, times and shared labels.",
             {**_HEAD, "traces": "object", "count": "integer", "more": "boolean"}, views.traces,
             ("limit", "sort", "search"),
             schemas={**_limit(1000, 100), "sort": {"enum": ["value", "recent"], "default": "value"}}),
    Endpoint("/export", "The selection as a file.", {}, own=("format",)),
)  # fmt: skip

_ERRORS: Final = {
    "400": "a parameter is wrong or missing", "401": "no token, or an unknown one",
    "403": "a namespace that the viewer may not see was asked for by name",
    "404": "no such endpoint, label, profile type or frame", "429": "too many queries at once",
    "503": "the store is not ready", "504": "the query ran over its time or memory",
}  # fmt: skip


def _described(endpoint: Endpoint, name: str) -> dict[str, Any]:
    parameter = PARAMETERS[name]
    schema = endpoint.schemas.get(name, parameter.schema)
    required = (name == "type" and endpoint.selects) or name in ("frame", "format")
    out = {
        "name": name,
        "in": "query",
        "description": parameter.text,
        "schema": dict(schema),
        "required": required,
    }
    return {**out, "style": "form", "explode": True} if parameter.repeated else out


def openapi() -> dict[str, Any]:
    """The OpenAPI 3.1 description of everything above."""
    paths: dict[str, Any] = {}
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for endpoint in ENDPOINTS:
        parameters = [_described(endpoint, name) for name in endpoint.parameters]
        if "{name}" in endpoint.path:
            parameters.append(
                {
                    "name": "name",
                    "in": "path",
                    "required": True,
                    "schema": {"type": "string"},
                    "description": "The label.",
                }
            )
        nullable = {"base_window", "base_total", "rest", "newest", "oldest"}
        members = {
            name: {"type": [kind, "null"] if name in nullable else kind}
            for name, kind in endpoint.members.items()
        }
        content = (
            {
                "application/json": {
                    "schema": {"type": "object", "properties": members, "required": sorted(members)}
                }
            }
            if members
            else {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
        )
        responses = {
            code: {"description": text, "content": problem} for code, text in _ERRORS.items()
        }
        paths[PREFIX + endpoint.path] = {
            "get": {
                "summary": endpoint.text,
                "operationId": endpoint.path.strip("/").replace("/{name}/", "-").replace("/", "-"),
                "parameters": parameters,
                "responses": {
                    "200": {"description": endpoint.text, "content": content},
                    **responses,
                },
            }
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Flameherd backend", "version": __version__, "description": "docs/design/0002-backend-api.md says what members mean."},
        "paths": paths,
        "components": {
            "schemas": {
                "Problem": {
                    "type": "object",
                    "properties": {
                        "type": {"type": "string"}, "title": {"type": "string"}, "status": {"type": "integer"},
                        "detail": {"type": "string"}, "parameter": {"type": "string"},
                    },
                    "required": ["type", "title", "status", "detail"],
                }
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }  # fmt: skip
