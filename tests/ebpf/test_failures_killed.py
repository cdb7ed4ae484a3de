"""What a killed agent leaves behind: nothing.

Its own descriptors tell which programs, maps, links and perf events are this agent's: others may run
beside the tests. Programs and links hang on nothing but descriptors, and a perf event on its program
until the event itself is freed: a program that is gone was let go of by every event.
"""

import os
import re
import struct
from pathlib import Path
from typing import Any

from flameherd_agent.kernel.bpf import call

from tests.ebpf.agents import agent, eventually
from tests.ebpf.recorded import needs_root
from tests.programs.running import alive, running

pytestmark = needs_root

GET_FD_BY_ID = {"prog": 13, "map": 14, "link": 30}
"""enum bpf_cmd of include/uapi/linux/bpf.h: BPF_PROG_GET_FD_BY_ID and so on."""
PERF_EVENT = "anon_inode:[perf_event]"


class _Command(int):
    """A command that the agent itself never uses."""

    name = "GET_FD_BY_ID"


def descriptors(pid: int) -> list[str]:
    """Where a process's descriptors lead."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(str(entry.readlink()))
        except FileNotFoundError:  # closed meanwhile
            continue
    return found


def kernel_objects(pid: int) -> set[tuple[str, int]]:
    """(kind, id) of the eBPF programs, maps and links that a process holds."""
    found = set()
    for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
        for kind, number in re.findall(r"^(prog|map|link)_id:\t(\d+)$", entry.read_text(), re.M):
            found.add((kind, int(number)))
    return found


def exists(kind: str, number: int) -> bool:
    command: Any = _Command(GET_FD_BY_ID[kind])
    try:
        os.close(call(command, struct.pack("<I", number), kind))
    except FileNotFoundError:
        return False
    return True


def children(pid: int) -> list[int]:
    return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_killed_agent_leaves_no_program_perf_event_or_child(tmp_path: Path) -> None:
    with running("pie"), agent(tmp_path) as it:
        pid = it.process.pid
        eventually(lambda: it.samples() > 5)
        # The worker ends by itself when it is idle; give it work by starting something new.
        with running("nopie"):
            left = eventually(lambda: children(pid))
            objects = kernel_objects(pid)
            held = descriptors(pid)
            of_children = [link for child in left for link in descriptors(child)]
            it.process.kill()
            it.process.wait()
        assert {kind for kind, _ in objects} >= {"prog", "map"}
        # One to sample and one for process events on every CPU.
        assert held.count(PERF_EVENT) >= 2 * len(os.sched_getaffinity(0))
        assert not [link for link in of_children if "bpf" in link or link == PERF_EVENT]
        eventually(lambda: not [number for number in objects if exists(*number)])
        eventually(lambda: not [child for child in left if alive(child)])
