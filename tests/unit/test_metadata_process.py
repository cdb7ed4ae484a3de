"""What /proc tells of processes, and the resource attributes that come of it."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from flameherd_agent.errors import ProcessGone
from flameherd_agent.metadata import process
from flameherd_agent.metadata.cgroup import ContainerRef
from flameherd_agent.metadata.hierarchy import PidsHierarchy
from flameherd_agent.metadata.process import (
    MAX_ENVIRON_BYTES,
    MAX_TEXT,
    read_env,
    read_process,
    service_name,
)
from flameherd_agent.metadata.resource import ResourceLabeler, host_attributes
from flameherd_agent.types import Pid
from flameherd_policy.policies import Attributes
from hypothesis import given
from hypothesis import strategies as st

ID = "ab" * 32
UID = "72f7f152-440c-66ac-9084-e0fc1d8a910c"


def make_process(
    proc: Path,
    pid: int,
    *,
    comm: bytes = b"worker\n",
    cmdline: bytes = b"/opt/app/run\0--token=secret\0",
    exe: str | None = "/opt/app/run",
    environ: bytes = b"",
    cgroup: str = "0::/\n",
    status: str = "Name:\tx\nNSpid:\t7\t3\n",
) -> Pid:
    base = proc / str(pid)
    base.mkdir(parents=True)
    (base / "comm").write_bytes(comm)
    (base / "cmdline").write_bytes(cmdline)
    (base / "environ").write_bytes(environ)
    (base / "cgroup").write_text(cgroup)
    (base / "status").write_text(status)
    if exe is not None:
        (base / "exe").symlink_to(exe)
    return Pid(pid)


def test_this_process() -> None:
    info = read_process(Pid(os.getpid()))
    assert info.executable_path == str(Path(sys.executable).resolve())
    assert info.executable_name == Path(info.executable_path).name
    assert info.ns_pid == os.getpid()
    assert info.attributes()["process.executable.name"] == info.executable_name


def test_a_process_that_is_gone() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    with pytest.raises(ProcessGone, match=f"process {child.pid} ended"):
        read_process(Pid(child.pid))


def test_only_the_first_argument_is_taken(tmp_path: Path) -> None:
    info = read_process(make_process(tmp_path, 7), proc=tmp_path)
    assert info == ("worker", "run", "/opt/app/run", "/opt/app/run", 3)
    assert info.attributes() == {
        "process.executable.name": "run",
        "process.executable.path": "/opt/app/run",
        "process.command": "/opt/app/run",
    }


def test_kernel_threads_are_named_by_their_comm(tmp_path: Path) -> None:
    pid = make_process(tmp_path, 2, comm=b"kthreadd\n", cmdline=b"", exe=None, status="")
    assert read_process(pid, proc=tmp_path) == ("kthreadd", "kthreadd", "", "", 2)


def test_hostile_names_are_cut_and_cleaned(tmp_path: Path) -> None:
    pid = make_process(
        tmp_path, 9, comm=b"\xff\n\x1b[31m\n", cmdline=b"A" * 100_000, exe="/x/y (deleted)"
    )
    info = read_process(pid, proc=tmp_path)
    assert info.comm == "\N{REPLACEMENT CHARACTER}" * 3 + "[31m"
    assert len(info.command) == MAX_TEXT
    assert info.executable_path == "/x/y"


def test_only_allowed_variables_are_read(tmp_path: Path) -> None:
    pid = make_process(tmp_path, 5, environ=b"A=1\0SECRET=x\0B=\xff\0A=2\0nonsense\0C=1=2\0")
    assert read_env(pid, {"A", "B", "C", "D"}, proc=tmp_path) == {
        "A": "1",
        "B": "\N{REPLACEMENT CHARACTER}",
        "C": "1=2",
    }
    assert read_env(pid, (), proc=tmp_path / "none") == {}


def test_a_huge_environment_is_cut(tmp_path: Path) -> None:
    pid = make_process(
        tmp_path, 5, environ=b"A=1\0" + b"B=" + b"x" * MAX_ENVIRON_BYTES + b"\0C=3\0"
    )
    assert read_env(pid, {"A", "B", "C"}, proc=tmp_path) == {"A": "1"}


@given(st.binary(max_size=200))
def test_no_environment_raises(data: bytes) -> None:
    original = process.read_bounded
    process.read_bounded = lambda path, limit, pid: data
    try:
        found = read_env(Pid(1), {"A", ""})
    finally:
        process.read_bounded = original
    assert set(found) <= {"A", ""}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, "unknown_service:run"),
        ({"OTEL_SERVICE_NAME": "shop"}, "shop"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "a=b, service.name=sh%20op ,c=d"}, "sh op"),
        (
            {"OTEL_SERVICE_NAME": "", "OTEL_RESOURCE_ATTRIBUTES": "service.name="},
            "unknown_service:run",
        ),
        ({"OTEL_SERVICE_NAME": "x", "OTEL_RESOURCE_ATTRIBUTES": "service.name=y"}, "x"),
    ],
)
def test_service_names_follow_the_specification(env: dict[str, str], expected: str) -> None:
    assert service_name("run", env) == expected


def test_the_host() -> None:
    found = host_attributes()
    assert found["host.name"] == socket.gethostname()
    assert found["os.type"] == "linux"


def _labeler(tmp_path: Path, **fields: object) -> ResourceLabeler:
    (tmp_path / "cgroup").mkdir(exist_ok=True)
    hierarchy = PidsHierarchy(tmp_path / "cgroup", version=2)
    return ResourceLabeler(hierarchy, proc=tmp_path, **fields)  # type: ignore[arg-type]


def test_a_process_outside_containers_is_its_executable(tmp_path: Path) -> None:
    pid = make_process(tmp_path, 7, environ=b"OTEL_SERVICE_NAME=shop\0X=1\0")
    labeler = _labeler(tmp_path)
    wanted = Attributes(static={"team.name": "a"})
    found = dict(labeler.resource(pid, 1, 0, wanted=wanted).attributes)
    assert found["service.name"] == "unknown_service:run"
    assert found["team.name"] == "a"
    assert found["process.executable.path"] == "/opt/app/run"
    assert found["host.name"] == socket.gethostname()
    assert "process.pid" not in found
    found = dict(labeler.resource(pid, 1, 0, wanted=wanted, env=("OTEL_SERVICE_NAME",)).attributes)
    assert found["service.name"] == "shop"
    assert found["process.environment_variable.OTEL_SERVICE_NAME"] == "shop"


def test_static_attributes_name_the_service_but_not_the_host(tmp_path: Path) -> None:
    pid = make_process(tmp_path, 7)
    wanted = Attributes(static={"service.name": "mine", "host.name": "forged"})
    found = dict(_labeler(tmp_path).resource(pid, 1, 0, wanted=wanted).attributes)
    assert found["service.name"] == "mine"
    assert found["host.name"] == socket.gethostname()


def test_a_container_is_found_by_its_cgroup_although_the_process_is_gone(tmp_path: Path) -> None:
    directory = tmp_path / f"cgroup/kubepods/pod{UID}/{ID}"
    directory.mkdir(parents=True)
    labeler = _labeler(tmp_path)
    inode = directory.stat().st_ino
    resource = labeler.resource(Pid(99), 1, inode, wanted=Attributes())
    assert resource.container == ContainerRef("", ID, UID)
    found = dict(resource.attributes)
    assert found["container.id"] == ID
    assert found["k8s.pod.uid"] == UID
    assert "service.name" not in found
    assert "process.executable.name" not in found
    assert list(resource.attributes) == sorted(resource.attributes)


def test_a_cgroup_id_that_is_not_known_falls_back_to_the_process(tmp_path: Path) -> None:
    pid = make_process(tmp_path, 7, cgroup=f"0::/docker/{ID}\n")
    found = _labeler(tmp_path).resource(pid, 1, 987654321, wanted=Attributes())
    assert found.container == ContainerRef("docker", ID, None)
    assert dict(found.attributes)["container.runtime.name"] == "docker"


def test_a_process_that_is_gone_is_named_by_its_thread(tmp_path: Path) -> None:
    found = dict(
        _labeler(tmp_path).resource(Pid(99), 1, 0, wanted=Attributes(), comm="cc1").attributes
    )
    assert found["process.executable.name"] == "cc1"
    assert found["service.name"] == "unknown_service:cc1"


class Pods:
    """A PodSource that learns of its pod late."""

    known = False

    def attributes(
        self, container: ContainerRef, wanted: Attributes
    ) -> tuple[dict[str, str | int], bool]:
        return {"k8s.pod.name": "web-1", "service.name": "web"} if self.known else {}, self.known

    def node_attributes(self) -> dict[str, str | int]:
        return {"k8s.node.name": "node-1", "host.name": "node-1"}


def test_pods_come_from_their_source_and_may_be_late(tmp_path: Path) -> None:
    pid = make_process(tmp_path, 7, cgroup=f"0::/kubepods/pod{UID}/{ID}\n")
    pods = Pods()
    labeler = _labeler(tmp_path, pods=pods)
    assert labeler.resource(pid, 1, 0, wanted=Attributes()).pod_pending
    pods.known = True
    resource = labeler.resource(pid, 1, 0, wanted=Attributes())
    assert not resource.pod_pending
    assert dict(resource.attributes)["k8s.pod.name"] == "web-1"
    assert dict(resource.attributes)["host.name"] == "node-1"
    wanted = Attributes(static={"service.name": "shop", "k8s.pod.name": "forged"})
    found = dict(labeler.resource(pid, 1, 0, wanted=wanted).attributes)
    assert (found["service.name"], found["k8s.pod.name"]) == ("shop", "web-1")


def test_processes_are_remembered_until_their_address_space_changes(tmp_path: Path) -> None:
    pid = make_process(tmp_path, 7)
    labeler = _labeler(tmp_path)
    assert labeler.process(pid, 1).executable_name == "run"
    (tmp_path / "7/exe").unlink()
    (tmp_path / "7/exe").symlink_to("/bin/other")
    assert labeler.process(pid, 1).executable_name == "run"
    assert labeler.process(pid, 2).executable_name == "other"


def test_a_cgroup_that_is_not_known_yet_is_asked_for_again(tmp_path: Path) -> None:
    (tmp_path / "cgroup").mkdir()
    now = [0.0]
    hierarchy = PidsHierarchy(tmp_path / "cgroup", version=2, clock=lambda: now[0])
    labeler = ResourceLabeler(hierarchy, proc=tmp_path)
    assert labeler.container(Pid(99), 1) is None  # walks
    directory = tmp_path / f"cgroup/docker/{ID}"
    directory.mkdir(parents=True)
    inode = directory.stat().st_ino
    assert labeler.container(Pid(99), inode) is None  # too early to walk again
    now[0] = 2.0
    assert labeler.container(Pid(99), inode) == ContainerRef("docker", ID, None)


def test_caches_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flameherd_agent.metadata.resource.MAX_PROCESSES", 2)
    labeler = _labeler(tmp_path)
    for pid in (1, 2, 3):
        labeler.process(make_process(tmp_path, pid), 1)
    for pid in (1, 3):
        (tmp_path / f"{pid}/exe").unlink()
    assert labeler.process(Pid(3), 1).executable_name == "run"
    assert labeler.process(Pid(1), 1).executable_name == "worker"


def test_a_real_cgroup_that_is_named_like_a_container(tmp_path: Path) -> None:
    hierarchy = PidsHierarchy.discover()
    parent = hierarchy.mount / f"flameherd-test-{os.getpid()}"
    directory = parent / ID
    try:
        directory.mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"cgroups cannot be made here: {error}")
    child = subprocess.Popen(["sleep", "600"])
    try:
        (directory / "cgroup.procs").write_text(str(child.pid))
        labeler = ResourceLabeler(hierarchy)
        inode = hierarchy.cgroup_id(f"/{parent.name}/{ID}")
        assert inode is not None
        resource = labeler.resource(Pid(child.pid), 1, inode, wanted=Attributes())
        assert resource.container == ContainerRef("", ID, None)
        assert labeler.container(Pid(child.pid), 0) == resource.container
    finally:
        child.kill()
        child.wait()
        directory.rmdir()
        parent.rmdir()
    assert labeler.container(Pid(child.pid), inode) == resource.container
