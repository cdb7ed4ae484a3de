"""From the kernel's count maps and rings to raw samples: counts by (stack words, process, thread, slot, epoch).

Two maps take turns. At an interval's end the programs are pointed to the other one; after an RCU grace period no
program writes to the idle one, and it is read and cleared in small batches. An entry that was deleted while it was being
incremented would credit another stack; here it cannot be.
"""

import ctypes
import os
import platform
import struct
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flameherd_agent.interpreters.runtime import Interpreters
from flameherd_agent.interpreters.words import align
from flameherd_agent.kernel.abi import CountKey, CountValue, FrameKind, Outcome, StackRecord
from flameherd_agent.kernel.ringbuf import RingBuffer, record_struct
from flameherd_agent.kernel.sampler import Sampler
from flameherd_agent.pipeline.naming import EXECUTABLE_MASK, EXECUTABLE_SHIFT
from flameherd_agent.process.table import ColdSample
from flameherd_agent.types import ExecutableId, Pid, SlotId, Tid

_LIBC = ctypes.CDLL(None, use_errno=True)
_MEMBARRIER = {"x86_64": 324, "aarch64": 283}
_MEMBARRIER_GLOBAL: Final = 1
_HEAD: Final = record_struct(StackRecord)
_KERNEL_FRAMES, _USER_FRAMES, _STACK, _LAYOUT, _TGID, _COOKIE = (
    (StackRecord.names or ()).index(name)
    for name in ("kernel_frames", "user_frames", "stack", "layout", "tgid", "cookie")
)
STACK_BYTES_LIMIT: Final = 24 << 20
"""Cap of stack definitions that are held in one interval, in bytes."""


class Stack(NamedTuple):
    """Frame words, leaf first."""

    kernel: tuple[int, ...]
    user: tuple[int, ...]


class SampleKey(NamedTuple):
    """What makes samples the same."""

    stack: Stack
    cookie: int
    cgroup: int
    pid: Pid
    tid: Tid
    slot: SlotId
    epoch: int
    outcome: Outcome
    comm: str


@dataclass(slots=True)
class Interval:
    """What one interval collected. Times are CLOCK_MONOTONIC nanoseconds.

    Samples stay as the kernel wrote them until they are asked for: 50,000 stacks as Python objects would take longer
    to make than to drain, and 50 MB.
    """

    started_ns: int
    ended_ns: int = 0
    undefined: int = 0
    """Samples whose stack definition never arrived; they are not among `samples()`."""
    cold: Counter[SampleKey] = field(default_factory=Counter)
    """Samples that were unwound in user space."""
    counts: list[tuple[NDArray[Any], NDArray[Any]]] = field(default_factory=list)
    """Keys and values of the count map, of dtypes `CountKey` and `CountValue`."""
    definitions: dict[int, bytes] = field(default_factory=dict)
    """{hash of a stack: its record in `fh_ring`}"""

    def samples(self) -> Iterator[tuple[SampleKey, int]]:
        """Every sample and how often it was taken: those of user space, then those of the kernel."""
        yield from self.cold.items()
        parsed: dict[int, Stack] = {}
        for keys, values in self.counts:
            # tolist() once a batch: item access on records is slow.
            for key, (count, comm) in zip(keys.tolist(), values.tolist(), strict=True):
                stack_hash, cookie, cgroup, tgid, tid, epoch, slot, outcome = key
                stack = parsed.get(stack_hash)
                if stack is None:
                    record = self.definitions.get(stack_hash)
                    if record is None:
                        continue
                    stack = parsed[stack_hash] = parse_stack(record)
                sample = SampleKey(
                    stack,
                    cookie,
                    cgroup,
                    Pid(tgid),
                    Tid(tid),
                    SlotId(slot),
                    epoch,
                    Outcome(outcome),
                    comm.decode(errors="replace"),
                )
                yield sample, count

    def executables(self) -> set[ExecutableId]:
        """The executables that the stacks go through, and perhaps numbers that are none."""
        stacks = [np.array(key.stack.user, np.uint64) for key in self.cold]
        for record in self.definitions.values():
            head = _HEAD.unpack_from(record)
            at = _HEAD.size + 8 * head[_KERNEL_FRAMES]
            stacks.append(np.frombuffer(record, np.uint64, head[_USER_FRAMES], at))
        if not stacks:
            return set()
        words = np.concatenate(stacks)
        native = words[words >> np.uint64(60) == FrameKind.NATIVE]
        numbers = np.unique(native >> np.uint64(EXECUTABLE_SHIFT)) & np.uint64(EXECUTABLE_MASK)
        return set(map(ExecutableId, numbers.tolist()))

    def add_counts(self, keys: NDArray[Any], values: NDArray[Any]) -> None:
        """Take a batch of the count map."""
        self.counts.append((keys, values))
        defined = np.fromiter(
            map(self.definitions.__contains__, keys["stack"].tolist()), np.bool_, len(keys)
        )
        self.undefined += int(values["count"][~defined].sum())


