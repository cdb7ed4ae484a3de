"""Loads every eBPF program of the agent, interpreters' too, and prints what the verifier says of it, as JSON.

    {"programs": {name: {"log": verified instructions by the verifier's statistics,
                         "info": the same by bpf_prog_info, 0 before 5.16}},
     "map_bytes": kernel memory as the kernel accounts it}

The agent asks for no log when a program is accepted, so each is loaded once more here for the
log's statistics.
"""

import ctypes
import json
import os
import re
import struct
import sys
from pathlib import Path
from unittest import mock

from flameherd_agent.interpreters.registry import INTERPRETERS
from flameherd_agent.kernel import bpf, loader

LOG_STATISTICS = 4  # BPF_LOG_STATS of kernel/bpf/verifier.c: the last lines only
LOG_BYTES = 1 << 16

_processed: dict[str, int] = {}


def load_with_statistics(name: str, kind: bpf.ProgramType, code: bytes) -> bpf.Program:
    """`bpf.load_program`, and the program's instruction count by the log in `_processed`."""
    instructions = ctypes.create_string_buffer(code, len(code))
    log = ctypes.create_string_buffer(LOG_BYTES)
    attributes = struct.pack(
        "<IIQQIIQ",  # the head of union bpf_attr for BPF_PROG_LOAD
        kind,
        len(code) // 8,
        ctypes.addressof(instructions),
        ctypes.addressof(bpf.LICENSE),
        LOG_STATISTICS,
        LOG_BYTES,
        ctypes.addressof(log),
    )
    program = bpf.load_program(name, kind, code)  # first: its error carries the whole log
    os.close(bpf.call(bpf.Command.PROG_LOAD, attributes, name))
    statistics = re.search(r"processed (\d+) insns", log.value.decode(errors="replace"))
    if statistics is None:
        raise SystemExit(f"{name}: no statistics in the verifier's log: {log.value!r}")
    _processed[name] = int(statistics.group(1))
    return program


def main() -> None:
    cache = Path(sys.argv[1])
    with mock.patch.object(loader, "load_program", load_with_statistics):
        loaded = loader.load(cache)
        for interpreter in INTERPRETERS:
            compiled = loader.bytecode(cache, interpreter.sources, [interpreter.program])
            loader.extend(loaded, compiled, interpreter.program)
    programs = {
        name: {"log": _processed[name], "info": program.verified_instructions}
        for name, program in loaded.programs.items()
    }
    print(json.dumps({"programs": programs, "map_bytes": loaded.map_bytes()}))
    loaded.close()


if __name__ == "__main__":
    main()
