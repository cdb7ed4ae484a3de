"""What it costs to drain an interval of 50,000 distinct stacks from the kernel.

    python -m bench.drain [--stacks 50000]

The count maps are the kernel's own, made larger and filled by the benchmark, and are read and cleared as the agent does
it. The kernel alone writes into a ring, so the stack definitions come from a file that is laid out like one. Counted
is the time from the flip to raw samples; naming them comes after, and is told beside it.

Needs root.
"""

import argparse
import mmap
import os
import random
import struct
import sys
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
from flameherd_agent.interpreters.runtime import Interpreters
from flameherd_agent.kernel.abi import Config, CountKey, CountValue, RecordType, StackRecord
from flameherd_agent.kernel.bpf import Map, MapDefinition, MapType
from flameherd_agent.kernel.loader import Loaded, load
from flameherd_agent.kernel.ringbuf import RingBuffer
from flameherd_agent.kernel.sampler import Sampler
from flameherd_agent.pipeline.drain import Drain

from bench.table import Row, render

STACKS = 50_000
WORDS = 24
"""Frames of a stack; the mean of a busy machine is 20 to 24."""
ENTRIES = 65_536
BUDGET_CPU_S = 0.1
_PORTION = 1 << 19
"""Bytes that wait in the ring at one time, as in the agent."""


class _Kernel:
    """What `Drain` needs of a `Sampler`: maps, and `fh_config`."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self.config = np.zeros(1, Config)

    def configure(self, **fields: int) -> None:
        for name, value in fields.items():
            self.config[name] = value
        self.loaded.maps["fh_config"].update(struct.pack("<I", 0), self.config.tobytes())


class _Ring:
    """A file like a ring, which the benchmark fills."""

    def __init__(self) -> None:
        self.size = 1 << 24
        self.fd = os.memfd_create("ring")
        os.ftruncate(self.fd, 2 * mmap.PAGESIZE + 2 * self.size)
        self.memory = mmap.mmap(self.fd, 2 * mmap.PAGESIZE + 2 * self.size)
        self.position = 0

    def put(self, records: list[bytes]) -> None:
        for record in records:
            framed = struct.pack("<II", len(record), 0) + record
            at = 2 * mmap.PAGESIZE + self.position
            self.memory[at : at + len(framed)] = framed
            self.position += (len(framed) + 7) // 8 * 8
        struct.pack_into("<Q", self.memory, mmap.PAGESIZE, self.position)

    def consumer(self) -> RingBuffer:
        there = object.__new__(Map)
        there.definition = MapDefinition("ring", MapType.RINGBUF, 0, 0, self.size, 0)
        there.fd = self.fd
        return RingBuffer(there)


def _records(count: int, dice: random.Random) -> tuple[list[int], list[bytes]]:
    """Hashes of distinct stacks, and their definitions."""
    hashes = list({dice.getrandbits(64) for _ in range(count)})
    head = np.zeros(1, StackRecord)
    head["type"], head["user_frames"] = RecordType.STACK, WORDS
    records = []
    for stack in hashes:
        head["stack"] = stack
        records.append(head.tobytes() + dice.randbytes(8 * WORDS))
    return hashes, records


def _fill(loaded: Loaded, hashes: list[int]) -> None:
    keys = np.zeros(len(hashes), CountKey)
    keys["stack"], keys["tgid"], keys["slot"] = hashes, 4711, 1
    value = np.zeros(1, CountValue)
    value["count"], value["comm"] = 1, b"worker"
    counted = value.tobytes()
    for key, stack in zip(keys, hashes, strict=True):
        loaded.maps["fh_counts_0"].update(key.tobytes(), counted)
        loaded.maps["fh_seen_0"].update(struct.pack("<Q", stack), b"\1")


def measure(stacks: int) -> list[Row]:
    """One interval."""
    names = ("fh_counts_0", "fh_counts_1", "fh_seen_0", "fh_seen_1")
    loaded = load(Path("/var/cache/flameherd"), dict.fromkeys(names, ENTRIES))
    try:
        kernel = _Kernel(loaded)
        kernel.configure(active=0)
        drain = Drain(cast(Sampler, kernel), Interpreters(loaded, None))
        ring = _Ring()
        cast(Any, drain)._ring = ring.consumer()
        hashes, records = _records(stacks, random.Random(1))
        _fill(loaded, hashes)
        ring_s = 0.0
        portion = _PORTION // len(records[0])
        for at in range(0, len(records), portion):
            ring.put(records[at : at + portion])
            before = time.process_time()
            drain.read_ring()
            ring_s += time.process_time() - before
        before = time.process_time()
        interval = drain.flip()
        flip_s = time.process_time() - before
        before = time.process_time()
        samples = sum(count for _, count in interval.samples())
        read_s = time.process_time() - before
    finally:
        loaded.close()
    if samples != len(hashes) or interval.undefined:
        raise SystemExit(f"{samples} samples of {len(hashes)}, {interval.undefined} undefined")
    what = f"drain of {len(hashes):,} distinct stacks"
    return [
        Row(f"{what}: CPU", ring_s + flip_s, "s", BUDGET_CPU_S),
        Row(f"{what}: of that the ring", ring_s, "s"),
        Row(f"{what}: of that the maps", flip_s, "s"),
        Row(f"{what}: beside it, as Python objects", read_s, "s"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.drain")
    parser.add_argument("--stacks", type=int, default=STACKS)
    arguments = parser.parse_args()
    table = measure(arguments.stacks)
    print(f"load average: {os.getloadavg()[0]:.1f}\n")
    print(render(table))
    return 1 if any(row.verdict == "OVER" for row in table) else 0


if __name__ == "__main__":
    sys.exit(main())
