"""Compiles the eBPF programs with bcc; run by the system Python, which has bcc, as a short-lived child.

It reads a JSON request on standard input, writes a JSON answer on standard output and exits: LLVM's 120 MB live for
about a second and never in the agent. The answer holds bytecode, the maps' definitions, and which instructions
refer to which map: everything that the agent needs to create and load them itself, now or from its cache.

Standard library only, and no import of the agent's packages: the system Python has none of its dependencies.

Request: {"text", "flags", "programs": [names], "include"}.
Answer: {"maps": {name: [type, key bytes, value bytes, entries, flags]},
"programs": {name: {"code": base64, "maps": [[instruction, map name], …]}}}, or {"error"}.
"""

import base64
import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

_LD_IMM64 = 0x18
_PSEUDO_MAP_FD = 1


def compile_text(request: dict[str, Any]) -> dict[str, Any]:
    """Compile one amalgamated text. Raises what bcc raises; its diagnostics are on standard error."""
    os.environ["BCC_KERNEL_SOURCE"] = request["include"]
    import bcc

    module = bcc.BPF(text=request["text"], cflags=request["flags"])
    library = bcc.lib
    library.bpf_table_name.restype = ctypes.c_char_p
    library.bpf_table_name.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    names = {}
    maps = {}
    for number in range(library.bpf_num_tables(module.module)):
        name = library.bpf_table_name(module.module, number).decode()
        names[library.bpf_table_fd_id(module.module, number)] = name
        maps[name] = [
            library.bpf_table_type_id(module.module, number),
            library.bpf_table_key_size_id(module.module, number),
            library.bpf_table_leaf_size_id(module.module, number),
            library.bpf_table_max_entries_id(module.module, number),
            library.bpf_table_flags_id(module.module, number),
        ]
    programs = {}
    for name in request["programs"]:
        code = bytes(module.dump_func(name.encode()))
        references = []
        for at in range(0, len(code), 8):
            if code[at] == _LD_IMM64 and code[at + 1] >> 4 == _PSEUDO_MAP_FD:
                descriptor = int.from_bytes(code[at + 4 : at + 8], "little")
                references.append([at // 8, names[descriptor]])
        programs[name] = {"code": base64.b64encode(code).decode(), "maps": references}
    return {"maps": maps, "programs": programs}


def main() -> None:
    request = json.load(sys.stdin)
    if "offsets" in request:
        sys.path.insert(0, str(Path(__file__).resolve().parent))
        import btf  # type: ignore[import-not-found]  # beside this file

        macros = btf.offsets(btf.VMLINUX.read_bytes())
        request["flags"] += [f"-D{name}={value}" for name, value in macros.items()]
    # bcc's diagnostics may be written to descriptor 1 by C code: keep the answer apart from them.
    answer_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        answer = compile_text(request)
    except ImportError as error:
        answer = {"error": f"the system Python has no bcc ({error}): install python3-bpfcc"}
    except Exception as error:  # noqa: BLE001 - whatever bcc raises is the answer to the parent
        answer = {"error": f"{type(error).__name__}: {error}"}
    json.dump(answer, answer_to)
    answer_to.close()


if __name__ == "__main__":
    main()
