"""The bpf(2) system call, raw: maps, programs, batches, links.

Only what the agent uses. Every call raises `OSError` with the command and the map's or program's name, so that an
EPERM says what was not permitted. Layouts: Linux `include/uapi/linux/bpf.h`, `union bpf_attr`.
"""

import ctypes
import errno
import mmap
import os
import platform
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SYSCALL = {"x86_64": 321, "aarch64": 280}
_LIBC = ctypes.CDLL(None, use_errno=True)
_ATTR_BYTES = 128
_LOCKED = frozenset((errno.EBUSY, errno.EDEADLK, errno.ETIMEDOUT, errno.E2BIG))
"""A hash map's lock could not be had (`kernel/bpf/rqspinlock.c`); E2BIG: nor one of its free elements, or it is full."""
_ATTEMPTS = 5
_PAUSE_S = 0.001
LICENSE = ctypes.create_string_buffer(b"GPL")


class Command(IntEnum):
    MAP_CREATE = 0
    MAP_LOOKUP = 1
    MAP_UPDATE = 2
    MAP_DELETE = 3
    MAP_NEXT_KEY = 4
    PROG_LOAD = 5
    OBJ_INFO = 15
    RAW_TRACEPOINT_OPEN = 17
    MAP_LOOKUP_BATCH = 24
    MAP_LOOKUP_AND_DELETE_BATCH = 25
    LINK_CREATE = 28


class MapType(IntEnum):
    HASH = 1
    ARRAY = 2
    PROG_ARRAY = 3
    PERCPU_ARRAY = 6
    LRU_HASH = 9
    ARRAY_OF_MAPS = 12
    RINGBUF = 27


class ProgramType(IntEnum):
    PERF_EVENT = 7
    RAW_TRACEPOINT = 17


def call(command: Command, attributes: bytes, what: str) -> int:
    """bpf(2). Returns its result; raises OSError naming `command` and `what`."""
    buffer = ctypes.create_string_buffer(attributes.ljust(_ATTR_BYTES, b"\0"), _ATTR_BYTES)
    return call_buffer(command, buffer, what)


def call_buffer(command: Command, buffer: "ctypes.Array[ctypes.c_char]", what: str) -> int:
    """bpf(2) with a caller's attribute buffer, for commands that write into it."""
    result: int = _LIBC.syscall(
        ctypes.c_long(_SYSCALL[platform.machine()]),
        ctypes.c_long(int(command)),
        buffer,
        ctypes.c_ulong(_ATTR_BYTES),
    )
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"bpf({command.name}): {os.strerror(number)}", what)
    return result


def possible_cpus() -> int:
    """Number of possible CPUs: the multiplicity of per-CPU map values."""
    with open("/sys/devices/system/cpu/possible") as source:  # noqa: PTH123 - hot start-up path
        last = source.read().strip().split(",")[-1]
    return int(last.split("-")[-1]) + 1


@dataclass(frozen=True, slots=True)
class MapDefinition:
    """What MAP_CREATE needs. Sizes in bytes."""

    name: str
    type: int
    key_bytes: int
    value_bytes: int
    entries: int
    flags: int


