"""From `bpf/*.bpf.c` to loaded programs: amalgamate, compile in the loader child, cache, load.

bcc sees programs and map accesses only in the main text, so the sources are joined with `#line` markers; messages
still name the file and line. Bytecode is cached under a key of everything that it depends on: the text, the
flags, and the kernel's own build (whose struct offsets are compiled in). The agent itself creates the maps and loads
the programs, so fresh and cached bytecode take one path (docs/design/0001).
"""

import base64
import json
import logging
import os
import platform
import resource
import subprocess
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flameherd_agent.errors import EnvironmentProblem
from flameherd_agent.kernel.abi import Limit
from flameherd_agent.kernel.bpf import (
    Map,
    MapDefinition,
    Program,
    ProgramType,
    load_program,
    possible_cpus,
)
from flameherd_agent.kernel.capabilities import require

log = logging.getLogger(__name__)

_PACKAGE = Path(__file__).resolve().parent.parent
SYSTEM_PYTHON: Final = "/usr/bin/python3"
COMPILE_TIMEOUT_S: Final = 120
CACHED_BYTECODES: Final = 24

SOURCES: Final = (
    "abi.h",
    "lib/task.h",
    "lib/unwind_types.h",
    "lib/sample.h",
    "core.bpf.c",
    "lib/kernel_access.h",
    "lib/unwind.h",
    "native.bpf.c",
)
"""In the order in which they are joined."""

PROGRAMS: Final = {
    "fh_tick": ProgramType.PERF_EVENT,
    "fh_native": ProgramType.PERF_EVENT,
    "fh_finish": ProgramType.PERF_EVENT,
    "fh_send_cold": ProgramType.PERF_EVENT,
    "fh_fork": ProgramType.RAW_TRACEPOINT,
    "fh_exec": ProgramType.RAW_TRACEPOINT,
    "fh_exit": ProgramType.RAW_TRACEPOINT,
}

SIZES: Final = {
    "fh_tgid_slots": int(Limit.MAX_PROCESSES),
    "fh_processes": int(Limit.MAX_PROCESSES),
    "fh_mappings": int(Limit.MAX_MAPPINGS),
    "fh_counts_0": int(Limit.MAX_COUNTS),
    "fh_counts_1": int(Limit.MAX_COUNTS),
    "fh_seen_0": int(Limit.MAX_COUNTS),
    "fh_seen_1": int(Limit.MAX_COUNTS),
    "fh_cold_ring": int(Limit.COLD_RING_BYTES),
}
"""Entries of the large maps, bytes of a ring: the sources do not say them, since bcc would make them beside LLVM."""

CONSTANTS: Final = {
    "KERNEL_STACK_BYTES": 16384,  # THREAD_SIZE of x86-64 without KASAN
    "PF_KTHREAD": 0x00200000,
    "USER_CODE_32": 0x23,  # __USER32_CS
    "SYSCALL_EXECVE": 59,  # asm/unistd_64.h
    "SYSCALL_EXECVEAT": 322,
}


def source_directory() -> Path:
    """`bpf/`: in the wheel inside the package, in a checkout beside it."""
    packaged = _PACKAGE / "_bpf"
    return packaged if packaged.is_dir() else _PACKAGE.parent.parent / "bpf"


def amalgamate(directory: Path, sources: Sequence[str] = SOURCES) -> str:
    """One text with `#line` markers, without the sources' own includes of each other."""
    parts = []
    for name in sources:
        text = (directory / name).read_text()
        parts.append(f'#line 1 "bpf/{name}"\n{text}')
    return "\n".join(parts)


@dataclass(frozen=True, slots=True)
class Bytecode:
    """What the loader child answers."""

    maps: dict[str, list[int]]
    programs: dict[str, dict[str, Any]]


@dataclass(slots=True)
class Loaded:
    """Maps and programs in the kernel. They live as long as their descriptors: closing is unloading."""

    maps: dict[str, Map]
    programs: dict[str, Program]
    slab: MapDefinition
    """Template of the inner maps of `fh_slabs`."""
    _map_bytes: int = 0

    def close(self) -> None:
        for program in self.programs.values():
            os.close(program.fd)
        for map_ in self.maps.values():
            map_.close()

    def map_bytes(self) -> int:
        """Kernel memory of all maps in bytes, as the kernel accounts it (`memlock` in fdinfo).

        Asked once: every map is preallocated, and the answers take a millisecond or two.
        """
        if not self._map_bytes:
            self._map_bytes = sum(memlock_bytes(map_.fd) for map_ in self.maps.values())
        return self._map_bytes


def memlock_bytes(fd: int) -> int:
    """Kernel memory that one map is charged for, in bytes."""
    for line in Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines():
        if line.startswith("memlock:"):
            return int(line.split()[1])
    return 0


def _kernel_identity() -> bytes:
    """Changes whenever struct offsets may: the kernel's GNU build id, or its version string."""
    try:
        return Path("/sys/kernel/notes").read_bytes()
    except OSError:
        return "\0".join(platform.uname()).encode()


def bytecode(
    cache: Path | None, extra: Sequence[str] = (), programs: Iterable[str] = PROGRAMS
) -> Bytecode:
    """The compiled `programs`, from `cache` if they are there. Raises EnvironmentProblem.

    `extra` sources are joined behind the core's, whose maps and functions they use.
    """
    directory, text, flags, source = _source(extra)
    path = _place(cache, source) if cache else None
    if path is not None and (known := _stored(path, source)) is not None:
        return known
    answer = _compile(directory, text, flags, list(programs))
    if path is not None:
        _store(path, {"source": source, **answer})
    return Bytecode(**answer)


