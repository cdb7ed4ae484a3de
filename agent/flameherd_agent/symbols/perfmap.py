"""Names of JIT-compiled code, from the `/tmp/perf-PID.map` that some runtimes write.

Node (`--perf-basic-prof`), .NET, LuaJIT, the JVM with perf-map-agent and others append a line
`START SIZE NAME` per function, START and SIZE in hexadecimal (Linux,
tools/perf/Documentation/jit-interface.txt). PID is the process's own, in its innermost pid
namespace, and the file is in its own root directory.

A process writes there what it likes: file, lines, names and memory have caps, malformed lines are
skipped, and a file of another user (but root) is not read, as in perf. Runtimes move code and
append again: of functions that overlap, the later line wins. Only what was appended is read again.
"""

import os
import time
from array import array
from bisect import bisect_right
from collections import OrderedDict
from pathlib import Path
from typing import Final

from flameherd_agent.elf.open import open_in_root
from flameherd_agent.errors import ElfError
from flameherd_agent.types import Address, Line, Pid

MAX_FILE_BYTES: Final = 16 << 20
"""What lies beyond is not read."""
MAX_CHUNK_BYTES: Final = 1 << 20
"""Read by one `update`."""
MAX_LINE_BYTES: Final = 4096
MAX_NAME_BYTES: Final = 1024
MAX_FUNCTIONS: Final = 65_536
MAX_NAMES_BYTES: Final = 4 << 20
"""Of one process."""
MAX_PROCESSES: Final = 256
"""Remembered, most of which have no map."""
MAX_TOTAL_BYTES: Final = 8 << 20
"""Of all processes; the least recently used give way."""
RECHECK_S: Final = 1.0
READ_S: Final = 0.5
"""A look at a file ends after this; the next one reads on."""
REST: Final = 20
"""A file is left alone for this many times as long as reading it took: who rewrites 16 MB each second
takes 5 % of a core, not all of the agent."""
_BYTES_PER_FUNCTION: Final = 24
_OVERLAPS: Final = 8
"""How many functions before an address are tried for the latest that covers it."""


def parse(data: bytes) -> list[tuple[int, int, bytes]]:
    """(start, end, name) of each well-formed line of a text."""
    found: list[tuple[int, int, bytes]] = []
    for line in data.split(b"\n"):
        fields = line.split(b" ", 2)
        if len(line) > MAX_LINE_BYTES or len(fields) != 3:
            continue
        start, size = _hex(fields[0]), _hex(fields[1])
        name = fields[2].partition(b"\0")[0].strip()[:MAX_NAME_BYTES]
        if start is not None and size and start + size < 1 << 64 and name:
            found.append((start, start + size, name))
    return found


def _hex(text: bytes) -> int | None:
    """A hexadecimal number of at most 64 bits, with or without 0x."""
    digits = text[2:] if text[:2] in (b"0x", b"0X") else text
    if not 0 < len(digits) <= 16 or not digits.isalnum():
        return None
    try:
        return int(digits, 16)
    except ValueError:
        return None


