"""The cgroups of pods and containers on this machine, known within milliseconds of their making.

Kubelets and runtimes make a cgroup with mkdir(2), so inotify on the directories of the hierarchy
tells of each at once, for a few bytes a directory and nothing while all is quiet. What is below a
pod's container is not looked at: the kernel side finds its way up. Where inotify is not to be had
(its limits are shared with all of root's programs), the hierarchy is walked once a second instead.
"""

import time
from collections.abc import Callable
from typing import Final

from flameherd_agent.cluster.inotify import Inotify
from flameherd_agent.errors import EnvironmentProblem
from flameherd_agent.metadata.cgroup import (
    ContainerRef,
    container_of_path,
    is_monitor,
    pod_of_path,
)
from flameherd_agent.metadata.hierarchy import MAX_CGROUPS, PidsHierarchy
from flameherd_agent.observe.logs import Log

log = Log(__name__)

WALK_S: Final = 1.0
"""Without inotify."""
MONITOR: Final = ""
"""Stands for the container's id in the cgroup of a container's monitor: in the pod's, but not the
pod's."""
RECHECK_S: Final = 60.0
"""With inotify: a walk makes sure that nothing was missed."""


class CgroupTree:
    """For one thread: the agent's loop. `fd` is readable when `refresh` has something to do."""

    def __init__(
        self,
        hierarchy: PidsHierarchy,
        *,
        make: Callable[[], Inotify] = Inotify,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hierarchy = hierarchy
        self._clock = clock
        self._inotify: Inotify | None = None
        self._every_s = RECHECK_S
        self._watched: dict[int, str] = {}  # watch → path
        self._paths: dict[str, int] = {}  # path → cgroup id, of pods and their containers
        self.pods: dict[str, dict[int, str | None]] = {}
        """{pod uid as its cgroup is named: {cgroup id: container id, None = the pod's own}}; see
        also `MONITOR`."""
        try:
            self._inotify = make()
        except EnvironmentProblem as error:
            log.warning("containers are looked for once a second", error=error)
            self._every_s = WALK_S
        self._next_walk = 0.0
        self._walk()

    @property
    def fd(self) -> int | None:
        """None without inotify."""
        return self._inotify.fd if self._inotify is not None else None

    def refresh(self) -> bool:
        """Take note of what came and went; whether `pods` changed."""
        if self._clock() >= self._next_walk:
            return self._walk()
        if self._inotify is None:
            return False
        events, lost = self._inotify.read()
        if lost:
            return self._walk()
        changed = False
        for watch, name, came in events:
            if not name:
                self._watched.pop(watch, None)
                continue
            parent = self._watched.get(watch)
            if parent is None:
                continue
            path = f"{parent.rstrip('/')}/{name}"
            changed |= self._add(path) if came else self._remove(path)
        return changed

    def _walk(self) -> bool:
        """Everything anew."""
        before = self.pods
        self.pods, self._paths = {}, {}
        self._add("/")
        self._next_walk = self._clock() + self._every_s
        return self.pods != before

    def _add(self, path: str) -> bool:
        """A cgroup and all below it; whether one of them is a pod's."""
        changed = False
        todo = [path]
        while todo and len(self._paths) < MAX_CGROUPS:
            path = todo.pop()
            within = self._note(path)
            changed |= within is not None
            if within is not True:
                # Watched before it is read: what is made in between is told twice, not never.
                self._watch(path)
                todo += [f"{path.rstrip('/')}/{name}" for name in self._hierarchy.children(path)]
        return changed

    def _note(self, path: str) -> bool | None:
        """True for a container of a pod, False for a pod, None for any other cgroup."""
        if is_monitor(path):
            parent = pod_of_path(path.rpartition("/")[0])
            container = ContainerRef("", MONITOR, parent) if parent is not None else None
        else:
            container = container_of_path(path)
        uid = container.pod_uid if container is not None else pod_of_path(path)
        if uid is None:
            return None
        cgroup = self._hierarchy.cgroup_id(path)
        if cgroup is not None:
            self._hierarchy.learn(cgroup, path)
            self._paths[path] = cgroup
            own = self.pods.setdefault(uid, {})
            own[cgroup] = container.container_id if container is not None else None
        return container is not None

    def _watch(self, path: str) -> None:
        if self._inotify is None or self._every_s == WALK_S:
            return
        try:
            self._watched[self._inotify.watch(self._hierarchy.directory(path))] = path
        except FileNotFoundError:
            return  # it is gone again
        except OSError as error:
            log.warning(
                "containers are looked for once a second: raise the sysctl "
                "fs.inotify.max_user_watches",
                error=error,
            )
            self._every_s = WALK_S

    def _remove(self, path: str) -> bool:
        gone = [p for p in self._paths if p == path or p.startswith(f"{path}/")]
        for each in gone:
            cgroup = self._paths.pop(each)
            for uid, own in list(self.pods.items()):
                if own.pop(cgroup, self) is not self and not own:
                    del self.pods[uid]
        return bool(gone)

    def close(self) -> None:
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None
