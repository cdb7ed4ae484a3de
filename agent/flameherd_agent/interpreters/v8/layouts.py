"""The layout of one V8: what it exports, completed by `layouts/v8.toml`, and what of it the kernel side is told."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from flameherd_agent.interpreters.base import NotSupported
from flameherd_agent.kernel.abi import Limit, V8Layout

if TYPE_CHECKING:
    from flameherd_agent.interpreters.v8.process import Processes

_FILE: Final = Path(__file__).resolve().parent.parent / "layouts" / "v8.toml"
_FRAME: Final = {
    "off_fp_context": -8,
    "off_fp_function": -16,
    "off_fp_bytecode_array": -32,
    "off_fp_bytecode_offset": -40,
}
"""enum fh_v8_slot: the same in all versions that are known."""
_SCRIPT: Final = ("raw_script", "script", "script_or_debug_info")


@dataclass(frozen=True, slots=True)
class Layout:
    """One build. `table["Script.name"]`: as V8 exports it; `table["code.size"]`: as in the file."""

    version: tuple[int, int]
    table: dict[str, int]
    bytecode_sizes: tuple[bytes, ...]
    """Bytes of each instruction, without a prefix, after Wide, after ExtraWide; () if not known."""
    processes: "Processes" = field(repr=False, compare=False)
    """What is known of the processes that run it."""

    def get(self, name: str) -> int | None:
        return self.table.get(name)

    def __getitem__(self, name: str) -> int:
        return self.table[name]

    def row(self) -> NDArray[Any]:
        """The kernel side's `struct fh_v8_layout`."""
        row = np.zeros(1, V8Layout)
        table = self.table
        shared = (table["shared.data"], table["shared.script"])
        values = {
            "function_bytes": table["JSFunction.shared"] + 8,
            "function_shared": table["JSFunction.shared"],
            "shared_bytes": max(*shared, table["shared.numbers"], table["shared.flags"]) + 8,
            "shared_data": table["shared.data"],
            "shared_script": table["shared.script"],
            "shared_numbers": table["shared.numbers"],
            "shared_flags": table["shared.flags"],
            "script_bytes": table["script.id"] + 8,
            "script_id": table["script.id"],
            "map_type": table["Map.instance_type"],
            "bytecode_type": table["type.BytecodeArray"],
            "bytecode_data": table["BytecodeArray.data"],
        }
        for name, value in values.items():
            if name.endswith("_bytes") and value > Limit.V8_OBJECT_BYTES:
                raise NotSupported("layout", "the offsets lie too far apart")
            row[name] = value
        return row


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(_FILE.read_text())


def versions() -> list[tuple[int, int]]:
    """Versions with a layout."""
    return sorted(
        (int(major), int(minor)) for major, minor in (name.split(".") for name in _data())
    )


def complete(version: tuple[int, int], exported: Mapping[str, int]) -> dict[str, int]:
    """The whole table of a version. Raises NotSupported."""
    known = _data().get(f"{version[0]}.{version[1]}")
    if known is None:
        raise NotSupported("version", f"V8 {version[0]}.{version[1]} has no layout")
    if exported.get("TaggedSize", 8) != 8:
        raise NotSupported("pointer-compression", "compressed pointers are not known")
    if exported.get("HeapObjectTag") != 1 or exported.get("SmiShiftSize") != 31:
        raise NotSupported("tags", "pointers are tagged in a way that is not known")
    for name, place in _FRAME.items():
        if exported.get(name, place) != place:
            raise NotSupported("frames", f"{name} is {exported[name]}, not {place}")
    table = dict(exported)
    for group, names in known.items():
        for name, offset in names.items():
            table[f"{group}.{name}"] = offset
    own = "SharedFunctionInfo"
    table["shared.script"] = next(
        (table[f"{own}.{name}"] for name in _SCRIPT if f"{own}.{name}" in table), -1
    )
    for name, theirs in {
        "numbers": "length",
        "flags": "flags",
        "name": "name_or_scope_info",
    }.items():
        table[f"shared.{name}"] = table.get(f"{own}.{theirs}", -1)
    table["shared.numbers"] &= ~7
    missing = [name for name in WANTED if table.get(name, -1) < 0]
    if missing:
        raise NotSupported("symbols", f"V8 does not export {', '.join(missing)}")
    if any(value > 1 << 20 for value in table.values()):
        raise NotSupported("symbols", "an exported number is too large")
    return table


WANTED: Final = (
    "shared.script", "shared.numbers", "shared.flags", "shared.name", "JSFunction.shared", "Script.source",
    "Script.name", "Map.instance_type", "BytecodeArray.data", "String.length", "SeqOneByteString.chars",
    "SeqTwoByteString.chars", "ConsString.first", "ConsString.second", "SlicedString.parent", "SlicedString.offset",
    "ThinString.actual", "ExternalString.resource", "CodeKindBaseline", "CodeKindFieldMask", "type.BytecodeArray",
    "type.Code", "type.SharedFunctionInfo", "type.ScopeInfo", "type.Script", "StringRepresentationMask",
    "StringEncodingMask", "ConsStringTag", "ExternalStringTag", "SlicedStringTag", "ThinStringTag",
    "OneByteStringTag", "FirstNonstringType",
)  # fmt: skip
"""Without these nothing is named."""
