"""What an export costs: bytes on the wire for a minute, CPU to encode 1,000 samples.

The load is a model of a machine with two busy cores and eight programs, shaped after a recording of
one (10 s at 20 Hz: 396 samples, 311 distinct stacks of 21 frames, 760 locations in 334 functions,
27 % of them without a name, 17.1 KB): a few call paths a program, left at some depth for one of
many leaf functions, on four threads, a fifth with kernel frames. It is a little harder than the
recording: every frame has a name. Names are real: demangled dynamic symbols of this machine's
libraries, and /proc/kallsyms. A minute is six intervals of 10 s, one request each, as an agent
sends them; each carries its own dictionary. The model is seeded: two runs differ only by the
machine's names.

    python -m bench.export [--hz 20 97] [--cores 2] [--json FILE]
"""

import argparse
import json
import random
import subprocess
import time
from collections import Counter
from pathlib import Path

from flameherd_agent.model import (
    FrameType,
    Line,
    Location,
    Mapping,
    Profile,
    ResourceProfiles,
    Sample,
)
from flameherd_agent.pipeline.otlp import encode, encode_batches

BUDGET_BYTES_PER_MINUTE = 120_000
"""At 20 Hz, names included (design, section 9)."""
PROGRAMS = 8
THREADS = 4
PATHS = 3
LEAVES = 50
KERNEL_STACKS = 16
FUNCTIONS = 30
INTERVAL_S = 10
LIBRARIES = ("libstdc++.so.6", "libc.so.6", "libcrypto.so.3", "libpython3.11.so.1.0")


