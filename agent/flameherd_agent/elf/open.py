"""Opens the file behind a mapping of another process, and nothing else. Worker child only.

A container chooses every name below `/proc/PID/root`: an absolute symbolic link there leads to the
*host's* file when it is opened the ordinary way, a FIFO or a FUSE mount hangs, a device reacts. So:

- names are resolved by `openat2(2)` with RESOLVE_IN_ROOT and RESOLVE_NO_MAGICLINKS: a link stays
  inside the process's root directory, whatever it says;
- the first open is O_PATH, which touches no driver; only a regular file within the size cap is then
  opened again, by its own descriptor, so that nothing can be swapped in between;
- what was opened must be what is mapped: the inode number must be that of the mapping, and the
  device too, except on overlayfs and btrfs, where `stat` reports a device of its own making (in
  which case the inode number alone must agree).

Files that were deleted, replaced or never had a name (memfd) are reached through
`/proc/PID/map_files`, which takes CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE, and the main program
through `/proc/PID/exe`. When the process is gone, its path in this namespace is tried, and taken only if
inode and device are both those of the mapping. A FUSE server can still hang an open or a read: the worker's time limit is
for that.
"""

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from flameherd_agent.elf.reader import MAX_FILE_BYTES
from flameherd_agent.errors import ElfError
from flameherd_agent.types import Pid

# include/uapi/linux/openat2.h; the number is the same on all architectures.
_SYS_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_IN_ROOT = 0x10
_O_PATH = 0o10000000
_ATTEMPTS = 4
"""RESOLVE_IN_ROOT answers EAGAIN when a rename races with ".."."""

# include/uapi/linux/magic.h: file systems whose st_dev is not that of the mapping.
_FOREIGN_DEVICE = {0x794C7630: "overlayfs", 0x9123683E: "btrfs"}


