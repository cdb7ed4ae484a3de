"""What the worker can do, by kind of request. Runs in the worker child only.

A job gets the request and returns the answer's fields; `ElfError` and its like become the answer's
error. Nothing here trusts the file: it is opened safely (`elf.open`), copied and hashed
(`snapshot.py`), and parsed from that copy.
"""

import contextlib
import ctypes
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from flameherd_agent.elf.identity import identify
from flameherd_agent.elf.open import MappedFile, OpenFile, open_in_root, open_mapped
from flameherd_agent.elf.reader import PF_X, PT_LOAD, ElfFile
from flameherd_agent.errors import ElfError, FlameherdError
from flameherd_agent.interpreters.registry import detect
from flameherd_agent.observe.memory import give_back
from flameherd_agent.symbols.build import build_symbol_index
from flameherd_agent.symbols.debug_files import separate_debug_file
from flameherd_agent.symbols.index import SymbolIndex
from flameherd_agent.types import Pid
from flameherd_agent.unwind.table import UnwindTable
from flameherd_agent.worker import protocol
from flameherd_agent.worker.cache import Cache
from flameherd_agent.worker.limits import MemoryLimit
from flameherd_agent.worker.protocol import Message
from flameherd_agent.worker.snapshot import Snapshot, take_snapshot
from flameherd_agent.worker.tables import full_table

_MAX_SEGMENTS = 64
MAX_KEPT_BYTES = 48 << 20
"""Of copies that wait for their names. node's is 40 MB."""

Key = tuple[str, ...]


class JobError(FlameherdError):
    """A request failed; `reason` is the word to count by."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(slots=True)
class _Copy:
    """A file that was read, kept until its names are made."""

    snapshot: Snapshot
    size: int


@dataclass(slots=True)
class Context:
    """What jobs share."""

    cache: Cache
    memory: MemoryLimit
    copies: dict[Key, _Copy] = field(default_factory=dict)
    """Oldest first."""

    def begin(self) -> None:
        """A new request."""
        self.memory.begin(sum(copy.size for copy in self.copies.values()))

    def keep(self, key: Key, copy: _Copy) -> None:
        """Until `names_job` asks for it, or newer ones need the room."""
        self.copies.pop(key, None)
        self.copies[key] = copy
        while (
            len(self.copies) > 1
            and sum(kept.snapshot.copied for kept in self.copies.values()) > MAX_KEPT_BYTES
        ):
            del self.copies[next(iter(self.copies))]


Job = Callable[[Context, Message], Message]


def _key(request: Message) -> Key:
    fields = ("pid", "path", "device", "inode", "start", "end")
    return tuple(str(request[field]) for field in fields)


def file_job(context: Context, request: Message) -> Message:
    """A mapped file: its ids and its unwind table."""
    return _table_answer(context, request, _read_file(context, request))


def vdso_job(context: Context, request: Message) -> Message:
    """The same of the vDSO."""
    return _table_answer(context, request, _read_vdso(request))


def names_job(context: Context, request: Message) -> Message:
    """The names of a file whose table was made: from the copy, if it is still there."""
    vdso = request["of"] == "vdso"
    copy = context.copies.pop(_key(request), None)
    if copy is None:
        copy = _read_vdso(request) if vdso else _read_file(context, request)
    if copy.snapshot.key != request["content_key"]:
        raise JobError(protocol.CHANGED, f"{request['path']!r} is another file by now")
    debug_files = None if vdso else _DebugFiles(Pid(request["pid"]), context.memory)
    path, warning = _names(context.cache, copy.snapshot, request["path"], debug_files)
    return {"symbols_path": os.fspath(path), "warning": context.cache.warning or warning}


def _read_file(context: Context, request: Message) -> _Copy:
    major, minor = request["device"]
    mapped = MappedFile(
        Pid(request["pid"]),
        request["path"],
        os.makedev(major, minor),
        request["inode"],
        request["start"],
        request["end"],
    )
    try:
        opened = open_mapped(mapped)
    except ElfError as error:
        raise JobError(protocol.OPEN, str(error)) from error
    try:
        context.memory.grow(opened.size)
        snapshot = take_snapshot(opened.fd, opened.size)
        if opened.changed():
            raise JobError(protocol.CHANGED, f"{mapped.path!r} was written to while it was read")
    finally:
        opened.close()
    return _Copy(snapshot, opened.size)


def _read_vdso(request: Message) -> _Copy:
    """The kernel maps the same image into every 64-bit process, so the worker's own."""
    wanted = request["end"] - request["start"]
    with open("/proc/self/maps", "rb") as maps:  # noqa: PTH123 - no size to read up to
        for line in maps:
            if line.rstrip().endswith(b"[vdso]"):
                start, end = (int(part, 16) for part in line.split()[0].split(b"-"))
                if end - start != wanted:
                    raise JobError(
                        protocol.MALFORMED,
                        f"a vDSO of {wanted} bytes, where ours has {end - start}",
                    )
                image = ctypes.string_at(start, wanted)
                fd = os.memfd_create("vdso")
                try:
                    os.write(fd, image)
                    return _Copy(take_snapshot(fd, len(image)), len(image))
                finally:
                    os.close(fd)
    raise JobError(protocol.OPEN, "the kernel has no vDSO")


