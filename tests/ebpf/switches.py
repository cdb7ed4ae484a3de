"""Idle time of each CPU by the scheduler's own switches, to compare perf's and /proc/stat's with.

    with SwitchMeter() as meter:
        before = meter.idle_ns()
        …
        idle = meter.idle_ns() - before

A program on the raw tracepoint `sched_switch` adds up, for each CPU, the time between two switches
of which the second leaves the idle task. It does not use what it judges: neither perf events nor the
kernel's tick.
"""

import base64
import json
import os
import struct
import subprocess
from pathlib import Path
from typing import Self

from flameherd_agent.kernel import loader
from flameherd_agent.kernel.bpf import (
    Map,
    MapDefinition,
    ProgramType,
    load_program,
    open_raw_tracepoint,
    possible_cpus,
)
from flameherd_agent.kernel.perf import online_cpus

TEXT = """
#include <uapi/linux/bpf_perf_event.h>
struct account { u64 last_ns; u64 idle_ns; };
BPF_TABLE("array", u32, struct account, accounts, CPUS);
int on_switch(void *ctx) {
    u32 cpu = bpf_get_smp_processor_id();
    u64 now = bpf_ktime_get_ns();
    struct account *account = accounts.lookup(&cpu);
    if (!account)
        return 0;
    if (account->last_ns && (u32)bpf_get_current_pid_tgid() == 0)
        account->idle_ns += now - account->last_ns;
    account->last_ns = now;
    return 0;
}
"""


class SwitchMeter:
    """Use as a context manager."""

    def __init__(self) -> None:
        request = {
            "text": TEXT,
            "flags": [f"-DCPUS={possible_cpus()}"],
            "programs": ["on_switch"],
            "include": str(loader.source_directory() / "shim"),
        }
        child = Path(loader.__file__).with_name("loader_child.py")
        done = subprocess.run(
            [loader.SYSTEM_PYTHON, "-I", str(child)],
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=loader.COMPILE_TIMEOUT_S,
            check=True,
        )
        answer = json.loads(done.stdout)
        if "error" in answer:
            raise RuntimeError(f"{answer['error']}\n{done.stderr.decode()}")
        self._map = Map(MapDefinition("accounts", *answer["maps"]["accounts"]))
        code = bytearray(base64.b64decode(answer["programs"]["on_switch"]["code"]))
        for instruction, _ in answer["programs"]["on_switch"]["maps"]:
            at = 8 * instruction + 4
            code[at : at + 4] = self._map.fd.to_bytes(4, "little")
        self._program = load_program("on_switch", ProgramType.RAW_TRACEPOINT, bytes(code))
        self._link = open_raw_tracepoint("sched_switch", self._program)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._link)
        os.close(self._program.fd)
        self._map.close()

    def idle_ns(self) -> int:
        """Nanoseconds that all CPUs idled since their first switch under this meter.

        Runs on each CPU in turn: an idle one is accounted for when it leaves its idle task.
        """
        allowed = os.sched_getaffinity(0)
        total = 0
        try:
            for cpu in online_cpus():
                os.sched_setaffinity(0, {cpu})
                value = self._map.lookup(struct.pack("<I", cpu))
                assert value is not None
                total += struct.unpack("<QQ", value)[1]
        finally:
            os.sched_setaffinity(0, allowed)
        return total
