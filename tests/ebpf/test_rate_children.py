"""Children of a selected process are sampled from their first tick.

Each child of `forker` uses 4 ms of CPU time in all, so that what is lost at its start would show in
the sum: half a millisecond is an eighth. The truth is what the kernel accounts to a parent of
children that it has waited for (getrusage(2)). The kernel takes an address space down after the exit
tracepoint, for no slot: about a fiftieth of such short lives.
"""

import math
import signal
from collections import Counter

import pytest
from flameherd_agent.recording import Recording

from tests.ebpf.recorded import OPTIONS, needs_root
from tests.programs.running import running

pytestmark = needs_root
FREQUENCY_HZ = 997
SHORT_S = 3.0
FULL_S = 60.0
"""CPU seconds."""
LIMIT_S = 240.0
TEARDOWN = 0.04
"""Most that the end of a child may take, as a share of its CPU time."""


def fork_children(cpu_s: float) -> None:
    with (
        running("forker") as program,
        Recording([program.pid], frequency_hz=FREQUENCY_HZ, options=OPTIONS) as recording,
    ):
        program.process.send_signal(signal.SIGUSR1)
        recording.run(LIMIT_S, lambda _: program.cpu_seconds() < cpu_s)
        truth = program.stop()
        result = recording.result()
    sampled: Counter[int] = Counter()
    for resource in result.profiles:
        for profile in resource.profiles:
            for sample in profile.samples:
                pid = int(dict(sample.attributes)["process.pid"])
                sampled[pid] += sample.value * profile.period_ns
    sampled.pop(program.pid, None)
    total, used = sampled.total(), truth["children_ns"]
    error = 4 / math.sqrt(used * FREQUENCY_HZ / 1e9)
    report = (
        f"{truth['children']} children used {used / 1e9:.3f} s, sampled {total / 1e9:.3f} s in "
        f"{len(sampled)} processes, ± {error:.1%}, {result.outcomes}"
    )
    print(report)
    assert truth["children"] > 100, report
    assert result.lost == 0, report
    assert -error - TEARDOWN <= total / used - 1 <= error, report


def test_children_are_sampled_from_their_first_tick() -> None:
    fork_children(SHORT_S)


@pytest.mark.soak
def test_children_are_sampled_from_their_first_tick_at_full_length() -> None:
    fork_children(FULL_S)
