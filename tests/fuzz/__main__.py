"""Coverage-guided fuzzing: `python -m tests.fuzz [--seconds N] [--jobs N] [TARGET …]` (`make fuzz`).

Each target runs in a child of its own, atheris for Python and libFuzzer for `bpf/lib`, with a cap
on memory and on the time of one input, and starts from its seeds, the committed corpus and what
earlier runs left in `.cache/fuzz`. At the end a table says what was run. A finding is an input in
`.cache/fuzz/findings`; the target's log beside it tells the exception. Mend the reader, then put the
input into `tests/fuzz/corpus/TARGET/`: `make test` replays it ever after.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.registry import TARGETS
from tests.fuzz.target import SEPARATOR
from tests.fuzz.unwinder_target import c_seeds

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests/fuzz/corpus"
CACHE = ROOT / ".cache/fuzz"
FINDINGS = CACHE / "findings"
UNWINDER = "unwinder"
"""`unwinder.c`, which is no Python target."""
HANG_S = 25
RSS_MB = 768
GRACE_S = 120
_HEADER = (
    "target",
    "executions",
    "coverage",
    "features",
    "corpus",
    "slowest s",
    "peak MB",
    "result",
)


class Report(NamedTuple):
    """What one run was: a row of the table."""

    target: str
    executions: str
    coverage: str
    features: str
    corpus: str
    slowest_s: str
    peak_mb: str
    result: str


def main() -> int:
    """Runs the targets; 1 if there was a finding."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.split(":")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(_names()))
    parser.add_argument("--seconds", type=int, default=600, help="for each target")
    parser.add_argument("--jobs", type=int, default=2, help="targets at a time")
    options = parser.parse_args()
    wanted = options.targets or _names()
    for name in wanted:
        if name not in _names():
            parser.error(f"no target {name}: there are {', '.join(_names())}")
    FINDINGS.mkdir(parents=True, exist_ok=True)
    lock = threading.Lock()

    def run_and_tell(name: str) -> Report:
        report = run(name, options.seconds)
        with lock:
            print(row(report), flush=True)
        return report

    print(row(_HEADER), flush=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        reports = list(pool.map(run_and_tell, wanted))
    found = [report.target for report in reports if report.result != "ok"]
    if found:
        print(f"findings in {', '.join(found)}: see {FINDINGS}")
    return 1 if found else 0


def _names() -> list[str]:
    return [*TARGETS, UNWINDER]


def row(cells: tuple[str, ...]) -> str:
    """A line of the table."""
    return f"{cells[0]:<10} " + " ".join(f"{cell:>10}" for cell in cells[1:-1]) + f"  {cells[-1]}"


def run(name: str, seconds: int) -> Report:
    """Fuzzes one target."""
    work = CACHE / name
    work.mkdir(parents=True, exist_ok=True)
    for seed in c_seeds() if name == UNWINDER else TARGETS[name].seeds():
        (work / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    words = (SEPARATOR,) if name == UNWINDER else (SEPARATOR, *TARGETS[name].words)
    dictionary = CACHE / f"{name}.dict"
    dictionary.write_text("".join(f'"{_escaped(word)}"\n' for word in words))
    log = FINDINGS / f"{name}.log"
    command = [
        *program(name),
        *(f"-max_total_time={seconds}", f"-timeout={HANG_S}", f"-rss_limit_mb={RSS_MB}"),
        *(f"-malloc_limit_mb={RSS_MB}", "-print_final_stats=1", "-use_value_profile=1"),
        *(f"-dict={dictionary}", f"-artifact_prefix={FINDINGS}/{name}-"),
        f"-max_len={4096 if name == UNWINDER else TARGETS[name].max_bytes}",
        str(work),
    ]
    if (CORPUS / name).is_dir():
        command.append(str(CORPUS / name))
    with log.open("wb") as output:
        try:
            code = subprocess.run(
                command,
                cwd=ROOT,
                stdout=output,
                stderr=output,
                timeout=seconds + GRACE_S,
                env={**os.environ, "ASAN_OPTIONS": "quarantine_size_mb=16"},
            ).returncode
        except subprocess.TimeoutExpired:
            code = -1
    return read_log(name, log.read_text(errors="replace"), code)


def program(name: str) -> list[str]:
    """The command that fuzzes a target."""
    if name != UNWINDER:
        return [sys.executable, "-m", "tests.fuzz.child", name]
    binary = CACHE / "unwinder-fuzzer"
    flags = "-g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize=alignment -Wall -Werror"
    flags += " -Wno-unused-function -fno-sanitize-recover=all"
    source = ROOT / "tests/fuzz/unwinder.c"
    subprocess.run(["clang-14", *flags.split(), "-o", str(binary), str(source)], check=True)
    return [str(binary)]


def read_log(name: str, text: str, code: int) -> Report:
    """The figures that libFuzzer printed."""

    def last(pattern: str) -> str:
        found = re.findall(pattern, text)
        return str(found[-1]) if found else "?"

    result = "ok" if code == 0 else f"FINDING (exit {code}), see {name}.log"
    return Report(
        name,
        last(r"stat::number_of_executed_units: +(\d+)"),
        last(r"cov: (\d+)"),
        last(r"ft: (\d+)"),
        last(r"corp: (\d+)"),
        last(r"stat::slowest_unit_time_sec: +(\d+)"),
        last(r"stat::peak_rss_mb: +(\d+)"),
        result,
    )


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


if __name__ == "__main__":
    sys.exit(main())
