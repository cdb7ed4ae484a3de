"""perf_event_open(2): events of one CPU, and the stream of process events.

Layouts: Linux `include/uapi/linux/perf_event.h` (struct perf_event_attr, PERF_RECORD_*).
"""

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from flameherd_agent.errors import EnvironmentProblem
from flameherd_agent.types import Pid, Tid

_SYSCALL = {"x86_64": 298, "aarch64": 241}
_LIBC = ctypes.CDLL(None, use_errno=True)

_TYPE_SOFTWARE: Final = 1
_COUNT_CPU_CLOCK: Final = 0
_COUNT_DUMMY: Final = 9

_FORMAT_TIME_ENABLED: Final = 1 << 0

_SAMPLE_TID: Final = 1 << 1
_SAMPLE_TIME: Final = 1 << 2

# Bits of the flag word of perf_event_attr.
_DISABLED: Final = 1 << 0
_EXCLUDE_IDLE: Final = 1 << 7
_MMAP: Final = 1 << 8
_COMM: Final = 1 << 9
_TASK: Final = 1 << 13
_WATERMARK: Final = 1 << 14
_SAMPLE_ID_ALL: Final = 1 << 18
_MMAP2: Final = 1 << 23
_COMM_EXEC: Final = 1 << 24
_USE_CLOCKID: Final = 1 << 25

_FLAG_FD_CLOEXEC: Final = 8

_IOC_ENABLE: Final = 0x2400
_IOC_DISABLE: Final = 0x2401
_IOC_SET_BPF: Final = 0x40042408

CLOCK_MONOTONIC: Final = 1


def _open(attributes: bytes, pid: int, cpu: int) -> int:
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    fd: int = _LIBC.syscall(
        ctypes.c_long(_SYSCALL[platform.machine()]),
        buffer,
        ctypes.c_int(pid),
        ctypes.c_int(cpu),
        ctypes.c_int(-1),
        ctypes.c_ulong(_FLAG_FD_CLOEXEC),
    )
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"perf_event_open on CPU {cpu}: {os.strerror(number)}")
    return fd


def _attributes(config: int, period: int, sample_type: int, flags: int, wakeup: int) -> bytes:
    # type, size, config, period, sample_type, read_format, flags, wakeup, bp_type, config1, config2,
    # branch_sample_type, sample_regs_user, sample_stack_user, clockid, sample_regs_intr, aux_watermark,
    # sample_max_stack: PERF_ATTR_SIZE_VER5, 112 bytes.
    return struct.pack(
        "<IIQQQQQIIQQQQIiQIHH",
        _TYPE_SOFTWARE,
        112,
        config,
        period,
        sample_type,
        _FORMAT_TIME_ENABLED,
        flags,
        wakeup,
        0,
        0,
        0,
        0,
        0,
        0,
        CLOCK_MONOTONIC,
        0,
        0,
        0,
        0,
    )


def online_cpus() -> list[int]:
    """The CPUs that are online now."""
    cpus: list[int] = []
    with open("/sys/devices/system/cpu/online") as source:  # noqa: PTH123
        for part in source.read().strip().split(","):
            first, _, last = part.partition("-")
            cpus.extend(range(int(first), int(last or first) + 1))
    return cpus


def open_tick(cpu: int, period_ns: int, program_fd: int) -> int:
    """A `cpu-clock` event of a CPU that runs a BPF program each `period_ns`, but not while it idles."""
    flags = _DISABLED | _EXCLUDE_IDLE
    fd = _open(_attributes(_COUNT_CPU_CLOCK, period_ns, 0, flags, 0), -1, cpu)
    try:
        fcntl.ioctl(fd, _IOC_SET_BPF, program_fd)
        fcntl.ioctl(fd, _IOC_ENABLE, 0)
    except OSError:
        os.close(fd)
        raise
    return fd


def enabled_ns(fd: int) -> int:
    """Nanoseconds for which an event has been enabled, idle time included. It stands still, or reads as 0, once the
    kernel has switched the event off with its CPU."""
    answer = os.read(fd, 16)
    return int(struct.unpack("<QQ", answer)[1]) if len(answer) == 16 else 0


