"""The layouts of CPython's versions, from `layouts/cpython.toml`, and what of them the kernel side is told."""

import struct
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flameherd_agent.interpreters.base import NotSupported
from flameherd_agent.kernel.abi import CpythonLayout, CpythonMode, Limit

_FILE: Final = Path(__file__).resolve().parent.parent / "layouts" / "cpython.toml"
_COOKIE: Final = struct.unpack("<Q", b"xdebugpy")[0]
_MOST: Final = 1 << 20
"""No structure is larger: an offset beyond it is damaged."""


@dataclass(frozen=True, slots=True)
class ThreadSlot:
    """Where a thread keeps its thread state: at its fs base + `at`, or in the block that the pointer there leads to."""

    at: int
    second: int | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """One build. Offsets in bytes, named as in the file: `table["frame.code"]`."""

    version: tuple[int, int]
    mode: CpythonMode
    lines: str
    unit: int
    table: dict[str, int]
    slot: ThreadSlot = ThreadSlot(0)

    def get(self, name: str) -> int | None:
        return self.table.get(name)

    def __getitem__(self, name: str) -> int:
        return self.table[name]

    def row(self) -> NDArray[Any]:
        """The kernel side's `struct fh_cpython_layout`."""
        row = np.zeros(1, CpythonLayout)
        table = self.table
        code_start = min(table["code.line"] & ~7, table["code.filename"], table["code.name"])
        code_end = max(table["code.line"] + 4, table["code.filename"] + 8, table["code.name"] + 8)
        if table["code.name"] != table["code.filename"] + 8:
            raise NotSupported("layout", "co_name does not follow co_filename")
        values = {
            "mode": self.mode,
            "tsd": self.slot.at,
            "tsd_second": 0 if self.slot.second is None else 1 + self.slot.second,
            "thread_top": table["thread.top"],
            "thread_frame": table.get("thread.frame", 0),
            "cframe_current": 1 + table["cframe.current"] if "cframe.current" in table else 0,
            "cframe_previous": table.get("cframe.previous", 0),
            "frame_bytes": self.frame_bytes(),
            "frame_previous": table["frame.previous"],
            "frame_code": table["frame.code"],
            "frame_at": table["frame.at"],
            "frame_entry": table.get("frame.entry", 0),
            "entry_least": table.get("frame.entry_least", 0),
            "code_start": code_start,
            "code_bytes": code_end - code_start,
            "code_filename": table["code.filename"] - code_start,
            "code_line": table["code.line"] - code_start,
            "code_bytecode": table.get("code.bytecode", 0),
        }
        if (
            values["frame_bytes"] > Limit.CPYTHON_FRAME_BYTES
            or values["code_bytes"] > Limit.CPYTHON_CODE_BYTES
        ):
            raise NotSupported("layout", "the offsets lie too far apart")
        for name, value in values.items():
            row[name] = value
        return row

    def frame_bytes(self) -> int:
        """How much of a frame holds everything that is looked at."""
        fields = {"frame.previous": 8, "frame.code": 8, "frame.entry": 1}
        fields["frame.at"] = 8 if "code.bytecode" in self.table else 4
        return max(self.table[name] + size for name, size in fields.items() if name in self.table)


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(_FILE.read_text())


def versions() -> list[tuple[int, int]]:
    """Minor versions with a layout."""
    names = [name for name in _data() if name[0].isdigit()]
    return sorted((int(major), int(minor)) for major, minor in (name.split(".") for name in names))


def layout_of(version: tuple[int, int]) -> Layout:
    """The layout of a minor version as the file has it. Raises NotSupported."""
    known = _data().get(f"{version[0]}.{version[1]}")
    if known is None:
        raise NotSupported("version", f"CPython {version[0]}.{version[1]} has no layout")
    table = {
        f"{group}.{name}": offset
        for group, names in known.items()
        if isinstance(names, dict)
        for name, offset in names.items()
    }
    return Layout(version, CpythonMode[known["mode"]], known["lines"], known["unit"], table)


def debug_fields(version: tuple[int, int]) -> list[str]:
    """Names of the numbers at the start of `_PyRuntime`; [] before 3.13."""
    known = _data()[f"{version[0]}.{version[1]}"].get("offsets")
    return list(_data()["offsets"][known]["fields"]) if known else []


def told_by_process(layout: Layout, numbers: bytes) -> Layout:
    """The layout with what a process's `_Py_DebugOffsets` says. Raises NotSupported if it is damaged."""
    fields = debug_fields(layout.version)
    values = dict(zip(fields, struct.unpack_from(f"<{len(fields)}Q", numbers), strict=True))
    if values["cookie"] != _COOKIE:
        raise NotSupported("cookie", "_PyRuntime does not begin with the cookie of its offsets")
    if values["version"] >> 16 != layout.version[0] << 8 | layout.version[1]:
        raise NotSupported("cookie", f"the offsets are of version {values['version']:#x}")
    if values["free_threaded"]:
        raise NotSupported("free-threaded", "free-threaded builds are not unwound yet")
    told = {name: value for name, value in values.items() if "." in name}
    if any(value > _MOST for value in told.values()):
        raise NotSupported("cookie", "an offset is too large")
    table = {**layout.table, **told}
    table.setdefault("text.ascii", 40)
    return Layout(layout.version, layout.mode, layout.lines, layout.unit, table)


def thread_slots(key: int) -> list[ThreadSlot]:
    """Where a thread may keep the value of a key of thread-specific data, by the C libraries that are known."""
    found = []
    for library in _data()["threads"].values():
        direct, blocks, pointer = (library.get(name) for name in ("direct", "blocks", "pointer"))
        if direct and key < direct["keys"]:
            found.append(ThreadSlot(direct["at"] + key * direct["step"] + direct["value"]))
        elif blocks:
            block, index = divmod(key, blocks["keys"])
            found.append(
                ThreadSlot(blocks["at"] + 8 * block, index * blocks["step"] + blocks["value"])
            )
        elif pointer:
            found.append(ThreadSlot(pointer["at"], key * pointer["step"]))
    return found
