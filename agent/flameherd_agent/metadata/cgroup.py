"""A cgroup's path → the container and the pod that it belongs to. Pure text.

There is no API that every runtime shares, but all of them name a container's cgroup after its
64-digit id, below a cgroup that names the pod:

    /docker/ID                                                          docker, cgroupfs driver
    /system.slice/docker-ID.scope                                       docker, systemd driver
    /kubepods/burstable/podUID/ID                                       cgroupfs driver
    /kubepods.slice/…/kubepods-burstable-podU_I_D.slice/crio-ID.scope   systemd driver
    /system.slice/containerd.service/kubepods-podU_I_D.slice:cri-containerd:ID   drivers at odds
    /machine.slice/libpod-ID.scope/container                            podman with crun

So the innermost component that names a container wins (a Kubernetes node may itself be a
container), and the nearest component around it that names a pod gives the pod. What matches nothing
is not in a container.

Paths come from the kernel, but their components are chosen by whoever may make cgroups: they are
matched exactly, and nothing else is made of them.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_ID = r"[0-9a-f]{64}"
_FARGATE_ID = re.compile(r"[0-9a-f]{32}-[0-9]{1,10}", re.ASCII)
_CONTAINER = re.compile(rf"(?:([a-z][a-z0-9-]{{0,30}})-)?({_ID})(\.scope)?", re.ASCII)
_COLON = re.compile(rf".*:([a-z][a-z0-9-]{{0,30}}):({_ID})", re.ASCII)
_POD = re.compile(
    r"(?:[a-z0-9-]{1,64}-)?pod"
    r"([0-9a-f]{8}([-_])[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{12}|[0-9a-f]{32})"
    r"(?:\.slice(?::.*)?)?",
    re.ASCII,
)
_RUNTIMES: Final = {
    "docker": "docker",
    "cri-containerd": "containerd",
    "containerd": "containerd",
    "nerdctl": "containerd",
    "crio": "cri-o",
    "libpod": "podman",
    "libpod-payload": "podman",
}
_MONITORS: Final = ("crio-conmon", "libpod-conmon")
"""A container's monitor is not in the container, although its cgroup carries the id."""

_MAX_COMPONENTS: Final = 64


class ContainerRef(NamedTuple):
    """A container as its cgroup names it."""

    runtime: str
    """`docker`, `containerd`, `cri-o`, `podman`, or "" where the path does not tell."""
    container_id: str
    """64 hexadecimal digits; on AWS Fargate 32 and a number."""
    pod_uid: str | None
    """As Kubernetes writes it: with dashes, or 32 digits for a static pod. None = not in a pod."""


def container_of_path(path: str) -> ContainerRef | None:
    """The container that the cgroup `path` (as in /proc/PID/cgroup) lies in, or None."""
    components = path.removesuffix(" (deleted)").split("/")[-_MAX_COMPONENTS:]
    for index in range(len(components) - 1, -1, -1):
        found = _container(components, index)
        if found is not None:
            runtime, container_id = found
            return ContainerRef(runtime, container_id, _pod(components[: index + 1]))
    return None


def pod_of_path(path: str) -> str | None:
    """The pod whose own cgroup this is, or None: containers and others below it are not."""
    return _pod([path.rpartition("/")[2]])


def is_monitor(path: str) -> bool:
    """Whether this is the cgroup of a container's monitor, which runs beside the container."""
    found = _CONTAINER.fullmatch(path.rpartition("/")[2])
    return found is not None and found[1] in _MONITORS


def container_of_text(text: str) -> ContainerRef | None:
    """The container that a process with this /proc/PID/cgroup is in, or None.

    v1 has one line for each hierarchy, v2 the line `0::PATH`, hybrid both, and they need not agree.
    The kernel side goes by the pids controller, so that line is asked first, then v2's, then the
    others.
    """
    found = None
    for path in cgroup_paths(text):
        ref = container_of_path(path)
        if ref is None or (found is not None and ref.container_id != found.container_id):
            continue
        if ref.pod_uid is not None and ref.runtime:
            return ref
        if found is None:
            found = ref
        else:
            found = ContainerRef(
                found.runtime or ref.runtime, found.container_id, found.pod_uid or ref.pod_uid
            )
    return found


def cgroup_paths(text: str) -> Iterator[str]:
    """The paths of a /proc/PID/cgroup: pids controller first, then v2, then the rest in their
    order.

    A line is `hierarchy-id:controllers:path` (cgroups(7)); the path may hold colons itself.
    """
    lines = [line.split(":", 2) for line in text.splitlines()]
    whole = [fields for fields in lines if len(fields) == 3]
    whole.sort(key=_preference)
    return (fields[2] for fields in whole)


def _preference(fields: list[str]) -> int:
    if "pids" in fields[1].split(","):
        return 0
    return 1 if fields[0] == "0" else 2


def _container(components: list[str], index: int) -> tuple[str, str] | None:
    """(runtime, id) if the component names a container."""
    component = components[index]
    if found := _CONTAINER.fullmatch(component):
        prefix, container_id, _ = found.groups()
        if prefix in _MONITORS:
            return None
        parent = components[index - 1] if index else ""
        return _RUNTIMES.get(prefix or parent, ""), container_id
    if found := _COLON.fullmatch(component):
        return (_RUNTIMES.get(found[1], ""), found[2]) if found[1] not in _MONITORS else None
    if components[1:2] == ["ecs"] and _FARGATE_ID.fullmatch(component):
        return "", component
    return None


def _pod(components: list[str]) -> str | None:
    """The uid of the innermost component that names a pod, in Kubernetes' spelling."""
    for component in reversed(components):
        if found := _POD.fullmatch(component):
            return found[1].replace("_", "-")
    return None