def library_names() -> list[str]:
    """Demangled names of functions in the machine's libraries."""
    names: list[str] = []
    folder = Path("/usr/lib/x86_64-linux-gnu")
    for library in LIBRARIES:
        if (folder / library).exists():
            listing = subprocess.run(
                ["nm", "-D", "--demangle", "--defined-only", str(folder / library)],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            names += [line.split(" ", 2)[2] for line in listing.splitlines() if " T " in line]
    if not names:
        raise SystemExit(f"none of {', '.join(LIBRARIES)} is in {folder}")
    return sorted(set(names))


def kernel_names() -> list[str]:
    lines = Path("/proc/kallsyms").read_text(encoding="ascii").splitlines()
    return [line.split()[2] for line in lines if line.split()[1] in "tT"]


Stack = tuple[Location, ...]


def kernel_stacks(names: list[str], dice: random.Random) -> list[Stack]:
    """Leaf first; all programs share them."""
    mapping = Mapping("[kernel.kallsyms]")
    return [
        tuple(
            Location(
                FrameType.KERNEL,
                0xFFFFFFFF81000000 + dice.randrange(1 << 24),
                mapping,
                (Line(dice.choice(names)),),
            )
            for _ in range(dice.randint(3, 12))
        )
        for _ in range(KERNEL_STACKS)
    ]


class Program:
    """One busy process."""

    def __init__(self, number: int, names: list[str], kernel: list[Stack], dice: random.Random):
        self.number = number
        self._dice = dice
        self._names = dice.sample(names, FUNCTIONS)
        files = [f"/usr/bin/program{number}", *(f"/usr/lib/{library}" for library in LIBRARIES)]
        self._mappings = [
            Mapping(file, gnu_build_id=dice.randbytes(20).hex(), htlhash=dice.randbytes(16).hex())
            for file in files
        ]
        self._kernel = kernel
        self._paths = [
            [self._location() for _ in range(dice.randint(14, 30))] for _ in range(PATHS)
        ]
        self._leaves = [self._location() for _ in range(LEAVES)]
        self.instance = dice.randbytes(32).hex()

    def _location(self) -> Location:
        name = self._dice.choice(self._names)
        mapping = self._dice.choice(self._mappings)
        address = self._dice.randrange(0x1000, 1 << 22)
        return Location(FrameType.NATIVE, address, mapping, (Line(name),))

    def stack(self) -> Stack:
        """Leaf first."""
        path = self._dice.choice(self._paths)
        depth = self._dice.randint(3 * len(path) // 4, len(path))
        # Hot leaves first.
        leaf = self._leaves[int(LEAVES * self._dice.random() ** 4)]
        stack = [*path[:depth], leaf]
        if self._dice.random() < 0.2:
            stack += reversed(self._dice.choice(self._kernel))
        return tuple(reversed(stack))


def interval(
    programs: list[Program], hz: int, cores: int, start_ns: int, dice: random.Random
) -> list[ResourceProfiles]:
    counts: Counter[tuple[int, int, Stack]] = Counter()
    for _ in range(hz * cores * INTERVAL_S):
        program = dice.choice(programs)
        counts[program.number, int(THREADS * dice.random() ** 4), program.stack()] += 1
    resources = []
    for program in programs:
        pid = 1000 + 10 * program.number
        samples = [
            Sample(
                stack,
                (
                    ("process.executable.name", f"program{number}"),
                    ("process.pid", pid),
                    ("thread.id", pid + thread),
                    ("thread.name", f"worker-{thread}"),
                ),
                count,
            )
            for (number, thread, stack), count in counts.items()
            if number == program.number
        ]
        attributes = (
            ("container.id", program.instance),
            ("host.name", "node-1.example.internal"),
            ("k8s.namespace.name", "shop"),
            ("k8s.pod.name", f"program{program.number}-7d4b9c6f5-x2x{program.number}z"),
            ("service.name", f"program{program.number}"),
        )
        profile = Profile(samples, round(1e9 / hz), start_ns, INTERVAL_S * 10**9)
        resources.append(ResourceProfiles(attributes, [profile], "shop/cpu"))
    return resources


def measure(hz: int, cores: int) -> dict[str, float]:
    dice = random.Random(1)
    names, kernel = library_names(), kernel_stacks(kernel_names(), dice)
    programs = [Program(number, names, kernel, dice) for number in range(PROGRAMS)]
    wire = message = observations = entries = frames = locations = functions = 0
    encode_s = all_s = 0.0
    for number in range(60 // INTERVAL_S):
        resources = interval(programs, hz, cores, number * INTERVAL_S * 10**9, dice)
        encode(resources)  # caches warm, as in an agent that runs
        before = time.process_time()
        encode(resources).SerializeToString()
        between = time.process_time()
        batches = list(encode_batches(resources))
        all_s += time.process_time() - between
        encode_s += between - before
        wire += sum(len(batch.compressed) for batch in batches)
        message += sum(batch.message_bytes for batch in batches)
        observations += sum(batch.observations for batch in batches)
        samples = [s for r in resources for p in r.profiles for s in p.samples]
        entries += len(samples)
        locations += len({location for sample in samples for location in sample.stack})
        functions += len({f.lines for s in samples for f in s.stack})
        frames += sum(len(sample.stack) for sample in samples)
    return {
        "hz": hz,
        "cores": cores,
        "samples_per_minute": observations,
        "entries_per_minute": entries,
        "locations_per_interval": round(locations / 6),
        "functions_per_interval": round(functions / 6),
        "mean_frames": round(frames / entries, 1),
        "message_bytes_per_minute": message,
        "wire_bytes_per_minute": wire,
        "wire_bytes_per_sample": round(wire / observations, 1),
        "encode_cpu_ms_per_1000": round(1e6 * encode_s / observations, 1),
        "encode_and_gzip_cpu_ms_per_1000": round(1e6 * all_s / observations, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--hz", type=int, nargs="*", default=[20, 97])
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--json", type=Path, help="also write the rows there")
    options = parser.parse_args()
    rows = [measure(hz, options.cores) for hz in options.hz]
    for row in rows:
        for key, value in row.items():
            print(f"{key:34} {value:>12}")
        if row["hz"] == 20:
            share = row["wire_bytes_per_minute"] / BUDGET_BYTES_PER_MINUTE
            print(f"{'share of the budget (120 KB/min)':34} {share:>12.2f}")
        print()
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
