"""The unwind table of one executable: sorted rows, and the rules that they refer to.

In a file it is a header, the rules, the row pcs and the row rules, each 16-byte aligned, all
little-endian; the agent maps it and copies rows into the kernel's slabs from there. The header
carries a checksum of itself and sizes that must add up, so a torn or foreign file is refused; the
rows are not summed, since the agent's own worker writes them into its own cache, atomically.
"""

import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from flameherd_agent.elf.filemap import FileMap
from flameherd_agent.errors import ElfError
from flameherd_agent.kernel.abi import Rule

RULE_DTYPE = Rule
"""numpy dtype of `struct fh_rule`."""

_MAGIC = b"FHUNWIND"
VERSION = 3
"""Raise it whenever the same file would give other rows: cached tables are then made anew."""
_HEADER = struct.Struct("<8sIIQIIII")  # magic, version, rule size, base, rows, rules, 0, checksum
_SUMMED = _HEADER.size - 4
_MAX_ROWS = 1 << 27
_LAST_PC = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class UnwindTable:
    """`rules[i]` indexes `rule_table` and holds from `base + pcs[i]` up to the next row.

    Rule 0 is all zero: no information. Addresses are those of the file (`p_vaddr`).
    """

    base: int
    pcs: npt.NDArray[np.uint32]
    """uint32[n], strictly rising, relative to `base`."""
    rules: npt.NDArray[np.uint16]
    """uint16[n]."""
    rule_table: npt.NDArray[np.void]
    """RULE_DTYPE[k]."""
    file: FileMap | None = None
    """What a loaded table is mapped from."""

    def __len__(self) -> int:
        return len(self.pcs)

    def row(self, pc: int) -> int:
        """The index of the row that covers a file address; -1 before the first."""
        if pc < self.base:
            return -1
        if self.file is not None:
            self.file.is_read = True
        # As uint32: for a plain int numpy would make a copy of the whole column in int64.
        wanted = np.uint32(min(pc - self.base, _LAST_PC))
        return int(self.pcs.searchsorted(wanted, "right")) - 1

    def lookup(self, pc: int) -> np.void:
        """The rule (RULE_DTYPE scalar) for a file address; rule 0 where nothing is known."""
        row = self.row(pc)
        rule: np.void = self.rule_table[self.rules[row] if row >= 0 else 0]
        return rule

    def save(self, path: Path) -> None:
        """Writes the table to `path`. Not atomic: the caller renames."""
        head = _HEADER.pack(
            _MAGIC, VERSION, RULE_DTYPE.itemsize, self.base, len(self.pcs), len(self.rule_table),
            0, 0,
        )[:_SUMMED]  # fmt: skip
        with path.open("wb") as file:
            file.write(head + struct.pack("<I", zlib.crc32(head)))
            for array in (self.rule_table, self.pcs, self.rules):
                file.write(bytes(-file.tell() % 16))
                file.write(np.ascontiguousarray(array).tobytes())

    @classmethod
    def load(cls, source: Path | int) -> Self:
        """Maps a saved table read-only, by path or open descriptor.

        Raises `ElfError` if it is not a table of this version, cut short, or out of bounds.
        """
        fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC) if isinstance(source, Path) else source
        try:
            file = FileMap(fd)
        except OSError as error:
            raise ElfError(f"cannot map unwind table {source}: {error.strerror}") from error
        finally:
            if isinstance(source, Path):
                os.close(fd)
        data, size = file.data, file.size
        if size < _HEADER.size:
            raise ElfError(f"unwind table {source} is cut short: {size} bytes")
        magic, version, rule_size, base, rows, rules, _, checksum = _HEADER.unpack_from(data)
        if magic != _MAGIC or version != VERSION or rule_size != RULE_DTYPE.itemsize:
            raise ElfError(f"{source} is not an unwind table of version {VERSION}")
        if zlib.crc32(data[:_SUMMED]) != checksum or rows > _MAX_ROWS or not 0 < rules <= 65536:
            raise ElfError(f"the header of unwind table {source} is damaged")
        rules_at = -(-_HEADER.size // 16) * 16
        pcs_at = rules_at + rules * rule_size
        numbers_at = -(-(pcs_at + 4 * rows) // 16) * 16
        if size != numbers_at + 2 * rows:
            raise ElfError(
                f"unwind table {source} has {size} bytes where its header says otherwise"
            )
        rule_table = np.frombuffer(data, RULE_DTYPE, rules, rules_at)
        pcs = np.frombuffer(data, np.uint32, rows, pcs_at)
        numbers = np.frombuffer(data, np.uint16, rows, numbers_at)
        if rows and int(numbers.max()) >= rules:
            raise ElfError(f"unwind table {source} refers to rules that it does not have")
        file.shed()
        return cls(base, pcs, numbers, rule_table, file)

    def shed(self) -> None:
        """Gives resident pages of a loaded table back, say after its rows were copied elsewhere."""
        if self.file is not None:
            self.file.shed()
