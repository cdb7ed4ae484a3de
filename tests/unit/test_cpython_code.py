"""Reading code objects out of a process: of real interpreters, and of memory that lies.

The processes are real ones, read by process_vm_readv as the agent does; what lies is a buffer of this very process.
"""

import ctypes
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from flameherd_agent.elf.reader import PT_LOAD, ElfFile
from flameherd_agent.interpreters.base import NotReady, NotSupported, RuntimeFile, TornRead
from flameherd_agent.interpreters.cpython.attach import attach
from flameherd_agent.interpreters.cpython.code import MAX_NAME, read_code, tag
from flameherd_agent.interpreters.cpython.detect import detect
from flameherd_agent.interpreters.cpython.layouts import Layout, layout_of
from flameherd_agent.interpreters.memory import MAX_READ, MemoryGone, ProcessMemory
from flameherd_agent.process.maps import read_maps
from flameherd_agent.types import Pid
from hypothesis import given
from hypothesis import strategies as st

from tests.pythons import Python, pythons

OURSELVES = ProcessMemory(Pid(os.getpid()))
_SHOW = """
import sys
class Outer:
    def method(self):
        return 1
def täglich():
    pass
def \u540d\u524d():
    pass
for f in (Outer.method, täglich, \u540d\u524d):
    c = f.__code__
    print(id(c), c.co_firstlineno, id(c.co_filename), id(c.co_name))
sys.stdout.flush()
sys.stdin.read()
"""


@contextmanager
def showing(python: Python) -> Iterator[tuple[Pid, list[list[int]]]]:
    """A process, and (address, line, file name, name) of three of its functions."""
    process = subprocess.Popen(
        [python.executable, "-I", "-c", _SHOW],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={"PYTHONUTF8": "1", "LC_ALL": "C.UTF-8"},
    )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline().split() for _ in range(3)]
        yield Pid(process.pid), [[int(number) for number in line] for line in lines]
    finally:
        process.communicate()


def runtime_of(pid: Pid) -> tuple[RuntimeFile, int]:
    """What the worker and the process table would tell of a process."""
    for region in read_maps(pid):
        if "python" not in region.file.path:
            continue
        elf = ElfFile.open(Path(region.file.path))
        found = detect(elf)
        for segment in elf.segments:
            inside = segment.offset <= region.offset < segment.offset + segment.filesz
            if found is not None and segment.type == PT_LOAD and inside:
                return found, region.start - segment.vaddr - region.offset + segment.offset
    raise AssertionError(f"process {pid} maps no CPython")


@pytest.mark.parametrize("python", pythons(), ids=lambda python: python.name)
def test_names_and_lines_of_a_process(python: Python) -> None:
    with showing(python) as (pid, functions):
        memory = ProcessMemory(pid)
        layout = attach(memory, *runtime_of(pid))
        assert layout.version == python.version[:2]
        named = []
        for address, line, file, name in functions:
            second = tag(file, name, line) << 32
            named.append(read_code(memory, layout, address, second).lines(0xFFFFFFFF)[0])
            with pytest.raises(TornRead, match="another code object"):
                read_code(memory, layout, address, second ^ 1 << 40)
    method = "Outer.method" if python.version >= (3, 11) else "method"
    assert [line.function for line in named] == [method, "täglich", "名前"]
    assert [line.line for line in named] == [4, 6, 8]
    assert {line.file for line in named} == {"<string>"}


def test_a_process_that_is_gone() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    with pytest.raises(MemoryGone, match=str(process.pid)):
        ProcessMemory(Pid(process.pid)).read(0x1000, 8)


@pytest.mark.parametrize("size", [0, -1, MAX_READ + 1])
def test_reads_are_bounded(size: int) -> None:
    with pytest.raises(MemoryGone):
        OURSELVES.read(0x1000, size)


class Liar:
    """Memory of this process laid out as a CPython 3.12, full of what a test wants."""

    def __init__(self, data: bytes) -> None:
        self._buffer = ctypes.create_string_buffer(data, max(len(data), 4096))
        self.address = ctypes.addressof(self._buffer)

    def code(self, layout: Layout, name: int, table: int) -> int:
        """A code object at the buffer's start whose strings and table are where a test says. Its second word."""
        pointers = {"code.filename": name, "code.name": name, "code.qualname": name}
        for field, value in {**pointers, "code.lines": table}.items():
            struct.pack_into("<Q", self._buffer, layout[field], value)
        struct.pack_into("<I", self._buffer, layout["code.line"], 7)
        return tag(name, name, 7) << 32


@given(st.binary(min_size=64, max_size=64), st.integers(0, (1 << 64) - 1))
def test_objects_that_are_none(head: bytes, elsewhere: int) -> None:
    """Random headers of strings and tables, random pointers: refused or cut, never more than the cap."""
    layout = layout_of((3, 12))
    liar = Liar(b"")
    inner = Liar(head)
    for name, table in ((inner.address, inner.address), (inner.address, elsewhere)):
        second = liar.code(layout, name, table)
        try:
            line = read_code(OURSELVES, layout, liar.address, second).lines(0)[0]
        except (TornRead, MemoryGone):
            continue
        assert len(line.function) <= MAX_NAME


@given(st.binary(max_size=2000))
def test_a_runtime_that_lies(data: bytes) -> None:
    """Cyclic and random lists of threads: bounded, and never a layout without a thread that proves it."""
    liar = Liar(data)
    symbols = {"_PyRuntime": 0, "PyIter_Send": 0}
    with pytest.raises((NotReady, NotSupported, MemoryGone)):
        attach(OURSELVES, RuntimeFile("cpython", symbols), liar.address)


def test_threads_in_a_circle() -> None:
    liar = Liar(b"")
    layout = layout_of((3, 10))
    view = memoryview(liar._buffer).cast("B")
    # Every word points back to the buffer: interpreters and threads go round for ever.
    for at in range(0, 4096, 8):
        struct.pack_into("<Q", view, at, liar.address)
    symbols = {"_PyRuntime": 0, "PyIter_Send": 0}
    found = attach(OURSELVES, RuntimeFile("cpython", symbols), liar.address)
    assert (
        found.version == layout.version
    )  # the thread and its fs base are one address: it proves itself
