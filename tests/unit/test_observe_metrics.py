"""The exposition, read back by Prometheus' own client library."""

import math
import os

import pytest
from flameherd_agent.observe.metrics import Family, Labels, counter, gauge, labels, render
from flameherd_agent.observe.usage import own_usage, usage_families
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

NAMES = st.from_regex(r"\A[a-zA-Z_:][a-zA-Z0-9_:]{0,12}\Z").map(lambda name: f"x{name}_bytes")
LABELS = st.dictionaries(
    st.from_regex(r"\A[a-zA-Z][a-zA-Z0-9_]{0,8}\Z"),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=12),
    max_size=3,
).map(lambda d: tuple(sorted(d.items())))


def read_back(text: str) -> dict[str, dict[Labels, float]]:
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = tuple(sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[key] = sample.value
    return found


def test_what_it_looks_like() -> None:
    families = [
        counter("flameherd_ticks_total", "Ticks.", 7),
        gauge("flameherd_queue_depth", 'Odd \\ help\n"here"', {labels(endpoint='a"\\\n'): 1.5}),
    ]
    assert render(families) == (
        "# HELP flameherd_ticks_total Ticks.\n"
        "# TYPE flameherd_ticks_total counter\n"
        "flameherd_ticks_total 7\n"
        '# HELP flameherd_queue_depth Odd \\\\ help\\n"here"\n'
        "# TYPE flameherd_queue_depth gauge\n"
        'flameherd_queue_depth{endpoint="a\\"\\\\\\n"} 1.5\n'
    )


VALUES = st.floats() | st.integers(-(2**53), 2**53)


@given(st.dictionaries(NAMES, st.dictionaries(LABELS, VALUES, min_size=1, max_size=3), max_size=3))
def test_everything_comes_back(metrics: dict[str, dict[Labels, float]]) -> None:
    found = read_back(render(gauge(name, "Help.", samples) for name, samples in metrics.items()))
    assert found.keys() == metrics.keys()
    for name, samples in metrics.items():
        assert found[name].keys() == samples.keys()
        for key, value in samples.items():
            back = found[name][key]
            assert back == value or (math.isnan(back) and math.isnan(value))


@pytest.mark.parametrize(
    "family",
    [
        Family("a b", "", "gauge", ()),
        Family("a", "", "gauge", (((), 1.0), ((), 2.0))),
        gauge("a", "", {(("b-c", "d"),): 1}),
        gauge("a", "", {(("__name__", "d"),): 1}),
    ],
)
def test_what_prometheus_would_refuse_is_refused(family: Family) -> None:
    with pytest.raises(ValueError, match=r"name|twice"):
        render([family])


def test_a_family_may_come_once_and_counters_end_in_total() -> None:
    with pytest.raises(ValueError, match="there twice"):
        render([gauge("a", "", 1), gauge("a", "", 1)])
    with pytest.raises(ValueError, match="ends in _total"):
        counter("a", "", 1)


def test_the_agents_own_usage() -> None:
    usage = own_usage()
    assert usage.rss_bytes > 5_000_000
    assert usage.cpu_seconds > 0
    assert usage.threads >= 1
    read, write = os.pipe()
    assert own_usage().open_fds == usage.open_fds + 2
    os.close(read)
    os.close(write)
    assert read_back(render(usage_families()))["process_resident_memory_bytes"][()] > 5_000_000
