"""Recognises HotSpot in an ELF file by the symbols that it exports for debuggers. Runs in the worker.

`libjvm.so` of every build exports the tables that describe its own structures, stripped or not, whatever it is called.
"""

from typing import Final

from flameherd_agent.elf.reader import ElfFile
from flameherd_agent.interpreters.base import RuntimeFile
from flameherd_agent.interpreters.symbols import addresses_of

NAME: Final = "hotspot"
_STRUCT: Final = ("TypeName", "FieldName", "IsStatic", "Offset", "Address")
WANTED: Final = (
    "gHotSpotVMStructs",
    "gHotSpotVMStructEntryArrayStride",
    *(f"gHotSpotVMStructEntry{field}Offset" for field in _STRUCT),
    "gHotSpotVMTypes",
    "gHotSpotVMTypeEntryArrayStride",
    "gHotSpotVMTypeEntryTypeNameOffset",
    "gHotSpotVMTypeEntrySizeOffset",
)


def detect(elf: ElfFile) -> RuntimeFile | None:
    """The places of the tables in the file, or None if it contains no HotSpot. Raises `ElfError`."""
    symbols = addresses_of(elf, WANTED)
    if len(symbols) < len(WANTED):
        return None
    return RuntimeFile(NAME, symbols)