def kallsyms_job(context: Context, request: Message) -> Message:
    """The kernel's names, under the file name that the request gives; made `anew` if it says so."""
    from flameherd_agent.symbols.kallsyms import build_kallsyms_index

    name = f"{request['name']}.kallsyms"
    path = None if request["anew"] else context.cache.find(name)
    if path is None:
        path = context.cache.add(name, build_kallsyms_index)
    return {"path": os.fspath(path)}


def rest_job(context: Context, request: Message) -> Message:
    """Something else needs the memory that earlier requests left."""
    return {"given": give_back()}


JOBS: dict[str, Job] = {
    "file": file_job,
    "vdso": vdso_job,
    "names": names_job,
    "kallsyms": kallsyms_job,
    "rest": rest_job,
}


class _DebugFiles:
    """Opens debug files inside a process's root, each once, as snapshots."""

    def __init__(self, pid: Pid, memory: MemoryLimit) -> None:
        self._pid = pid
        self._memory = memory
        self._found: dict[str, Snapshot | None] = {}

    def open(self, path: str) -> ElfFile | None:
        """A `DebugOpener`."""
        if path not in self._found:
            self._found[path] = self._open(path)
        snapshot = self._found[path]
        return None if snapshot is None else snapshot.elf

    def key(self, elf: ElfFile | None) -> str:
        """The key of a file that `open` gave."""
        return next((s.key for s in self._found.values() if s and s.elf is elf), "")

    def _open(self, path: str) -> Snapshot | None:
        try:
            opened: OpenFile = open_in_root(self._pid, path)
        except ElfError:
            return None  # the usual case: there is none
        self._memory.grow(opened.size)
        try:
            # A debug link states a CRC of the whole file.
            return take_snapshot(opened.fd, opened.size, whole="/.build-id/" not in path)
        except ElfError:
            return None
        finally:
            opened.close()


def _table_answer(context: Context, request: Message, copy: _Copy) -> Message:
    snapshot = copy.snapshot
    elf = snapshot.elf
    table_path, rows, problem = _table(context.cache, snapshot)
    identity = identify(elf)
    loads = [s for s in elf.segments if s.type == PT_LOAD]
    loads.sort(key=lambda s: not s.flags & PF_X)
    interpreter = detect(elf)
    context.keep(_key(request), copy)
    return {
        "content_key": snapshot.key,
        "gnu_build_id": identity.gnu_build_id,
        "go_build_id": identity.go_build_id,
        "htlhash": identity.htlhash,
        "size": copy.size,
        "table_path": os.fspath(table_path),
        "rows": rows,
        "segments": [(s.vaddr, s.offset, s.filesz) for s in loads[:_MAX_SEGMENTS]],
        "is_go": snapshot.is_go,
        "interpreter": None if interpreter is None else asdict(interpreter),
        "warning": context.cache.warning or problem,
    }


def _table(cache: Cache, snapshot: Snapshot) -> tuple[Path, int, str]:
    """(path, rows, problem) of the unwind table, from the cache if a sound one is there."""
    name = f"{snapshot.key}.rows"
    path = cache.find(name)
    if path is not None:
        try:
            return path, len(UnwindTable.load(path)), ""
        except (ElfError, OSError):
            pass  # damaged: made anew, under the same name
    table, problem = full_table(snapshot.elf)
    return cache.add(name, table.save), len(table), problem


def _names(
    cache: Cache, snapshot: Snapshot, path: str, debug: _DebugFiles | None
) -> tuple[Path, str]:
    """(path of the symbol index, what went wrong without spoiling it or "").

    A debug file is chosen by build id, which anyone can forge, and lies in the container: so its
    content is part of the name that the index is stored by.
    """
    key = snapshot.key
    if debug is not None and snapshot.elf.section(".symtab") is None:
        # One that does not belong to the file is left out, and the index tells when it is built.
        with contextlib.suppress(ElfError):
            key += debug.key(separate_debug_file(snapshot.elf, path, debug.open))
    name = f"{key}.names"
    found = cache.find(name)
    if found is not None:
        try:
            SymbolIndex.open(found)
        except (ElfError, OSError):
            pass  # damaged: made anew
        else:
            return found, ""
    opener = None if debug is None else debug.open
    problems: list[str] = []

    def write(to: Path) -> None:
        summary = build_symbol_index(snapshot.elf, to, opener=opener, path=path)
        problems.extend(summary.problems)

    return cache.add(name, write), "; ".join(problems)
