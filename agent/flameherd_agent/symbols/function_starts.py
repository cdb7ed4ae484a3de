"""Where functions begin that have no name: from the search table of `.eh_frame_hdr`.

Stripped files name few of their functions, but exception handling needs a table of all: its first
column is where each begins. A flame graph of a stripped program then has one box for each function,
`[program]+0x1b2a0`, instead of one for each address that was sampled.

Layout: Linux Standard Base Core 5.0, section 10.6.2. Linkers write the table in one encoding, signed
32-bit offsets from the section's beginning; other encodings are left alone.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from flameherd_agent.elf.reader import PT_GNU_EH_FRAME, ElfFile
from flameherd_agent.errors import ElfError

MAX_FUNCTIONS: Final = 4_000_000
_HEADER: Final = b"\x01\x1b\x03\x3b"
"""Version 1; pointer pcrel sdata4; count udata4; table datarel sdata4."""
_TABLE_AT: Final = 12


def function_starts(elf: ElfFile) -> npt.NDArray[np.uint64]:
    """The addresses (in the file) where functions begin, sorted. Empty where nothing tells."""
    for segment in elf.segments:
        if segment.type != PT_GNU_EH_FRAME or segment.filesz < _TABLE_AT:
            continue
        head = bytes(elf.bytes_at(segment.offset, _TABLE_AT, "PT_GNU_EH_FRAME"))
        count = int.from_bytes(head[8:12], "little")
        if head[:4] != _HEADER:
            break
        if segment.vaddr >= 1 << 63:
            raise ElfError(f".eh_frame_hdr lies at {segment.vaddr:#x}: no address of a program")
        if count > MAX_FUNCTIONS or _TABLE_AT + 8 * count > segment.filesz:
            raise ElfError(f".eh_frame_hdr: a table of {count} functions does not fit")
        data = elf.bytes_at(segment.offset + _TABLE_AT, 8 * count, "the table of .eh_frame_hdr")
        offsets = np.frombuffer(data, "<i4")[::2].astype(np.int64)
        starts = offsets + segment.vaddr
        return np.unique(starts[starts >= 0]).astype(np.uint64)
    return np.zeros(0, np.uint64)
