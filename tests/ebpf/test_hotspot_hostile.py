"""A JVM whose structures are rewritten under it: bounded work, a counted outcome, an agent that goes on.

The victim's only busy thread is in C for ever, so that the JVM itself never trips over what is written.
"""

import random
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from flameherd_agent.interpreters.hotspot.layout import Layout
from flameherd_agent.interpreters.memory import MAX_READ, MemoryGone, ProcessMemory
from flameherd_agent.kernel.abi import Limit, Outcome
from flameherd_agent.recording import Recording
from flameherd_agent.types import Pid, SlotId

from tests.ebpf.recorded import OPTIONS, needs_root, warm
from tests.ebpf.test_truth_hotspot import SMALL, needs_programs
from tests.java_truth import judge
from tests.jdks import Jdk, jdks
from tests.programs.running import Running, running_command
from tests.truth import samples_by_pid

pytestmark = [needs_root, pytest.mark.timeout(600)]
FREQUENCY_HZ = 997
ROUNDS = 30
STACK_BYTES = 1536
"""Above the leaf's sp: the frames of all Java methods."""
TIERS = {"interpreted": ("-Xint",), "compiled": ("-Xcomp", "-XX:TieredStopAtLevel=1")}


class Victim:
    """Writes into a process."""

    def __init__(self, pid: int, layout: Layout) -> None:
        self._layout = layout
        self.memory = ProcessMemory(Pid(pid))
        self._file = Path(f"/proc/{pid}/mem").open("r+b", buffering=0)  # noqa: SIM115 - closed below
        self._kept: list[tuple[int, bytes]] = []
        self._maps = Path(f"/proc/{pid}/maps").read_text().splitlines()

    def write(self, address: int, data: bytes) -> None:
        """Remembers what was there."""
        with suppress(MemoryGone, OSError):  # a random place may not be mapped
            old = self.memory.read(address, len(data))
            self._file.seek(address)
            self._file.write(data)
            self._kept.append((address, old))

    def may_write(self, address: int) -> bool:
        """Not libraries: their code is what the victim spins in."""
        for line in self._maps:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            if start <= address < end:
                return " rw" in line and len(line.split()) == 5
        return False

    def restore(self) -> None:
        for address, old in reversed(self._kept):
            self._file.seek(address)
            self._file.write(old)
        self._kept.clear()

    def close(self) -> None:
        self._file.close()

    def stack(self) -> int:
        """Where the outermost Java frame ends, in the stack with the most of them.

        At a return address into the call stub; those of the other frames lie below.
        """
        needle = struct.pack("<Q", self._layout.call_stub)
        frames: dict[int, int] = {}
        for line in self._maps:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            if " rw-p" not in line or end - start > 64 << 20:
                continue
            size = min(end - start, MAX_READ)
            with suppress(MemoryGone):
                data = self.memory.read(end - size, size)
                found = data.rfind(needle)
                below = data[max(0, found - STACK_BYTES) : max(0, found)]
                words = [word for (word,) in struct.iter_unpack("<Q", below[len(below) % 8 :])]
                frames[end - size + found] = sum(map(self._is_code, words))
        return max(frames, key=lambda address: frames[address])

    def _is_code(self, address: int) -> bool:
        return any(heap.low <= address < heap.high for heap in self._layout.heaps)


def lies(victim: Victim, layout: Layout, numbers: random.Random) -> Iterator[tuple[int, bytes]]:
    """Random writes to the thread's frames, to segment maps and to whatever the frames refer to."""

    def junk(size: int) -> bytes:
        kind = numbers.randrange(4)
        if kind == 0:
            return numbers.randbytes(size)
        if kind == 1:
            return b"\xff" * size
        if kind == 2:
            return bytes(size)
        return struct.pack("<Q", stack - 8 * numbers.randrange(64)) * (size // 8 or 1)

    stack = victim.stack()
    frames = victim.memory.read(stack - STACK_BYTES, STACK_BYTES)
    words = struct.unpack(f"<{STACK_BYTES // 8}Q", frames)
    pointers = [word for word in words if victim.may_write(word)]
    for _ in range(numbers.randrange(1, 12)):
        place = numbers.randrange(3)
        if place == 0:
            yield stack - 8 * numbers.randrange(STACK_BYTES // 8), junk(8)
        elif place == 1:
            pointer = numbers.choice(pointers)
            heap = next((h for h in layout.heaps if h.low <= pointer < h.high), layout.heaps[0])
            segment = max(0, (pointer - heap.low) >> heap.shift) % (1 << 16)
            yield heap.segments + max(0, segment - 4), junk(8)
            yield heap.low + (segment << heap.shift), junk(64)
        else:
            yield numbers.choice(pointers) & ~7, junk(64)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("jdk", jdks()[:1], ids=lambda jdk: jdk.name)
def test_lies_are_bounded_and_counted(jdk: Jdk, tier: str) -> None:
    needs_programs()
    numbers = random.Random(20261121)
    with (
        running_command(jdk.command("Spin", *SMALL, *TIERS[tier]), "Spin") as program,
        Recording([program.pid], frequency_hz=FREQUENCY_HZ, options=OPTIONS) as recording,
    ):
        warm(recording, FREQUENCY_HZ)
        layouts = recording.engine.interpreters.layouts_of("hotspot")
        layout = layouts[0]
        assert isinstance(layout, Layout)
        victim = Victim(program.pid, layout)
        before = recording.engine.sampler.counters()
        for _ in range(ROUNDS):
            for address, data in lies(victim, layout, numbers):
                victim.write(address, data)
            sample(recording, program, 10)
            victim.restore()
        victim.close()
        # What was read then is not kept: true again.
        recording.engine.take()
        recording.engine.take()
        sample(recording, program, 200)
        after = recording.engine.sampler.counters()
        result = recording.result()
    counted = {outcome: after[outcome] - before[outcome] for outcome in Outcome}
    assert counted[Outcome.INTERPRETER_TORN] + counted[Outcome.READ_FAULT] > 0, counted
    found = samples_by_pid(result.profiles)[program.pid]
    assert all(len(sample.stack) <= Limit.STACK_WORDS for sample in found)
    names = [line.function for s in found for where in s.stack for line in where.lines]
    assert max(map(len, names)) < 4096
    verdict = judge("Spin", found)
    assert verdict.right >= 200, verdict.describe()


def sample(recording: Recording, program: Running, samples: int) -> None:
    """Go on until so many more samples were taken."""
    until = recording.engine.sampler.meter(SlotId(1)).samples + samples
    while recording.engine.sampler.meter(SlotId(1)).samples < until:
        assert program.process.poll() is None, "it has crashed"
        recording.run(0.02)
