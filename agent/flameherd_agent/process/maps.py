"""Executable mappings of a process, from `/proc/PID/maps`.

The file is untrusted in part (paths are what the process chose): it is read up to a cap, and lines that do not
parse are skipped. Format: proc(5).
"""

import re
from dataclasses import dataclass
from typing import Final

from flameherd_agent.errors import ProcessGone
from flameherd_agent.types import Pid

MAX_MAPS_BYTES: Final = 16 << 20
MAX_MAPPINGS: Final = 8192
"""Executable mappings of one process that are kept: JIT compilers with one page per function exceed it."""

VDSO: Final = "[vdso]"
_DELETED: Final = " (deleted)"
# Start, end, permissions, offset, device, inode, path: no number has more digits than its type in the kernel.
_LINE: Final = re.compile(
    rb"([0-9a-f]{1,16})-([0-9a-f]{1,16}) [r-][w-]x[ps] ([0-9a-f]{1,16}) "
    rb"([0-9a-f]{1,8}):([0-9a-f]{1,8}) ([0-9]{1,20})(?: +(.*))?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class FileKey:
    """Which file a mapping shows, as far as the mapping tells."""

    device: tuple[int, int]
    inode: int
    path: str


NO_FILE: Final = FileKey((0, 0), 0, "")
VDSO_FILE: Final = FileKey((0, 0), 0, VDSO)


@dataclass(frozen=True, slots=True)
class Region:
    """An executable mapping: addresses [start, end) show `file` from byte `offset` on."""

    start: int
    end: int
    offset: int
    file: FileKey


def file_key(device: tuple[int, int], inode: int, path: str) -> FileKey:
    """The key of a mapping's file; what has no inode has no file, but for the vDSO."""
    if path == VDSO:
        return VDSO_FILE
    return FileKey(device, inode, path) if inode else NO_FILE


def parse_maps(data: bytes) -> list[Region]:
    """Executable regions, sorted by start, neighbours of the same file joined."""
    regions: list[Region] = []
    for line in data.split(b"\n"):
        found = _LINE.fullmatch(line)
        if found is None:
            continue
        start, end, offset, major, minor = (int(digits, 16) for digits in found.groups()[:5])
        path = (found[7] or b"").decode(errors="surrogateescape")
        inode = int(found[6])
        if start >= end or start >= 1 << 63 or inode >= 1 << 64:
            continue  # the vsyscall page lies in the kernel's half
        region = Region(start, end, offset, file_key((major, minor), inode, path))
        add_region(regions, region)
        if len(regions) >= MAX_MAPPINGS:
            break
    regions.sort(key=lambda region: region.start)
    return regions


def add_region(regions: list[Region], region: Region) -> None:
    """Append, joined with the last one where both are one stretch of the same file or of no file."""
    if regions:
        last = regions[-1]
        contiguous = last.end == region.start and last.file == region.file
        if contiguous and (
            region.file == NO_FILE or last.offset + (last.end - last.start) == region.offset
        ):
            regions[-1] = Region(last.start, region.end, last.offset, last.file)
            return
    regions.append(region)


def read_maps(pid: Pid) -> list[Region]:
    """Executable regions of a live process. Raises ProcessGone."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as source:  # noqa: PTH123 - hot path
            data = source.read(MAX_MAPS_BYTES)
    except OSError as error:
        raise ProcessGone(f"/proc/{pid}/maps: {error.strerror}") from error
    regions = parse_maps(data)
    if not regions:
        raise ProcessGone(f"/proc/{pid}/maps: empty: the process has ended")
    return regions


def display_path(path: str) -> str:
    """The path as a person wants it: without the kernel's mark of a deleted file."""
    return path.removesuffix(_DELETED)
