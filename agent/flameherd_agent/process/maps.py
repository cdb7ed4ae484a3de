"""Executable mappings of a process, from `/proc/PID/maps`.

The file is untrusted in part (paths are what the process chose): it is read up to a cap, and lines that do not
parse are skipped. Format: proc(5).
"""

from dataclasses import dataclass
from typing import Final

from flameherd_agent.errors import ProcessGone
from flameherd_agent.types import Pid

MAX_MAPS_BYTES: Final = 16 << 20
MAX_MAPPINGS: Final = 8192
"""Executable mappings of one process that are kept: JIT compilers with one page per function exceed it."""

VDSO: Final = "[vdso]"
_DELETED: Final = " (deleted)"


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
        parts = line.split(None, 5)
        if len(parts) < 5 or b"x" not in parts[1]:
            continue
        try:
            start, _, end = parts[0].partition(b"-")
            major, _, minor = parts[3].partition(b":")
            device = (int(major, 16), int(minor, 16))
            region = Region(
                int(start, 16),
                int(end, 16),
                int(parts[2], 16),
                file_key(device, int(parts[4]), _path(parts)),
            )
        except ValueError:
            continue
        if region.start >= region.end or region.start >= 1 << 63:
            continue  # the vsyscall page lies in the kernel's half
        add_region(regions, region)
        if len(regions) >= MAX_MAPPINGS:
            break
    regions.sort(key=lambda region: region.start)
    return regions


def _path(parts: list[bytes]) -> str:
    return parts[5].decode(errors="surrogateescape") if len(parts) == 6 else ""


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