class _OpenHow(ctypes.Structure):
    """struct open_how."""

    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A file as `/proc/PID/maps` or a PERF_RECORD_MMAP2 names it."""

    pid: Pid
    path: str
    """As the kernel prints it, undecodable bytes as surrogates; may end in " (deleted)"."""
    device: int
    """`st_dev`; not looked at when `inode` is 0."""
    inode: int
    """0 = not known: the mapping itself is opened first, and the name is trusted otherwise."""
    start: int
    end: int
    """Virtual address range of the mapping, which names it in `/proc/PID/map_files`."""


@dataclass(slots=True)
class OpenFile:
    """An open regular file. Whoever gets it closes `fd`."""

    fd: int
    size: int
    how: str
    """One of: root, map_files, exe, path."""
    _stamp: tuple[int, int, int]

    def changed(self) -> bool:
        """Whether size, modification or change time differ from when it was opened."""
        return _stamp(os.fstat(self.fd)) != self._stamp

    def close(self) -> None:
        """Closes the descriptor."""
        os.close(self.fd)


def open_mapped(file: MappedFile) -> OpenFile:
    """Opens the file behind a mapping. Raises `ElfError` that says what each attempt met."""
    failures: list[str] = []
    for how, location in _candidates(file):
        try:
            if how == "root":
                handle = _open_in_root(file.pid, location)
            else:
                handle = os.open(location, _O_PATH | os.O_CLOEXEC)
        except OSError as error:
            failures.append(f"{how}: {error.strerror}")
            continue
        try:
            mismatch = _mismatch(handle, file)
            if how == "path" and os.fstat(handle).st_dev != file.device:
                # A name of this namespace, for a process that is gone: only the very same file will do.
                mismatch = mismatch or "another device"
            if not mismatch:
                return _reopen(handle, how)
            failures.append(f"{how}: {mismatch}")
        finally:
            os.close(handle)
    raise ElfError(f"cannot open {file.path!r} of process {file.pid}: {'; '.join(failures)}")


def open_path(path: str | os.PathLike[str]) -> OpenFile:
    """Opens a regular file by a name that the agent or its user chose. Raises `ElfError`."""
    try:
        handle = os.open(path, _O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise ElfError(f"cannot open {os.fspath(path)!r}: {error.strerror}") from error
    try:
        return _reopen(handle, "path")
    finally:
        os.close(handle)


def open_in_root(pid: Pid, path: str) -> OpenFile:
    """Opens a regular file by a name inside a process's root directory, whatever its inode is.

    For files that no mapping vouches for (debug files). Raises `ElfError`.
    """
    try:
        handle = _open_in_root(pid, path)
    except OSError as error:
        raise ElfError(f"cannot open {path!r} of process {pid}: {error.strerror}") from error
    try:
        return _reopen(handle, "root")
    finally:
        os.close(handle)


def _candidates(file: MappedFile) -> Iterator[tuple[str, str]]:
    """(how, path) of the ways to the file, the best first."""
    process = f"/proc/{file.pid}"
    named = file.path.startswith("/") and not file.path.endswith(" (deleted)")
    if named and file.inode:
        yield "root", file.path
    for start, end in _areas(file):
        yield "map_files", f"{process}/map_files/{start:x}-{end:x}"
    if file.inode:
        yield "exe", f"{process}/exe"
    elif named:
        yield "root", file.path
    if named and file.inode:
        yield "path", file.path


def _areas(file: MappedFile) -> list[tuple[int, int]]:
    """The file's address ranges as the kernel has them now: /proc/PID/map_files wants exact ones.

    A caller's range may join several, or have been split since.
    """
    areas: list[tuple[int, int]] = []
    try:
        with open(f"/proc/{file.pid}/maps", "rb") as maps:  # noqa: PTH123 - no size to read up to
            for line in maps:
                fields = line.split(None, 5)
                start, end = (int(part, 16) for part in fields[0].split(b"-"))
                inside = file.start < end and start < file.end
                if inside and int(fields[4]) and int(fields[4]) == (file.inode or int(fields[4])):
                    areas.append((start, end))
    except (OSError, ValueError, IndexError):
        pass  # the process is gone: the range as it was asked for says so best
    return areas[:1] or [(file.start, file.end)]


def _open_in_root(pid: Pid, path: str) -> int:
    """An O_PATH descriptor of `path` resolved inside `/proc/PID/root`. Raises `OSError`."""
    name = os.fsencode(path).lstrip(b"/")
    how = _OpenHow(_O_PATH | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    root = os.open(f"/proc/{pid}/root", _O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for _ in range(_ATTEMPTS):
            fd: int = _libc.syscall(_SYS_OPENAT2, root, name, ctypes.byref(how), ctypes.sizeof(how))
            if fd >= 0:
                return fd
            if ctypes.get_errno() != errno.EAGAIN:
                break
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    finally:
        os.close(root)


def _mismatch(handle: int, file: MappedFile) -> str:
    """Why an opened file is not the mapped one; "" if it is."""
    if not file.inode:
        return ""
    found = os.fstat(handle)
    if found.st_ino != file.inode:
        return f"inode {found.st_ino} where {file.inode} is mapped"
    if found.st_dev != file.device and _file_system(handle) not in _FOREIGN_DEVICE:
        return f"device {found.st_dev:#x} where {file.device:#x} is mapped"
    return ""


def _reopen(handle: int, how: str) -> OpenFile:
    """Opens what an O_PATH descriptor refers to for reading. Raises `ElfError`."""
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        raise ElfError(f"not a regular file (mode {found.st_mode:o})")
    if found.st_size > MAX_FILE_BYTES:
        raise ElfError(f"a file of {found.st_size} bytes is over the limit of {MAX_FILE_BYTES}")
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        fd = os.open(f"/proc/self/fd/{handle}", flags)
    except OSError as error:
        raise ElfError(f"cannot read the file: {error.strerror}") from error
    return OpenFile(fd, found.st_size, how, _stamp(found))


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


class _StatFs(ctypes.Structure):
    """The head of struct statfs (asm-generic): f_type and room for the rest."""

    _fields_ = (("type", ctypes.c_long), ("rest", ctypes.c_byte * 248))


def _file_system(fd: int) -> int:
    """The magic number of the file system that a descriptor lies on; 0 if it cannot be told."""
    buffer = _StatFs()
    if _libc.fstatfs(fd, ctypes.byref(buffer)) != 0:
        return 0
    return int(buffer.type) & 0xFFFFFFFF
