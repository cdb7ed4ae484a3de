"""What the worker can do, by kind of request. Runs in the worker child only.

A job gets the request and returns the answer's fields; `ElfError` and its like become the answer's
error. Nothing here trusts the file: it is opened safely (`elf.open`), copied and hashed
(`snapshot.py`), and parsed from that copy.
"""

import contextlib
import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flameherd_agent.elf.identity import identify
from flameherd_agent.elf.open import MappedFile, OpenFile, open_in_root, open_mapped
from flameherd_agent.elf.reader import PF_X, PT_LOAD, ElfFile
from flameherd_agent.errors import ElfError, FlameherdError
from flameherd_agent.symbols.build import build_symbol_index
from flameherd_agent.symbols.debug_files import separate_debug_file
from flameherd_agent.symbols.index import SymbolIndex
from flameherd_agent.types import Pid
from flameherd_agent.unwind.table import UnwindTable
from flameherd_agent.worker import protocol
from flameherd_agent.worker.cache import Cache, CacheError
from flameherd_agent.worker.limits import MemoryLimit
from flameherd_agent.worker.protocol import Message
from flameherd_agent.worker.snapshot import Snapshot, take_snapshot
from flameherd_agent.worker.tables import full_table

_MAX_SEGMENTS = 64


class JobError(FlameherdError):
    """A request failed; `reason` is the word to count by."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(slots=True)
class Context:
    """What jobs share."""

    cache: Cache
    memory: MemoryLimit


Job = Callable[[Context, Message], Message]


def file_job(context: Context, request: Message) -> Message:
    """A mapped file: its ids, its unwind table, its names."""
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
    debug_files = _DebugFiles(mapped.pid, context.memory)
    return _results(context, snapshot, opened.size, mapped.path, debug_files)


def vdso_job(context: Context, request: Message) -> Message:
    """The vDSO: the kernel maps the same image into every 64-bit process, so the worker's own."""
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
                    snapshot = take_snapshot(fd, len(image))
                finally:
                    os.close(fd)
                return _results(context, snapshot, len(image), "[vdso]", None)
    raise JobError(protocol.OPEN, "the kernel has no vDSO")


def kallsyms_job(context: Context, request: Message) -> Message:
    """The kernel's names, under the file name that the request gives."""
    from flameherd_agent.symbols.kallsyms import build_kallsyms_index

    name = f"{request['name']}.kallsyms"
    path = context.cache.find(name)
    if path is None:
        path = context.cache.add(name, build_kallsyms_index)
    return {"path": os.fspath(path)}


JOBS: dict[str, Job] = {"file": file_job, "vdso": vdso_job, "kallsyms": kallsyms_job}


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


def _results(
    context: Context, snapshot: Snapshot, size: int, path: str, debug: _DebugFiles | None
) -> Message:
    elf = snapshot.elf
    table_path, rows, problem = _table(context.cache, snapshot)
    symbols_path, warning = _names(context.cache, snapshot, path, debug)
    identity = identify(elf)
    loads = [s for s in elf.segments if s.type == PT_LOAD]
    loads.sort(key=lambda s: not s.flags & PF_X)
    return {
        "content_key": snapshot.key,
        "gnu_build_id": identity.gnu_build_id,
        "go_build_id": identity.go_build_id,
        "htlhash": identity.htlhash,
        "size": size,
        "table_path": os.fspath(table_path),
        "symbols_path": "" if symbols_path is None else os.fspath(symbols_path),
        "rows": rows,
        "segments": [(s.vaddr, s.offset, s.filesz) for s in loads[:_MAX_SEGMENTS]],
        "is_go": snapshot.is_go,
        "warning": context.cache.warning or problem or warning,
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
) -> tuple[Path | None, str]:
    """(path of the symbol index or None, what went wrong or "").

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

    try:
        return cache.add(name, write), "; ".join(problems)
    except (ElfError, CacheError) as error:
        return None, f"no names: {error}"