@dataclass(frozen=True, slots=True)
class MapEvent:
    """PERF_RECORD_MMAP2: an executable mapping appeared."""

    pid: Pid
    time_ns: int
    start: int
    length: int
    page_offset: int
    device: tuple[int, int]
    inode: int
    path: str


@dataclass(frozen=True, slots=True)
class CommEvent:
    """PERF_RECORD_COMM: a thread was named; `exec` if because it executes another program."""

    pid: Pid
    tid: Tid
    time_ns: int
    comm: str
    exec: bool


@dataclass(frozen=True, slots=True)
class ForkEvent:
    """PERF_RECORD_FORK of a new process (threads are left out)."""

    pid: Pid
    parent: Pid
    time_ns: int


@dataclass(frozen=True, slots=True)
class ExitEvent:
    """PERF_RECORD_EXIT of a thread-group leader. Other threads may go on for a while."""

    pid: Pid
    time_ns: int


@dataclass(frozen=True, slots=True)
class LostEvent:
    """PERF_RECORD_LOST: the ring was full; what is known of processes may be stale."""

    count: int
    time_ns: int


ProcessEvent = MapEvent | CommEvent | ForkEvent | ExitEvent | LostEvent

_RECORD_LOST: Final = 2
_RECORD_COMM: Final = 3
_RECORD_EXIT: Final = 4
_RECORD_FORK: Final = 7
_RECORD_MMAP2: Final = 10
_MISC_COMM_EXEC: Final = 1 << 13
_MISC_MMAP_BUILD_ID: Final = 1 << 14
_SAMPLE_ID_BYTES: Final = 16  # tid, time

_HEADER = struct.Struct("<IHH")
_MMAP2_HEAD = struct.Struct("<IIQQQIIQQ")
_TASK_RECORD = struct.Struct("<IIIIQ")


def parse_record(kind: int, misc: int, body: bytes) -> ProcessEvent | None:
    """One record's body, after its header. None for what nobody needs."""
    if kind == _RECORD_MMAP2:
        pid, _tid, start, length, offset, major, minor, inode, _ = _MMAP2_HEAD.unpack_from(body)
        # 16 bytes of generation or build id were read in part; then prot, flags, path, sample id.
        path_at = _MMAP2_HEAD.size + 8
        end = body.find(b"\0", path_at)
        time_ns = int.from_bytes(body[-8:], "little")
        path = body[path_at : end if end >= 0 else None].decode(errors="surrogateescape")
        return MapEvent(Pid(pid), time_ns, start, length, offset, (major, minor), inode, path)
    if kind == _RECORD_COMM:
        pid, tid = struct.unpack_from("<II", body)
        name = body[8:-_SAMPLE_ID_BYTES].split(b"\0", 1)[0].decode(errors="replace")
        time_ns = int.from_bytes(body[-8:], "little")
        return CommEvent(Pid(pid), Tid(tid), time_ns, name, bool(misc & _MISC_COMM_EXEC))
    if kind == _RECORD_FORK:
        pid, parent, tid, _parent_tid, time_ns = _TASK_RECORD.unpack_from(body)
        return ForkEvent(Pid(pid), Pid(parent), time_ns) if pid == tid else None
    if kind == _RECORD_EXIT:
        pid, _parent, tid, _parent_tid, time_ns = _TASK_RECORD.unpack_from(body)
        return ExitEvent(Pid(pid), time_ns) if pid == tid else None
    if kind == _RECORD_LOST:
        _identifier, count = struct.unpack_from("<QQ", body)
        return LostEvent(count, int.from_bytes(body[-8:], "little"))
    return None


def _parsed(records: Iterable[tuple[int, int, bytes]]) -> list[ProcessEvent]:
    return [event for record in records if (event := parse_record(*record)) is not None]


