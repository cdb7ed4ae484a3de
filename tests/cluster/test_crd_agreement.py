"""The API server and `decode` agree: what the one takes, the other reads.

The rules are written in CEL for Go's regular expressions and in Python for its own; only putting
the same values before both shows that they say the same.
"""

from typing import Any

import pytest
from flameherd_policy.base import Model
from flameherd_policy.decode import decode
from flameherd_policy.errors import PolicyError
from flameherd_policy.resources import RESOURCES, Resource
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.cluster.api import Api, Json, Refused
from tests.cluster.objects import FULL, PATHS, object_of
from tools.gen_crd import root_schema

KINDS: dict[str, Resource] = {resource.kind: resource for resource in RESOURCES}
SETTINGS = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

# JSON on its way to Go: no lone surrogates.
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = st.from_regex(r"\A[-a-zA-Z0-9_./:@ é]{0,12}\Z")
GOOD = ["a", "app", "team.name", "A_B", "a.b/c-d", "web-1", "10", "20m", "64Mi", "50%", ""]


def text(schema: Json) -> st.SearchStrategy[Any]:
    """Texts that are likely to be right, at the edge, or wrong."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    longest = schema["maxLength"]
    edges = [letter * size for letter in "a1" for size in (longest, longest + 1)]
    return st.sampled_from([*GOOD, *GOOD, *edges]) | NAMES | ANY_TEXT


def values(schema: Json, good: Any) -> st.SearchStrategy[Any]:
    """What a schema might be given: mostly `good`, else a near miss of it."""
    wild: st.SearchStrategy[Any]
    match schema.get("type"):
        case "object" if "properties" in schema:
            wild = fields(schema, good if isinstance(good, dict) else {})
        case "object":
            item = schema["additionalProperties"]
            first = next(iter(good.values())) if good else None
            keys = st.sampled_from([*(good or {}), *GOOD]) | NAMES
            wild = st.dictionaries(keys, values(item, first), max_size=3)
        case "array":
            first = good[0] if good else None
            wild = st.lists(values(schema["items"], first), max_size=3)
        case "integer":
            low, high = schema.get("minimum", 0), schema.get("maximum", 9)
            wild = st.sampled_from([low - 1, low, low + 1, high - 1, high, high + 1])
        case "boolean":
            wild = st.booleans()
        case "string":
            wild = text(schema)
        case _:  # a quantity
            wild = st.integers(-1, 9) | st.sampled_from(["1", "20m", "1Gi", "1e3", "x"])
    if good is None:
        return wild
    nested = "properties" in schema or "items" in schema
    return wild if nested else st.one_of(*[st.just(good)] * 6, wild)


def fields(schema: Json, good: Json) -> st.SearchStrategy[Json]:
    required = set(schema.get("required", ()))
    strategies = {n: values(item, good.get(n)) for n, item in schema["properties"].items()}
    return st.fixed_dictionaries(
        {name: item for name, item in strategies.items() if name in required},
        optional={name: item for name, item in strategies.items() if name not in required},
    )


def specs(kind: str) -> st.SearchStrategy[Json]:
    schema = root_schema(KINDS[kind].model)["properties"]["spec"]
    return fields(schema, FULL[kind])


def taken(api: Api, kind: str, spec: Json) -> Json | None:
    """The spec as the API server would keep it, or None if it refuses it."""
    try:
        kept: Json = api.create(PATHS[kind], object_of(kind, spec), dryRun="All")["spec"]
    except Refused as error:
        if error.code not in (400, 422):
            raise
        return None
    return kept


def wrong(model: type[Model], spec: Json) -> str:
    """What `decode` has against it."""
    try:
        decode(model, {"metadata": {"name": "x"}, "spec": spec}, lenient=True)
    except PolicyError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_whatever_is_taken_can_be_read(api: Api, kind: str) -> None:
    outcomes = {"taken": 0, "refused": 0}

    @SETTINGS
    @given(specs(kind))
    def check(spec: Json) -> None:
        kept = taken(api, kind, spec)
        outcomes["refused" if kept is None else "taken"] += 1
        if kept is not None:
            assert wrong(KINDS[kind].model, kept) == ""

    check()
    # Otherwise the test has looked at one side only.
    assert min(outcomes.values()) > 10, outcomes


ENDPOINTS = st.builds(
    "{}://{}{}{}".format,
    st.sampled_from(["http", "https"] * 4 + ["HTTP", "ftp", ""]),
    st.sampled_from(["a.svc", "10.0.0.1", "[2001:db8::1]", "a_b", "a.svc.", "127.1", "1.2.3.04"])
    | st.from_regex(r"\A[-a-zA-Z0-9_.]{1,8}\Z")
    | st.from_regex(r"\A\[[0-9a-f:.]{1,12}\]\Z")
    | ANY_TEXT,
    st.sampled_from(["", "", ":4317", ":0", ":65535", ":65536", ":", ":x", ":00080"]),
    st.sampled_from(["", "", "/", "/v1", "//", "/[", "?a", "#b", "/%zz", "/\u00e9", "\\"]),
)


@SETTINGS
@given(ENDPOINTS, st.sampled_from(["GRPC", "HTTP"]))
@example("http://[::ffff:1.2.3.4]", "GRPC")
@example("http://[1:2:3:4:5:6:7::]", "GRPC")
@example("http://[1::2::3]", "GRPC")
@example("http://" + "a." * 126 + "a", "GRPC")
@example("http://" + "a." * 126 + "a.", "GRPC")
@example("http://" + "a." * 126 + "ab", "GRPC")
@example("http://user@a.svc", "GRPC")
def test_endpoints_that_are_taken_can_be_read(api: Api, endpoint: str, protocol: str) -> None:
    spec = {"podSelector": {}, "export": {"endpoint": endpoint, "protocol": protocol}}
    if taken(api, "ProfilingPolicy", spec) is not None:
        assert wrong(KINDS["ProfilingPolicy"].model, spec) == ""


LISTS = {
    "podLabels": ["a/b", "a" * 253 + "/b", "a" * 254 + "/b", "a" * 64, "x/" + "a" * 63],
    "podAnnotations": ["A.b/c", "a-/b", "a.-b/c", "a./b", "é", "a\n", "a\0"],
    "env": ["A", "_", "1A", "A-B", "é", "A\n"],
}


@pytest.mark.parametrize("field", sorted(LISTS))
def test_lists_of_texts_agree_entry_by_entry(api: Api, field: str) -> None:
    """Exactly: CEL and Python refuse the same entries."""

    @SETTINGS
    @given(st.lists(NAMES | ANY_TEXT, min_size=1, max_size=16, unique=True))
    @example(LISTS[field])
    def check(entries: list[str]) -> None:
        spec = {"podSelector": {}, "attributes": {field: entries}}
        try:
            api.create(PATHS["ProfilingPolicy"], object_of("ProfilingPolicy", spec), dryRun="All")
            refused = set()
        except Refused as error:
            refused = {name.rpartition(".")[2] for name, _ in error.causes}
        try:
            decode(KINDS["ProfilingPolicy"].model, object_of_spec(spec))
            unread = set()
        except PolicyError as error:
            unread = {problem.path.rpartition(".")[2] for problem in error.problems}
        assert refused == unread

    check()


def object_of_spec(spec: Json) -> Json:
    return {"metadata": {"name": "x"}, "spec": spec}
