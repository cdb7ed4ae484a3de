"""Executables: from the file that a mapping shows to an id in frame words, rows in the kernel and names.

The worker opens and parses the file; until it answers, the executable is `WANTED` and samples that meet it go cold.
What most processes map is asked for first, very large files last. Its names come later, in an answer of their own: samples do not wait for them, an interval's end does.
Executables of the same content share rows. An executable that no process maps is kept for a while, since the next
process of the same program is likely, and its id is never used for another file: a late sample would be mis-named.
"""

import enum
import itertools
import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from flameherd_agent.errors import ElfError
from flameherd_agent.interpreters.base import RuntimeFile
from flameherd_agent.kernel.abi import Limit, MappingFlag
from flameherd_agent.model import Mapping
from flameherd_agent.process.maps import NO_FILE, VDSO_FILE, FileKey, Region, display_path
from flameherd_agent.symbols.index import SymbolIndex
from flameherd_agent.types import ExecutableId, Pid
from flameherd_agent.unwind.slabs import NO_ROWS_TABLE, PENDING_TABLE, LoadedPart, SlabStore
from flameherd_agent.unwind.table import UnwindTable
from flameherd_agent.worker import protocol
from flameherd_agent.worker.client import FileAnswer, FileRequest, NamesAnswer, WorkerClient

log = logging.getLogger(__name__)

NO_EXECUTABLE: Final = ExecutableId(0)
_KEEP_UNUSED_NS: Final = 600_000_000_000
_MAX_TRIES: Final = 8
"""A file is asked for through this many processes before it is called unreadable."""
_LARGE_BYTES: Final = 64 << 20
"""Of code: a file with more may take the worker seconds, on a busy machine up to its limit. Others come first."""
_BEHIND: Final = 1 << 20
_LIES_WITH_FILE: Final = frozenset(
    (protocol.MALFORMED, protocol.MEMORY, protocol.TIMEOUT, protocol.CRASHED)
)
"""Reasons why another process would be no help, and another try could cost others the whole time limit."""
_ADDRESS_MASK: Final = (1 << 64) - 1


class State(enum.Enum):
    WANTED = enum.auto()
    READY = enum.auto()
    UNREADABLE = enum.auto()


@dataclass(slots=True, eq=False)
class Executable:
    """A file with code that a profiled process maps."""

    id: ExecutableId
    key: FileKey
    mapping: Mapping
    state: State = State.WANTED
    reason: str = ""
    """Why it is unreadable."""
    content: str = ""
    segments: tuple[tuple[int, int, int], ...] = ()
    """(address in the file, file offset, bytes) of each loadable segment."""
    table: UnwindTable | None = None
    parts: tuple[LoadedPart, ...] = ()
    interpreter: RuntimeFile | None = None
    symbols_path: Path | None = None
    symbols: SymbolIndex | None = None
    names_due: bool = True
    """Its names are still being made."""
    tries: int = 0
    others: deque[tuple[Pid, Region]] = field(default_factory=lambda: deque(maxlen=_MAX_TRIES))
    """Through which else it can be read if the process that the worker was told of is gone."""
    users: set[int] = field(default_factory=set)
    """Cookies of the processes that map it."""
    unused_since_ns: int = 0

    def bias(self, region: Region) -> int | None:
        """Virtual address - address in the file, modulo 2^64, for a region that shows this file."""
        for address, offset, size in self.segments:
            # The loader maps whole pages: a region may begin up to a page before its segment's first byte.
            if offset - 4095 <= region.offset < offset + max(size, 1):
                return (region.start - (address + region.offset - offset)) & _ADDRESS_MASK
        return None


