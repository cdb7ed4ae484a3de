"""The generator of CRDs: what it refuses to write, and what no schema may lack."""

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from flameherd_policy.base import Model
from flameherd_policy.resources import RESOURCES
from flameherd_policy.rules import Rule, matches, text
from msgspec import Meta

from tools.gen_crd import crd, generate, root_schema, rules_of


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, item in schema.get("properties", {}).items():
        yield from nodes(item, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes(schema[key], f"{path}[]")


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda r: r.kind)
def test_everything_is_bounded_and_described(resource: Any) -> None:
    top = {"", ".apiVersion", ".kind", ".metadata"}
    for path, schema in nodes(root_schema(resource.model)):
        if path in top:
            continue
        match schema.get("type"):
            case "string":
                assert "maxLength" in schema or "enum" in schema, path
            case "array":
                assert "maxItems" in schema, path
            case "object":
                assert "properties" in schema or "maxProperties" in schema, path
        assert "note" not in schema, path
        assert path.endswith("[]") or schema["description"].rstrip(".") != "", path


def test_every_message_tells_the_field_or_the_mend_in_one_line() -> None:
    for resource in RESOURCES:
        for path, message in rules_of(root_schema(resource.model)):
            assert "\n" not in message, path
            assert len(message) > 20, path


def test_names_are_those_of_the_cluster() -> None:
    named = {r.kind: crd(r)["metadata"]["name"] for r in RESOURCES}
    assert named == {
        "ProfilingPolicy": "profilingpolicies.flameherd.dev",
        "ClusterProfilingPolicy": "clusterprofilingpolicies.flameherd.dev",
        "AgentPool": "agentpools.flameherd.dev",
    }
    assert len(generate()) == 7  # each for kubectl and for the chart, and the reference


class Unbounded(Model, frozen=True):
    """A text that the API server could not bound."""

    name: Annotated[str, Meta(description="Any length.")]


class Undescribed(Model, frozen=True):
    """A field without a sentence."""

    name: Annotated[str, Meta(max_length=3)]


class Unending(Model, frozen=True):
    """A list without an end."""

    names: Annotated[tuple[Annotated[str, Meta(max_length=3)], ...], Meta(description="Names.")]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Unbounded, "a text without max_length"),
        (Undescribed, "Undescribed.name has no description"),
        (Unending, "a list without max_length"),
    ],
)
def test_what_has_no_place_in_a_cluster_is_refused(model: type[Model], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        root_schema(model)


def test_one_expression_checks_here_and_there() -> None:
    extra = text("[a-z]+", "is not lower-case")
    assert extra["check"]("abc") is None
    assert extra["check"]("abc\n") == "'abc\\n' is not lower-case"
    assert extra["cel"] == (Rule("self.matches(r'^(?:[a-z]+)$')", "is not lower-case"),)
    assert extra["cel"][0].of_keys() == Rule(
        "self.all(key, key.matches(r'^(?:[a-z]+)$'))", "one of the keys is not lower-case"
    )
    with pytest.raises(ValueError, match="holds a quote"):
        matches("'", "x")
