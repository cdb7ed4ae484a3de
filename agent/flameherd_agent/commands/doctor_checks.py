"""The checks of `flameherd doctor`: one small function each, in the literal list at the end.

They try rather than ask: a map is created, a program loaded, an event opened, because what a
kernel's version or a capability's bit promises, a security module or a seccomp profile may take
away. Each needs nothing of the others, so that a machine on which much is wrong hears of all of it
at once.
"""

import fcntl
import os
import platform
import re
import resource
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from flameherd_agent.elf.open import open_in_root
from flameherd_agent.errors import ElfError, EnvironmentProblem
from flameherd_agent.kernel.bpf import Map, MapDefinition, MapType, ProgramType, load_program
from flameherd_agent.kernel.capabilities import effective, how_to_give
from flameherd_agent.kernel.loader import SYSTEM_PYTHON
from flameherd_agent.kernel.ticks import Ticks
from flameherd_agent.metadata.hierarchy import PidsHierarchy
from flameherd_agent.types import Pid

OLDEST_KERNEL: Final = (5, 10)
CACHE_BYTES: Final = 512 << 20
MAX_KERNEL_FRAMES: Final = 127
MAX_FREQUENCY_HZ: Final = 997
MAX_PROCESSES_TRIED: Final = 256
TOOL_TIMEOUT_S: Final = 30
_KERNEL, _RIGHTS, _HOST = "Kernel", "Rights", "Machine and tools"
_BTF_MAGIC: Final = 0xEB9F
_INIT_PID_NAMESPACE: Final = 0xEFFFFFFC
"""include/linux/proc_ns.h, PROC_PID_INIT_INO."""
_RETURN_ZERO: Final = bytes.fromhex("b700000000000000 9500000000000000")
"""r0 = 0; exit. Linux Documentation/bpf/standardization/instruction-set.rst."""


class State(StrEnum):
    """What a check found."""

    OK = "ok"
    DEGRADED = "degraded"
    MISSING = "missing"


class Finding(NamedTuple):
    """The outcome of one check."""

    name: str
    state: State
    detail: str
    """What was found; if not ok, what is lost."""
    mend: str
    """What to do if it is not ok; "" where nothing can be done."""
    group: str


@dataclass(frozen=True)
class Machine:
    """Where the checks look; tests look elsewhere."""

    proc: Path
    sys: Path
    capabilities: frozenset[str]
    seccomp: bool
    """A seccomp filter is on this process."""
    release: str
    cache: Path
    lock: Path

    @classmethod
    def this(cls, cache: Path, lock: Path) -> "Machine":
        """The machine and container that this process runs in."""
        status = Path("/proc/self/status").read_text()
        return cls(
            proc=Path("/proc"),
            sys=Path("/sys"),
            capabilities=effective(status),
            seccomp=re.search(r"^Seccomp:\t2$", status, re.MULTILINE) is not None,
            release=platform.release(),
            cache=cache,
            lock=lock,
        )

    def has(self, *names: str) -> bool:
        """At least one of these capabilities is effective."""
        return not self.capabilities.isdisjoint(names)

    def number(self, path: str, default: int) -> int:
        """A number in a file below /proc/sys, or `default` where this kernel has no such file."""
        try:
            return int((self.proc / "sys" / path).read_text())
        except FileNotFoundError:
            return default

    def give(self, capability: str) -> str:
        """How to come by a capability."""
        if self.has(capability) and self.seccomp:
            return "a seccomp filter forbids it: run the container with seccompProfile Unconfined"
        if self.has(capability):
            return "a security module forbids it (SELinux, AppArmor): see the kernel's log"
        return how_to_give([capability])


