"""`.eh_frame` by the flat-scan builder and by `cfi_reference.py`: the same rule at every address."""

from flameherd_agent.elf.reader import ElfFile
from flameherd_agent.unwind.build import build_table

from tests.fuzz.cfi_reference import Section, Unjudged, rule_at
from tests.fuzz.target import must
from tests.unit.elf_files import EH_FRAME, TEXT, TEXT_BYTES, Part, elf_file


def cfi(data: bytes) -> None:
    """The section's content; broken records too must break for both."""
    if not data:
        return
    try:
        functions = Section(data, EH_FRAME, TEXT, TEXT + TEXT_BYTES).functions()
    except Unjudged:
        return
    table = build_table(ElfFile(elf_file([Part(".eh_frame", 1, 2, EH_FRAME, data)])))
    edges = {TEXT, TEXT + TEXT_BYTES - 1, *(TEXT + pc for pc in table.pcs.tolist())}
    for function in functions:
        edges |= {function.begin, function.end, function.end + 16, *(at for at, _ in function.rows)}
    for edge in edges:
        for address in (edge - 1, edge):
            if TEXT <= address < TEXT + TEXT_BYTES:
                ours, wanted = table.lookup(address).item(), rule_at(functions, address)
                must(ours == wanted, f"the rule at {address:#x} is {wanted!r}, not {ours!r}")
