"""Recognises V8 in an ELF file by the numbers that it exports for debuggers. Runs in the worker.

`v8dbg_class_CLASS__FIELD__TYPE` is the offset of a field: the type is not of interest and differs from version to
version. The numbers themselves are read from the process (`attach.py`): they lie in parts of the file that the worker
leaves out.

V8's builtins are machine code in the file, without unwind information: where they begin and end follows from their
symbols. A stripped file is refused.
"""

import re
from typing import Final

import numpy as np
import numpy.typing as npt

from flameherd_agent.elf.reader import ElfFile
from flameherd_agent.interpreters.base import RuntimeFile
from flameherd_agent.symbols.elf_symbols import symbol_tables

NAME: Final = "v8"
_MARK: Final = b"v8dbg_HeapObjectTag"
_EXPORTED: Final = re.compile(rb"\0v8dbg_([A-Za-z0-9_]{1,200})(?=\0)")
_FIELD: Final = re.compile(r"class_(\w+?)__(\w+?)__\w+")
_BUILTIN: Final = re.compile(rb"\0Builtins_[A-Za-z0-9_]{1,200}(?=\0)")
_OTHERS: Final = {
    "version.major": b"_ZN2v88internal7Version6major_E",
    "version.minor": b"_ZN2v88internal7Version6minor_E",
    "bytecode.sizes": b"_ZN2v88internal11interpreter9Bytecodes14kBytecodeSizesE",
}
CONSTANTS: Final = frozenset((
    "HeapObjectTag", "SmiTagMask", "SmiShiftSize", "TaggedSize", "ConsStringTag", "ExternalStringTag", "SlicedStringTag",
    "ThinStringTag", "OneByteStringTag", "StringEncodingMask", "StringRepresentationMask", "FirstNonstringType",
    "CodeKindBaseline", "CodeKindFieldMask", "off_fp_context", "off_fp_function", "off_fp_bytecode_array",
    "off_fp_bytecode_offset", "type_BytecodeArray__BYTECODE_ARRAY_TYPE", "type_Code__CODE_TYPE",
    "type_SharedFunctionInfo__SHARED_FUNCTION_INFO_TYPE", "type_ScopeInfo__SCOPE_INFO_TYPE", "type_Script__SCRIPT_TYPE",
))  # fmt: skip
"""Kept as they are called, with `type_NAME__…` as `type.NAME`."""
FIELDS: Final = {
    "JSFunction": ("shared",),
    "SharedFunctionInfo": ("script", "raw_script", "script_or_debug_info", "length", "flags", "name_or_scope_info"),
    "Script": ("source", "name", "line_ends"),
    "Map": ("instance_type",),
    "BytecodeArray": ("data",),
    "UncompiledData": ("inferred_name",),
    "SharedFunctionInfoWrapper": ("shared_info",),
    "String": ("length",),
    "SeqOneByteString": ("chars",),
    "SeqTwoByteString": ("chars",),
    "ConsString": ("first", "second"),
    "SlicedString": ("parent", "offset"),
    "ThinString": ("actual",),
    "ExternalString": ("resource",),
}  # fmt: skip


def detect(elf: ElfFile) -> RuntimeFile | None:
    """What the file tells of its V8, or None if it contains none. Raises `ElfError`."""
    symbols: dict[str, int] = {}
    builtins: tuple[int, int] | None = None
    for table, strings in symbol_tables(elf):
        text = strings.tobytes()
        if _MARK not in text:
            continue
        defined = table[table["shndx"] != 0]
        wanted = {
            found.start() + 1: key
            for found in _EXPORTED.finditer(text)
            if (key := _key(found[1].decode())) is not None
        }
        for key, name in _OTHERS.items():
            at = text.find(b"\0" + name + b"\0")
            if at >= 0:
                wanted[at + 1] = key
        names = defined["name"]
        for symbol in defined[np.isin(names, np.fromiter(wanted, np.uint32, len(wanted)))]:
            symbols.setdefault(wanted[int(symbol["name"])], int(symbol["value"]))
        builtins = builtins or _builtins(defined, text)
    if not symbols:
        return None
    return RuntimeFile(NAME, symbols, () if builtins is None else (builtins,))


def _key(name: str) -> str | None:
    """What a number is called here; None if nobody wants it."""
    if name in CONSTANTS:
        return f"type.{name[5:].partition('__')[0]}" if name.startswith("type_") else name
    field = _FIELD.fullmatch(name)
    if field is None or field[2] not in FIELDS.get(field[1], ()):
        return None
    return f"{field[1]}.{field[2]}"


def _builtins(table: npt.NDArray[np.void], text: bytes) -> tuple[int, int] | None:
    """From the first to the end of the last builtin that has a symbol."""
    found = [match.start() + 1 for match in _BUILTIN.finditer(text)]
    if not found:
        return None
    chosen = table[np.isin(table["name"], np.array(found, np.uint32)) & (table["size"] > 0)]
    if not len(chosen):
        return None
    return int(chosen["value"].min()), int((chosen["value"] + chosen["size"]).max())
