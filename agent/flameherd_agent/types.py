"""Identifiers that must not be mixed up, and the two values that naming and the pipeline share.

Every identifier is an `int` at run time; the names keep a process id from being used as a thread id
and an address from being used as an offset. Units are in the name or in the docstring, never
implied.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NewType

Pid = NewType("Pid", int)
"""Process id (thread-group id) in the initial pid namespace."""

Tid = NewType("Tid", int)
"""Thread id in the initial pid namespace."""

Address = NewType("Address", int)
"""A virtual address in a running process or in the kernel."""

FileAddress = NewType("FileAddress", int)
"""A virtual address as the ELF file states it (`p_vaddr` space): independent of ASLR."""

FileOffset = NewType("FileOffset", int)
"""A byte offset in a file."""

ExecutableId = NewType("ExecutableId", int)
"""Index of an executable in the kernel's `fh_executables` array; 0 means "no executable"."""

SlotId = NewType("SlotId", int)
"""Index of a policy slot in the kernel's `fh_slots` array."""

NO_SLOT: Final = SlotId(0)
"""No policy."""


class FrameType(StrEnum):
    """Values of `profile.frame.type` (OpenTelemetry semantic conventions)."""

    KERNEL = "kernel"
    NATIVE = "native"
    GO = "go"
    CPYTHON = "cpython"
    JVM = "jvm"
    V8JS = "v8js"


@dataclass(frozen=True, slots=True)
class Line:
    """One source-level function at a location."""

    function: str
    """Demangled name."""
    system_name: str = ""
    """The name as the symbol table has it, if it differs."""
    file: str = ""
    line: int = 0
    """1-based; 0 = not known."""