class PerfMap:
    """The functions of one map file so far, in columns sorted by start."""

    def __init__(self) -> None:
        self._identity: tuple[int, int] | None = None
        self._clear()

    def _clear(self) -> None:
        self._read = 0
        self._rest = b""
        self._starts = array("Q")
        self._ends = array("Q")
        self._places = array("I")
        """Offsets in `_names`; a later line has a larger one."""
        self._names = bytearray()
        self.is_cut = False
        """True when a cap was met: some functions stay unnamed."""

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def size_bytes(self) -> int:
        """Memory that the functions take."""
        return len(self._names) + _BYTES_PER_FUNCTION * len(self._starts)

    def update(self, fd: int) -> bool:
        """Reads what was appended since the last call; True if there is something new.

        `fd` is a regular file and stays the caller's. A file that was replaced or shrank is read
        anew. Raises `OSError`.
        """
        status = os.fstat(fd)
        identity = (status.st_dev, status.st_ino)
        if identity != self._identity or status.st_size < self._read:
            self._clear()
            self._identity = identity
        self.is_cut |= status.st_size > MAX_FILE_BYTES
        size = min(status.st_size, MAX_FILE_BYTES) - self._read
        if size <= 0:
            return False
        data = os.pread(fd, min(size, MAX_CHUNK_BYTES), self._read)
        self._read += len(data)
        whole, _, rest = (self._rest + data).rpartition(b"\n")
        self._rest = rest[: MAX_LINE_BYTES + 1]  # a line that is too long is skipped when it ends
        return self._add(parse(whole))

    def _add(self, functions: list[tuple[int, int, bytes]]) -> bool:
        rows = dict(zip(self._starts, zip(self._ends, self._places, strict=True), strict=True))
        for start, end, name in functions:
            is_full = len(self._names) + len(name) >= MAX_NAMES_BYTES
            if is_full or (len(rows) >= MAX_FUNCTIONS and start not in rows):
                self.is_cut = True
                continue
            rows[start] = (end, len(self._names))
            self._names += name + b"\0"
        order = sorted(rows)
        self._starts = array("Q", order)
        self._ends = array("Q", (rows[start][0] for start in order))
        self._places = array("I", (rows[start][1] for start in order))
        return bool(functions)

    def lookup(self, address: Address) -> Line | None:
        """The function at an address, or None."""
        last = bisect_right(self._starts, address)
        best = -1
        for at in range(last - 1, max(last - 1 - _OVERLAPS, -1), -1):
            if address < self._ends[at]:
                best = max(best, self._places[at])
        if best < 0:
            return None
        name = self._names[best : self._names.index(0, best)]
        return Line(name.decode("utf-8", "replace"))


class PerfMaps:
    """The maps of all processes: opened when a name is asked for, checked again once a second."""

    def __init__(self) -> None:
        self._maps: OrderedDict[Pid, tuple[PerfMap | None, float]] = OrderedDict()
        """Map, time before which it is not looked at again."""

    def lookup(self, pid: Pid, address: Address) -> Line | None:
        """The function at an address of a process; None without a map or a name."""
        found, due = self._maps.get(pid, (None, float("-inf")))
        now = time.monotonic()
        if now >= due:
            found = _refreshed(pid, found)
            took = time.monotonic() - now
            self._maps[pid] = (found, now + max(RECHECK_S, REST * took))
            self._evict()
        if pid in self._maps:
            self._maps.move_to_end(pid)
        return None if found is None else found.lookup(address)

    def _evict(self) -> None:
        """Forgets the least recently used maps over the caps, but never the newest."""
        size = sum(m.size_bytes for m, _ in self._maps.values() if m is not None)
        while len(self._maps) > 1 and (len(self._maps) > MAX_PROCESSES or size > MAX_TOTAL_BYTES):
            _, (gone, _) = self._maps.popitem(last=False)
            size -= gone.size_bytes if gone is not None else 0


def _refreshed(pid: Pid, known: PerfMap | None) -> PerfMap | None:
    """The map of a process, read on from what is known; None when it has none of its own."""
    try:
        opened = open_in_root(pid, f"/tmp/perf-{_namespaced_pid(pid)}.map")  # noqa: S108
    except (ElfError, OSError):
        return None  # nearly all processes
    try:
        owner = os.fstat(opened.fd).st_uid
        if owner not in (0, os.stat(f"/proc/{pid}").st_uid):  # noqa: PTH116
            return None
        found = known if known is not None else PerfMap()
        begun = time.monotonic()
        while found.update(opened.fd) and time.monotonic() - begun < READ_S:
            pass
        return found
    except OSError:  # the process or the file went away in between
        return None
    finally:
        opened.close()


def _namespaced_pid(pid: Pid) -> int:
    """The process's id in its innermost pid namespace (proc(5), NSpid). Raises `OSError`."""
    for line in Path(f"/proc/{pid}/status").read_bytes().splitlines():
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return pid
