"""Cgroup paths as runtimes write them → container and pod."""

from pathlib import Path

import pytest
from flameherd_agent.errors import EnvironmentProblem
from flameherd_agent.metadata.cgroup import ContainerRef, container_of_path, container_of_text
from flameherd_agent.metadata.hierarchy import PidsHierarchy, parse_mountinfo
from hypothesis import given
from hypothesis import strategies as st

A = "0f3d2c1b4a59" + "a" * 52
B = "b2a102854b49" + "b" * 52
UID = "72f7f152-440c-66ac-9084-e0fc1d8a910c"
UID_ = UID.replace("-", "_")
STATIC = "09a70ae9ccc491e651e5c773579b3490"

BURSTABLE = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
BESTEFFORT = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod"
KIND = (
    "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice"
    "/kubelet-kubepods-burstable-pod"
)
USER = "/user.slice/user-1000.slice/user@1000.service/user.slice"
SERVICE = "/system.slice/containerd.service"
Ref = ContainerRef
DOCKER = ContainerRef("docker", A, None)
PATHS = {
    # docker
    f"/docker/{A}": DOCKER,
    f"/system.slice/docker-{A}.scope": DOCKER,
    f"{USER}/docker-{A}.scope": DOCKER,
    f"/docker/{A}/system.slice/cron.service": DOCKER,  # systemd in the container
    f"/docker/{A}/init.scope": DOCKER,
    f"/docker/{A} (deleted)": DOCKER,
    f"/{A}": Ref("", A, None),  # docker of Debian 8
    f"/actions_job/{A}": Ref("", A, None),  # docker with --cgroup-parent
    f"/system.slice/docker-{A}.scope/kubepods/besteffort/pod{UID}/{B}": Ref("", B, UID),
    # Kubernetes, cgroupfs driver
    f"/kubepods/burstable/pod{UID}/{A}": Ref("", A, UID),
    f"/kubepods/besteffort/pod{UID}/{A}": Ref("", A, UID),
    f"/kubepods/pod{UID}/{A}": Ref("", A, UID),
    f"/kubepods/burstable/pod{STATIC}/{A}": Ref("", A, STATIC),
    f"/kubepods/burstable/pod{UID}/crio-{A}": Ref("cri-o", A, UID),
    f"/kubepods/burstable/pod{UID}/crio-conmon-{A}": None,
    # Kubernetes, systemd driver
    f"{BURSTABLE}{UID_}.slice/docker-{A}.scope": Ref("docker", A, UID),
    f"{BESTEFFORT}{UID_}.slice/cri-containerd-{A}.scope": Ref("containerd", A, UID),
    f"/kubepods.slice/kubepods-pod{UID_}.slice/cri-containerd-{A}.scope": Ref("containerd", A, UID),
    f"{BURSTABLE}{STATIC}.slice/cri-containerd-{A}.scope": Ref("containerd", A, STATIC),
    f"{BURSTABLE}{UID_}.slice/crio-{A}.scope": Ref("cri-o", A, UID),
    f"{BURSTABLE}{UID_}.slice/crio-{A}.scope/container": Ref("cri-o", A, UID),
    f"{BURSTABLE}{UID_}.slice/crio-conmon-{A}.scope": None,
    f"{BURSTABLE}{UID_}.slice": None,
    f"/system.slice/crio-conmon-{A}.scope": None,
    # runtime and kubelet use different drivers
    f"/kubepods-besteffort-pod{UID_}.slice:cri-containerd:{A}": Ref("containerd", A, UID),
    f"{SERVICE}/kubepods-pod{UID_}.slice:cri-containerd:{A}": Ref("containerd", A, UID),
    # clusters inside containers: kind, k3d, minikube
    f"/docker/{B}/kubelet/kubepods/burstable/pod{UID}/{A}": Ref("", A, UID),
    f"/docker/{B}{KIND}{UID_}.slice/cri-containerd-{A}.scope": Ref("containerd", A, UID),
    f"/system.slice/docker-{B}.scope/kubelet/kubepods/pod{STATIC}/{A}": Ref("", A, STATIC),
    f"/docker/{B}/kubepods/besteffort/pod{UID}/{A}": Ref("", A, UID),
    f"/docker/{B}/docker/{A}": DOCKER,
    f"/docker/{B}/kubelet.slice/kubelet.service": Ref("docker", B, None),
    # seen from inside a cgroup namespace
    f"/../cri-containerd-{A}.scope": Ref("containerd", A, None),
    f"/../../kubepods-pod{UID_}.slice/cri-containerd-{A}.scope": Ref("containerd", A, UID),
    # podman
    f"/machine.slice/libpod-{A}.scope": Ref("podman", A, None),
    f"/machine.slice/libpod-{A}.scope/container": Ref("podman", A, None),
    f"/libpod_parent/libpod-{A}": Ref("podman", A, None),
    f"/machine.slice/libpod-conmon-{A}.scope": None,
    f"{USER}/libpod-{A}.scope": Ref("podman", A, None),
    f"/machine.slice/machine-libpod_pod_{B}.slice/libpod-{A}.scope": Ref("podman", A, None),
    f"/system.slice/web.service/libpod-payload-{A}": Ref("podman", A, None),
    # containerd without Kubernetes
    f"/default/{A}": Ref("", A, None),
    f"/system.slice/nerdctl-{A}.scope": Ref("containerd", A, None),
    # Amazon
    f"/ecs/55091c13-b8cf-4801-b527-f4601742204d/{A}": Ref("", A, None),
    "/ecs/55091c13b8cf4801b527f4601742204d/55091c13b8cf4801b527f4601742204d-3243268180": Ref(
        "", "55091c13b8cf4801b527f4601742204d-3243268180", None
    ),
    # not containers
    "/": None,
    "": None,
    "/init.scope": None,
    "/system.slice/ssh.service": None,
    "/user.slice/user-0.slice/session-2.scope": None,
    "/flameherd-test/c1": None,
    "/lxc/web": None,
    f"/docker/{A[:63]}": None,
    f"/docker/{A}0": None,
    f"/docker/{A.upper()}": None,
    f"/x{A}": None,
    f"/kubepods/pod{UID}": None,
}  # fmt: skip