def kernel_version(release: str) -> tuple[int, int]:
    """(6, 1) of `6.1.0-38-amd64`; (0, 0) if it cannot be read."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def check_kernel_version(machine: Machine) -> Finding:
    good = kernel_version(machine.release) >= OLDEST_KERNEL
    wanted = ".".join(map(str, OLDEST_KERNEL))
    return Finding(
        "version",
        State.OK if good else State.MISSING,
        f"{machine.release} ({wanted} or later)",
        f"boot a kernel of {wanted} or later",
        _KERNEL,
    )


def check_architecture(machine: Machine) -> Finding:
    found = platform.machine()
    return Finding(
        "architecture",
        State.OK if found == "x86_64" else State.MISSING,
        found,
        "only x86_64 is unwound so far",
        _KERNEL,
    )


def check_btf(machine: Machine) -> Finding:
    path = machine.sys / "kernel/btf/vmlinux"
    mend = "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y (distributions' kernels are)"
    try:
        with path.open("rb") as file:
            head = file.read(2)
    except OSError as error:
        return Finding("BTF", State.MISSING, f"{path}: {error.strerror}", mend, _KERNEL)
    if head != struct.pack("=H", _BTF_MAGIC):
        return Finding("BTF", State.MISSING, f"{path} is not BTF", mend, _KERNEL)
    return Finding("BTF", State.OK, "the kernel tells its own struct layouts", "", _KERNEL)


def check_lockdown(machine: Machine) -> Finding:
    try:
        text = (machine.sys / "kernel/security/lockdown").read_text()
    except OSError:
        return Finding("lockdown", State.OK, "off, or not shown here", "", _KERNEL)
    found = re.search(r"\[(\w+)\]", text)
    mode = found[1] if found else "none"
    return Finding(
        "lockdown",
        State.MISSING if mode == "confidentiality" else State.OK,
        f"{mode}" + (": BPF may not read memory" if mode == "confidentiality" else ""),
        "boot without lockdown=confidentiality (integrity is fine)",
        _KERNEL,
    )


def check_ring_buffer(machine: Machine) -> Finding:
    definition = MapDefinition("fh_doctor", MapType.RINGBUF, 0, 0, os.sysconf("SC_PAGE_SIZE"), 0)
    try:
        Map(definition).close()
    except OSError as error:
        detail = f"creating a BPF ring buffer: {os.strerror(error.errno or 0)}"
        return Finding("BPF maps", State.MISSING, detail, machine.give("CAP_BPF"), _RIGHTS)
    return Finding("BPF maps", State.OK, "a ring buffer was created", "", _RIGHTS)


def check_program(machine: Machine) -> Finding:
    try:
        program = load_program("fh_doctor", ProgramType.PERF_EVENT, _RETURN_ZERO)
    except OSError as error:
        lacking = "CAP_PERFMON" if machine.has("CAP_BPF") else "CAP_BPF"
        detail = f"loading a BPF program: {os.strerror(error.errno or 0)}"
        return Finding("BPF programs", State.MISSING, detail, machine.give(lacking), _RIGHTS)
    try:
        Ticks(program.fd, 1_000_000_000).close()
    except (EnvironmentProblem, OSError) as error:
        level = machine.number("kernel/perf_event_paranoid", 2)
        detail = f"{error} (kernel.perf_event_paranoid = {level})"
        return Finding("BPF programs", State.MISSING, detail, machine.give("CAP_PERFMON"), _RIGHTS)
    finally:
        os.close(program.fd)
    detail = "a program was loaded and attached to cpu-clock events on every CPU"
    return Finding("BPF programs", State.OK, detail, "", _RIGHTS)


def check_memlock(machine: Machine) -> Finding:
    if kernel_version(machine.release) >= (5, 11):
        return Finding(
            "memory lock limit", State.OK, "kernels from 5.11 do not count maps", "", _RIGHTS
        )
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if resource.RLIM_INFINITY in (soft, hard) or machine.has("CAP_SYS_RESOURCE"):
        return Finding("memory lock limit", State.OK, "unlimited, or can be raised", "", _RIGHTS)
    return Finding(
        "memory lock limit",
        State.MISSING,
        f"{hard >> 10} KiB: this kernel counts BPF maps against it",
        "raise it (`ulimit -l unlimited`, LimitMEMLOCK=infinity), or give CAP_SYS_RESOURCE",
        _RIGHTS,
    )


def check_kernel_symbols(machine: Machine) -> Finding:
    with (machine.proc / "kallsyms").open() as file:
        first = [file.readline().split(" ", 1)[0] for _ in range(16)]
    if any(address.strip("0") for address in first):
        return Finding("kernel symbols", State.OK, "kernel functions are named", "", _RIGHTS)
    restrict = machine.number("kernel/kptr_restrict", 0)
    mend = (
        "sysctl kernel.kptr_restrict=1 (2 hides addresses from everybody)"
        if restrict >= 2
        else machine.give("CAP_SYSLOG")
    )
    detail = (
        f"kernel functions stay unnamed: addresses are hidden (kernel.kptr_restrict = {restrict})"
    )
    return Finding("kernel symbols", State.DEGRADED, detail, mend, _RIGHTS)


def check_other_processes(machine: Machine) -> Finding:
    readable = denied = 0
    for entry in machine.proc.iterdir():
        if not entry.name.isdigit() or readable + denied >= MAX_PROCESSES_TRIED:
            continue
        try:
            with (entry / "maps").open("rb") as file:
                file.read(1)
            readable += 1
        except PermissionError:
            denied += 1
        except (FileNotFoundError, ProcessLookupError):  # it ended
            continue
    # A few may be out of reach of anybody (a security module guards them): that is told, not
    # mended.
    good = readable > 0 and (denied == 0 or machine.has("CAP_SYS_PTRACE"))
    detail = f"mappings of {readable} of {readable + denied} can be read"
    if good:
        return Finding("other processes", State.OK, detail, "", _RIGHTS)
    detail += ": the stacks of the others are not unwound"
    return Finding(
        "other processes", State.MISSING, detail, machine.give("CAP_SYS_PTRACE"), _RIGHTS
    )


def check_other_users_files(machine: Machine) -> Finding:
    if machine.has("CAP_DAC_READ_SEARCH", "CAP_DAC_OVERRIDE"):
        return Finding("other users' files", State.OK, "can be read", "", _RIGHTS)
    detail = "executables that only their owner may read stay without tables and names"
    mend = machine.give("CAP_DAC_READ_SEARCH")
    return Finding("other users' files", State.DEGRADED, detail, mend, _RIGHTS)


def check_deleted_files(machine: Machine) -> Finding:
    directory = machine.proc / "self/map_files"
    try:
        with next(directory.iterdir()).open("rb"):
            return Finding("deleted files", State.OK, "can be read while they run", "", _RIGHTS)
    except StopIteration:
        detail = f"{directory} is empty"
    except OSError as error:
        detail = f"{error.strerror}: code that was deleted or replaced while it runs stays unnamed"
    mend = machine.give("CAP_CHECKPOINT_RESTORE")
    return Finding("deleted files", State.DEGRADED, detail, mend, _RIGHTS)


def check_safe_opens(machine: Machine) -> Finding:
    executable = str(Path("/proc/self/exe").readlink())
    try:
        open_in_root(Pid(os.getpid()), executable).close()
    except ElfError as error:
        mend = "openat2(2) must be allowed: kernel 5.6 or later, and no seccomp filter against it"
        return Finding("safe opens", State.MISSING, f"openat2: {error}", mend, _RIGHTS)
    return Finding(
        "safe opens", State.OK, "files of containers open inside their root", "", _RIGHTS
    )


def check_pid_namespace(machine: Machine) -> Finding:
    if (machine.proc / "self/ns/pid").stat().st_ino == _INIT_PID_NAMESPACE:
        return Finding("process ids", State.OK, "the host's", "", _HOST)
    return Finding(
        "process ids",
        State.MISSING,
        "a container's own: the host's processes cannot be seen",
        "share the host's pid namespace (hostPID: true, docker run --pid=host)",
        _HOST,
    )


def check_cgroups(machine: Machine) -> Finding:
    try:
        hierarchy = PidsHierarchy.discover(machine.proc)
    except EnvironmentProblem as error:
        detail = "containers cannot be told apart"
        return Finding("cgroups", State.DEGRADED, detail, str(error), _HOST)
    return Finding("cgroups", State.OK, f"v{hierarchy.version} at {hierarchy.mount}", "", _HOST)


def check_throttling(machine: Machine) -> Finding:
    rate = machine.number("kernel/perf_event_max_sample_rate", 100_000)
    percent = machine.number("kernel/perf_cpu_time_max_percent", 25)
    if rate >= MAX_FREQUENCY_HZ:
        detail = f"{rate} Hz at most, {percent} % of CPU time"
        return Finding("perf throttling", State.OK, detail, "", _HOST)
    return Finding(
        "perf throttling",
        State.DEGRADED,
        f"the kernel lowered the highest rate to {rate} Hz",
        f"sysctl kernel.perf_event_max_sample_rate={10 * MAX_FREQUENCY_HZ}",
        _HOST,
    )


def check_kernel_stacks(machine: Machine) -> Finding:
    depth = machine.number("kernel/perf_event_max_stack", MAX_KERNEL_FRAMES)
    return Finding(
        "kernel stacks",
        State.OK if depth >= MAX_KERNEL_FRAMES else State.DEGRADED,
        f"up to {depth} frames",
        f"sysctl kernel.perf_event_max_stack={MAX_KERNEL_FRAMES}",
        _HOST,
    )


def check_jit(machine: Machine) -> Finding:
    on = machine.number("net/core/bpf_jit_enable", 1) != 0
    return Finding(
        "BPF compiler",
        State.OK if on else State.DEGRADED,
        "on" if on else "off: programs are interpreted, samples cost several times as much",
        "sysctl net.core.bpf_jit_enable=1",
        _HOST,
    )


def check_statistics(machine: Machine) -> Finding:
    on = machine.number("kernel/bpf_stats_enabled", 0) != 0
    return Finding(
        "BPF statistics",
        State.DEGRADED if on else State.OK,
        "on: every run of every program is timed twice" if on else "off (the agent times itself)",
        "sysctl kernel.bpf_stats_enabled=0",
        _HOST,
    )


def check_compiler(machine: Machine) -> Finding:
    code = "import bcc; print(bcc.__version__)"
    mend = "apt-get install python3-bpfcc"
    try:
        done = subprocess.run(
            [SYSTEM_PYTHON, "-I", "-c", code],
            capture_output=True,
            timeout=TOOL_TIMEOUT_S,
            check=False,
            text=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("bcc", State.MISSING, f"{SYSTEM_PYTHON}: {error}", mend, _HOST)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Finding("bcc", State.MISSING, f"{SYSTEM_PYTHON}: {last}", mend, _HOST)
    return Finding("bcc", State.OK, f"{done.stdout.strip()} of {SYSTEM_PYTHON}", "", _HOST)


def check_cache(machine: Machine) -> Finding:
    place = machine.cache
    mend = (
        "make it writable (readOnlyRootFilesystem: mount an emptyDir or a hostPath), or use --cache"
    )
    while not place.exists() and place != place.parent:  # the agent makes what is missing
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            free = shutil.disk_usage(place).free
    except OSError as error:
        detail = (
            f"{machine.cache}: {error.strerror}: tables and programs are made anew at each start"
        )
        return Finding("cache", State.DEGRADED, detail, mend, _HOST)
    if free < CACHE_BYTES:
        detail = f"{machine.cache}: only {free >> 20} MiB are free"
        return Finding(
            "cache", State.DEGRADED, detail, f"free {CACHE_BYTES >> 20} MiB there", _HOST
        )
    return Finding("cache", State.OK, f"{machine.cache}, {free >> 20} MiB free", "", _HOST)


def check_other_agent(machine: Machine) -> Finding:
    try:
        fd = os.open(machine.lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return Finding("other agents", State.OK, "none runs", "", _HOST)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(fd, 32).decode(errors="replace").strip()
        detail = f"process {holder} is the agent of this machine: another one will not start"
        mend = "stop it first, or use `flameherd record`, which runs beside it"
        return Finding("other agents", State.DEGRADED, detail, mend, _HOST)
    finally:
        os.close(fd)
    return Finding("other agents", State.OK, "none runs", "", _HOST)


CHECKS: Final[tuple[Callable[[Machine], Finding], ...]] = (
    check_kernel_version,
    check_architecture,
    check_btf,
    check_lockdown,
    check_ring_buffer,
    check_program,
    check_memlock,
    check_kernel_symbols,
    check_other_processes,
    check_other_users_files,
    check_deleted_files,
    check_safe_opens,
    check_pid_namespace,
    check_cgroups,
    check_throttling,
    check_kernel_stacks,
    check_jit,
    check_statistics,
    check_compiler,
    check_cache,
    check_other_agent,
)
"""In the order in which they are printed."""
