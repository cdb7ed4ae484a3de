"""Names of kernel functions, from /proc/kallsyms.

The file has 100,000 to 300,000 lines; it is parsed in numpy, in the worker, into an index file
(`flat.py`) that the agent maps. The index is keyed by boot id and module list (`index_name`), so
that a restart of the agent does not parse again.

Text symbols only (types t, T, w, W). Symbols without a module count between `_stext` and `_etext`:
beyond lie data and freed init code. Module and eBPF symbols carry no size: the last one before a
gap is taken to be at most `MAX_FUNCTION_BYTES` long. Functions of modules and eBPF programs are
called `name [module]`, as in the file.

eBPF programs and modules come and go: a caller that meets an unnamed kernel address rebuilds the
index, not more often than it can afford (about 0.1 s of CPU).

Layout of a line: `ADDRESS TYPE NAME[\\t[MODULE]]` (kernel/kallsyms.c, s_show).
"""

import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from flameherd_agent.errors import EnvironmentProblem
from flameherd_agent.symbols import flat
from flameherd_agent.types import Address, Line

KALLSYMS = Path("/proc/kallsyms")
MAX_TEXT_BYTES = 256 << 20
"""A larger kallsyms is cut at a line's end; the largest seen are below 20 MB."""
MAX_FUNCTION_BYTES = 64 << 10

_ADDRESS_DIGITS = 16
_NEWLINE, _SPACE, _CLOSE = b"\n ]"
_HEX = np.full(256, 255, np.uint8)
for _digits, _first in ((b"0123456789", 0), (b"abcdef", 10), (b"ABCDEF", 10)):
    for _index, _character in enumerate(_digits):
        _HEX[_character] = _first + _index

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class KallsymsSummary:
    """What a build found."""

    symbols: int
    lines: int
    """Lines of the file, of which the malformed ones are left out."""
    size_bytes: int
    """Of the index file."""


def index_name(
    boot_id: Path = Path("/proc/sys/kernel/random/boot_id"), modules: Path = Path("/proc/modules")
) -> str:
    """File name for the index of the running kernel: changes at boot and when modules change.

    A kernel without loadable modules has no /proc/modules.
    """
    # Not hashlib: it maps OpenSSL, 3.5 MB of the agent's memory, and the kernel is no adversary.
    checksum = zlib.crc32(boot_id.read_bytes())
    if modules.exists():
        for line in modules.read_bytes().splitlines():
            fields = line.split()
            # name, size and address; the use counts between them change all the time
            checksum = zlib.crc32(b" ".join(fields[:2] + fields[5:6]) + b"\n", checksum)
    return f"kallsyms-{boot_id.read_text().strip()}-{checksum:08x}"


def build_kallsyms_index(out_path: Path, source: Path = KALLSYMS) -> KallsymsSummary:
    """Parses `source` and writes the index file.

    Raises `EnvironmentProblem` when the kernel hides the addresses or the file cannot be read.
    """
    try:
        with source.open("rb") as file:
            text = file.read(MAX_TEXT_BYTES)
    except OSError as error:
        raise EnvironmentProblem(
            f"kernel functions stay unnamed: cannot read {source}: {error.strerror}"
        ) from error
    columns = parse(text)
    size = flat.write(out_path, columns.sections())
    return KallsymsSummary(len(columns.starts), text.count(b"\n"), size)


class KernelSymbols:
    """The kernel's names, mapped from an index file."""

    def __init__(self, index: flat.FlatIndex) -> None:
        self._index = index

    @classmethod
    def open(cls, path: Path) -> Self:
        """Maps an index that `build_kallsyms_index` wrote. `ElfError` when it is damaged."""
        return cls(flat.FlatIndex.open(path))

    def __len__(self) -> int:
        return len(self._index)

    def shed(self) -> None:
        """Gives the resident pages of the index file back; lookups go on to work."""
        self._index.shed()

    def lookup(self, address: Address) -> Line | None:
        """The function at a kernel address, or None outside of every function."""
        return self._index.lookup(address)


