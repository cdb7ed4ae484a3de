"""Records one truth program in the guest and judges every sample by the program's known chains.

    unwind.py PROGRAM --select pid|cgroup --seconds N --frequency HZ --least SAMPLES --cache DIR

A short recording comes first: emulation makes compiling and building tables tens of times slower
than on hardware, and how new processes fare meanwhile is not what differs between kernels.
`--select cgroup` puts the program into a new cgroup of the hierarchy with the pids controller (v1
or v2) and selects by that cgroup's id alone. On v2 no controller is enabled for it: a task's pids
state is its ancestor's then.

How much of a CPU the guest gets is the host's affair: the recording lasts until there are `--least`
samples, at most `--seconds`.
"""

import argparse
import sys
from pathlib import Path

from flameherd_agent.app import EngineOptions
from flameherd_agent.metadata.hierarchy import PidsHierarchy
from flameherd_agent.recording import Recording, RecordingResult
from flameherd_agent.types import SlotId

from tests.programs.catalog import QSORT, SYSCALLS
from tests.programs.running import running
from tests.truth import describe, judge, samples_by_pid

TRUTHS = {"qsort": QSORT, "syscalls": SYSCALLS}
PROGRAMS = Path("/flameherd/programs")
WARM_UP_SECONDS = 2.0


def into_cgroup(pid: int) -> int:
    """Moves the process into a cgroup `truth` of its own; returns the cgroup's id."""
    hierarchy = PidsHierarchy.discover()
    group = hierarchy.mount / "truth"
    group.mkdir(exist_ok=True)
    (group / "cgroup.procs").write_text(str(pid))
    found = hierarchy.cgroup_id("/truth")
    assert found is not None
    return found


def record(
    pid: int, cgroup: int, options: argparse.Namespace, seconds: float, least: int
) -> RecordingResult:
    """Until there are `least` samples, at most `seconds`. `cgroup` 0: select by pid."""
    engine = EngineOptions(cache=options.cache)
    pids = [] if cgroup else [pid]
    with Recording(pids, frequency_hz=options.frequency, options=engine) as recording:
        if cgroup:
            recording.engine.sampler.select_cgroups({cgroup: SlotId(1)})
        recording.run(seconds, lambda _: recording.engine.summary().samples < least)
        return recording.result()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("program", choices=TRUTHS)
    parser.add_argument("--select", choices=("pid", "cgroup"), required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--frequency", type=int, required=True)
    parser.add_argument("--least", type=int, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    options = parser.parse_args()
    truth = TRUTHS[options.program]
    with running(options.program, executable=PROGRAMS / options.program) as program:
        cgroup = into_cgroup(program.pid) if options.select == "cgroup" else 0
        record(program.pid, cgroup, options, WARM_UP_SECONDS, sys.maxsize)
        result = record(program.pid, cgroup, options, options.seconds, options.least)
    samples = samples_by_pid(result.profiles)
    judgement = judge(options.program, truth, samples.pop(program.pid, []), result.lost)
    print(f"outcomes {result.outcomes}\n{describe([judgement])}")
    if samples:
        sys.exit(f"samples of processes that were not selected: {sorted(samples)}")
    judgement.check(truth, options.least)


if __name__ == "__main__":
    main()
