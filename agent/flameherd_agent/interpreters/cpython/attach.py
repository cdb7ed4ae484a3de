"""Looks at a process that maps CPython: which version it is, and where its threads keep their state.

Nothing is taken for granted that can be asked: CPython notes each thread's `pthread_self()`, which is the thread's
fs base, in its thread state. So the place of the thread-specific data is verified on the process's own threads, and,
where the key of a build is not where its version's headers say, found by them.
"""

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final

from flameherd_agent.interpreters.base import NotReady, NotSupported, RuntimeFile
from flameherd_agent.interpreters.cpython.layouts import (
    Layout,
    ThreadSlot,
    debug_fields,
    layout_of,
    thread_slots,
    told_by_process,
)
from flameherd_agent.interpreters.memory import MemoryGone, ProcessMemory

_MASK: Final = (1 << 64) - 1
_MOST_THREADS: Final = 64
"""Threads that are looked at; the first that fits decides, the others may only agree."""
_MOST_INTERPRETERS: Final = 8
_MOST_KEYS: Final = 128
_MARKERS: Final = {"PyIter_Send": 10, "PyFrame_GetBack": 9, "PyCode_NewWithPosOnlyArgs": 8}


def attach(memory: ProcessMemory, file: RuntimeFile, bias: int) -> Layout:
    """The layout of the CPython in `file`, mapped at `bias`.

    Raises NotReady before it has a thread, NotSupported, or MemoryGone.
    """

    def address(name: str) -> int | None:
        value = file.symbols.get(name)
        return None if value is None else (value + bias) & _MASK

    layout = layout_of(_version(memory, file, address("Py_Version")))
    runtime = address("_PyRuntime")
    if runtime is None and layout.version >= (3, 7):
        raise NotSupported("symbols", "the symbol _PyRuntime is missing")
    fields = debug_fields(layout.version)
    if runtime is not None and fields:
        layout = told_by_process(layout, memory.read(runtime, 8 * len(fields)))
    threads = _threads(memory, layout, runtime, address("interp_head"))
    if not threads:
        threads = _current_thread(memory, layout, address("_PyThreadState_Current"))
    if not threads:
        raise NotReady(f"process {memory.pid}: CPython has no thread yet")
    keys = list(_keys(memory, layout, runtime, address("autoTLSkey")))
    for key in keys + [key for key in range(_MOST_KEYS) if key not in keys]:
        for slot in thread_slots(key):
            if _holds(memory, slot, threads):
                return replace(layout, slot=slot)
    raise NotReady(f"process {memory.pid}: no thread refers to its state yet")


def _version(memory: ProcessMemory, file: RuntimeFile, at: int | None) -> tuple[int, int]:
    if at is not None:
        number = memory.word(at)
        return number >> 24 & 0xFF, number >> 16 & 0xFF
    for marker, minor in _MARKERS.items():
        if marker in file.symbols:
            return 3, minor
    return (3, 7) if "_PyRuntime" in file.symbols else (3, 6)


def _threads(
    memory: ProcessMemory, layout: Layout, runtime: int | None, head: int | None
) -> list[tuple[int, int]]:
    """(thread state, fs base) of the process's threads."""
    if runtime is not None:
        head = runtime + layout["runtime.interpreters"]
    found: list[tuple[int, int]] = []
    interpreter = 0 if head is None else memory.word(head)
    for _ in range(_MOST_INTERPRETERS):
        if not interpreter:
            break
        with suppress(MemoryGone):  # threads come and go meanwhile
            found += _chain(memory, layout, memory.word(interpreter + layout["interp.threads"]))
        interpreter = memory.word(interpreter + layout["interp.next"])
    return found


def _chain(memory: ProcessMemory, layout: Layout, thread: int) -> Iterator[tuple[int, int]]:
    for _ in range(_MOST_THREADS):
        if not thread:
            return
        base = memory.word(thread + layout["thread.thread_id"])
        if base:
            yield thread, base
        thread = memory.word(thread + layout["thread.next"])


def _current_thread(memory: ProcessMemory, layout: Layout, at: int | None) -> list[tuple[int, int]]:
    """3.6 without its local symbols: the thread that has the interpreter's lock, if one has it."""
    thread = 0 if at is None else memory.word(at)
    return [(thread, memory.word(thread + layout["thread.thread_id"]))] if thread else []


def _keys(
    memory: ProcessMemory, layout: Layout, runtime: int | None, at: int | None
) -> Iterator[int]:
    """The key as the version's headers place it."""
    offset = layout.get("runtime.key")
    if runtime is not None and offset is not None:
        at = runtime + offset
    if at is not None:
        key = struct.unpack("<i", memory.read(at, 4))[0]
        if 0 <= key < _MOST_KEYS:
            yield key


def _holds(memory: ProcessMemory, slot: ThreadSlot, threads: list[tuple[int, int]]) -> bool:
    """Whether a thread keeps its state there, and none keeps something else that is no thread state."""
    states = {state for state, _ in threads}
    fits = False
    for state, base in threads:
        try:
            value = memory.word(base + slot.at)
            if slot.second is not None and value:
                value = memory.word(value + slot.second)
        except MemoryGone:
            continue
        if value and value not in states:
            return False
        fits |= value == state
    return fits
