"""What this process costs:

memory, CPU time, file descriptors, threads. From /proc/self and getrusage(2).
"""

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from flameherd_agent.observe.metrics import Family, counter, gauge

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class Usage(NamedTuple):
    """Of this process alone, without its children."""

    rss_bytes: int
    cpu_seconds: float
    children_cpu_seconds: float
    """Of children that ended and were waited for: loader and workers."""
    open_fds: int
    threads: int


def own_usage() -> Usage:
    """Read it now."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Usage(
        rss_bytes=int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES,
        cpu_seconds=own.ru_utime + own.ru_stime,
        children_cpu_seconds=children.ru_utime + children.ru_stime,
        open_fds=sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1,  # one is the listing's own
        threads=sum(1 for _ in Path("/proc/self/task").iterdir()),
    )


def usage_families() -> Iterator[Family]:
    """The conventional `process_*` metrics."""
    usage = own_usage()
    yield gauge("process_resident_memory_bytes", "Resident memory of the agent.", usage.rss_bytes)
    yield counter("process_cpu_seconds_total", "CPU time of the agent.", usage.cpu_seconds)
    yield counter(
        "flameherd_children_cpu_seconds_total",
        "CPU time of the agent's children that ended.",
        usage.children_cpu_seconds,
    )
    yield gauge("process_open_fds", "Open file descriptors of the agent.", usage.open_fds)
    yield gauge("process_threads", "Threads of the agent.", usage.threads)
