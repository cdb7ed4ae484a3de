"""What unwind tables cost: CPU seconds, rows, peak memory, for big files and for 300 typical ones.

Each big file is measured in a process of its own, since peak memory only ever rises. Run it as
`python -m bench.unwind_tables`; the exit code tells whether the budgets hold.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from flameherd_agent.elf.reader import ElfFile
from flameherd_agent.errors import ElfError
from flameherd_agent.unwind.build import build_table

# (file, CPU s, peak RSS MB)
BIG: list[tuple[str, float, float]] = [
    ("/usr/lib/x86_64-linux-gnu/libc.so.6", 0.04, 65),
    ("/usr/bin/node", 0.25, 65),
    ("/usr/lib/jvm/java-17-openjdk-amd64/lib/server/libjvm.so", 0.13, 65),
    ("/usr/lib/x86_64-linux-gnu/libLLVM-14.so.1", 0.35, 65),
]
TYPICAL = 300
TYPICAL_CPU_S = 3.0


def measure(path: Path) -> tuple[float, int, float]:
    """(CPU s, rows, peak RSS in MB) of one table, in this process."""
    begin = time.process_time()
    rows = len(build_table(ElfFile.open(path)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return time.process_time() - begin, rows, peak


def measure_alone(path: Path) -> tuple[float, int, float]:
    """`measure` in a new process, the best of three."""
    best: tuple[float, int, float] | None = None
    for _ in range(3):
        command = [sys.executable, "-m", "bench.unwind_tables", str(path)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        result = float(output[0]), int(output[1]), float(output[2])
        best = result if best is None or result < best else best
    assert best is not None
    return best


def typical_files() -> Iterator[Path]:
    """Programs and the libraries next to them, alternating, in the order of their names."""
    programs = sorted(p for p in Path("/usr/bin").iterdir() if not p.is_symlink())
    libraries = sorted(
        p for p in Path("/usr/lib/x86_64-linux-gnu").glob("*.so*") if not p.is_symlink()
    )
    for pair in zip(programs, libraries, strict=False):
        yield from pair


def main() -> int:
    """Prints the table; 1 if a budget is exceeded."""
    if len(sys.argv) == 2:
        print(*measure(Path(sys.argv[1])))
        return 0
    ok = True
    print(f"{'file':28} {'CPU s':>7} {'budget':>7} {'rows':>9} {'peak MB':>8} {'budget':>7}")
    for name, cpu_budget, memory_budget in BIG:
        path = Path(name)
        if not path.exists():
            print(f"{path.name:28} not installed")
            continue
        cpu, rows, peak = measure_alone(path)
        ok &= cpu <= cpu_budget and peak <= memory_budget
        time_part = f"{path.name:28} {cpu:7.3f} {cpu_budget:7.2f}"
        print(f"{time_part} {rows:9,} {peak:8.1f} {memory_budget:7.0f}")
    cpu, rows, files = 0.0, 0, 0
    for path in typical_files():
        if files == TYPICAL:
            break
        try:
            spent, count, _ = measure(path)
        except ElfError:
            continue
        files, cpu, rows = files + 1, cpu + spent, rows + count
    ok &= cpu <= TYPICAL_CPU_S
    print(f"{f'{files} typical files':28} {cpu:7.3f} {TYPICAL_CPU_S:7.2f} {rows:9,}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
