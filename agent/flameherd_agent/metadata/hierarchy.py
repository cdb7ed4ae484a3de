"""Where the kernel side's cgroup ids live in the file system.

The kernel side takes a task's cgroup from the v1 hierarchy that has the pids controller if there is
one (on hybrid machines v2 has no controller at all, and runtimes keep containers apart in v1), and
from the v2 hierarchy otherwise; the engine tells it which. The id is kernfs's, which on 64-bit kernels
is the directory's inode number (kernel 5.5 and later).
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from flameherd_agent.errors import EnvironmentProblem

MAX_CGROUPS: Final = 65536
"""Cap of a walk: cgroups beyond it have no path here, and their samples no container."""
WALK_PAUSE_SECONDS: Final = 1.0
"""Least time between two walks in search of ids that are not known."""
_MAX_MOUNTINFO_BYTES: Final = 4 << 20


class _Mount(NamedTuple):
    root: str
    point: str
    kind: str
    options: tuple[str, ...]


class PidsHierarchy:
    """The mounted hierarchy that holds the pids controller."""

    def __init__(
        self, mount: Path, *, version: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.mount = mount
        self.version = version
        """1 or 2."""
        self._clock = clock
        self._device = mount.stat().st_dev
        self._paths: dict[int, str] = {}
        self._walked: float | None = None

    @classmethod
    def discover(cls, proc: Path = Path("/proc")) -> "PidsHierarchy":
        """Find the mount; raises `EnvironmentProblem` if this process cannot see it."""
        with (proc / "self/mountinfo").open(errors="surrogateescape") as file:
            mounts = list(parse_mountinfo(file.read(_MAX_MOUNTINFO_BYTES)))
        v1 = [m for m in mounts if m.kind == "cgroup" and "pids" in m.options]
        v2 = [m for m in mounts if m.kind == "cgroup2"]
        # What is mounted later at the same place hides what was there.
        seen = {mount.point: mount for mount in v1 or v2}
        for mount in sorted(seen.values(), key=_depth):  # the whole before a part
            return cls(Path(mount.point), version=1 if v1 else 2)
        raise EnvironmentProblem(
            "no cgroup hierarchy with the pids controller is mounted: mount /sys/fs/cgroup "
            "(in a container: the host's, read-only)"
        )

    def root_id(self) -> int:
        """The id of the hierarchy's root: every process is in it or below it."""
        return self.mount.stat().st_ino

    def cgroup_id(self, path: str) -> int | None:
        """The id of the cgroup `path` (as in /proc/PID/cgroup), or None if it is gone or not
        visible here.
        """
        components = path.removesuffix(" (deleted)").split("/")
        if ".." in components:  # above the root of our cgroup namespace
            return None
        try:
            status = self.mount.joinpath(*(c for c in components if c)).lstat()
        except OSError:
            return None
        return status.st_ino if status.st_dev == self._device else None

    def path_of_id(self, cgroup_id: int) -> str | None:
        """The path of a cgroup;

        None if there is none, or not yet known (walks are at least a second apart).
        """
        path = self._paths.get(cgroup_id)
        if path is not None:
            return path
        now = self._clock()
        if self._walked is not None and now - self._walked < WALK_PAUSE_SECONDS:
            return None
        self._walked = now
        # Cgroups that ended stay known: samples of the last interval still name them.
        for known, name in self.walk():
            self._paths.pop(known, None)
            self._paths[known] = name
        self._bound()
        return self._paths.get(cgroup_id)

    def learn(self, cgroup_id: int, path: str) -> None:
        """Take note of a cgroup that was seen elsewhere: it may be gone before the next walk."""
        self._paths.pop(cgroup_id, None)
        self._paths[cgroup_id] = path
        self._bound()

    def _bound(self) -> None:
        """The oldest go first."""
        while len(self._paths) > MAX_CGROUPS:
            self._paths.pop(next(iter(self._paths)))

    def directory(self, path: str) -> str:
        """Where the cgroup `path` is in the file system."""
        return f"{self.mount}{path.rstrip('/')}"

    def children(self, path: str) -> list[str]:
        """Names of the cgroups in `path`; none if it is gone."""
        try:
            with os.scandir(self.directory(path)) as entries:
                return [e.name for e in entries if e.is_dir(follow_symlinks=False)]
        except OSError:
            return []

    def walk(self) -> Iterator[tuple[int, str]]:
        """(id, path) of each cgroup, parents first, at most `MAX_CGROUPS`;

        what vanishes on the way is left out.
        """
        left = MAX_CGROUPS
        todo = [("/", str(self.mount))]
        yield self.root_id(), "/"
        while todo:
            path, directory = todo.pop()
            try:
                with os.scandir(directory) as entries:
                    children = [e for e in entries if e.is_dir(follow_symlinks=False)]
            except OSError:
                continue
            for child in children:
                left -= 1
                if left < 0:
                    return
                name = f"{path.rstrip('/')}/{child.name}"
                yield child.inode(), name
                todo.append((name, child.path))


def _depth(mount: _Mount) -> tuple[int, int]:
    """Sorts mounts by how much of the hierarchy they show. A root is told relative to our own
    cgroup namespace: above it are `..`, and `/` may be our own cgroup only.
    """
    parts = [part for part in mount.root.split("/") if part]
    return -parts.count(".."), len(parts)


def parse_mountinfo(text: str) -> Iterator[_Mount]:
    """The cgroup mounts of a /proc/PID/mountinfo (proc(5):

    `… root point options [tags] - type source super`).
    """
    for line in text.splitlines():
        left, dash, right = line.partition(" - ")
        before, after = left.split(" "), right.split(" ")
        if dash and len(before) >= 6 and len(after) >= 3 and after[0] in ("cgroup", "cgroup2"):
            yield _Mount(
                _unescape(before[3]), _unescape(before[4]), after[0], tuple(after[2].split(","))
            )


def _unescape(text: str) -> str:
    """Space, tab, newline and backslash are written as three octal digits."""
    for octal, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(octal, character)
    return text