def is_compiled(cache: Path | None, extra: Sequence[str] = ()) -> bool:
    """Whether `bytecode` will most likely find it in `cache`."""
    return cache is not None and _place(cache, _source(extra)[3]).exists()


def _source(extra: Sequence[str]) -> tuple[Path, str, list[str], str]:
    """(directory of the sources, their text, flags, all that the bytecode depends on)."""
    directory = source_directory()
    text = amalgamate(directory, (*SOURCES, *extra))
    flags = [f"-D{name}={value}" for name, value in CONSTANTS.items()]
    return directory, text, flags, "\0".join((text, *flags, _kernel_identity().hex()))


def _place(cache: Path, source: str) -> Path:
    """Sources are compared whole, and only named by a checksum: hashlib would map OpenSSL, 3.5 MB of memory."""
    return cache / f"bytecode-{zlib.crc32(source.encode()):08x}.json"


def _stored(path: Path, source: str) -> Bytecode | None:
    """The bytecode in a cache file, if it was made from `source`."""
    try:
        content = json.loads(path.read_bytes())
        if content.pop("source") == source:
            return Bytecode(**content)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        log.warning("bytecode cache %s is unreadable (%s): compiling anew", path, error)
    return None


def _compile(directory: Path, text: str, flags: list[str], programs: list[str]) -> dict[str, Any]:
    request = {
        "text": text,
        "flags": flags,
        "programs": programs,
        "include": str(directory / "shim"),
        "offsets": True,
    }
    child = Path(__file__).with_name("loader_child.py")
    try:
        done = subprocess.run(
            [SYSTEM_PYTHON, "-I", str(child)],
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=COMPILE_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise EnvironmentProblem(
            f"compiling the eBPF programs needs {SYSTEM_PYTHON} with python3-bpfcc: {error}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise EnvironmentProblem(
            f"compiling the eBPF programs took more than {COMPILE_TIMEOUT_S} s"
        ) from error
    diagnostics = done.stderr.decode(errors="replace")
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        answer = {"error": f"the loader child exited with {done.returncode}"}
    if "error" in answer:
        raise EnvironmentProblem(
            f"compiling the eBPF programs failed: {answer['error']}\n{diagnostics[-4000:]}".rstrip()
        )
    return answer


def _store(path: Path, answer: dict[str, Any]) -> None:
    """Keep bytecode for the next start; a cache that cannot be written costs only that start's second."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        with temporary.open("x") as target:
            json.dump(answer, target)
        temporary.replace(path)
        old = sorted(path.parent.glob("bytecode-*.json"), key=lambda entry: entry.stat().st_mtime)
        for entry in old[:-CACHED_BYTECODES]:
            entry.unlink(missing_ok=True)
    except OSError as error:
        log.warning("cannot keep bytecode in %s (%s): the next start compiles again", path, error)


def _raise_memlock() -> None:
    """Kernels before 5.11 charge maps against RLIMIT_MEMLOCK, 64 KiB by default even for root.

    Raising it needs CAP_SYS_RESOURCE; without it newer kernels go on, and older ones refuse the first large map.
    """
    try:
        resource.setrlimit(
            resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        )
    except (ValueError, OSError) as error:
        log.debug("RLIMIT_MEMLOCK stays as it is: %s", error)


def load(cache: Path | None, entries: dict[str, int] | None = None) -> Loaded:
    """Create every map and load every program. `entries` overrides maps' sizes.

    Raises EnvironmentProblem with what the kernel said.
    """
    require()
    compiled = bytecode(cache)
    _raise_memlock()
    sizes = SIZES | {"fh_cold": possible_cpus()} | (entries or {})
    definitions = _definitions(compiled, sizes)
    maps: dict[str, Map] = {}
    programs: dict[str, Program] = {}
    loaded = Loaded(maps, programs, definitions["fh_slab"])
    try:
        # The inner map comes first: the map of maps takes its shape from it.
        for name in sorted(definitions, key=lambda name: name != "fh_slab"):
            inner = maps["fh_slab"].fd if name == "fh_slabs" else 0
            maps[name] = Map(definitions[name], inner)
        for name, kind in PROGRAMS.items():
            programs[name] = _load_program(compiled, name, kind, maps)
    except OSError as error:
        loaded.close()
        raise _refused(error) from error
    return loaded


def extend(loaded: Loaded, compiled: Bytecode, program: str) -> Program:
    """Load one more perf_event program that was compiled with the core's sources.

    It uses the maps that are there; those that are its own are created. Raises EnvironmentProblem.
    """
    try:
        for name, definition in _definitions(compiled, {}).items():
            if name not in loaded.maps:
                loaded.maps[name] = Map(definition)
        loaded.programs[program] = _load_program(
            compiled, program, ProgramType.PERF_EVENT, loaded.maps
        )
    except OSError as error:
        raise _refused(error) from error
    return loaded.programs[program]


def _definitions(compiled: Bytecode, sizes: dict[str, int]) -> dict[str, MapDefinition]:
    return {
        name: MapDefinition(
            name, numbers[0], numbers[1], numbers[2], sizes.get(name, numbers[3]), numbers[4]
        )
        for name, numbers in compiled.maps.items()
    }


def _load_program(
    compiled: Bytecode, name: str, kind: ProgramType, maps: dict[str, Map]
) -> Program:
    code = bytearray(base64.b64decode(compiled.programs[name]["code"]))
    for instruction, map_name in compiled.programs[name]["maps"]:
        at = 8 * instruction + 4
        code[at : at + 4] = maps[map_name].fd.to_bytes(4, "little")
    return load_program(name, kind, bytes(code))


def _refused(error: OSError) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"loading the eBPF programs failed: {error.filename}: {error.strerror}. "
        "A security module or a seccomp filter may forbid it; `flameherd doctor` tells more."
    )
