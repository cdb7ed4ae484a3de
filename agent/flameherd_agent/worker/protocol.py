"""What passes between the agent and its worker child: JSON lines over a Unix socket.

A request is `{"id": …, "kind": …, …}`, an answer `{"id": …}` with results, or with `error` (a
sentence) and `reason` (a word to count by). The worker's first line is `{"ready": true}`. Requests
are answered in order. Paths travel as `surrogateescape` strings.

A file is asked for twice: first for its unwind table, which samples wait for, then for its names,
which are needed at an interval's end only.

Light imports only: the agent has them in memory all the time.
"""

from dataclasses import dataclass
from typing import Any

from flameherd_agent.interpreters.base import RuntimeFile
from flameherd_agent.types import Pid

Message = dict[str, Any]

READY: Message = {"ready": True}

# Values of `reason`.
OPEN = "open"
"""The file could not be opened safely: gone, replaced, not a regular file, no permission."""
MALFORMED = "malformed"
"""Not an ELF file for this machine, damaged, or over a cap."""
CHANGED = "changed"
"""The file was written to while it was read."""
MEMORY = "memory"
"""It took more memory than the worker may use."""
TIMEOUT = "timeout"
"""It took longer than the time limit; the worker was killed."""
CRASHED = "crashed"
"""The worker died on it."""
CACHE = "cache"
"""The result could not be written anywhere."""
INTERNAL = "internal"
"""A defect of the worker; the message names the exception."""
NO_WORKER = "no_worker"
"""No worker could be started."""
CLOSED = "closed"
"""The agent is shutting down."""


@dataclass(frozen=True, slots=True)
class FileRequest:
    """A file by how it is mapped. See `elf.open.MappedFile`."""

    pid: Pid
    path: str
    device: tuple[int, int]
    """Major and minor number, as `/proc/PID/maps` has them."""
    inode: int
    start: int
    end: int
    kind: str = "file"
    """Either file, or vdso: the kernel's own image, of which only the size matters."""


@dataclass(frozen=True, slots=True)
class FileAnswer:
    """What became of a request. With `error` set nothing else but `reason` is."""

    request: int
    """What `submit` returned."""
    error: str = ""
    reason: str = ""
    content_key: str = ""
    """Equal for files whose tables and names are equal; cannot be chosen by the file's author."""
    gnu_build_id: str = ""
    go_build_id: str = ""
    htlhash: str = ""
    size: int = 0
    table_path: str = ""
    """An `UnwindTable`, possibly without rows."""
    rows: int = 0
    segments: tuple[tuple[int, int, int], ...] = ()
    """(address in the file, file offset, bytes in the file) of loadable segments, code first."""
    is_go: bool = False
    interpreter: RuntimeFile | None = None
    """The interpreter that the file contains."""
    warning: str = ""
    """What was wrong without spoiling the answer."""


@dataclass(frozen=True, slots=True)
class NamesAnswer:
    """What became of a request for names. With `error` set nothing else but `reason` is."""

    request: int
    """What `submit_names` returned."""
    error: str = ""
    reason: str = ""
    symbols_path: str = ""
    """A `SymbolIndex`."""
    warning: str = ""


def file_answer(request: int, message: Message) -> FileAnswer:
    """The answer to a file request from a message of the worker."""
    fields = {k: v for k, v in message.items() if k in FileAnswer.__dataclass_fields__}
    fields["segments"] = tuple((int(a), int(b), int(c)) for a, b, c in fields.get("segments", ()))
    found = fields.get("interpreter")
    if found is not None:
        ranges = tuple((int(start), int(end)) for start, end in found["evaluation"])
        fields["interpreter"] = RuntimeFile(found["name"], found["symbols"], ranges)
    return FileAnswer(**{**fields, "request": request})


def names_answer(request: int, message: Message) -> NamesAnswer:
    """The answer to a request for names from a message of the worker."""
    fields = {k: v for k, v in message.items() if k in NamesAnswer.__dataclass_fields__}
    return NamesAnswer(**{**fields, "request": request})
