"""What agents report: read with bounds, and by neighbours of other versions."""

import json

import pytest
from flameherd_policy.report import (
    MAX_REPORT_BYTES,
    BudgetState,
    ExportState,
    PolicyDelta,
    StatusDelta,
    read_report,
    write_report,
)
from hypothesis import given
from hypothesis import strategies as st

ONE = PolicyDelta(name="shop/p", pods_matched=2, samples=7, export=ExportState.SENDING)
REPORT = StatusDelta(seconds=60.0, agent_version="1", shards={"a": "b"}, policies=(ONE,))


def test_what_is_written_is_read() -> None:
    assert read_report(write_report(REPORT)) == REPORT


def test_neighbours_of_other_versions() -> None:
    newer = json.loads(write_report(REPORT)) | {"later": {"x": 1}}
    newer["policies"][0]["later"] = [1]
    assert read_report(json.dumps(newer).encode()) == REPORT
    assert read_report(b'{"seconds": 1}').policies == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "seconds"),
        ('{"seconds": 0}', "seconds"),
        ('{"seconds": 1, "policies": [{"name": ""}]}', "name"),
        ('{"seconds": 1, "policies": [{"name": "a", "samples": -1}]}', "samples"),
        ('{"seconds": 1, "policies": [{"name": "a", "export": "x"}]}', "export"),
        ('{"seconds": 1, "policies": [{"name": "a"}, {"name": "a"}]}', "twice"),
        ('{"seconds": 1, "agentVersion": "' + "a" * 65 + '"}', "agentVersion"),
        (chr(123), "truncated"),
        (" " * (MAX_REPORT_BYTES + 1), "is more than"),
    ],
)
def test_what_is_wrong_is_named(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_report(text.encode())


@given(st.binary(max_size=300))
def test_any_bytes_are_a_report_or_an_error(data: bytes) -> None:
    try:
        read_report(data)
    except ValueError:
        return


def test_a_report_that_is_too_large_loses_its_end() -> None:
    many = tuple(
        PolicyDelta(name=f"{n:04}" + "n" * 300, export_error="é" * 200) for n in range(1023)
    )
    data = write_report(StatusDelta(seconds=1.0, policies=many))
    assert len(data) <= MAX_REPORT_BYTES
    kept = read_report(data).policies
    assert kept == many[: len(kept)]
    assert len(kept) > 300


def test_a_flip_is_what_conditions_depend_on() -> None:
    def flips(**changed: object) -> frozenset[tuple[str, ...]]:
        one = PolicyDelta(name="p", pods_matched=1, **changed)  # type: ignore[arg-type]
        return StatusDelta(seconds=1.0, policies=(one,)).flips()

    assert flips(samples=5, export_errors=3) == flips()
    assert flips(pods_profiled=1) != flips()
    assert flips(budget=BudgetState.LOWERED) != flips()
    assert flips(export=ExportState.FAILING) != flips()
    assert flips(containers_overlapped=1) != flips()
    assert StatusDelta(seconds=1.0, shards={"a": "1"}).flips() != StatusDelta(seconds=1.0).flips()
