"""inotify(7): directories that come and go below the watched ones. The system calls and their
records; what is watched is the caller's business.
"""

import ctypes
import os
import struct
from typing import Final, NamedTuple

from flameherd_agent.errors import EnvironmentProblem

_LIBC = ctypes.CDLL(None, use_errno=True)
_RECORD: Final = struct.Struct("<iIII")  # wd, mask, cookie, length of the name
_CREATE: Final = 0x100
_DELETE: Final = 0x200
_MOVED_FROM: Final = 0x40
_MOVED_TO: Final = 0x80
_OVERFLOW: Final = 0x4000
_IGNORED: Final = 0x8000
_ISDIR: Final = 0x40000000
_ONLYDIR: Final = 0x1000000
_BUFFER: Final = 64 << 10


class DirectoryEvent(NamedTuple):
    """A directory `name` below the watched one came, or went. `name` "" = the watch itself ended."""

    watch: int
    name: str
    came: bool


class Inotify:
    """Use `fd` to wait. Raises `EnvironmentProblem` if the kernel has none to give."""

    def __init__(self) -> None:
        self.fd: int = _LIBC.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self.fd < 0:
            number = ctypes.get_errno()
            raise EnvironmentProblem(
                f"no inotify: {os.strerror(number)}: raise the sysctl fs.inotify.max_user_instances"
            )

    def watch(self, path: str) -> int:
        """The watch's number. Raises OSError."""
        mask = _CREATE | _DELETE | _MOVED_FROM | _MOVED_TO | _ONLYDIR
        number: int = _LIBC.inotify_add_watch(self.fd, os.fsencode(path), mask)
        if number < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), path)
        return number

    def read(self) -> tuple[list[DirectoryEvent], bool]:
        """What has come, and whether some of it was lost."""
        events: list[DirectoryEvent] = []
        lost = False
        while True:
            try:
                data = os.read(self.fd, _BUFFER)
            except BlockingIOError:
                return events, lost
            at = 0
            while at < len(data):
                watch, mask, _, length = _RECORD.unpack_from(data, at)
                at += _RECORD.size
                name = os.fsdecode(data[at : at + length].split(b"\0", 1)[0])
                at += length
                if mask & _OVERFLOW:
                    lost = True
                elif mask & _IGNORED:
                    events.append(DirectoryEvent(watch, "", False))
                elif mask & _ISDIR:
                    events.append(DirectoryEvent(watch, name, bool(mask & (_CREATE | _MOVED_TO))))

    def close(self) -> None:
        os.close(self.fd)
