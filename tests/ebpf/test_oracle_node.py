"""The same stacks as V8's own profiler sees (`node --cpu-prof`), in the same process at the same time.

Chains of functions from the root to the leaf's caller, by name: what one of both sees often, the other sees too. The leaf may be
missing on one side: V8's profiler takes `burn`, where the program spends its time, for its caller in most of its samples. And
without optimised code: there it leaves out functions that were inlined. What is right there, the truth programs say.
"""

import json
from collections import Counter
from pathlib import Path

import pytest
from flameherd_agent.recording import Recording
from flameherd_agent.types import SlotId

from tests.ebpf.recorded import OPTIONS, needs_root, warm
from tests.nodes import Node, nodes
from tests.programs.running import running_command
from tests.truth import samples_by_pid
from tests.v8_truth import PROGRAMS, frames_of

pytestmark = [needs_root, pytest.mark.timeout(600)]
FREQUENCY_HZ = 499
SAMPLES = 1_000
WAIT_S = 60
OFTEN = 0.05
"""Chains with this share of one profiler's samples are in the other's."""
Chain = tuple[str, ...]


def theirs(path: Path) -> Counter[Chain]:
    """Chains of a .cpuprofile by how often they were hit."""
    profile = json.loads(path.read_text())
    nodes_by_id = {node["id"]: node for node in profile["nodes"]}
    parents = {child: node["id"] for node in profile["nodes"] for child in node.get("children", ())}
    seen: Counter[Chain] = Counter()
    for number, node in nodes_by_id.items():
        chain: list[str] = []
        at: int | None = number
        while at is not None:
            frame = nodes_by_id[at]["callFrame"]
            if "programs/v8" in frame["url"]:
                chain.append(frame["functionName"] or "(anonymous)")
            at = parents.get(at)
        if chain and node.get("hitCount"):
            seen[tuple(reversed(chain))] += node["hitCount"]
    return seen


def similar(chain: Chain, seen: Counter[Chain]) -> bool:
    """Whether a chain was seen, with or without the leaf."""
    return any(one in (chain, chain[:-1]) or one[:-1] == chain for one in seen)


def describe(we: Counter[Chain], they: Counter[Chain]) -> str:
    lines = [f"{n} {' > '.join(chain)}" for seen in (we, they) for chain, n in seen.most_common(6)]
    return "ours, theirs:\n" + "\n".join(lines)


@pytest.mark.parametrize("node", nodes(), ids=lambda node: node.name)
def test_the_same_chains(node: Node, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    maglev = ["--no-maglev"] if node.version >= (24,) else []
    command = [
        str(node.executable), "--no-opt", *maglev, "--cpu-prof", f"--cpu-prof-dir={tmp_path}", str(PROGRAMS / "bounded.js"), str(stop),
    ]  # fmt: skip
    we: Counter[Chain] = Counter()
    with (
        running_command(command, "bounded") as program,
        Recording([program.pid], frequency_hz=FREQUENCY_HZ, options=OPTIONS) as recording,
    ):
        warm(recording, FREQUENCY_HZ)
        until = recording.engine.sampler.meter(SlotId(1)).samples + SAMPLES
        while recording.engine.sampler.meter(SlotId(1)).samples < until:
            recording.run(0.5)
        stop.touch()
        program.process.wait(WAIT_S)
        result = recording.result()
    for sample in samples_by_pid(result.profiles)[program.pid]:
        chain = tuple(
            frame.name for frame in frames_of(sample.stack)[0] if frame.file.endswith(".js")
        )
        if chain:
            we[chain] += sample.value
    (path,) = tmp_path.glob("*.cpuprofile")
    they = theirs(path)
    for one, other in ((we, they), (they, we)):
        often = {chain for chain, n in one.items() if n >= OFTEN * one.total()}
        assert often, one
        assert all(similar(chain, other) for chain in often), describe(we, they)
