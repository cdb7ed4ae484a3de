"""A victim that rewrites its interpreter's structures: bounded work, a counted outcome, no frame that it made up."""

import pytest
from flameherd_agent.kernel.abi import Outcome
from flameherd_agent.recording import Recording
from flameherd_agent.types import FrameType, SlotId

from tests.ebpf.recorded import OPTIONS, needs_root, warm
from tests.programs.running import running_command
from tests.python_truth import PROGRAMS
from tests.pythons import Python, pythons
from tests.truth import samples_by_pid

pytestmark = needs_root
FREQUENCY_HZ = 499
NEWEST = {python.version[:2]: python for python in pythons()}
MODES = [NEWEST[version] for version in ((3, 9), (3, 10), (3, 11), (3, 13)) if version in NEWEST]
"""One for each way in which frames hang on the stack."""
CAUGHT = (Outcome.INTERPRETER_TORN, Outcome.INTERPRETER_LEFT, Outcome.TRUNCATED)
FUNCTIONS = {"<module>", "lie", "burn", "caller_of"}


@pytest.mark.parametrize("lie", ["cyclic", "wild"])
@pytest.mark.parametrize("python", MODES, ids=lambda python: python.name)
def test_lies_are_bounded_and_counted(python: Python, lie: str) -> None:
    command = [*python.command(PROGRAMS / "hostile.py"), lie]
    with (
        running_command(command, "hostile") as program,
        Recording([program.pid], frequency_hz=FREQUENCY_HZ, options=OPTIONS) as recording,
    ):
        warm(recording, FREQUENCY_HZ)
        before = recording.engine.sampler.counters()
        until = recording.engine.sampler.meter(SlotId(1)).samples + 300
        while recording.engine.sampler.meter(SlotId(1)).samples < until:
            assert program.process.poll() is None, "it has crashed"
            recording.run(0.5)
        after = recording.engine.sampler.counters()
        result = recording.result()
    counted = {outcome: after[outcome] - before[outcome] for outcome in Outcome}
    caught = sum(counted[outcome] for outcome in CAUGHT)
    assert caught >= 0.5 * (caught + counted[Outcome.COMPLETE]), counted
    names = {
        line.function
        for sample in samples_by_pid(result.profiles)[program.pid]
        for location in sample.stack
        if location.kind is FrameType.CPYTHON
        for line in location.lines
    }
    assert names <= FUNCTIONS
