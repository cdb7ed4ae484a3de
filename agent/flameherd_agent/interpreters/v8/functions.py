"""Functions of JavaScript: what a SharedFunctionInfo says of name, script and bytecode.

It is known again by `fh_v8_identify`'s tag (`bpf/interpreters/v8.h`): numbers that stay the same as long as it lives.
"""

from typing import Final

from flameherd_agent.interpreters.base import TornRead
from flameherd_agent.interpreters.v8.heap import Heap, is_pointer, smi
from flameherd_agent.interpreters.v8.positions import PositionTable
from flameherd_agent.interpreters.v8.process import MOST_SCRIPTS, Process, keep
from flameherd_agent.interpreters.v8.scripts import Script, read_script
from flameherd_agent.interpreters.v8.words import mix, word_at
from flameherd_agent.types import Line

ANONYMOUS: Final = "(anonymous)"
"""As V8's own profiles call functions without a name."""
_MOST_LOCALS: Final = 75
"""kScopeInfoMaxInlinedLocalNamesSize: the names of more are in a table of their own."""
_SAVED_CLASS_VARIABLE, _FUNCTION_VARIABLE, _INFERRED = 1 << 10, 3 << 12, 1 << 14
"""Bits of ScopeFlags (src/objects/scope-info.tq)."""
_FLAGS, _LOCALS = 8, 24  # ScopeInfo
_SCOPE_BYTES: Final = 4096
_INTERPRETER_DATA: Final = 8
_EMPTY: Final = PositionTable(b"")


class Function:
    """A function: its name and the lines of its script."""

    __slots__ = ("name", "script")

    def __init__(self, name: str, script: Script | None) -> None:
        self.name = name
        self.script = script

    def line(self, offset: int) -> Line:
        """The line of a position in the script."""
        if self.script is None:
            return Line(self.name)
        return Line(self.name, file=self.script.file, line=self.script.line(offset))


class Shared:
    """A SharedFunctionInfo as it was read."""

    def __init__(self, heap: Heap, tagged: int) -> None:
        layout = heap.layout
        size = 8 + max(
            layout[f"shared.{name}"] for name in ("data", "script", "numbers", "flags", "name")
        )
        self.heap = heap
        self.at, self.body = heap.typed(tagged, size, "SharedFunctionInfo")
        self.data = word_at(self.body, layout["shared.data"])
        self.script = word_at(self.body, layout["shared.script"])
        self.script_body = b""
        self.identity: tuple[int, int]
        """Stays the same while the collector moves things; the tag does not."""
        numbers = word_at(self.body, layout["shared.numbers"]) >> 16 & 0xFFFFFFFF
        literal = word_at(self.body, layout["shared.flags"]) >> 32
        tag = mix(numbers, literal)
        if is_pointer(self.data):
            self.script, self.script_body = heap.typed(
                self.script, layout["script.id"] + 8, "Script"
            )
            self.identity = (literal, word_at(self.script_body, layout["script.id"]))
            tag = mix(mix(tag, self.identity[1]), self.script)
        else:
            self.identity = (numbers, self.data)
            tag = mix(tag, self.data)
        self.tag = tag >> 32

    def function(self, process: Process) -> Function:
        """The function by name. Raises TornRead, MemoryGone."""
        script = None
        if self.script_body:
            key = (self.identity[1], self.script)
            script = process.scripts.get(key)
            if script is None:
                script = keep(
                    process.scripts, key, read_script(self.heap, self.script), MOST_SCRIPTS
                )
        return Function(self._name(), script)

    def _name(self) -> str:
        heap = self.heap
        name = word_at(self.body, heap.layout["shared.name"])
        if not is_pointer(name):
            return ANONYMOUS
        name, head = heap.body(name, 32)
        kind = heap.type_of(head)
        if kind < heap.layout["FirstNonstringType"]:
            return heap.text(name) or ANONYMOUS
        if kind != heap.layout["type.ScopeInfo"]:
            return ANONYMOUS
        return self._scope_name(name, head) or ANONYMOUS

    def _scope_name(self, scope: int, head: bytes) -> str:
        """The function's name in its ScopeInfo, or else what V8 has inferred from where it was assigned to."""
        heap = self.heap
        flags = word_at(head, _FLAGS)
        if not flags & 0xFFFFFFFF:
            flags >>= 32  # a Smi before version 13
        flags &= 0xFFFFFFFF
        locals_ = smi(word_at(head, _LOCALS))
        at = heap.layout["scope.variables"]
        if flags & 15 == heap.layout["scope.function"] + 1:
            at += 8  # a module has a count of its variables in front
        at += 8 * (locals_ + (locals_ if locals_ < _MOST_LOCALS else 1))
        at += 8 if flags & _SAVED_CLASS_VARIABLE else 0
        if not 0 <= at <= _SCOPE_BYTES * 16:
            raise TornRead(f"process {heap.memory.pid}: {scope:#x} has {locals_} variables")
        names = []
        if flags & _FUNCTION_VARIABLE:
            names.append(heap.memory.word(scope - 1 + at))
            at += 16
        if flags & _INFERRED:
            names.append(heap.memory.word(scope - 1 + at))
        for name in names:
            if is_pointer(name) and heap.is_string(name):
                text = heap.text(name)
                if text:
                    return text
        return ""

    def bytecode(self) -> int | None:
        """The function's bytecode array, tagged; None if there is none any more."""
        return bytecode_of(self.heap, self.data)


def bytecode_of(heap: Heap, data: int) -> int | None:
    """The bytecode array that a function's data, or baseline code, leads to."""
    layout = heap.layout
    for _ in range(3):
        if not is_pointer(data):
            return None
        data, head = heap.body(data, max(layout["code.deopt"], _INTERPRETER_DATA) + 8)
        kind = heap.type_of(head)
        if kind == layout["type.BytecodeArray"]:
            return data
        if kind == layout["type.Code"]:  # of the baseline
            data = word_at(head, layout["code.deopt"])
        elif kind == layout.get("type.InterpreterData"):
            data = word_at(head, _INTERPRETER_DATA)
        else:
            return None
    return None


def positions_of(heap: Heap, bytecode: int) -> PositionTable:
    """The source positions of a bytecode array; an empty table if V8 has not kept them."""
    at = heap.layout["bytecode.positions"]
    table = word_at(heap.body(bytecode, at + 8)[1], at)
    if not is_pointer(table):
        return _EMPTY
    return PositionTable(heap.bytes_of(table))
