"""Naming: CPU and memory of building indexes, and lookups per second.

    .venv/bin/python -m bench.symbols

Each build runs in its own process, as in the worker; its peak RSS includes Python and numpy. Files
that this machine does not have are left out."""

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from flameherd_agent.elf.reader import ElfFile
from flameherd_agent.errors import FlameherdError
from flameherd_agent.symbols.build import build_symbol_index
from flameherd_agent.symbols.elf_symbols import text_ranges
from flameherd_agent.symbols.go_rows import go_rows
from flameherd_agent.symbols.index import SymbolIndex
from flameherd_agent.symbols.kallsyms import KALLSYMS, KernelSymbols, build_kallsyms_index
from flameherd_agent.types import Address, FileAddress

LOOKUPS = 20_000
_PATTERNS = (
    "lib/jvm/*/lib/server/libjvm.so",
    "lib/x86_64-linux-gnu/libc.so.6",
    "lib/x86_64-linux-gnu/libLLVM-*.so.1",
    "bin/node",
    "lib/x86_64-linux-gnu/libnode.so.*",
    "local/go/bin/go",
    "bin/kubelet",
)


def subjects() -> list[str]:
    """`kallsyms` and the files that are there, each once."""
    files = {str(path.resolve()) for pattern in _PATTERNS for path in Path("/usr").glob(pattern)}
    return ["kallsyms", *sorted(files)]


def _spread(ranges: list[tuple[int, int]]) -> list[int]:
    """`LOOKUPS` random addresses in ranges, the same every time."""
    generator = random.Random(1)
    weights = [end - start for start, end in ranges]
    chosen = generator.choices(ranges, weights, k=LOOKUPS)
    return [generator.randrange(start, end) for start, end in chosen]


def _kernel_text() -> tuple[int, int]:
    """From `_stext` to `_etext`."""
    found = {}
    with KALLSYMS.open() as lines:
        for line in lines:
            address, _, name = line.split(maxsplit=2)
            if name.strip() in ("_stext", "_etext"):
                found[name.strip()] = int(address, 16)
    return found["_stext"], found["_etext"]


def measure(subject: str, out: Path) -> dict[str, float | int | str]:
    """One row: builds the index of a subject in this process and looks names up in it."""
    started = time.process_time()
    go = 0
    if subject == "kallsyms":
        symbols = build_kallsyms_index(out).symbols
    else:
        elf = ElfFile.open(subject)
        summary = build_symbol_index(elf, out)
        symbols, go = summary.symbols, summary.go_functions
    row: dict[str, float | int | str] = {
        "subject": subject,
        "symbols": symbols + go,
        "build_cpu_s": round(time.process_time() - started, 3),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "index_mb": round(out.stat().st_size / 1e6, 2),
    }
    if subject == "kallsyms":
        kernel = KernelSymbols.open(out)
        addresses = _spread([_kernel_text()])
        started = time.process_time()
        for address in addresses:
            kernel.lookup(Address(address))
    else:
        index = SymbolIndex.open(out)
        addresses = _spread(text_ranges(elf))
        started = time.process_time()
        for address in addresses:
            index.lookup(FileAddress(address))
    row["lookup_us"] = round((time.process_time() - started) / max(len(addresses), 1) * 1e6, 2)
    if subject != "kallsyms" and addresses:
        started = time.process_time()
        for _ in range(5):
            index.lookup_batch([FileAddress(a) for a in addresses])
        row["batch_us"] = round((time.process_time() - started) / 5 / len(addresses) * 1e6, 2)
    if go:
        started = time.process_time()
        rows = go_rows(ElfFile.open(subject))
        row["go_rows"] = len(rows.pcs) if rows is not None else 0
        row["go_rows_cpu_s"] = round(time.process_time() - started, 3)
    return row


def main() -> int:
    """Runs every subject in a child and prints a table; with arguments, measures one subject."""
    if len(sys.argv) == 2:
        with tempfile.TemporaryDirectory() as folder:
            try:
                print(json.dumps(measure(sys.argv[1], Path(folder) / "index")))
            except FlameherdError as error:
                print(error, file=sys.stderr)
                return 1
        return 0
    columns = [
        "build_cpu_s", "peak_rss_mb", "index_mb", "symbols",
        "lookup_us", "batch_us", "go_rows", "go_rows_cpu_s",
    ]  # fmt: skip
    print(f"{'subject':64}" + "".join(f"{name:>15}" for name in columns))
    for subject in subjects():
        child = subprocess.run(
            [sys.executable, "-m", "bench.symbols", subject],
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        if child.returncode:
            print(f"{subject:64} {child.stderr.strip()}")
            continue
        row = json.loads(child.stdout)
        print(f"{subject[-63:]:64}" + "".join(f"{row.get(name, ''):>15}" for name in columns))
    return 0


if __name__ == "__main__":
    sys.exit(main())
