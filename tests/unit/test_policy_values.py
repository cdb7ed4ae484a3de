"""Durations, quantities and label selectors:

what they accept, what they mean, and that they round-trip.
"""

from fractions import Fraction

import pytest
from flameherd_policy.decode import decode
from flameherd_policy.durations import MAX_NS, Duration
from flameherd_policy.errors import PolicyError
from flameherd_policy.quantities import Quantity
from flameherd_policy.selectors import LabelSelector, check_label_key, check_label_value
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1m30s", 90_000_000_000),
        ("250ms", 250_000_000),
        ("100us", 100_000),
        ("100µs", 100_000),
        ("100μs", 100_000),
        ("1d", 86_400_000_000_000),
        ("1.5h", 5_400_000_000_000),
        ("7ns", 7),
        ("0s", 0),
    ],
)
def test_durations_are_read(text: str, ns: int) -> None:
    assert Duration.parse(text).ns == ns


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10",
        "s",
        "-1s",
        "1 s",
        "1S",
        "1s ",
        "1w",
        "0.5ns",
        "1e3s",
        "١s",
        "300y",
        "9" * 30 + "d",
        10,
        None,
    ],
)
def test_what_is_no_duration_is_refused_with_a_reason(text: object) -> None:
    with pytest.raises(ValueError, match=r"duration|nanoseconds|not between"):
        Duration.parse(text)


@given(st.integers(0, MAX_NS))
def test_durations_round_trip(ns: int) -> None:
    assert Duration.parse(str(Duration(ns))) == Duration(ns)


@given(st.text(max_size=20))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    try:
        Duration.parse(text)
    except ValueError:
        return


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5m", Fraction(5, 1000)),
        ("0.5", Fraction(1, 2)),
        ("64Mi", Fraction(64 * 2**20)),
        ("1G", Fraction(10**9)),
        ("1e3", Fraction(1000)),
        ("1E3", Fraction(1000)),
        ("2E", Fraction(2 * 10**18)),
        ("1.", Fraction(1)),
        (".5Ki", Fraction(512)),
        ("-1", Fraction(-1)),
        (3, Fraction(3)),
        ("100n", Fraction(1, 10**7)),
        ("7u", Fraction(7, 10**6)),
    ],
)
def test_quantities_are_read(text: object, value: Fraction) -> None:
    assert Quantity.parse(text).value == value


@pytest.mark.parametrize(
    "text", ["", "Mi", "1KI", "1 Mi", "1ki", "0x1", ".", "1e", "1e3Mi", True, None, float("nan")]
)
def test_what_is_no_quantity_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        Quantity.parse(text)


def test_quantities_compare_by_value_and_keep_their_text() -> None:
    assert Quantity.parse("1Gi") == Quantity.parse("1024Mi")
    assert Quantity.parse("999m") < Quantity.parse("1")
    assert str(Quantity.parse("1024Mi")) == "1024Mi"


def _selector(**fields: object) -> LabelSelector:
    return decode(LabelSelector, fields).value


@pytest.mark.parametrize(
    ("expression", "labels", "expected"),
    [
        ({"key": "a", "operator": "In", "values": ["x", "y"]}, {"a": "y"}, True),
        ({"key": "a", "operator": "In", "values": ["x"]}, {"a": "y"}, False),
        ({"key": "a", "operator": "In", "values": ["x"]}, {}, False),
        ({"key": "a", "operator": "In", "values": [""]}, {}, False),
        ({"key": "a", "operator": "NotIn", "values": ["x"]}, {"a": "x"}, False),
        ({"key": "a", "operator": "NotIn", "values": ["x"]}, {"a": "y"}, True),
        ({"key": "a", "operator": "NotIn", "values": ["x"]}, {}, True),
        ({"key": "a", "operator": "Exists"}, {"a": ""}, True),
        ({"key": "a", "operator": "Exists"}, {"b": ""}, False),
        ({"key": "a", "operator": "DoesNotExist"}, {"a": ""}, False),
        ({"key": "a", "operator": "DoesNotExist"}, {}, True),
    ],
)
def test_expressions_mean_what_kubernetes_means(
    expression: dict[str, object], labels: dict[str, str], expected: bool
) -> None:
    assert _selector(matchExpressions=[expression]).matches(labels) is expected


def test_all_conditions_of_a_selector_must_hold() -> None:
    selector = _selector(
        matchLabels={"app": "shop"}, matchExpressions=[{"key": "tier", "operator": "Exists"}]
    )
    assert selector.matches({"app": "shop", "tier": "web"})
    assert not selector.matches({"app": "shop"})
    assert not selector.matches({"tier": "web"})


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5)))
def test_an_empty_selector_matches_everything(labels: dict[str, str]) -> None:
    assert LabelSelector().matches(labels)


@pytest.mark.parametrize("key", ["app", "app.kubernetes.io/name", "A_b.c-d", "x" * 63, "a.b/c"])
def test_good_label_keys(key: str) -> None:
    assert check_label_key(key) is None


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "-a", "a-", "x" * 64, "A.b/c", "a/b/c", "a b", "é", "a\n"]
)
def test_bad_label_keys(key: str) -> None:
    assert check_label_key(key) is not None


def test_label_values_may_be_empty_but_not_end_in_punctuation() -> None:
    assert check_label_value("") is None
    assert check_label_value("a.b_c-1") is None
    assert check_label_value("a.") is not None
    assert check_label_value("x" * 64) is not None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"matchExpressions": [{"key": "a", "operator": "In"}]},
            "matchExpressions[0].values: operator In needs at least one value",
        ),
        (
            {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]},
            "matchExpressions[0].values: operator Exists takes no values",
        ),
        (
            {"matchExpressions": [{"key": "a", "operator": "in", "values": ["b"]}]},
            "matchExpressions[0].operator: 'in' is not one of In, NotIn, Exists, DoesNotExist; "
            "did you mean In?",
        ),
        ({"matchLabels": {"a": True}}, "matchLabels[a]: true is not text (quote it)"),
    ],
)
def test_wrong_selectors_are_named_by_field(fields: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        _selector(**fields)
    assert str(caught.value) == message
