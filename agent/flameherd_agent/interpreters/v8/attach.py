"""Looks at a process that maps V8: which version it is, and what it exports of its structures."""

import struct
from typing import Final

from flameherd_agent.interpreters.base import NotReady, NotSupported, RuntimeFile
from flameherd_agent.interpreters.memory import MemoryGone, ProcessMemory
from flameherd_agent.interpreters.v8.layouts import Layout, complete
from flameherd_agent.interpreters.v8.process import Processes

_MASK: Final = (1 << 64) - 1
_MOST_BYTECODES: Final = 256
_SCALES: Final = 3
_PROCESSES: Final = Processes()


def attach(memory: ProcessMemory, file: RuntimeFile, bias: int) -> Layout:
    """The layout of the V8 in `file`, mapped at `bias`. Raises NotReady, NotSupported, or MemoryGone."""
    if not file.evaluation:
        raise NotSupported("builtins", "where V8's builtins lie is not known: the file is stripped")

    def number(name: str) -> int:
        at = file.symbols.get(name)
        if at is None:
            raise NotSupported("symbols", f"V8 does not export {name}")
        return int(struct.unpack("<i", memory.read((at + bias) & _MASK, 4))[0])

    version = number("version.major"), number("version.minor")
    if version[0] == 0:
        raise NotReady(f"process {memory.pid}: V8 has no version yet")
    apart = ("version.major", "version.minor", "bytecode.sizes")
    exported = {name: number(name) for name in file.symbols if name not in apart}
    return Layout(version, complete(version, exported), _sizes(memory, file, bias), _PROCESSES)


def _sizes(memory: ProcessMemory, file: RuntimeFile, bias: int) -> tuple[bytes, ...]:
    """`Bytecodes::kBytecodeSizes`: as many bytes for each of three operand scales as there are bytecodes.

    How many those are is not said: the first instructions, Wide and its like, have one byte at each scale; the first
    scale's sizes are no more than the second's, and those no more than the third's.
    """
    at = file.symbols.get("bytecode.sizes")
    if at is None:
        return ()
    try:
        data = memory.read((at + bias) & _MASK, _SCALES * _MOST_BYTECODES)
    except MemoryGone:
        return ()
    for count in range(128, _MOST_BYTECODES + 1):
        scales = tuple(data[count * scale : count * (scale + 1)] for scale in range(_SCALES))
        if all(1 <= a <= b <= c <= 2 * b for a, b, c in zip(*scales, strict=True)):
            return scales
    return ()
