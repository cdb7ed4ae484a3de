"""Cgroups of pods, noticed as they are made. inotify is the kernel's; the directories are plain."""

from pathlib import Path

import pytest
from flameherd_agent.cluster.cgroup_tree import MONITOR, RECHECK_S, WALK_S, CgroupTree
from flameherd_agent.cluster.inotify import Inotify
from flameherd_agent.errors import EnvironmentProblem
from flameherd_agent.metadata.hierarchy import PidsHierarchy

UID = "72f7f152-440c-66ac-9084-e0fc1d8a910c"
HASH = "09a70ae9ccc491e651e5c773579b3490"
A, B = "a" * 64, "b" * 64
SLICE = (
    f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice"
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def tree(mount: Path, clock: Clock, **options: object) -> CgroupTree:
    return CgroupTree(PidsHierarchy(mount, version=2), clock=clock, **options)  # type: ignore[arg-type]


def made(mount: Path, path: str) -> int:
    folder = mount / path
    folder.mkdir(parents=True)
    return folder.stat().st_ino


def test_what_is_there_and_what_comes_and_goes(tmp_path: Path, clock: Clock) -> None:
    pod = made(tmp_path, f"kubepods/burstable/pod{UID}")
    first = made(tmp_path, f"kubepods/burstable/pod{UID}/{A}")
    made(tmp_path, f"kubepods/burstable/pod{UID}/{A}/init.scope")
    made(tmp_path, "system.slice/ssh.service")
    it = tree(tmp_path, clock)
    assert it.pods == {UID: {pod: None, first: A}}
    assert not it.refresh(), "nothing happened"
    second = made(tmp_path, f"kubepods/burstable/pod{UID}/{B}")
    assert it.refresh()
    assert it.pods[UID][second] == B
    (tmp_path / f"kubepods/burstable/pod{UID}/{B}").rmdir()
    assert it.refresh()
    assert second not in it.pods[UID]
    made(tmp_path, f"kubepods/burstable/pod{UID}/{A}/more")
    assert not it.refresh(), "below a container nothing is looked at"
    it.close()


def test_whole_branches_that_come_at_once(tmp_path: Path, clock: Clock) -> None:
    it = tree(tmp_path, clock)
    pod, container = made(tmp_path, SLICE), made(tmp_path, f"{SLICE}/crio-{A}.scope")
    monitor = made(tmp_path, f"{SLICE}/crio-conmon-{A}.scope")
    static = made(tmp_path, f"kubepods/besteffort/pod{HASH}")
    assert it.refresh()
    assert it.pods == {
        UID: {pod: None, container: A, monitor: MONITOR},
        HASH: {static: None},
    }
    for name in (f"crio-{A}.scope", f"crio-conmon-{A}.scope"):
        (tmp_path / SLICE / name).rmdir()
    (tmp_path / SLICE).rmdir()
    assert it.refresh()
    assert set(it.pods) == {HASH}
    it.close()


def test_a_cgroup_keeps_its_path_when_it_is_gone(tmp_path: Path, clock: Clock) -> None:
    hierarchy = PidsHierarchy(tmp_path, version=2, clock=clock)
    it = CgroupTree(hierarchy, clock=clock)
    path = f"kubepods/pod{UID}"
    number = made(tmp_path, path)
    it.refresh()
    (tmp_path / path).rmdir()
    it.refresh()
    assert hierarchy.path_of_id(number) == f"/{path}"
    it.close()


class Deaf(Inotify):
    """One whose watches the kernel refuses."""

    def watch(self, path: str) -> int:
        raise OSError(28, "No space left on device", path)


def refuse() -> Inotify:
    raise EnvironmentProblem("no inotify")


@pytest.mark.parametrize("make", [Deaf, refuse])
def test_without_inotify_it_looks_once_a_second(tmp_path: Path, clock: Clock, make: object) -> None:
    it = tree(tmp_path, clock, make=make)
    pod = made(tmp_path, f"kubepods/pod{UID}")
    assert not it.refresh()
    clock.now += WALK_S
    assert it.refresh()
    assert it.pods == {UID: {pod: None}}
    it.close()


def test_a_walk_now_and_then_finds_what_was_missed(tmp_path: Path, clock: Clock) -> None:
    class Silent(Inotify):
        def read(self) -> tuple[list[object], bool]:  # type: ignore[override]
            return [], False

    it = tree(tmp_path, clock, make=Silent)
    made(tmp_path, f"kubepods/pod{UID}")
    assert not it.refresh()
    clock.now += RECHECK_S
    assert it.refresh()
    assert UID in it.pods
    it.close()


def test_events_that_were_lost_mean_a_walk(tmp_path: Path, clock: Clock) -> None:
    class Lossy(Inotify):
        def read(self) -> tuple[list[object], bool]:  # type: ignore[override]
            return [], True

    it = tree(tmp_path, clock, make=Lossy)
    made(tmp_path, f"kubepods/pod{UID}")
    assert it.refresh()
    assert UID in it.pods
    it.close()
