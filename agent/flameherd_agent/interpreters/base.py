"""What every interpreter's plug-in consists of, and what passes between it and the agent.

A file is recognised in the worker, from its symbols alone (`detect`). A process that maps such a file is looked at
by the agent (`attach`): which version, where its threads keep their state. The result is a *layout*, a row of
numbers that the kernel side unwinds by; processes of the same build share one. Frames come back as words, and are
named (`read_code`) as soon as they arrive, since the memory that they point to may be freed or gone soon after.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from flameherd_agent.elf.reader import ElfFile
from flameherd_agent.errors import FlameherdError
from flameherd_agent.interpreters.memory import ProcessMemory
from flameherd_agent.kernel.abi import FrameKind, Program
from flameherd_agent.types import FrameType, Line


class NotReady(FlameherdError):
    """The interpreter has not initialised itself yet: ask again in a moment."""


class NotSupported(FlameherdError):
    """This build's structures are not known. `reason` is a word to count by."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class TornRead(FlameherdError):
    """Memory did not hold what it held when the sample was taken, or makes no sense."""


@dataclass(frozen=True, slots=True)
class RuntimeFile:
    """An executable file that contains an interpreter."""

    name: str
    """`Interpreter.name`."""
    symbols: dict[str, int]
    """Addresses in the file of what `attach` looks at."""
    evaluation: tuple[tuple[int, int], ...] = ()
    """[start, end) in the file of the evaluation loop's code."""


class Code(Protocol):
    """A function of the interpreted program."""

    def lines(self, position: int) -> tuple[Line, ...]:
        """The function, its file, and the line at a position; what was inlined there comes first, innermost first."""

    def arrive(self, memory: ProcessMemory, position: int) -> None:
        """A frame at this position was seen: read now what `lines` needs of the process's memory.

        Raises TornRead, MemoryGone.
        """


class Layout(Protocol):
    """What is known of one build of an interpreter."""

    def row(self) -> NDArray[Any]:
        """The kernel side's record of it: an array of one element."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """One plug-in."""

    name: str
    sources: tuple[str, ...]
    """Below `bpf/`, in the order in which they are joined behind the core's."""
    program: str
    """Function of the eBPF program."""
    number: Program
    """Its index among the tail calls."""
    process_info: str
    """The map of its layouts."""
    frame_kind: FrameKind
    frame_type: FrameType
    detect: Callable[[ElfFile], RuntimeFile | None]
    """Raises `ElfError`."""
    attach: Callable[[ProcessMemory, RuntimeFile, int], Layout]
    """(memory, file, bias of its mapping). Raises NotReady, NotSupported, MemoryGone."""
    symbolize: Callable[[ProcessMemory, Layout, int, int], Code]
    """(memory, layout, first word's address, second word) of a frame. Raises TornRead, MemoryGone."""
