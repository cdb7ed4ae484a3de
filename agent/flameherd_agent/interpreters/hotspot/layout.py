"""What is known of one JVM: where the kernel side and we find its code and its methods.

Offsets come from its own tables (`vmstructs.py`). What these do not tell is told apart by the version: where a frame
keeps its bytecode pointer (9 put the class's mirror in between), and how numbers are compressed (changed in 20).
"""

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flameherd_agent.interpreters.base import NotSupported
from flameherd_agent.interpreters.hotspot.regions import Interpreter
from flameherd_agent.interpreters.hotspot.vmstructs import VmStructs
from flameherd_agent.kernel.abi import HotspotLayout, Limit

_MOST: Final = 1 << 16
"""No structure is larger: an offset beyond it is damaged."""


@dataclass(frozen=True, slots=True)
class Heap:
    """A heap of the code cache, as it is reserved."""

    low: int
    high: int
    segments: int
    """Address of its segment map."""
    shift: int
    """log2 of a segment's bytes."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One JVM."""

    pid: int
    version: int
    """8 to 26."""
    heaps: tuple[Heap, ...]
    call_stub: int
    """Return address into it."""
    interpreter: Interpreter = field(repr=False)
    vm: VmStructs = field(repr=False)
    methods: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """Names and lines of the methods that were met (`method.py`)."""

    def row(self) -> NDArray[Any]:
        """The kernel side's `struct fh_hotspot_layout`. Raises NotSupported."""
        if not 0 < len(self.heaps) <= Limit.HOTSPOT_HEAPS:
            raise NotSupported("layout", f"a code cache of {len(self.heaps)} heaps")
        row = np.zeros(1, HotspotLayout)
        for name, value in self._values().items():
            row[name] = value
        for at, heap in enumerate(self.heaps):
            row["heaps"][0][at] = (heap.low, heap.high, heap.segments, heap.shift)
        row["regions"] = len(self.interpreter.regions)
        for at, region in enumerate(self.interpreter.regions):
            row["region"][0][at] = region
        return row

    def _values(self) -> dict[str, int]:
        vm = self.vm
        blob = {
            "blob_name": vm.offset("CodeBlob", "_name"),
            "blob_size": vm.offset("CodeBlob", "_size"),
            "blob_frame_size": vm.offset("CodeBlob", "_frame_size"),
            "blob_complete": vm.offset("CodeBlob", "_frame_complete_offset"),
            "blob_code": vm.offset("CodeBlob", "_code_begin", "_code_offset"),
        }
        # The class of methods that are compiled; CompiledMethod was its upper half from 9 to 22.
        nmethod = {
            "nmethod_method": self.nmethod("_method"),
            "nmethod_compile_id": self.nmethod("_compile_id"),
            "nmethod_orig_pc": self.nmethod("_orig_pc_offset"),
            "nmethod_deopt": self.nmethod(
                "_deopt_handler_begin",
                "_deopt_handler_offset",
                "_deoptimize_offset",
                "_deopt_handler_entry_offset",
            ),
        }
        handler = self.find_nmethod(
            "_deopt_mh_handler_begin", "_deopt_mh_handler_offset", "_deoptimize_mh_offset"
        )
        nmethod["nmethod_deopt_mh"] = nmethod["nmethod_deopt"] if handler is None else handler
        start = min(nmethod.values()) & ~7
        constant = {
            "const_constants": vm.offset("ConstMethod", "_constants"),
            "const_code_size": vm.offset("ConstMethod", "_code_size"),
            "const_name": vm.offset("ConstMethod", "_name_index") & ~7,
        }
        values = {
            "low": min(heap.low for heap in self.heaps),
            "high": max(heap.high for heap in self.heaps),
            "interpreter": self.interpreter.start,
            "interpreter_end": self.interpreter.end,
            "call_stub": self.call_stub,
            "block_header": vm.size("HeapBlock"),
            **blob,
            "blob_bytes": max(blob.values()) + 8,
            "blob_complete_bits": 16 if vm.find("CodeBlob", "_kind") is not None else 32,
            "blob_code_is_offset": vm.find("CodeBlob", "_code_begin") is None,
            "nmethod_start": start,
            **{name: at - start for name, at in nmethod.items()},
            "nmethod_bytes": max(nmethod.values()) - start + 8,
            "nmethod_deopt_is_offset": self.find_nmethod("_deopt_handler_begin") is None,
            "method_const": vm.offset("Method", "_constMethod"),
            **constant,
            "const_bytes": max(constant.values()) + 8,
            "const_size": vm.size("ConstMethod"),
            "frame_bcp": self.version == 8,
        }
        limits = {
            "blob_bytes": Limit.HOTSPOT_BLOB_BYTES,
            "nmethod_bytes": Limit.HOTSPOT_NMETHOD_BYTES,
            "const_bytes": Limit.HOTSPOT_CONST_BYTES,
        }
        if any(values[name] > limit for name, limit in limits.items()) or start > _MOST:
            raise NotSupported("layout", "the offsets lie too far apart")
        return values

    def nmethod(self, *names: str) -> int:
        """The offset of a field of compiled methods. Raises NotSupported."""
        found = self.find_nmethod(*names)
        if found is None:
            raise NotSupported("layout", f"vmStructs: no nmethod::{' or '.join(names)}")
        return found

    def find_nmethod(self, *names: str) -> int | None:
        """The same, or None."""
        upper = self.vm.find("CompiledMethod", *names)
        return self.vm.find("nmethod", *names) if upper is None else upper
