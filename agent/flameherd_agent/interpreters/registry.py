"""Every interpreter that the agent knows."""

from typing import Final

from flameherd_agent.elf.reader import ElfFile
from flameherd_agent.interpreters.base import Interpreter, RuntimeFile
from flameherd_agent.interpreters.cpython import CPYTHON
from flameherd_agent.interpreters.hotspot import HOTSPOT
from flameherd_agent.interpreters.v8 import V8

INTERPRETERS: Final[tuple[Interpreter, ...]] = (CPYTHON, HOTSPOT, V8)
BY_NAME: Final = {interpreter.name: interpreter for interpreter in INTERPRETERS}


def detect(elf: ElfFile) -> RuntimeFile | None:
    """The interpreter that a file contains, or None. Raises `ElfError`."""
    for interpreter in INTERPRETERS:
        found = interpreter.detect(elf)
        if found is not None:
            return found
    return None
