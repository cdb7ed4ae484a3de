"""Frames that are lies, and objects that move: bounded work, a counted outcome, no name that is wrong."""

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from flameherd_agent.kernel.abi import Outcome
from flameherd_agent.recording import Recording
from flameherd_agent.types import FrameType, SlotId

from tests.ebpf.recorded import OPTIONS, needs_root, warm
from tests.nodes import Node, headers, nodes
from tests.programs.running import running_command
from tests.truth import samples_by_pid
from tests.v8_truth import PROGRAMS
from tests.v8_truth import frames_of as functions_of

pytestmark = needs_root
FREQUENCY_HZ = 499
LIES = {"cyclic": "0", "wild": "1", "moved": "2"}
CAUGHT = (
    Outcome.INTERPRETER_TORN,
    Outcome.BAD_FRAME,
    Outcome.READ_FAULT,
    Outcome.NO_MAPPING,
    Outcome.NO_RULE,
    Outcome.TRUNCATED,
)
MOVING = ("--max-old-space-size=64", "--max-semi-space-size=1", "--stress-compaction")
_GENERATION = re.compile(r"g(\d+)_(\d+)")


@pytest.fixture(scope="module")
def addon(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The addon that lies. Node's interface for addons is the same for all its versions."""
    include = headers()
    if include is None or shutil.which("gcc") is None:
        pytest.skip("no gcc, or no headers of Node.js")
    path = tmp_path_factory.mktemp("addon") / "hostile.node"
    subprocess.run(
        ["gcc", "-O1", "-fno-omit-frame-pointer", "-shared", "-fPIC", f"-I{include}", "-o", path, PROGRAMS / "hostile.c"],
        check=True,
    )  # fmt: skip
    return path


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("node", nodes(), ids=lambda node: node.name)
def test_lies_are_bounded_and_counted(node: Node, lie: str, addon: Path) -> None:
    command = [
        str(node.executable),
        "--no-opt",
        str(PROGRAMS / "hostile.js"),
        str(addon),
        LIES[lie],
    ]
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
        if location.kind is FrameType.V8JS
        for line in location.lines
        if not line.file.startswith("node:")
    }
    assert names <= {"first", "second", "third", "(anonymous)", "lie"}, names


def moving(node: Node, samples: int) -> None:
    """Functions that come and go while objects move: all of a stack are of one generation, in their order."""
    command = [str(node.executable), *MOVING, str(PROGRAMS / "moving.js")]
    wrong: Counter[tuple[str, ...]] = Counter()
    named = unnamed = 0
    with (
        running_command(command, "moving") as program,
        Recording([program.pid], frequency_hz=FREQUENCY_HZ, options=OPTIONS) as recording,
    ):
        warm(recording, FREQUENCY_HZ)
        until = recording.engine.sampler.meter(SlotId(1)).samples + samples
        while recording.engine.sampler.meter(SlotId(1)).samples < until:
            assert program.process.poll() is None, "it has ended"
            recording.run(1.0)
        result = recording.result()
        counted = sum(recording.engine.interpreters.unnamed.values())
    for sample in samples_by_pid(result.profiles)[program.pid]:
        frames, _ = functions_of(sample.stack)
        found = [match for frame in frames if (match := _GENERATION.fullmatch(frame.name))]
        levels = [int(match[2]) for match in found]
        missing = any(frame.name == "?" for frame in frames)
        named += bool(found)
        unnamed += missing
        if len({match[1] for match in found}) > 1 or (
            not missing and levels != list(range(5, 5 - len(levels), -1))
        ):
            wrong[tuple(frame.name for frame in frames)] += sample.value
    assert not wrong, wrong.most_common(5)
    assert named > samples / 10
    assert counted or not unnamed, "frames without names are counted"
    print(f"{node.name}: {named} stacks with functions, {unnamed} with one that has no name")


@pytest.mark.parametrize("node", nodes(), ids=lambda node: node.name)
def test_names_stay_right_while_objects_move(node: Node) -> None:
    moving(node, 1_000)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("node", nodes(), ids=lambda node: node.name)
def test_names_stay_right_for_ten_minutes(node: Node) -> None:
    moving(node, 600 * FREQUENCY_HZ // 2)
