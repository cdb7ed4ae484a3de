"""One cgroup for a node and all its pods, in every hierarchy of this machine.

kubelet wants its root to be there in each of them. Since nothing of the node is outside it, whatever
is left of a node, such as pods whose kubelet was killed, is found and ended by it.
"""

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "flameherd-node-"
_KILL_S = 30


def hierarchies() -> list[Path]:
    """Where cgroups are mounted: one for each controller, the unified one, or both."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.split()[0] in ("cgroup", "cgroup2"):
            found.append(Path(before.split()[4]))
    return sorted(set(found))


class NodeCgroup:
    """The cgroup of the node that process `owner` holds."""

    def __init__(self, owner: int) -> None:
        self.name = f"{_PREFIX}{owner}"

    @property
    def _folders(self) -> list[Path]:
        return [root / self.name for root in hierarchies() if (root / self.name).is_dir()]

    def make(self) -> None:
        for root in hierarchies():
            folder = root / self.name
            folder.mkdir(exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems"):  # empty ones admit no process
                if (root / name).exists():
                    (folder / name).write_text((root / name).read_text())
            (folder / "system").mkdir(exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems"):
                if (root / name).exists():
                    (folder / "system" / name).write_text((root / name).read_text())

    def adopt(self, pid: int) -> None:
        """One of the node's own programs comes in, and with it all that it will start."""
        for folder in self._folders:
            with contextlib.suppress(ProcessLookupError):
                (folder / "system" / "cgroup.procs").write_text(str(pid))

    def _members(self) -> Iterator[int]:
        for folder in self._folders:
            for procs in folder.rglob("cgroup.procs"):
                with contextlib.suppress(OSError):  # removed in this moment
                    yield from map(int, procs.read_text().split())

    def remove(self) -> None:
        """Ends everything in it, then removes it. Raises `RuntimeError` with what is left."""
        deadline = time.monotonic() + _KILL_S
        while left := set(self._members()):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise RuntimeError(f"cgroup {self.name}: processes do not end: {sorted(left)}")
            time.sleep(0.05)
        for folder in self._folders:
            for inner in sorted((p for p in folder.rglob("*") if p.is_dir()), reverse=True):
                inner.rmdir()
            folder.rmdir()


def remove_stale() -> None:
    """Nodes whose holder is gone, however it went."""
    names = {p.name for root in hierarchies() for p in root.glob(f"{_PREFIX}*")}
    for name in names:
        found = re.fullmatch(rf"{_PREFIX}(\d+)", name)
        if found and not Path(f"/proc/{found[1]}").exists():
            NodeCgroup(int(found[1])).remove()
