"""Rows as the kernel keeps them: four bytes each, with an index by pages of code.

A row of a table is a pc of 32 bits and a rule of 16; elements of a kernel array are multiples of eight bytes. So the
rows of each stretch of 64 KiB of code keep the low 16 bits of their pc only, and an index says where the rows of each
stretch begin: half the memory, and a binary search in fewer rows. `fh_find_rule` of `bpf/lib/unwind.h` reads it.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from flameherd_agent.kernel.abi import Limit

PAGE_BITS: Final = int(Limit.PAGE_BITS)
_LOW: Final = np.uint32((1 << PAGE_BITS) - 1)


def page_base(pc: int) -> int:
    """The address of the stretch that holds a pc: a table's `base`."""
    return pc >> PAGE_BITS << PAGE_BITS


def pages_up_to(pc: int) -> int:
    """How many stretches there are from 0 to the one that holds a pc."""
    return (pc >> PAGE_BITS) + 1


def pack(pcs: NDArray[np.uint32], rules: NDArray[np.uint16], pages: int) -> NDArray[np.uint32]:
    """uint32[pages + 1 + n], and one more if that is odd: where the rows of each page begin, where all end; the rows.

    `pcs` rise strictly and lie in the first `pages` pages; a row is `rule << 16 | low bits of pc`.
    """
    first = pages + 1
    words = np.zeros((first + len(pcs) + 1) // 2 * 2, np.uint32)
    starts = np.arange(pages, dtype=np.uint64) << np.uint64(PAGE_BITS)
    words[:pages] = first + np.searchsorted(pcs, starts)
    words[pages] = first + len(pcs)
    words[first : first + len(pcs)] = (pcs & _LOW) | rules.astype(np.uint32) << np.uint32(PAGE_BITS)
    return words
