"""What the same profile costs by `perf record`, Debian's linux-perf.

It copies up to 8 KiB of each stack to a file and unwinds later, elsewhere: its CPU time has no unwinding, no naming and
no export in it, and its bytes have no names.
"""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

FREQUENCY_HZ = 19


@dataclass(frozen=True)
class PerfRun:
    """One run of `perf record`."""

    seconds: float
    cpu_s: float
    rss_mb: float
    """Peak, in 10^6 bytes."""
    file_bytes: int
    samples: int


def perf_record(folder: Path, seconds: float) -> PerfRun | str:
    """`perf record -F 19 --call-graph dwarf -a` for a while, or why it cannot be run."""
    perf = shutil.which("perf")
    if perf is None:
        return "no perf on this machine (Debian package linux-perf)"
    data = folder / "perf.data"
    command = [perf, "record", "-F", str(FREQUENCY_HZ), "--call-graph", "dwarf", "-a"]
    command += ["-o", str(data), "--", "sleep", str(seconds)]
    with (folder / "perf.log").open("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        log.seek(0)
        text = log.read()
    if process.returncode:
        return f"perf record ended with {process.returncode}: {text.strip().splitlines()[-1:]}"
    counted = re.search(r"\((\d+) samples\)", text)
    return PerfRun(
        seconds=seconds,
        cpu_s=usage.ru_utime + usage.ru_stime,
        rss_mb=usage.ru_maxrss * 1024 / 1e6,
        file_bytes=data.stat().st_size,
        samples=int(counted[1]) if counted else 0,
    )
