"""What /proc/PID tells of a process, by OpenTelemetry's semantic conventions. Bounded reads, no
caching.

Names and arguments are the process's own to choose: they are cut, and what is not UTF-8 is
replaced. The command is its first argument only: the others often hold secrets.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

from flameherd_agent.errors import ProcessGone
from flameherd_agent.types import Pid

PROC: Final = Path("/proc")
MAX_TEXT: Final = 256
"""Characters of any one name or value that are kept."""
MAX_ENVIRON_BYTES: Final = 256 << 10
_MAX_STATUS_BYTES: Final = 16 << 10
_MAX_CMDLINE_BYTES: Final = 4096
_MAX_CGROUP_BYTES: Final = 64 << 10
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_EXECUTABLE_DELETED: Final = " (deleted)"


class ProcessInfo(NamedTuple):
    """A process, as far as it could be read; "" = not known."""

    comm: str
    """Name of the main thread, at most 15 bytes."""
    executable_name: str
    """Base name of the executable; for kernel threads the thread's name."""
    executable_path: str
    """In the process's own mount namespace; "" for kernel threads."""
    command: str
    """argv[0]."""
    ns_pid: int
    """Its id in its own, innermost pid namespace."""

    def attributes(self) -> dict[str, str | int]:
        """OpenTelemetry's `process.*`, without the pid, which is the samples'."""
        named = {
            "process.executable.name": self.executable_name,
            "process.executable.path": self.executable_path,
            "process.command": self.command,
        }
        return {key: value for key, value in named.items() if value}


def read_process(pid: Pid, *, proc: Path = PROC) -> ProcessInfo:
    """Read a process; raises `ProcessGone` if it ended. What must not be read is left empty."""
    base = proc / str(pid)
    comm = _text(read_bounded(base / "comm", _MAX_STATUS_BYTES, pid).rstrip(b"\n"))
    status = read_bounded(base / "status", _MAX_STATUS_BYTES, pid)
    try:
        cmdline = read_bounded(base / "cmdline", _MAX_CMDLINE_BYTES, pid)
    except PermissionError:
        cmdline = b""
    path = _executable(base)
    return ProcessInfo(
        comm=comm,
        executable_name=path.rpartition("/")[2] or comm,
        executable_path=path,
        command=_text(cmdline.split(b"\0", 1)[0]),
        ns_pid=_innermost_pid(status) or pid,
    )


def read_cgroup(pid: Pid, *, proc: Path = PROC) -> str:
    """The text of /proc/PID/cgroup; raises `ProcessGone`."""
    data = read_bounded(proc / str(pid) / "cgroup", _MAX_CGROUP_BYTES, pid)
    return data.decode("utf-8", "surrogateescape")


def read_env(pid: Pid, allowed: Collection[str], *, proc: Path = PROC) -> dict[str, str]:
    """Those environment variables that `allowed` names, as the process was started with; raises
    `ProcessGone`.

    Nothing is read if nothing is allowed, or if this process may not read the other's environment.
    """
    if not allowed:
        return {}
    try:
        data = read_bounded(proc / str(pid) / "environ", MAX_ENVIRON_BYTES, pid)
    except PermissionError:
        return {}
    entries = data.split(b"\0")
    if len(data) >= MAX_ENVIRON_BYTES:
        entries.pop()  # cut in the middle
    found: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition(b"=")
        text = name.decode("utf-8", "replace") if equals else ""
        if text in allowed and text not in found:  # the first one is what getenv(3) returns
            found[text] = _text(value)
    return found


def service_name(executable_name: str, env: Mapping[str, str]) -> str:
    """`service.name` of a process outside containers, by the rules of the OpenTelemetry SDK
    specification.

    OTEL_SERVICE_NAME, else `service.name` of OTEL_RESOURCE_ATTRIBUTES (both only if the
    administrator allows these variables to be read), else `unknown_service:` and the executable.
    """
    if name := env.get("OTEL_SERVICE_NAME"):
        return name
    for pair in env.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","):
        key, _, value = pair.partition("=")
        if key.strip() == "service.name" and (name := unquote(value.strip())):
            return name
    return f"unknown_service:{executable_name}" if executable_name else "unknown_service"


def read_bounded(path: Path, limit: int, pid: Pid) -> bytes:
    """At most `limit` bytes of a file below /proc/PID;

    raises `ProcessGone` or `PermissionError`.
    """
    chunks = []
    try:
        with path.open("rb", buffering=0) as file:
            while limit > 0 and (chunk := file.read(limit)):
                chunks.append(chunk)
                limit -= len(chunk)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise ProcessGone(f"process {pid} ended while {path} was read") from error
    return b"".join(chunks)


def _executable(base: Path) -> str:
    try:
        target = str((base / "exe").readlink())
    except OSError:  # a kernel thread has none; another user's may not be read
        return ""
    return _text(target.removesuffix(_EXECUTABLE_DELETED).encode("utf-8", "surrogateescape"), 4096)


def _innermost_pid(status: bytes) -> int:
    """The last number of `NSpid:` (proc_pid_status(5), kernel 4.1), or 0."""
    found = re.search(rb"^NSpid:((?:\s+[0-9]{1,10})+)$", status, re.MULTILINE)
    return int(found[1].split()[-1]) if found else 0


def _text(data: bytes, limit: int = MAX_TEXT) -> str:
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", data.decode("utf-8", "replace"))[:limit]
