"""All targets by name."""

from tests.fuzz import (
    backend_targets,
    cfi_target,
    elf_targets,
    index_targets,
    text_targets,
    unwinder_target,
)
from tests.fuzz.target import Target

_ELF_WORDS = (b"\x7fELF\x02\x01\x01", b"\x50\xe5\x74\x64", b"ZLIB", b".gnu_debugdata\0")
_FRAME_WORDS = (b"zR", b"zPLR", b"zRS", b"\xff\xff\xff\xff", b"\x77\x08\x80\x00\x3f\x1a\x3b")

TARGETS = {
    target.name: target
    for target in (
        Target("elf", "ELF files as the worker reads them", elf_targets.elf,
               elf_targets.elf_seeds, 24 << 10, _ELF_WORDS),
        Target("eh_frame", ".eh_frame and .debug_frame", elf_targets.frames,
               elf_targets.frame_seeds, 4096, _FRAME_WORDS),
        Target("cfi", ".eh_frame against a plain interpreter", cfi_target.cfi,
               lambda: [seed[1:] for seed in elf_targets.frame_seeds()[::3]], 2048, _FRAME_WORDS),
        Target("symbols", "symbol tables, PLT, debug files", elf_targets.symbols,
               elf_targets.symbol_seeds, 4096),
        Target("gopclntab", "Go's symbol table", elf_targets.pclntab,
               elf_targets.pclntab_seeds, 4096),
        Target("go", "Go programs: tables found, rows, names", elf_targets.go,
               elf_targets.go_seeds, 8192),
        Target("maps", "/proc/PID/maps", text_targets.maps, text_targets.maps_seeds, 4096),
        Target("kallsyms", "/proc/kallsyms", text_targets.kallsyms,
               text_targets.kallsyms_seeds, 4096),
        Target("perf_map", "/tmp/perf-PID.map", text_targets.perf_map,
               text_targets.perf_map_seeds, 4096),
        Target("cgroup", "/proc/PID/cgroup and mountinfo", text_targets.cgroup,
               text_targets.cgroup_seeds, 4096, (b"pids", b".scope", b"/kubepods", b"libpod-")),
        Target("names", "mangled names", text_targets.names, text_targets.name_seeds, 4096),
        Target("flat", "index files of names", index_targets.flat, index_targets.flat_seeds, 4096),
        Target("table", "files of unwind tables", index_targets.table,
               index_targets.table_seeds, 4096),
        Target("copied", "copied stacks: unwind/copied.py against bpf/lib", unwinder_target.copied,
               unwinder_target.seeds, 4096),
        Target("otlp", "OTLP profiles as the backend decodes them", backend_targets.otlp,
               backend_targets.otlp_seeds, 8192),
        Target("otlp_json", "the same as JSON", backend_targets.otlp_json,
               backend_targets.json_seeds, 16 << 10, (b'"values":["', b'"stackIndex":', b"null")),
        Target("gunzip", "compressed bodies", backend_targets.gzipped,
               backend_targets.gzip_seeds, 4096, (b"\x1f\x8b\x08", b"\x78\x9c")),
    )
}  # fmt: skip
