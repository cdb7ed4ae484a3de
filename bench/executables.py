"""What 300 executables cost the worker: unwind tables, which samples wait for, and names, which they do not.

    python -m bench.executables [--files 300]

Every n-th of the ELF files of this machine's programs and libraries, ordered by size, so that small and large ones
come in the machine's own proportion. They are asked for as the agent asks: tables first; names when no
table waits. The worker's CPU time holds its start, reading, hashing and writing to the cache.
"""

import argparse
import os
import resource
import select
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flameherd_agent.types import Pid
from flameherd_agent.worker.client import FileAnswer, FileRequest, WorkerClient

from bench.table import Row, render

FILES = 300
BUDGET_CPU_S = 3.0
FOLDERS = ("/usr/bin", "/usr/sbin", "/usr/lib/x86_64-linux-gnu")
LIMIT_S = 300.0


@dataclass(frozen=True)
class Cost:
    """Of one pass over the files."""

    files: int
    file_bytes: int
    unreadable: int
    rows: int
    tables_cpu_s: float
    names_cpu_s: float
    peak_mb: float
    """Of the worker, in 10^6 bytes."""
    cache_bytes: int


def system_files(count: int) -> list[Path]:
    """Every n-th ELF file of the system's folders, ordered by size; each inode once."""
    found = {
        (status.st_dev, status.st_ino): (status.st_size, path)
        for folder in FOLDERS
        for path in Path(folder).iterdir()
        if path.is_file() and (status := path.stat()).st_size > 4096 and _is_elf(path)
    }
    ordered = [path.resolve() for _, path in sorted(found.values())]
    step = max(1.0, len(ordered) / count)
    return [ordered[int(number * step)] for number in range(min(count, len(ordered)))]


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(5) == b"\x7fELF\x02"


def _request(path: Path) -> FileRequest:
    status = path.stat()
    device = (os.major(status.st_dev), os.minor(status.st_dev))
    return FileRequest(Pid(os.getpid()), str(path), device, status.st_ino, 0x1000, 0x2000)


def measure(paths: list[Path]) -> Cost:
    """One worker with an empty cache, from its start."""
    with tempfile.TemporaryDirectory(prefix="flameherd-bench-") as folder:
        client = WorkerClient(Path(folder))
        try:
            requests = {client.submit(request): request for request in map(_request, paths)}
            answers = [a for a in _answers(client) if isinstance(a, FileAnswer)]
            child = _child(client)
            tables_cpu_s = _cpu_s(child)
            for answer in answers:
                if not answer.error:
                    client.submit_names(requests[answer.request], answer.content_key)
            for _ in _answers(client):
                pass
            names_cpu_s = _cpu_s(child) - tables_cpu_s
            peak_mb = _peak_mb(child)
        finally:
            client.close()
        if client.restarts:
            raise SystemExit(f"the worker died {client.restarts} times")
        return Cost(
            files=len(paths),
            file_bytes=sum(path.stat().st_size for path in paths),
            unreadable=sum(bool(answer.error) for answer in answers),
            rows=sum(answer.rows for answer in answers),
            tables_cpu_s=tables_cpu_s,
            names_cpu_s=names_cpu_s,
            peak_mb=peak_mb,
            cache_bytes=sum(p.stat().st_size for p in Path(folder).rglob("*") if p.is_file()),
        )


def _answers(client: WorkerClient) -> Iterator[object]:
    until = time.monotonic() + LIMIT_S
    while client.pending:
        if time.monotonic() > until:
            raise SystemExit(f"the worker did not answer within {LIMIT_S:.0f} s")
        if client.fileno() >= 0:
            select.select([client.fileno()], [], [], 0.1)
        yield from client.poll()


def _child(client: WorkerClient) -> int:
    """The worker's process id: it is the only child."""
    del client
    (child,) = map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
    return child


def _cpu_s(pid: int) -> float:
    nanoseconds = Path(f"/proc/{pid}/schedstat").read_text().split()[0]
    return int(nanoseconds) / 1e9


def _peak_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024 / 1e6


def rows(cost: Cost) -> list[Row]:
    """The table. The budget is of both, tables and names."""
    what = f"{cost.files} executables"
    cpu_s = cost.tables_cpu_s + cost.names_cpu_s
    return [
        Row(f"{what}: CPU of the worker", cpu_s, "s", BUDGET_CPU_S),
        Row(f"{what}: of that tables, its start included", cost.tables_cpu_s, "s"),
        Row(f"{what}: of that names", cost.names_cpu_s, "s"),
        Row(f"{what}: worker's peak RSS", cost.peak_mb, "MB"),
        Row(f"{what}: their size", cost.file_bytes / 1e6, "MB"),
        Row(f"{what}: size of tables and names", cost.cache_bytes / 1e6, "MB"),
        Row(f"{what}: rows", cost.rows, ""),
        Row(f"{what}: unreadable", cost.unreadable, ""),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.executables")
    parser.add_argument("--files", type=int, default=FILES)
    arguments = parser.parse_args()
    table = rows(measure(system_files(arguments.files)))
    print(
        f"load average: {os.getloadavg()[0]:.1f}; own peak RSS "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000:.0f} MB\n"
    )
    print(render(table))
    return 1 if any(row.verdict == "OVER" for row in table) else 0


if __name__ == "__main__":
    sys.exit(main())