class Map:
    """A map: owns its descriptor. Keys and values are bytes; batches are numpy arrays."""

    def __init__(self, definition: MapDefinition, inner: int = 0) -> None:
        self.definition = definition
        self.name = definition.name
        entries = definition.entries
        attributes = struct.pack(
            "<IIIIIII16s",
            definition.type,
            definition.key_bytes,
            definition.value_bytes,
            entries,
            definition.flags,
            inner,
            0,
            definition.name[:15].encode(),
        )
        self.fd = call(Command.MAP_CREATE, attributes, definition.name)
        self._per_cpu = definition.type == MapType.PERCPU_ARRAY
        self._value_bytes = definition.value_bytes
        self._cpus = possible_cpus() if self._per_cpu else 1
        if self._per_cpu:
            self._value_bytes = (definition.value_bytes + 7) // 8 * 8 * self._cpus

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _element(self, command: Command, key: bytes, value: Any, flags: int = 0) -> None:
        key_buffer = ctypes.create_string_buffer(key, len(key))
        attributes = struct.pack(
            "<IIQQQ",
            self.fd,
            0,
            ctypes.addressof(key_buffer),
            ctypes.addressof(value) if value is not None else 0,
            flags,
        )
        for left in reversed(range(_ATTEMPTS)):
            try:
                call(command, attributes, self.name)
                return
            except OSError as error:
                if error.errno not in _LOCKED or not left:
                    raise
                time.sleep(_PAUSE_S)

    def lookup(self, key: bytes) -> bytes | None:
        """The value, or None. Per-CPU maps: all CPUs' values after one another, each padded to 8 bytes."""
        value = ctypes.create_string_buffer(self._value_bytes)
        try:
            self._element(Command.MAP_LOOKUP, key, value)
        except FileNotFoundError:
            return None
        return value.raw

    def update(self, key: bytes, value: bytes) -> None:
        self._element(Command.MAP_UPDATE, key, ctypes.create_string_buffer(value, len(value)))

    def delete(self, key: bytes) -> bool:
        """Whether the key was there."""
        try:
            self._element(Command.MAP_DELETE, key, None)
        except FileNotFoundError:
            return False
        return True

    def keys(self) -> Iterator[bytes]:
        """Every key; entries that are added or removed meanwhile may be missed or end the walk early."""
        previous: bytes | None = None
        while True:
            following = ctypes.create_string_buffer(self.definition.key_bytes)
            before = ctypes.create_string_buffer(previous, len(previous)) if previous else None
            attributes = struct.pack(
                "<IIQQ",
                self.fd,
                0,
                ctypes.addressof(before) if before else 0,
                ctypes.addressof(following),
            )
            try:
                call(Command.MAP_NEXT_KEY, attributes, self.name)
            except FileNotFoundError:
                return
            previous = following.raw
            yield previous

    def write(self, first: int, records: NDArray[Any]) -> None:
        """Store records from element `first` on in a BPF_F_MMAPABLE array.

        The pages are mapped for the write only: the kernel populates such a mapping at once, and it counts as RSS.
        Programs that run meanwhile may see a part of a record written.
        """
        begin = first * records.itemsize
        end = begin + records.nbytes
        page = begin - begin % mmap.PAGESIZE
        if records.itemsize % 8 or end > self.definition.entries * records.itemsize:
            raise ValueError(f"{self.name}: {len(records)} records do not fit at {first}")
        if records.nbytes:
            with mmap.mmap(self.fd, end - page, offset=page) as pages:
                pages[begin - page : end - page] = records.tobytes()

    def drain(
        self, key_type: np.dtype[Any], value_type: np.dtype[Any], batch: int = 512
    ) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Read and delete every entry of a hash, `batch` at a time.

        While the system call runs, the kernel skips BPF programs on this CPU: batches are small so that ticks get
        through between them.
        """
        keys = np.zeros(batch, key_type)
        values = np.zeros(batch, value_type)
        position = ctypes.create_string_buffer(8)
        follow = 0
        while True:
            # in_batch, out_batch, keys, values, count, map_fd, elem_flags, flags
            packed = struct.pack(
                "<QQQQIIQQ",
                ctypes.addressof(position) if follow else 0,
                ctypes.addressof(position),
                keys.ctypes.data,
                values.ctypes.data,
                len(keys),
                self.fd,
                0,
                0,
            )
            buffer = ctypes.create_string_buffer(packed.ljust(_ATTR_BYTES, b"\0"), _ATTR_BYTES)
            last = False
            try:
                call_buffer(Command.MAP_LOOKUP_AND_DELETE_BATCH, buffer, self.name)
            except FileNotFoundError:
                last = True
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                # A hash bucket holds more entries than the batch: nothing was deleted, so try a larger one.
                keys = np.zeros(2 * len(keys), key_type)
                values = np.zeros(2 * len(values), value_type)
                continue
            count = struct.unpack_from("<I", buffer.raw, 32)[0]
            if count:
                yield keys[:count].copy(), values[:count].copy()
            if last:
                return
            follow = 1

    def per_cpu(self, dtype: np.dtype[Any], index: int) -> NDArray[Any]:
        """One entry of a per-CPU array: one record per possible CPU."""
        value = self.lookup(struct.pack("<I", index))
        if value is None:
            raise KeyError(f"{self.name} has no entry {index}")
        return np.frombuffer(value, dtype)


@dataclass(frozen=True, slots=True)
class Program:
    """A loaded program: its descriptor and how many instructions the verifier processed (0: not told)."""

    name: str
    fd: int
    verified_instructions: int


def load_program(name: str, kind: ProgramType, code: bytes) -> Program:
    """PROG_LOAD. On refusal the verifier's log ends the error's message."""
    # The name is told to /proc and bpftool only; 15 bytes.
    instructions = ctypes.create_string_buffer(code, len(code))

    def attempt(log: Any, level: int) -> int:
        attributes = struct.pack(
            "<IIQQIIQII16s",
            kind,
            len(code) // 8,
            ctypes.addressof(instructions),
            ctypes.addressof(LICENSE),
            level,
            len(log) if log is not None else 0,
            ctypes.addressof(log) if log is not None else 0,
            0,
            0,
            name[:15].encode(),
        )
        return call(Command.PROG_LOAD, attributes, name)

    try:
        fd = attempt(None, 0)
    except OSError as first:
        if first.errno not in (errno.EACCES, errno.EINVAL, errno.E2BIG, errno.ENOSPC):
            raise
        log = ctypes.create_string_buffer(16 << 20)
        try:
            fd = attempt(log, 1)
        except OSError as error:
            lines = log.value.decode(errors="replace").strip().splitlines()[-40:]
            message = "\n".join([f"the verifier refused {name}: {error.strerror}", *lines])
            raise OSError(error.errno, message, name) from first
    return Program(name, fd, _verified_instructions(fd))


def _verified_instructions(fd: int) -> int:
    """bpf_prog_info.verified_insns, in kernels from 5.16."""
    info = ctypes.create_string_buffer(256)
    attributes = struct.pack("<IIQ", fd, len(info), ctypes.addressof(info))
    call(Command.OBJ_INFO, attributes, "program info")
    return int(struct.unpack_from("<I", info.raw, 216)[0])


def open_raw_tracepoint(name: str, program: Program) -> int:
    """Attach a raw tracepoint program by the tracepoint's name: needs no tracefs. Detached when the fd is closed."""
    buffer = ctypes.create_string_buffer(name.encode())
    attributes = struct.pack("<QI", ctypes.addressof(buffer), program.fd)
    return call(Command.RAW_TRACEPOINT_OPEN, attributes, name)