@pytest.mark.parametrize(("path", "expected"), PATHS.items(), ids=range(len(PATHS)))
def test_paths_of_real_runtimes(path: str, expected: ContainerRef | None) -> None:
    assert container_of_path(path) == expected


def test_v1_lines() -> None:
    text = f"""\
12:cpuset:/docker/{A}
8:pids:/docker/{A}
3:cpu,cpuacct:/docker/{A}
1:name=systemd:/docker/{A}
"""
    assert container_of_text(text) == DOCKER


def test_v2_line() -> None:
    assert container_of_text(f"0::/machine.slice/libpod-{A}.scope/container\n") == ContainerRef(
        "podman", A, None
    )


def test_hybrid_with_an_empty_v2_line() -> None:
    text = f"8:pids:/kubepods/burstable/pod{UID}/{A}\n0::/\n"
    assert container_of_text(text) == ContainerRef("", A, UID)


def test_hybrid_where_only_v2_knows() -> None:
    path = f"/kubepods/burstable/pod{UID}/{A}"
    assert container_of_text(f"8:pids:/\n1:name=systemd:/\n0::{path}\n") == ContainerRef("", A, UID)


def test_lines_that_disagree_complete_each_other_only_for_the_same_container() -> None:
    named = f"1:name=systemd:/system.slice/docker-{A}.scope\n"
    assert container_of_text(f"8:pids:/{A}\n{named}") == DOCKER
    other = f"0::/kubepods/pod{UID}/{B}\n"
    assert container_of_text(f"8:pids:/docker/{A}\n{other}") == DOCKER


def test_this_machines_own_lines() -> None:
    text = Path("/proc/1/cgroup").read_text()
    assert container_of_text(text) == container_of_text(text + "garbage\n\n::\n")


@given(st.text(alphabet="0123456789abcdef/-_.:podslicekubecrio\n", max_size=300))
def test_no_text_raises(text: str) -> None:
    container_of_text(text)
    container_of_path(text)


def test_long_paths_are_cut_from_the_front() -> None:
    assert container_of_path("/x" * 100_000 + f"/docker/{A}") == DOCKER


MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime shared:9 master:1 - cgroup cgroup rw,pids
41 31 0:38 / /sys/fs/cgroup/unified\\040dir rw,relatime - cgroup2 cgroup2 rw,nsdelegate
42 31 0:39
"""


def test_mountinfo_is_read() -> None:
    mounts = list(parse_mountinfo(MOUNTS))
    assert [(m.kind, m.point) for m in mounts] == [
        ("cgroup", "/sys/fs/cgroup/pids"),
        ("cgroup2", "/sys/fs/cgroup/unified dir"),
    ]
    assert "pids" in mounts[0].options


def _proc(tmp_path: Path, mounts: str) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(mounts)
    return tmp_path / "proc"


def _mount(point: Path, kind: str, options: str, root: str = "/") -> str:
    return f"39 31 0:36 {root} {point} rw - {kind} {kind} {options}\n"


def test_v1_is_preferred_where_it_has_the_controller(tmp_path: Path) -> None:
    v1, v2 = tmp_path / "pids", tmp_path / "unified"
    v1.mkdir()
    v2.mkdir()
    both = (
        _mount(v2, "cgroup2", "rw")
        + _mount(tmp_path, "cgroup", "rw,cpu")
        + _mount(v1, "cgroup", "rw,pids")
    )
    found = PidsHierarchy.discover(_proc(tmp_path, both))
    assert (found.mount, found.version) == (v1, 1)


def test_v2_otherwise_and_the_whole_before_a_part(tmp_path: Path) -> None:
    part, whole = tmp_path / "part", tmp_path / "whole"
    part.mkdir()
    whole.mkdir()
    mounts = _mount(part, "cgroup2", "rw", "/kubepods") + _mount(whole, "cgroup2", "rw")
    found = PidsHierarchy.discover(_proc(tmp_path, mounts))
    assert (found.mount, found.version) == (whole, 2)


def test_from_within_a_cgroup_namespace_the_hosts_mount_is_the_whole(tmp_path: Path) -> None:
    """A container's own mount shows `/`, which is its own cgroup; the host's is told from there."""
    own, host = tmp_path / "own", tmp_path / "host"
    own.mkdir()
    host.mkdir()
    mounts = _mount(own, "cgroup2", "rw") + _mount(host, "cgroup2", "ro", "/../../..")
    assert PidsHierarchy.discover(_proc(tmp_path, mounts)).mount == host


def test_what_is_mounted_over_another_hides_it(tmp_path: Path) -> None:
    own, host = tmp_path / "own", tmp_path / "host"
    own.mkdir()
    host.mkdir()
    mounts = _mount(host, "cgroup2", "ro", "/../../..") + _mount(host, "cgroup2", "rw")
    mounts += _mount(own, "cgroup2", "rw", "/..")
    assert PidsHierarchy.discover(_proc(tmp_path, mounts)).mount == own


def test_what_is_learned_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flameherd_agent.metadata.hierarchy.MAX_CGROUPS", 3)
    hierarchy = PidsHierarchy(tmp_path, version=2, clock=lambda: 0.0)
    for number in range(10**9, 10**9 + 5):
        hierarchy.learn(number, f"/{number}")
    known = [n for n in range(10**9, 10**9 + 5) if hierarchy.path_of_id(n)]
    assert len(known) <= 3
    assert known[-1] == 10**9 + 4


def test_no_hierarchy_says_how_to_mend(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="mount /sys/fs/cgroup"):
        PidsHierarchy.discover(_proc(tmp_path, ""))


def test_ids_are_inodes_and_paths_are_found_by_walking(tmp_path: Path) -> None:
    now = [0.0]
    hierarchy = PidsHierarchy(tmp_path, version=2, clock=lambda: now[0])
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/file").write_text("")
    (tmp_path / "link").symlink_to("/")
    inode = (tmp_path / "a/b").stat().st_ino
    assert hierarchy.root_id() == tmp_path.stat().st_ino
    assert hierarchy.cgroup_id("/") == hierarchy.root_id()
    assert hierarchy.cgroup_id("/a/b") == inode
    assert hierarchy.cgroup_id("/a/c") is None
    assert hierarchy.cgroup_id("/../a") is None
    assert hierarchy.path_of_id(inode) == "/a/b"
    (tmp_path / "a/new").mkdir()
    new = (tmp_path / "a/new").stat().st_ino
    assert hierarchy.path_of_id(new) is None  # the last walk is too recent
    now[0] = 2.0
    assert hierarchy.path_of_id(new) == "/a/new"
    (tmp_path / "a/new").rmdir()
    now[0] = 4.0
    assert hierarchy.path_of_id(12345678901) is None
    assert hierarchy.path_of_id(new) == "/a/new"  # samples of the last interval still name it
    assert sorted(path for _, path in hierarchy.walk()) == ["/", "/a", "/a/b"]


def test_on_this_machine_the_kernel_agrees(tmp_path: Path) -> None:
    hierarchy = PidsHierarchy.discover()
    text = Path("/proc/self/cgroup").read_text()
    lines = [line.split(":", 2) for line in text.splitlines()]
    mine = next(
        path for number, controllers, path in lines
        if ("pids" in controllers.split(",") if hierarchy.version == 1 else number == "0")
    )  # fmt: skip
    inode = hierarchy.cgroup_id(mine)
    assert inode is not None
    assert hierarchy.path_of_id(inode) == mine.rstrip("/") or mine == "/"
