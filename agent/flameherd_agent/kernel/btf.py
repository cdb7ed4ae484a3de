"""Offsets of kernel struct members, from `/sys/kernel/btf/vmlinux`, in pure Python.

Runs in the loader child (system Python: standard library only). One pass over the type section collects the few
structs that are asked for. Layout: Linux `Documentation/bpf/btf.rst`.

Members inside anonymous structs and unions are found as C finds them. Bitfields are not supported: none is needed.
"""

import struct
from pathlib import Path

VMLINUX = Path("/sys/kernel/btf/vmlinux")

_MAGIC = 0xEB9F
_STRUCT, _UNION, _ENUM = 4, 5, 6
# Bytes after the 12-byte type header, for kinds with a fixed tail.
_FIXED_TAIL = {1: 4, 2: 0, 3: 12, 7: 0, 8: 0, 9: 0, 10: 0, 11: 0, 12: 0, 14: 4, 16: 0, 17: 4, 18: 0}
# Bytes for each of the header's vlen entries.
_ENTRY = {4: 12, 5: 12, 6: 8, 13: 8, 15: 12, 19: 12}

Member = tuple[str, int, int]


class Btf:
    """The structs and enumerators that were asked for by name."""

    def __init__(self, data: bytes, structs: set[str], enumerators: set[str]) -> None:
        magic, _version, _flags, header, types_at, types_size, strings_at, strings_size = (
            struct.unpack_from("<HBBIIIII", data)
        )
        if magic != _MAGIC:
            raise ValueError(f"{VMLINUX}: not BTF: magic {magic:#x}")
        self._strings = data[header + strings_at : header + strings_at + strings_size]
        self._data = data
        self._types: list[int] = [0]  # type id -> offset of its header
        self._structs: dict[str, int] = {}
        self.enumerators: dict[str, int] = {}
        wanted = {self._find_string(name): name for name in structs}
        enum_names = {self._find_string(name): name for name in enumerators}
        at, end = header + types_at, header + types_at + types_size
        unpack = struct.Struct("<II").unpack_from
        append = self._types.append
        while at < end:
            name, info = unpack(data, at)
            append(at)
            kind = (info >> 24) & 31
            tail = _FIXED_TAIL.get(kind)
            if tail is not None:
                at += 12 + tail
                continue
            count = info & 0xFFFF
            if kind == _STRUCT and name in wanted and count:
                self._structs.setdefault(wanted[name], len(self._types) - 1)
            elif kind == _ENUM:
                for entry in range(at + 12, at + 12 + 8 * count, 8):
                    entry_name, value = unpack(data, entry)
                    if entry_name in enum_names:
                        self.enumerators[enum_names[entry_name]] = value
            at += 12 + _ENTRY[kind] * count

    def _find_string(self, name: str) -> int:
        """Offset of a name in the string section (BTF strings are deduplicated); -1 if absent."""
        position = self._strings.find(b"\0" + name.encode() + b"\0")
        return position + 1 if position >= 0 else -1

    def _string(self, offset: int) -> str:
        return self._strings[offset : self._strings.index(b"\0", offset)].decode()

    def _members(self, type_id: int) -> list[tuple[str, int, int]]:
        at = self._types[type_id]
        _, info = struct.unpack_from("<II", self._data, at)
        has_bitfields = info >> 31
        result = []
        for entry in range(at + 12, at + 12 + 12 * (info & 0xFFFF), 12):
            name, member_type, offset = struct.unpack_from("<III", self._data, entry)
            bits = offset & 0xFFFFFF if has_bitfields else offset
            result.append((self._string(name), member_type, bits // 8))
        return result

    def _search(self, type_id: int, member: str) -> int | None:
        for name, member_type, offset in self._members(type_id):
            if name == member:
                return offset
            if not name:
                kind = (
                    struct.unpack_from("<II", self._data, self._types[member_type])[1] >> 24
                ) & 31
                if kind in (_STRUCT, _UNION):
                    inner = self._search(member_type, member)
                    if inner is not None:
                        return offset + inner
        return None

    def offset(self, name: str, *members: str) -> int:
        """Byte offset of the first of `members` that struct `name` has. KeyError if it has none."""
        if name in self._structs:
            for member in members:
                found = self._search(self._structs[name], member)
                if found is not None:
                    return found
        raise KeyError(f"struct {name} has no member {' or '.join(members)} in {VMLINUX}")


def offsets(data: bytes) -> dict[str, int]:
    """The macros that `bpf/lib/task.h` needs. Names that changed: the newest first.

    `kernfs_node.parent` became `__parent` in 6.15 (741c10b096bc); `start_boottime` was `real_start_time` before 5.5.
    """
    structs = {
        "task_struct",
        "thread_struct",
        "signal_struct",
        "css_set",
        "cgroup_subsys_state",
        "cgroup",
        "kernfs_node",
    }
    btf = Btf(data, structs, {"pids_cgrp_id"})
    if "pids_cgrp_id" not in btf.enumerators:
        raise KeyError("the kernel has no pids controller (CONFIG_CGROUP_PIDS)")
    return {
        "OFF_TASK_MM": btf.offset("task_struct", "mm"),
        "OFF_TASK_STACK": btf.offset("task_struct", "stack"),
        "OFF_TASK_TGID": btf.offset("task_struct", "tgid"),
        "OFF_TASK_FLAGS": btf.offset("task_struct", "flags"),
        "OFF_TASK_SIGNAL": btf.offset("task_struct", "signal"),
        "OFF_TASK_CGROUPS": btf.offset("task_struct", "cgroups"),
        "OFF_TASK_GROUP_LEADER": btf.offset("task_struct", "group_leader"),
        "OFF_TASK_SELF_EXEC_ID": btf.offset("task_struct", "self_exec_id"),
        "OFF_TASK_FSBASE": btf.offset("task_struct", "thread")
        + btf.offset("thread_struct", "fsbase"),
        "OFF_TASK_START_TIME": btf.offset("task_struct", "start_boottime", "real_start_time"),
        "OFF_SIGNAL_LIVE": btf.offset("signal_struct", "live"),
        "OFF_CSS_SET_SUBSYS": btf.offset("css_set", "subsys"),
        "OFF_CSS_SET_DFL_CGRP": btf.offset("css_set", "dfl_cgrp"),
        "OFF_CSS_CGROUP": btf.offset("cgroup_subsys_state", "cgroup"),
        "OFF_CGROUP_KN": btf.offset("cgroup", "kn"),
        "OFF_KERNFS_ID": btf.offset("kernfs_node", "id"),
        "OFF_KERNFS_PARENT": btf.offset("kernfs_node", "__parent", "parent"),
        "PIDS_CGROUP_SUBSYS": btf.enumerators["pids_cgrp_id"],
    }
