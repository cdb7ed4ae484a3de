"""Samples of containers that the cluster has not told of yet: one interval's wait, then out."""

from typing import Any

import pytest
from flameherd_agent.kernel.abi import Outcome
from flameherd_agent.metadata.resource import Resource
from flameherd_agent.pipeline import assemble
from flameherd_agent.pipeline.assemble import Assembler, SlotLabels
from flameherd_agent.pipeline.drain import Interval, SampleKey, Stack
from flameherd_agent.types import Pid, SlotId, Tid

SLOT = SlotId(1)
PERIODS = {(SLOT, 1): 10_000_000}
LABELS = {SLOT: SlotLabels("shop/p")}


class Names:
    """A namer of stacks without frames."""

    def stack(self, *_: Any) -> tuple[()]:
        return ()

    def shed(self) -> None:
        return


class Labeler:
    """Knows no pod until it is told of it."""

    def __init__(self) -> None:
        self.known: set[int] = set()

    def resource(self, pid: Pid, *_: Any, **__: Any) -> Resource:
        named = (("k8s.pod.name", f"pod-{pid}"),) if pid in self.known else ()
        return Resource((("process.pid", pid), *named), None, pid not in self.known)


class Processes:
    """Knows no process."""

    def find(self, _: int) -> None:
        return None


@pytest.fixture
def labeler() -> Labeler:
    return Labeler()


@pytest.fixture
def assembler(labeler: Labeler) -> Assembler:
    return Assembler(Names(), labeler, Processes())  # type: ignore[arg-type]


def interval(started_s: int, *pids: int) -> Interval:
    made = Interval(started_s * 10**9, (started_s + 10) * 10**9)
    for pid in pids:
        key = SampleKey(Stack((), ()), pid, 1, Pid(pid), Tid(pid), SLOT, 1, Outcome.COMPLETE, "x")
        made.cold[key] = 5
    return made


def told(assembler: Assembler, made: Interval, **options: bool) -> dict[Any, list[tuple[int, int]]]:
    """{resource: [(duration, count) of each of its samples]}"""
    return {
        resource.attributes: [
            (profile.time_unix_ns, sample.value)
            for profile in resource.profiles
            for sample in profile.samples
        ]
        for resource in assembler.assemble(made, PERIODS, LABELS, **options)
    }


def test_what_becomes_known_goes_out_with_the_next_interval_and_its_own_time(
    assembler: Assembler, labeler: Labeler
) -> None:
    assert told(assembler, interval(0, 7)) == {}
    assert assembler.held == 5
    labeler.known.add(7)
    ((attributes, samples),) = told(assembler, interval(10, 7)).items()
    assert ("k8s.pod.name", "pod-7") in attributes
    times = [time for time, _ in samples]
    assert times[1] - times[0] == pytest.approx(10e9, abs=2e9), "each has its interval's time"
    assert [count for _, count in samples] == [5, 5]
    assert assembler.unknown_pods == assembler.held == 0


def test_what_stays_unknown_goes_out_after_one_interval_and_is_counted(
    assembler: Assembler,
) -> None:
    assert told(assembler, interval(0, 7)) == {}
    ((attributes, samples),) = told(assembler, interval(10)).items()
    assert attributes == (("process.pid", 7),)
    assert [count for _, count in samples] == [5]
    assert (assembler.held, assembler.unknown_pods) == (0, 5)


def test_nothing_waits_when_there_is_no_next_interval(
    assembler: Assembler, labeler: Labeler
) -> None:
    labeler.known.add(8)
    assert told(assembler, interval(0, 7)) == {}
    assert len(told(assembler, interval(10, 8, 9), hold=False)) == 3
    assert assembler.held == 0


def test_what_waits_is_bounded(
    assembler: Assembler, labeler: Labeler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assemble, "MAX_HELD", 2)
    assert len(told(assembler, interval(0, 1, 2, 3, 4))) == 2
    assert (assembler.held, assembler.unknown_pods) == (10, 10)
