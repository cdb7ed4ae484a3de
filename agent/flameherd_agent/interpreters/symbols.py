"""Addresses of a few symbols in a file's tables, by name: without making an object for each of 100,000 others."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from flameherd_agent.elf.reader import ElfFile
from flameherd_agent.symbols.elf_symbols import symbol_tables

MAX_FOUND: Final = 16
"""Occurrences of a name in a string table that are looked at."""


def addresses_of(elf: ElfFile, names: Sequence[str]) -> dict[str, int]:
    """{name: address} of the symbols that the file defines; none without the first. Raises `ElfError`."""
    found: dict[str, int] = {}
    for table, strings in symbol_tables(elf):
        text = strings.tobytes()
        if names[0].encode() not in text:
            continue
        defined = table[table["shndx"] != 0]
        for name in names:
            value = None if name in found else address(defined, text, name.encode())
            if value is not None:
                found[name] = value
    return found


def address(table: npt.NDArray[np.void], text: bytes, name: bytes) -> int | None:
    """The value of a symbol of a table whose string table is `text`, or None."""
    offsets = name_offsets(text, name, (b"\0",))
    if not offsets:
        return None
    matching = table[np.isin(table["name"], offsets)]
    return int(matching[0]["value"]) if len(matching) else None


def name_offsets(text: bytes, name: bytes, endings: tuple[bytes, ...]) -> list[int]:
    """Where names in a string table begin so; linkers let a name be the tail of a longer one."""
    found: list[int] = []
    at = text.find(name)
    while at >= 0 and len(found) < MAX_FOUND:
        if text[at + len(name) : at + len(name) + 1] in endings:
            found.append(at)
        at = text.find(name, at + 1)
    return found