class Executables:
    """The registry. `poll` moves it on."""

    def __init__(self, worker: WorkerClient, slabs: SlabStore) -> None:
        self._worker = worker
        self._slabs = slabs
        self._by_key: dict[FileKey, Executable] = {}
        self._by_id: dict[ExecutableId, Executable] = {}
        self._requests: dict[int, tuple[Executable, FileRequest]] = {}
        self._naming: dict[int, Executable] = {}
        self._ids = itertools.count(1)
        self.unreadable: dict[str, int] = {}
        """{reason: executables}"""

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, executable: ExecutableId) -> Executable | None:
        return self._by_id.get(executable)

    def want(self, cookie: int, pid: Pid, region: Region) -> Executable | None:
        """The executable that a region of a process shows, asked of the worker at first sight; None without a file."""
        if region.file == NO_FILE:
            return None
        found = self._by_key.get(region.file)
        if found is None:
            found = self._add(region.file)
            if found is None:
                return None
            self._request(found, pid, region)
        elif found.state is State.WANTED:
            found.others.append((pid, region))
        elif found.state is State.UNREADABLE and (not found.users or found.tries < _MAX_TRIES):
            # Unreadable through another process, which may have been in another root or gone.
            found.state = State.WANTED
            self._request(found, pid, region)
        found.users.add(cookie)
        return found

    def _add(self, key: FileKey) -> Executable | None:
        number = next(self._ids)
        if number >= Limit.MAX_EXECUTABLES:
            return None
        executable = Executable(ExecutableId(number), key, Mapping(display_path(key.path)))
        self._by_key[key] = executable
        self._by_id[executable.id] = executable
        return executable

    def _request(self, executable: Executable, pid: Pid, region: Region) -> None:
        executable.tries += 1
        major, minor = region.file.device
        request = FileRequest(
            pid=pid,
            path=region.file.path,
            device=(major, minor),
            inode=region.file.inode,
            start=region.start,
            end=region.end,
            kind="vdso" if region.file == VDSO_FILE else "file",
        )
        behind = _BEHIND if region.end - region.start > _LARGE_BYTES else 0
        number = self._worker.submit(request, lambda: len(executable.users) - behind)
        self._requests[number] = (executable, request)

    def leave(self, cookie: int, executables: Iterable[Executable]) -> None:
        """The process maps these no longer."""
        now = time.monotonic_ns()
        for executable in executables:
            executable.users.discard(cookie)
            if not executable.users:
                executable.unused_since_ns = now

    def poll(self) -> set[int]:
        """Take the worker's answers. Returns cookies of the processes that they change."""
        changed: set[int] = set()
        for answer in self._worker.poll():
            if isinstance(answer, NamesAnswer):
                self._take_names(self._naming.pop(answer.request), answer)
                continue
            executable, request = self._requests.pop(answer.request)
            self._take(executable, request, answer)
            changed |= executable.users
        return changed

    @property
    def naming(self) -> bool:
        """Whether names are being made."""
        return bool(self._naming)

    def hurry(self, wanted: set[ExecutableId]) -> bool:
        """Have these executables named before others. Returns whether one of them is not named yet."""
        due = [number for number, executable in self._naming.items() if executable.id in wanted]
        self._worker.hurry(due)
        return bool(due)

    def _take(self, executable: Executable, request: FileRequest, answer: FileAnswer) -> None:
        if answer.error:
            if answer.reason in _LIES_WITH_FILE:
                executable.tries = _MAX_TRIES
            if executable.others and executable.tries < _MAX_TRIES:
                # Newest first: the one that is most likely to be still there.
                self._request(executable, *executable.others.pop())
                return
            self._refuse(executable, answer.reason, answer.error)
            return
        executable.mapping = Mapping(
            display_path(executable.key.path),
            answer.gnu_build_id,
            answer.go_build_id,
            answer.htlhash,
        )
        executable.content = answer.content_key
        executable.segments = tuple(answer.segments)
        executable.interpreter = answer.interpreter
        try:
            executable.table = UnwindTable.load(Path(answer.table_path))
        except (ElfError, OSError) as error:
            self._refuse(executable, "cache", str(error))
            return
        executable.state = State.READY
        executable.others.clear()
        self._naming[self._worker.submit_names(request, answer.content_key)] = executable
        if len(executable.table.pcs):
            executable.parts = self._slabs.acquire(executable.content, executable.table) or ()
            # The rows are in the kernel now; user space needs them again only for cold samples.
            executable.table.shed()

    def _take_names(self, executable: Executable, answer: NamesAnswer) -> None:
        executable.names_due = False
        if answer.error:
            path = executable.mapping.path
            log.info("functions of %s stay unnamed: %s", path, answer.error)
        else:
            executable.symbols_path = Path(answer.symbols_path)

    def _refuse(self, executable: Executable, reason: str, detail: str) -> None:
        executable.state = State.UNREADABLE
        executable.names_due = False
        executable.reason = detail
        self.unreadable[reason] = self.unreadable.get(reason, 0) + 1
        log.info("executable %s is unreadable: %s", executable.mapping.path, detail)

    def table_spans(self, executable: Executable, region: Region) -> list[tuple[int, int, int]]:
        """(start, end, kernel table) of a region: one span, or several where the table has several parts."""
        if executable.state is State.WANTED:
            return [(region.start, region.end, PENDING_TABLE)]
        bias = executable.bias(region)
        if not executable.parts or bias is None:
            return [(region.start, region.end, NO_ROWS_TABLE)]
        spans: list[tuple[int, int, int]] = []
        start = region.start
        for part, following in itertools.zip_longest(executable.parts, executable.parts[1:]):
            end = region.end
            if following is not None:
                end = min(end, (following.start + bias) & _ADDRESS_MASK)
            if end > start:
                spans.append((start, end, part.table))
                start = end
        return spans

    def evaluation_spans(
        self, executable: Executable, spans: Iterable[tuple[int, int, int]], bias: int
    ) -> Iterator[tuple[int, int, int, int]]:
        """(start, end, kernel table, flags): `spans`, cut where an interpreter's evaluation loop begins and ends."""
        ranges = executable.interpreter.evaluation if executable.interpreter is not None else ()
        borders = sorted((border + bias) & _ADDRESS_MASK for pair in ranges for border in pair)
        for start, end, table in spans:
            cuts = [start, *(border for border in borders if start < border < end), end]
            for first, last in itertools.pairwise(cuts):
                inside = any(
                    (a + bias) & _ADDRESS_MASK <= first < (b + bias) & _ADDRESS_MASK
                    for a, b in ranges
                )
                yield first, last, table, MappingFlag.EVAL if inside else 0

    def expire(self, now_ns: int) -> None:
        """Forget executables that nothing has mapped for a while; their rows may go when room is needed."""
        for key, executable in list(self._by_key.items()):
            if (
                executable.users
                or executable.state is State.WANTED
                or now_ns - executable.unused_since_ns < _KEEP_UNUSED_NS
            ):
                continue
            if executable.parts:
                self._slabs.release(executable.content)
            del self._by_key[key]
            del self._by_id[executable.id]

    def shed(self) -> None:
        """Give back what cold samples made resident of the tables' files."""
        for executable in self._by_key.values():
            table = executable.table
            if table is not None and table.file is not None and table.file.is_read:
                table.shed()

    def symbols_of(self, executable: Executable) -> SymbolIndex | None:
        """Its names, opened at first use. None if it has none or they cannot be read."""
        if executable.symbols is None and executable.symbols_path is not None:
            try:
                executable.symbols = SymbolIndex.open(executable.symbols_path)
            except (ElfError, OSError) as error:
                log.warning("no names for %s: %s", executable.mapping.path, error)
                executable.symbols_path = None
        return executable.symbols
