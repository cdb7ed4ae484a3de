"""Where HotSpot's interpreter has no frame, or not a whole one: in its method entries and behind its returns.

The interpreter is generated when the JVM starts, and stays. It is a queue of codelets; those of method entries make
the frame, and some others leave it. Which instructions do so is found by their bytes (`templateInterpreterGenerator_x86`
and `interp_masm_x86` of JDK 8 to 26 make them): everywhere else rbp leads to the frame.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from flameherd_agent.interpreters.base import NotReady, NotSupported
from flameherd_agent.interpreters.hotspot.vmstructs import VmStructs
from flameherd_agent.interpreters.memory import ProcessMemory
from flameherd_agent.kernel.abi import HotspotRule, Limit

MAX_INTERPRETER_BYTES: Final = 1 << 20
_LEAST_STUBS: Final = 200
"""A codelet for each bytecode, and some more: with fewer the interpreter is still being made."""
_ENTRY: Final = b"method entry point"
_OLD_ENTRY: Final = b"native method entry point"
_DESCRIPTION_BYTES: Final = 48

_POP_RETURN: Final = bytes.fromhex("584c8d74ccf8")
"""pop rax; lea r14, [rsp + rcx * 8 - 8]"""
_FIXED_FRAME: Final = bytes.fromhex("5055488bec4155")
"""push rax; push rbp; mov rbp, rsp; push r13"""
_FIXED_END: Final = re.compile(rb"\x41\x55(?:\x68|\x6a)")
"""push r13; push 0: the bytecode pointer, then the last word."""
_FIXED_BYTES: Final = 128
_LEAVE: Final = re.compile(
    rb"\xc9(?:\x41\xc6\x87.{4}\x00)?"  # leave; mov byte [r15 + n], 0
    rb"(?P<pop>\x41\x5d|[\x58-\x5f])"  # pop r13, or another
    rb"(?P<switch>\x48\x8b\xe3)"  # mov rsp, rbx
    rb"(?:.{0,24}?(?P<jump>\x41\xff\xe5))?",  # jmp r13
    re.DOTALL,
)

Region = tuple[int, HotspotRule]
"""(first byte, counted from the interpreter's; rule up to the next region)"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The interpreter of one JVM."""

    start: int
    end: int
    regions: tuple[Region, ...]


def read_interpreter(memory: ProcessMemory, vm: VmStructs) -> Interpreter:
    """Raises NotReady while it is being generated, NotSupported, MemoryGone."""
    queue = memory.word(vm.static("AbstractInterpreter", "_code"))
    if not queue:
        raise NotReady(f"process {memory.pid}: the interpreter is not made yet")
    start = memory.word(queue + vm.offset("StubQueue", "_stub_buffer"))

    def number(name: str) -> int:
        data = memory.read(queue + vm.offset("StubQueue", name), 4)
        return int(struct.unpack("<i", data)[0])

    first, end = number("_queue_begin"), number("_queue_end")
    if number("_number_of_stubs") < _LEAST_STUBS:
        raise NotReady(f"process {memory.pid}: the interpreter is not whole yet")
    if first != 0 or not 0 < end <= MAX_INTERPRETER_BYTES:
        raise NotSupported("layout", f"an interpreter of {end} bytes makes no sense")
    code = memory.read(start, end)
    found: list[Region] = []
    for at, size, is_entry in _codelets(memory, vm, code):
        found += entry(code, at, at + size) if is_entry else leaves(code, at, at + size)
    regions = merge(found)
    if len(regions) > Limit.HOTSPOT_REGIONS:
        raise NotSupported("layout", f"the interpreter has {len(regions)} regions")
    return Interpreter(start, start + end, regions)


def _codelets(memory: ProcessMemory, vm: VmStructs, code: bytes) -> Iterator[tuple[int, int, bool]]:
    """(first byte, bytes, whether it is a method's entry) of each codelet; its own head included."""
    size_at = vm.offset("InterpreterCodelet", "_size")
    name_at = vm.offset("InterpreterCodelet", "_description")
    head = vm.size("InterpreterCodelet")
    at = 0
    while at + head <= len(code):
        size = struct.unpack_from("<i", code, at + size_at)[0]
        if not head <= size <= len(code) - at:
            raise NotSupported("layout", f"an interpreter's codelet of {size} bytes makes no sense")
        name = struct.unpack_from("<Q", code, at + name_at)[0]
        text = memory.read_some(name, _DESCRIPTION_BYTES) if name else b""
        yield at, size, text.startswith((_ENTRY, _OLD_ENTRY))
        at += size


def entry(code: bytes, start: int, end: int) -> Iterator[Region]:
    """A method's entry: up to the fixed frame there is none."""
    yield start, HotspotRule.ENTRY
    fixed = code.find(_FIXED_FRAME, start, end)
    if fixed >= 0:
        popped = code.rfind(_POP_RETURN, start, fixed)
        if popped >= 0:
            yield popped + 1, HotspotRule.ENTRY_RAX
        yield fixed + 1, HotspotRule.ENTRY  # the return address is back
        yield fixed + 2, HotspotRule.PUSHED
        yield fixed + 7, HotspotRule.FIXING
        whole = _FIXED_END.search(code, fixed + 7, min(end, fixed + _FIXED_BYTES))
        yield (whole.end() + 4 if whole else fixed + _FIXED_BYTES), HotspotRule.FRAME
        yield from leaves(code, fixed + 7, end)
    yield end, HotspotRule.FRAME


def leaves(code: bytes, start: int, end: int) -> Iterator[Region]:
    """Where the frame is left."""
    for found in _LEAVE.finditer(code, start, end):
        by_r13 = found["pop"] == b"\x41\x5d"
        yield found.start() + 1, HotspotRule.LEFT
        popped = HotspotRule.LEFT_R13 if by_r13 else HotspotRule.LEFT_BELOW
        yield found.end("pop"), popped
        if by_r13 and found["jump"]:
            yield found.end("switch"), HotspotRule.LEFT_JUMP
            yield found.end("jump"), HotspotRule.FRAME
        else:
            yield found.end("switch"), HotspotRule.FRAME


def merge(regions: list[Region]) -> tuple[Region, ...]:
    """Sorted, of equal starts the last one, of equal neighbours the first."""
    result: list[Region] = []
    for start, rule in sorted(dict(regions).items()):
        if rule != (result[-1][1] if result else HotspotRule.FRAME):
            result.append((start, rule))
    return tuple(result)
