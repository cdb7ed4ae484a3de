"""What a process had mapped, by the log of its events."""

import os

import pytest
from flameherd_agent.errors import ProcessGone
from flameherd_agent.kernel.perf import CommEvent, ExitEvent, ForkEvent, MapEvent
from flameherd_agent.process.images import MAX_EVENTS, ImageLog
from flameherd_agent.types import Pid, Tid

NOBODY = Pid(0x3FFFFFFF)
"""Above the kernel's pid_max: /proc never answers for it."""
PARENT = Pid(0x3FFFFFFE)


def mapped(
    pid: Pid, time_ns: int, path: str, start: int = 0x1000, length: int = 0x1000
) -> MapEvent:
    return MapEvent(pid, time_ns, start, length, 0, (8, 1), 7, path)


def executed(pid: Pid, time_ns: int) -> CommEvent:
    return CommEvent(pid, Tid(pid), time_ns, "x", True)


def paths(log: ImageLog, pid: Pid, time_ns: int) -> list[str]:
    return [region.file.path for region in log.image(pid, time_ns).regions]


def test_each_exec_has_its_own_image() -> None:
    log = ImageLog()
    for number in (1, 2, 3):
        log.feed(executed(NOBODY, number * 100))
        log.feed(mapped(NOBODY, number * 100 + 1, f"/bin/{number}"))
    log.feed(ExitEvent(NOBODY, 400))
    assert paths(log, NOBODY, 350) == ["/bin/3"]
    assert paths(log, NOBODY, 250) == ["/bin/2"]
    assert paths(log, NOBODY, 150) == ["/bin/1"]
    assert paths(log, NOBODY, 50) == ["/bin/1"]


def test_only_a_few_programs_are_remembered() -> None:
    log = ImageLog()
    for number in range(1, 10):
        log.feed(executed(NOBODY, number * 100))
        log.feed(mapped(NOBODY, number * 100 + 1, f"/bin/{number}"))
    assert paths(log, NOBODY, 150) == ["/bin/6"]
    log.feed(ExitEvent(NOBODY, 1_000))
    log.expire(10**12)
    assert log._events == 0
    with pytest.raises(ProcessGone):
        log.image(NOBODY, 950)


def test_a_child_has_what_its_parent_had_at_the_fork() -> None:
    log = ImageLog()
    log.feed(executed(PARENT, 100))
    log.feed(mapped(PARENT, 101, "/bin/before"))
    log.feed(ForkEvent(NOBODY, PARENT, 150))
    log.feed(mapped(NOBODY, 160, "/lib/own", start=0x9000))
    log.feed(executed(PARENT, 200))
    log.feed(mapped(PARENT, 201, "/bin/after"))
    assert paths(log, NOBODY, 170) == ["/bin/before", "/lib/own"]


def test_a_mapping_over_another_cuts_it() -> None:
    log = ImageLog()
    log.feed(executed(NOBODY, 100))
    log.feed(mapped(NOBODY, 101, "/lib/a", start=0x1000, length=0x3000))
    log.feed(mapped(NOBODY, 102, "/lib/b", start=0x2000, length=0x1000))
    found = [(r.start, r.end, r.offset, r.file.path) for r in log.image(NOBODY, 150).regions]
    assert found == [
        (0x1000, 0x2000, 0, "/lib/a"),
        (0x2000, 0x3000, 0, "/lib/b"),
        (0x3000, 0x4000, 0x2000, "/lib/a"),
    ]


def test_a_living_process_is_asked_itself() -> None:
    image = ImageLog().image(Pid(os.getpid()), 0)
    assert not image.from_log
    assert any("libc" in region.file.path for region in image.regions)


def test_the_log_is_bounded() -> None:
    log = ImageLog()
    for number in range(3):
        pid = Pid(NOBODY + number)
        log.feed(executed(pid, 100 + number))
        for at in range(MAX_EVENTS // 2):
            log.feed(mapped(pid, 101 + number, "/lib/x", start=at << 12))
    log.expire(200)
    assert log._events <= MAX_EVENTS
    assert log.forgotten == 2
