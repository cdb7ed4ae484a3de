"""Recognises CPython in an ELF file by the symbols that it defines. Runs in the worker.

The evaluation function is exported by every build, also by stripped ones and by executables that contain the
interpreter, since C extensions need the C API. Which minor version it is follows from `Py_Version` (3.11 on, read
from the process) or from which functions of the API are there: that is what the layouts depend on, whatever the file
is called.
"""

from typing import Final

from flameherd_agent.elf.reader import ElfFile
from flameherd_agent.interpreters.base import RuntimeFile
from flameherd_agent.interpreters.symbols import MAX_FOUND, address, name_offsets
from flameherd_agent.symbols.elf_symbols import symbol_tables

NAME: Final = "cpython"
EVALUATION: Final = b"_PyEval_EvalFrameDefault"
WANTED: Final = (
    "_PyRuntime",
    "Py_Version",
    # 3.6 has no _PyRuntime.
    "interp_head",
    "autoTLSkey",
    "_PyThreadState_Current",
    # First minor version with it: 3.8, 3.9, 3.10.
    "PyCode_NewWithPosOnlyArgs",
    "PyFrame_GetBack",
    "PyIter_Send",
)


def detect(elf: ElfFile) -> RuntimeFile | None:
    """What the file tells of its CPython, or None if it contains none. Raises `ElfError`."""
    symbols: dict[str, int] = {}
    evaluation: set[tuple[int, int]] = set()
    for table, strings in symbol_tables(elf):
        text = strings.tobytes()
        if EVALUATION not in text:
            continue
        defined = table[table["shndx"] != 0]
        # The compiler's parts of the function have names that go on with a dot.
        for name_at in name_offsets(text, EVALUATION, (b"\0", b".")):
            for symbol in defined[defined["name"] == name_at][:MAX_FOUND]:
                start, size = int(symbol["value"]), int(symbol["size"])
                if size:
                    evaluation.add((start, start + size))
        for name in WANTED:
            value = address(defined, text, name.encode())
            if value is not None:
                symbols.setdefault(name, value)
    if not evaluation:
        return None
    return RuntimeFile(NAME, symbols, tuple(sorted(evaluation)[:MAX_FOUND]))
