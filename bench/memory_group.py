"""The peak of all memory that the agent, its children and the kernel on their behalf have used.

A memory cgroup of its own counts what a pod's limit would: anonymous memory, page cache of the files that they were
the first to read or write, and kernel memory, eBPF maps included. Version 2 and version 1 of the controller count
the same things under other names.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


class MemoryGroup:
    """A cgroup of the memory controller."""

    def __init__(self, path: Path, version: int) -> None:
        self._path = path
        self.version = version

    @property
    def processes(self) -> Path:
        """Memory that a process whose id is written here, and its later children, use from then on counts."""
        return self._path / "cgroup.procs"

    def peak_mb(self) -> float:
        """Most that was charged at one time, in MB (10^6 bytes)."""
        name = "memory.peak" if self.version == 2 else "memory.max_usage_in_bytes"
        return int((self._path / name).read_text()) / 1e6

    def parts_mb(self) -> dict[str, float]:
        """What is charged now: `anon`, `file` and `kernel`, in MB."""
        names = {"anon": "anon", "file": "file", "kernel": "kernel"}
        if self.version == 1:
            names = {"rss": "anon", "cache": "file"}
        fields = dict(
            line.split() for line in (self._path / "memory.stat").read_text().splitlines()
        )
        parts = {shown: int(fields[name]) / 1e6 for name, shown in names.items() if name in fields}
        if self.version == 1:
            kernel = int((self._path / "memory.kmem.usage_in_bytes").read_text())
            parts["kernel"] = kernel / 1e6
        return parts


@contextmanager
def memory_group(name: str) -> Iterator[MemoryGroup | None]:
    """A new group below the root, removed afterwards; None where the controller is not to be had.

    Whoever was moved there must have ended by then.
    """
    version = 2 if "memory" in _read(_ROOT / "cgroup.subtree_control").split() else 1
    path = (_ROOT if version == 2 else _ROOT / "memory") / f"{name}-{os.getpid()}"
    try:
        path.mkdir()
    except OSError:
        yield None
        return
    try:
        peak = "memory.peak" if version == 2 else "memory.max_usage_in_bytes"  # from Linux 5.19
        yield MemoryGroup(path, version) if (path / peak).exists() else None
    finally:
        with suppress(OSError):  # a process is still there: the caller's report matters more
            path.rmdir()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
