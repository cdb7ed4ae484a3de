"""Looks at a process that maps HotSpot: its version, its code cache, its interpreter."""

import struct
from typing import Final

from flameherd_agent.interpreters.base import NotReady, NotSupported, RuntimeFile
from flameherd_agent.interpreters.hotspot.layout import Heap, Layout
from flameherd_agent.interpreters.hotspot.regions import read_interpreter
from flameherd_agent.interpreters.hotspot.vmstructs import VmStructs, read_tables
from flameherd_agent.interpreters.memory import ProcessMemory
from flameherd_agent.kernel.abi import Limit

VERSIONS: Final = range(8, 27)
"""Those whose generated code is known. A later one is refused: it may have other frames."""
_MAX_CACHE_BYTES: Final = 4 << 30


def attach(memory: ProcessMemory, file: RuntimeFile, bias: int) -> Layout:
    """The layout of the JVM in `file`, mapped at `bias`. Raises NotReady, NotSupported, MemoryGone."""
    vm = read_tables(memory, file, bias)
    version = _version(memory, vm)
    if version not in VERSIONS:
        raise NotSupported("version", f"JDK {version} is not known")
    heaps = _heaps(memory, vm)
    call_stub = memory.word(vm.static("StubRoutines", "_call_stub_return_address"))
    interpreter = read_interpreter(memory, vm)
    return Layout(int(memory.pid), version, heaps, call_stub, interpreter, vm)


def _version(memory: ProcessMemory, vm: VmStructs) -> int:
    """The feature release. Up to 8 HotSpot counted by itself."""
    if ("CodeCache", "_heap") in vm.statics:
        return 8
    return _int(memory, vm.static("Abstract_VM_Version", "_vm_major_version"))


def _heaps(memory: ProcessMemory, vm: VmStructs) -> tuple[Heap, ...]:
    if ("CodeCache", "_heap") in vm.statics:
        places = [memory.word(vm.static("CodeCache", "_heap"))]
    else:
        # GrowableArray<CodeHeap*>*, whose layout is that of any other.
        array = memory.word(vm.static("CodeCache", "_heaps"))
        if not array:
            raise NotReady(f"process {memory.pid}: no code cache yet")
        count = _int(
            memory,
            array + vm.offset("GenericGrowableArray", "_len")
            if vm.find("GenericGrowableArray", "_len") is not None
            else array + vm.offset("GrowableArrayBase", "_len"),
        )
        if not 0 < count <= Limit.HOTSPOT_HEAPS:
            raise NotReady(f"process {memory.pid}: a code cache of {count} heaps")
        data = memory.word(array + vm.offset("GrowableArray<int>", "_data"))
        places = [memory.word(data + 8 * at) for at in range(count)]
    if not all(places):
        raise NotReady(f"process {memory.pid}: no code cache yet")
    return tuple(_heap(memory, vm, place) for place in places)


def _heap(memory: ProcessMemory, vm: VmStructs, place: int) -> Heap:
    space = place + vm.offset("CodeHeap", "_memory")
    segments = place + vm.offset("CodeHeap", "_segmap")
    heap = Heap(
        memory.word(space + vm.offset("VirtualSpace", "_low_boundary")),
        memory.word(space + vm.offset("VirtualSpace", "_high_boundary")),
        memory.word(segments + vm.offset("VirtualSpace", "_low")),
        _int(memory, place + vm.offset("CodeHeap", "_log2_segment_size")),
    )
    if not heap.low or not 0 < heap.high - heap.low <= _MAX_CACHE_BYTES:
        raise NotReady(f"process {memory.pid}: a heap of the code cache is not reserved yet")
    if not 3 <= heap.shift <= 16:
        raise NotSupported("layout", f"code segments of 2^{heap.shift} bytes make no sense")
    return heap


def _int(memory: ProcessMemory, address: int) -> int:
    return int(struct.unpack("<i", memory.read(address, 4))[0])
