"""The unwind table of a file from all its sources: call frame information, and Go's own tables.

It stands here because `unwind` and `symbols` do not know each other.
"""

from flameherd_agent.elf.reader import ElfFile
from flameherd_agent.errors import ElfError
from flameherd_agent.symbols.go_rows import go_rows
from flameherd_agent.unwind.build import RowSource, build_table
from flameherd_agent.unwind.table import UnwindTable

GO_SECTIONS = (".gopclntab", ".data.rel.ro.gopclntab", ".go.buildinfo", ".note.go.buildid")


def may_be_go(elf: ElfFile) -> bool:
    """Whether it is worth looking for Go's tables: a file without sections may hide them."""
    return not elf.sections or any(elf.section(name) is not None for name in GO_SECTIONS)


def full_table(elf: ElfFile) -> tuple[UnwindTable, str]:
    """(table, what was wrong with Go's part or ""). Raises `ElfError` like `build_table`."""
    extra: list[RowSource] = []
    problem = ""
    if may_be_go(elf):
        try:
            rows = go_rows(elf)
        except ElfError as error:
            problem = f"Go's tables are left out: {error}"
        else:
            if rows is not None:
                extra.append(RowSource(rows.pcs, rows.rules))
    return build_table(elf, extra), problem
