"""What is kept of the processes that run V8: scripts and compiled code, so that each is read once.

Nothing here is trusted without a look at the process: scripts are told apart by what stays the same of them, code by
where it lies and what it refers to.
"""

import re
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from flameherd_agent.interpreters.memory import MemoryGone
from flameherd_agent.types import Pid

if TYPE_CHECKING:
    from flameherd_agent.interpreters.v8.compiled import CompiledCode
    from flameherd_agent.interpreters.v8.scripts import Script

K = TypeVar("K")
V = TypeVar("V")
_MOST_MAPS_BYTES: Final = 4 << 20
_CODE: Final = re.compile(
    rb"^([0-9a-f]{1,16})-([0-9a-f]{1,16}) [r-][w-]x[ps] [0-9a-f]+ [0-9a-f]+:[0-9a-f]+ 0 *$",
    re.MULTILINE,
)
MOST_PROCESSES: Final = 64
MOST_SCRIPTS: Final = 1_000
"""Of one process."""
MOST_COMPILED: Final = 4_000

ScriptKey = tuple[int, int]
"""(id, where it lies)."""
CompiledKey = tuple[int, ...]


@dataclass(slots=True)
class Process:
    """One process."""

    scripts: "OrderedDict[ScriptKey, Script]" = field(default_factory=OrderedDict)
    compiled: "OrderedDict[CompiledKey, CompiledCode]" = field(default_factory=OrderedDict)
    ranges: set[tuple[int, int]] = field(default_factory=set)
    """Executable memory without a file: [start, end)."""
    code_map: int = 0
    """The map of the objects in front of compiled code; 0 = not seen yet."""


class Processes:
    """The processes that were looked at last."""

    def __init__(self) -> None:
        self._known: OrderedDict[Pid, Process] = OrderedDict()

    def of(self, pid: Pid) -> Process:
        process = self._known.get(pid)
        if process is None:
            process = self._known[pid] = Process()
            if len(self._known) > MOST_PROCESSES:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(pid)
        return process


def keep(cache: "OrderedDict[K, V]", key: K, value: V, most: int) -> V:
    """Put a value into a cache, whose oldest goes when it is full."""
    cache[key] = value
    if len(cache) > most:
        cache.popitem(last=False)
    return value


def code_ranges(pid: Pid) -> set[tuple[int, int]]:
    """Executable memory without a file, [start, end): where V8 may put code. Raises MemoryGone."""
    try:
        with Path(f"/proc/{pid}/maps").open("rb") as file:
            text = file.read(_MOST_MAPS_BYTES)
    except OSError as error:
        raise MemoryGone(f"process {pid}: its mappings cannot be read: {error.strerror}") from error
    return {(int(found[1], 16), int(found[2], 16)) for found in _CODE.finditer(text)}