def parse(data: bytes) -> flat.Columns:
    """The text symbols of a kallsyms text as sorted ranges; malformed lines are left out.

    Raises `EnvironmentProblem` when there are symbols and all their addresses are zero.
    """
    buffer = np.frombuffer(data, np.uint8)
    starts, ends = _lines(buffer)
    address, valid = _addresses(buffer, starts)
    if len(address) and not address[valid].any():
        raise EnvironmentProblem(
            "kernel functions stay unnamed: /proc/kallsyms shows no addresses; give the agent "
            "CAP_SYSLOG, or set the sysctl kernel.kptr_restrict to 0 or 1"
        )
    kind = buffer[starts + _ADDRESS_DIGITS + 1] if len(starts) else buffer[:0]
    name_start = starts + _ADDRESS_DIGITS + 3
    is_module = _has_module(buffer, ends)
    valid &= np.isin(kind, np.frombuffer(b"tTwW", np.uint8)) & (ends > name_start) & (address > 0)
    valid &= is_module | _in_core_text(data, address)
    picked = np.flatnonzero(valid)
    address, kind, is_module = address[picked], kind[picked], is_module[picked]
    name_start, name_end = name_start[picked], ends[picked]

    order: I64 = np.lexsort((_rank(buffer, kind, name_start), address))
    first = np.ones(len(order), np.bool_)
    first[1:] = np.diff(address[order]) != 0
    order = order[first]
    address = address[order]
    lengths = name_end[order] - name_start[order]
    strings, offsets = flat.pack_strings(buffer, name_start[order], lengths)
    sizes = _sizes(address, is_module[order], _symbol_address(data, b"_etext"))
    return flat.Columns(address, sizes, offsets, offsets, strings.replace(b"\t", b" "))


def _lines(buffer: flat.U8) -> tuple[I64, I64]:
    """Start and end (without newline) of each line long enough to hold a symbol."""
    ends = np.flatnonzero(buffer == _NEWLINE)
    if len(buffer) and (not len(ends) or ends[-1] != len(buffer) - 1):
        ends = np.append(ends, len(buffer))
    starts = np.zeros(len(ends), np.int64)
    starts[1:] = ends[:-1] + 1
    keep = ends - starts > _ADDRESS_DIGITS + 3
    return starts[keep], ends[keep]


def _addresses(buffer: flat.U8, starts: I64) -> tuple[flat.U64, Bools]:
    """The 16 hexadecimal digits at each start; False where the line is not of the known layout."""
    address: flat.U64 = np.zeros(len(starts), np.uint64)
    valid = np.ones(len(starts), np.bool_)
    for position in range(_ADDRESS_DIGITS):
        digit = _HEX[buffer[starts + position]]
        valid &= digit < 16
        address = (address << np.uint64(4)) | (digit & 15).astype(np.uint64)
    if len(starts):
        valid &= buffer[starts + _ADDRESS_DIGITS] == _SPACE
        valid &= buffer[starts + _ADDRESS_DIGITS + 2] == _SPACE
    return address, valid


def _has_module(buffer: flat.U8, ends: I64) -> Bools:
    """True where a line ends in `]`: only a module's name does."""
    return buffer[ends - 1] == _CLOSE if len(ends) else np.zeros(0, np.bool_)


def _symbol_address(data: bytes, name: bytes) -> int:
    """The address of a symbol that is not in a module, or 0."""
    at = data.find(b" " + name + b"\n")
    digits = data[max(at - _ADDRESS_DIGITS - 2, 0) : max(at - 2, 0)]
    return int(digits, 16) if re.fullmatch(rb"[0-9a-fA-F]{16}", digits) else 0


def _in_core_text(data: bytes, address: flat.U64) -> Bools:
    """True between `_stext` and `_etext`; everywhere when the kernel does not list them."""
    low, high = _symbol_address(data, b"_stext"), _symbol_address(data, b"_etext")
    if not low < high:
        return np.ones(len(address), np.bool_)
    return (address >= np.uint64(low)) & (address < np.uint64(high))


def _rank(buffer: flat.U8, kind: flat.U8, name_start: I64) -> flat.U8:
    """Which of several names of one address wins (smallest): global, then few underscores."""
    rank = np.full(len(kind), 2, np.uint8)
    rank[kind == ord("T")] = 0
    rank[kind == ord("W")] = 1
    # `_stext`, `_text` and `.text` mark places, and `__` names are mostly aliases
    hidden = np.isin(buffer[name_start], np.frombuffer(b"_.$", np.uint8)).astype(np.uint8)
    return rank + hidden * np.uint8(4)


def _sizes(address: flat.U64, is_module: Bools, text_end: int) -> flat.U32:
    """Up to the next symbol; to `_etext` for the kernel's last; bounded for modules."""
    if not len(address):
        return np.zeros(0, np.uint32)
    sizes = np.full(len(address), MAX_FUNCTION_BYTES, np.uint64)
    sizes[:-1] = np.diff(address)
    bounded = is_module.copy()
    bounded[-1] = True
    core = np.flatnonzero(~is_module)
    if len(core):
        last = core[-1]
        bounded[last] = True
        if text_end > int(address[last]):
            sizes[last] = min(int(sizes[last]), text_end - int(address[last]))
    limit = np.where(bounded, np.uint64(MAX_FUNCTION_BYTES), np.uint64(0xFFFF_FFFF))
    return np.minimum(sizes, limit).astype(np.uint32)