class ProcessEvents:
    """PERF_RECORD_MMAP2/COMM/FORK/EXIT of every process, from a dummy event on each CPU, once `open`.

    Needs no tracefs and loses no race with /proc: what a process mapped is told even if it is gone by then.
    """

    def __init__(self, pages: int = 64) -> None:
        self._size = pages * mmap.PAGESIZE
        self._rings: dict[int, tuple[int, mmap.mmap]] = {}
        self._enabled_ns: dict[int, int] = {}
        self._left: list[ProcessEvent] = []

    def open(self) -> None:
        """Raises `EnvironmentProblem`."""
        try:
            for cpu in online_cpus():
                self._add(cpu)
        except OSError as error:
            self.close()
            raise EnvironmentProblem(
                f"cannot follow processes: {error.strerror}. The agent needs CAP_PERFMON (or root)."
            ) from error

    def _add(self, cpu: int) -> None:
        flags = (
            _MMAP | _MMAP2 | _COMM | _COMM_EXEC | _TASK | _WATERMARK | _SAMPLE_ID_ALL | _USE_CLOCKID
        )
        sample_type = _SAMPLE_TID | _SAMPLE_TIME
        fd = _open(_attributes(_COUNT_DUMMY, 0, sample_type, flags, 1), -1, cpu)
        try:
            self._rings[cpu] = (fd, mmap.mmap(fd, self._size + mmap.PAGESIZE))
        except OSError:
            os.close(fd)
            raise

    def follow_cpus(self) -> tuple[list[int], list[int]]:
        """Open rings on CPUs that came online, drop those of CPUs that went. Returns (came, went).

        A CPU that went and came back in the meantime took its event with it: what it had to tell is lost. It is among
        those that came.
        """
        now = set(online_cpus())
        enabled = {cpu: enabled_ns(fd) for cpu, (fd, _) in self._rings.items()}
        ended = {cpu for cpu, ns in enabled.items() if ns == self._enabled_ns.get(cpu)}
        went = sorted(set(self._rings) - now)
        for cpu in {*went, *ended}:
            fd, ring = self._rings.pop(cpu)
            self._left += _parsed(self._records(ring))
            ring.close()
            os.close(fd)
        if ended & now:
            self._left.append(LostEvent(len(ended & now), time.monotonic_ns()))
        came = sorted(now - set(self._rings))
        for cpu in came:
            try:
                self._add(cpu)
            except OSError as error:
                if error.errno != errno.ENODEV:  # it went just now
                    raise
        self._enabled_ns = {cpu: enabled[cpu] for cpu in self._rings if cpu not in came}
        return came, went

    def filenos(self) -> list[int]:
        """Readable when a record has come (the watermark is one byte). The reader sees to it that it does not wake
        for each: a storm of records makes one wake-up."""
        return [fd for fd, _ in self._rings.values()]

    def raw(self) -> Iterator[tuple[int, int, bytes]]:
        """Every waiting record as (type, misc, body), CPU by CPU: across CPUs, order by time."""
        for _, ring in self._rings.values():
            yield from self._records(ring)

    def _records(self, ring: mmap.mmap) -> Iterator[tuple[int, int, bytes]]:
        head, tail = struct.unpack_from("<QQ", ring, 1024)
        if head == tail:
            return
        # Up to one copy of the ring: bytes that wrap are joined.
        size, base = self._size, mmap.PAGESIZE
        begin, end = tail % size, head % size
        if begin < end:
            data = ring[base + begin : base + end]
        else:
            data = ring[base + begin : base + size] + ring[base : base + end]
        struct.pack_into("<Q", ring, 1032, head)
        at = 0
        while at + 8 <= len(data):
            kind, misc, length = _HEADER.unpack_from(data, at)
            if length < 8:
                break
            yield kind, misc, data[at + 8 : at + length]
            at += length

    def read(self) -> list[ProcessEvent]:
        """Every waiting event, oldest first."""
        left, self._left = self._left, []
        events = left + _parsed(self.raw())
        events.sort(key=lambda event: event.time_ns)
        return events

    def close(self) -> None:
        for fd, ring in self._rings.values():
            ring.close()
            os.close(fd)
        self._rings.clear()
        self._enabled_ns.clear()
        self._left.clear()