def grace_period() -> None:
    """Wait until every program that runs now has ended: membarrier's global command is synchronize_rcu()."""
    result = _LIBC.syscall(ctypes.c_long(_MEMBARRIER[platform.machine()]), _MEMBARRIER_GLOBAL, 0, 0)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"membarrier: {os.strerror(number)}")


class Drain:
    """Owner of `fh_config.active`, the count maps and the stack ring."""

    def __init__(self, sampler: Sampler, interpreters: Interpreters) -> None:
        loaded = sampler.loaded
        self._sampler = sampler
        self._interpreters = interpreters
        self._counts = (loaded.maps["fh_counts_0"], loaded.maps["fh_counts_1"])
        self._seen = (loaded.maps["fh_seen_0"], loaded.maps["fh_seen_1"])
        self._ring = RingBuffer(loaded.maps["fh_ring"])
        self._stacks: dict[int, bytes] = {}
        self._stack_bytes = 0
        self._interval = Interval(time.monotonic_ns())
        self.ring_fd = self._ring.fd
        """Becomes readable when so many stacks wait that they should be read."""
        self.ring_high_water = 0

    def read_ring(self) -> None:
        """Take the waiting stack definitions, so that the ring has room."""
        self.ring_high_water = max(self.ring_high_water, self._ring.waiting_bytes())
        for record in self._ring.read(self._ring.size):
            if self._stack_bytes < STACK_BYTES_LIMIT:
                head = _HEAD.unpack_from(record)
                self._stacks[head[_STACK]] = record
                self._stack_bytes += len(record)
                if head[_LAYOUT]:
                    # Their functions are read now: by the interval's end the process may be gone.
                    self._interpreters.arrive(
                        Pid(head[_TGID]), head[_COOKIE], head[_LAYOUT], parse_stack(record).user
                    )

    def add_cold(self, samples: Iterable[ColdSample]) -> None:
        """Count samples that were unwound in user space."""
        for sample in samples:
            record = sample.record
            key = SampleKey(
                Stack(sample.kernel, sample.user),
                int(record["cookie"]),
                int(record["cgroup"]),
                Pid(int(record["tgid"])),
                Tid(int(record["tid"])),
                SlotId(int(record["slot"])),
                int(record["epoch"]),
                sample.outcome,
                bytes(record["comm"]).decode(errors="replace"),
            )
            self._interval.cold[key] += 1

    def flip(self) -> Interval:
        """End the interval: flip, wait, read and clear. Returns what it collected."""
        idle = int(self._sampler.config["active"][0])
        self.read_ring()
        self._sampler.configure(active=1 - idle)
        ended_ns = time.monotonic_ns()
        grace_period()
        definitions = self._stacks
        # What is read from here on may belong to the interval that ends or to the one that began.
        self._stacks, self._stack_bytes = {}, 0
        self.read_ring()
        definitions |= self._stacks
        interval, self._interval = self._interval, Interval(ended_ns)
        interval.ended_ns = ended_ns
        interval.definitions = definitions
        for keys, values in self._counts[idle].drain(CountKey, CountValue):
            interval.add_counts(keys, values)
        for _ in self._seen[idle].drain(np.dtype("<u8"), np.dtype("u1")):
            pass
        return interval

    def close(self) -> None:
        self._ring.close()


def parse_stack(record: bytes) -> Stack:
    """A record of `fh_ring`: struct fh_stack_record and its frame words."""
    head = _HEAD.unpack_from(record)
    kernel = head[_KERNEL_FRAMES]
    words = struct.unpack_from(f"<{kernel + head[_USER_FRAMES]}Q", record, _HEAD.size)
    user = words[kernel:]
    return Stack(words[:kernel], align(user) if head[_LAYOUT] else user)
