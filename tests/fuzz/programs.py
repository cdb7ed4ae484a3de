"""Seeds: small ELF files from the compiler, and a Go symbol table made by hand.

A linked Go program has megabytes, too many for a fuzzer; `pclntab` writes the same tables for a few
functions (layout: Go's runtime/symtab.go, as told in `symbols/gopclntab.py`).
"""

import struct
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tests.unit.elf_files import uleb

_SOURCE = """
extern int elsewhere(int);
__attribute__((noinline)) int leaf(int a) { return a * 3 + 1; }
__attribute__((noinline)) int middle(int a, int *b) { int room[40]; room[a & 31] = *b;
  return leaf(room[3]) + elsewhere(a) + leaf(a); }
static __attribute__((noinline, used)) int local(int a) { return a ? middle(a, &a) : 0; }
int aligned(int a) { int room[16] __attribute__((aligned(64))); room[a & 15] = a;
  return middle(a, room); }
int _ZN5outer5innerEi(int a) { return local(a) + aligned(a); }
"""

_SMALL = "-nostdlib -Os -Wl,-z,noseparate-code -Wl,-z,max-page-size=4096 -Wl,--build-id"
_VARIANTS = (
    "-shared -fPIC",
    "-shared -fPIC -s",
    "-shared -fPIC -fno-asynchronous-unwind-tables -g1 -gz=zlib",
    "-shared -fPIC -Wl,-z,now -fcf-protection=full -fno-omit-frame-pointer",
    "-static -Wl,-e,leaf -Delsewhere=leaf",
)


@cache
def elf_files() -> tuple[bytes, ...]:
    """Files of some 10 KB that gcc makes; the last one twice: without its section headers too."""
    files: list[bytes] = []
    with tempfile.TemporaryDirectory() as directory:
        source, target = Path(directory) / "seed.c", Path(directory) / "seed"
        source.write_text(_SOURCE)
        for flags in _VARIANTS:
            command = f"gcc {_SMALL} {flags} -o {target} {source}"
            subprocess.run(command.split(), check=True)
            files.append(target.read_bytes())
    bare = bytearray(files[0])
    bare[40:48] = bytes(8)  # e_shoff
    bare[58:64] = bytes(6)  # e_shentsize, e_shnum, e_shstrndx
    return (*files, bytes(bare))


def varint(value: int) -> bytes:
    """Zigzag, as in pc-value tables."""
    return uleb((value << 1) ^ (value >> 63))


def pc_values(*pairs: tuple[int, int]) -> bytes:
    """A pc-value table: (value, bytes of code that it holds for) in order."""
    out, last = b"", -1
    for value, length in pairs:
        out += varint(value - last) + uleb(length)
        last = value
    return out + b"\0"


def pclntab(*, new: bool = True, functions: int = 3, flag: int = 0) -> bytes:
    """A table of `functions` functions of 64 bytes, each with one inlined call in its middle."""
    func_bytes = 44 if new else 40
    names = b"main.main\0main.inlined[go.shape.int]\0runtime.mcall\0runtime.goexit\0"
    files = b"/src/main.go\0/src/other.go\0"
    cutab = struct.pack("<2I", 0, 13)
    pcsp = pc_values((0, 4), (8, 8), (72, 50), (0, 2))
    pcfile = pc_values((0, 20), (1, 10), (0, 34))
    pcline = pc_values((7, 10), (9, 54))
    tree = pc_values((-1, 20), (0, 10), (-1, 34))
    pctab = b"\0" + pcsp + pcfile + pcline + tree
    at = [1, 1 + len(pcsp), 1 + len(pcsp + pcfile), 1 + len(pcsp + pcfile + pcline)]
    starts = [names.index(name) for name in (b"main.main", b"runtime.mcall", b"runtime.goexit")]
    functab = b""
    records = b""
    table_bytes = 8 * functions + 4
    for index in range(functions):
        functab += struct.pack("<2I", 64 * index, table_bytes + len(records))
        fixed = struct.pack(
            "<IiiIIIIIIi", 64 * index, starts[index % 3], 0, 0, at[0], at[1], at[2], 3, 0, 0
        )
        fixed = fixed[: func_bytes - 4] + bytes([0, flag, 0, 4])
        records += fixed + struct.pack("<3I", 0, 0, at[3]) + struct.pack("<4I", 0, 0, 0, 0)
    functab += struct.pack("<I", 64 * functions)
    header = struct.pack("<IHBB", 0xFFFFFFF1 if new else 0xFFFFFFF0, 0, 1, 8)
    place, places = 72, []
    for table in (names, cutab, files, pctab):
        places.append(place)
        place += -(-len(table) // 8) * 8
    header += struct.pack("<8Q", functions, 2, 0, *places, place)
    tables = b"".join(t + bytes(-len(t) % 8) for t in (names, cutab, files, pctab))
    return header + tables + functab + records


def inline_tree(*, new: bool = True) -> bytes:
    """One inlined call: `main.inlined`, called from offset 12."""
    record = (
        struct.pack("<4i", 0, 10, 12, 1) if new else struct.pack("<hhiiii", -1, 0, 0, 0, 10, 12)
    )
    return record + bytes(64)


def moduledata(pclntab_at: int, text: int, gofunc: int, names_at: int = 72) -> bytes:
    """The words of `runtime.moduledata` that are looked at (see `symbols/go_locate.py`)."""
    words = [0] * 60
    words[0], words[1] = pclntab_at, pclntab_at + names_at
    words[22], words[23] = text, text + 0x1000
    words[40], words[41] = gofunc, pclntab_at + (1 << 20)
    words[42], words[43], words[44] = text, 1, 1
    return struct.pack("<60Q", *words)
