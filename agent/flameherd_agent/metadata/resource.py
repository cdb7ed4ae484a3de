"""Resource attributes of a profile: which host, which container or pod or executable, which
service.

One resource is one container, or one executable outside containers: pids and threads are attributes
of samples. Pods are the business of a `PodSource`, which needs an API server; without one,
containers carry their id and runtime.
"""

import platform
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeVar

from flameherd_policy.policies import Attributes as WantedAttributes

from flameherd_agent.errors import ProcessGone
from flameherd_agent.metadata.cgroup import ContainerRef, container_of_path, container_of_text
from flameherd_agent.metadata.hierarchy import PidsHierarchy
from flameherd_agent.metadata.process import (
    PROC,
    ProcessInfo,
    read_cgroup,
    read_env,
    read_process,
    service_name,
)
from flameherd_agent.model import Attributes
from flameherd_agent.types import Pid

MAX_CONTAINERS: Final = 4096
MAX_PROCESSES: Final = 8192
_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_GONE: Final = ProcessInfo("", "", "", "", 0)
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class PodSource(Protocol):
    """Knows the pods of this node."""

    def attributes(
        self, container: ContainerRef, wanted: WantedAttributes
    ) -> tuple[dict[str, str | int], bool]:
        """`k8s.*`, `service.*` and the wanted labels of a container, and whether that is all: its
        pod, or its name, may not be known yet.
        """
        ...

    def node_attributes(self) -> dict[str, str | int]:
        """`k8s.node.name` and what else every profile of this node carries."""
        ...


class Resource(NamedTuple):
    """What one profile is of."""

    attributes: Attributes
    container: ContainerRef | None
    pod_pending: bool
    """The container is in a pod that the PodSource does not know yet, or does not know the
    container of."""


def host_attributes() -> dict[str, str | int]:
    """`host.*` and `os.type` of this machine, by OpenTelemetry's semantic conventions."""
    machine = platform.machine()
    return {
        "host.name": platform.node(),
        "host.arch": _MACHINES.get(machine, machine),
        "os.type": "linux",
    }


class _Cache(OrderedDict[K, V]):
    """A bounded dict: the entry that was used longest ago goes first."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def __getitem__(self, key: K) -> V:
        self.move_to_end(key)  # raises KeyError, as it should
        return super().__getitem__(key)

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        if len(self) > self._limit:
            self.popitem(last=False)

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        if key not in self:
            self[key] = make()
        return self[key]


class ResourceLabeler:
    """Container and process of a sample → resource attributes. For one thread.

    Processes are cached by (pid, cookie): the cookie changes with exec and with pid reuse.
    Containers are cached by cgroup id, so that they are found even when their processes are gone.
    """

    def __init__(
        self, hierarchy: PidsHierarchy | None, *, pods: PodSource | None = None, proc: Path = PROC
    ) -> None:
        self._hierarchy = hierarchy
        self._pods = pods
        self._proc = proc
        self._host = host_attributes() | (pods.node_attributes() if pods else {})
        self._containers: _Cache[int, ContainerRef | None] = _Cache(MAX_CONTAINERS)
        self._processes: _Cache[tuple[int, int], ProcessInfo] = _Cache(MAX_PROCESSES)
        self._envs: _Cache[tuple[int, int, tuple[str, ...]], dict[str, str]] = _Cache(
            MAX_CONTAINERS
        )

    def process(self, pid: Pid, cookie: int) -> ProcessInfo:
        """The process, or one of empty fields if it is gone."""
        return self._processes.get_or_make((pid, cookie), lambda: self._read_process(pid))

    def container(self, pid: Pid, cgroup_id: int) -> ContainerRef | None:
        """The container of a sample: by its cgroup id, else by the process if it still is."""
        if cgroup_id in self._containers:
            return self._containers[cgroup_id]
        path = self._hierarchy.path_of_id(cgroup_id) if self._hierarchy and cgroup_id else None
        if path is None:  # not known now, perhaps the next time
            return self._container_of_process(pid)
        container = container_of_path(path)
        self._containers[cgroup_id] = container
        return container

    def resource(
        self,
        pid: Pid,
        cookie: int,
        cgroup_id: int,
        *,
        wanted: WantedAttributes,
        env: tuple[str, ...] = (),
        comm: str = "",
    ) -> Resource:
        """Resource attributes of a sample, sorted.

        `wanted` is the slot's; `env` those of its variables that the ceilings allow
        (`Ceilings.allowed_env`); `comm` stands in for the executable of a process that is gone.
        """
        container = self.container(pid, cgroup_id)
        variables = self._envs.get_or_make((pid, cookie, env), lambda: self._read_env(pid, env))
        known: dict[str, str | int] = {
            f"process.environment_variable.{name}": value for name, value in variables.items()
        }
        pending = False
        if container is not None:
            pod, whole = self._pods.attributes(container, wanted) if self._pods else ({}, True)
            pending = not whole and container.pod_uid is not None
            known |= _container_attributes(container) | pod
        else:
            info = self.process(pid, cookie)
            known |= info.attributes() if info is not _GONE else _executable_attributes(comm)
            name = str(known.get("process.executable.name", ""))
            known["service.name"] = service_name(name, variables)
        known |= self._host
        # A policy may name the service, and add; what else is known here it cannot change.
        static = {k: v for k, v in wanted.static.items() if k not in known or _is_service(k)}
        return Resource(tuple(sorted({**known, **static}.items())), container, pending)

    def _read_process(self, pid: Pid) -> ProcessInfo:
        try:
            return read_process(pid, proc=self._proc)
        except ProcessGone:
            return _GONE

    def _read_env(self, pid: Pid, env: tuple[str, ...]) -> dict[str, str]:
        try:
            return read_env(pid, env, proc=self._proc)
        except ProcessGone:
            return {}

    def _container_of_process(self, pid: Pid) -> ContainerRef | None:
        try:
            return container_of_text(read_cgroup(pid, proc=self._proc))
        except ProcessGone:
            return None


def _container_attributes(container: ContainerRef) -> dict[str, str | int]:
    found: dict[str, str | int] = {"container.id": container.container_id}
    if container.runtime:
        found["container.runtime.name"] = container.runtime
    if container.pod_uid is not None:
        found["k8s.pod.uid"] = container.pod_uid
    return found


def _executable_attributes(comm: str) -> dict[str, str | int]:
    return {"process.executable.name": comm} if comm else {}


def _is_service(key: str) -> bool:
    return key.startswith("service.")
