"""What crosses the border to the kernel side. Generated from `bpf/abi.h` by `make generate`: do not edit.

Struct dtypes are aligned as the C compiler laid them out; enums carry the header's names without their prefix.
"""

from enum import IntEnum
from typing import Final

import numpy as np

class Limit(IntEnum):
    MAX_SLOTS = 1024
    MAX_PROCESSES = 8192
    MAX_MAPPINGS = 65536
    MAX_EXECUTABLES = 1048576
    MAX_TABLES = 16384
    MAX_RULES = 16384
    MAX_SLABS = 64
    SLAB_PAIRS = 131072
    TABLE_ROWS = 61440
    PAGE_BITS = 16
    MAX_KERNEL_FRAMES = 127
    MAX_USER_FRAMES = 512
    MAX_USER_WORDS = 880
    FRAMES_PER_PROGRAM = 16
    STACK_WORDS = 1024
    COLD_PAGES = 9
    COLD_BYTES = 36864
    COLD_RING_BYTES = 8388608
    COLD_KERNEL_WORDS = 128
    CGROUP_CACHE = 4096
    MAX_COUNTS = 16384
    CGROUP_DEPTH = 16
    COMM_BYTES = 16
    RING_WAKE_BYTES = 65536
    MAX_LAYOUTS = 256
    INTERPRETER_BYTES = 512
    CPYTHON_FRAME_BYTES = 128
    CPYTHON_CODE_BYTES = 128
    V8_OBJECT_BYTES = 128
    V8_MAX_BYTECODE = 268435456
    V8_MOST_MARKER = 512
    HOTSPOT_HEAPS = 4
    HOTSPOT_REGIONS = 256
    HOTSPOT_BLOB_BYTES = 128
    HOTSPOT_NMETHOD_BYTES = 224
    HOTSPOT_CONST_BYTES = 64


class ConfigFlag(IntEnum):
    TGIDS = 1
    CGROUPS = 2
    UNIFIED = 4


class Program(IntEnum):
    NATIVE = 0
    FINISH = 1
    COLD = 2
    CPYTHON = 3
    HOTSPOT = 4
    V8 = 5


class FrameKind(IntEnum):
    NATIVE = 1
    RAW = 2
    CPYTHON = 3
    HOTSPOT = 4
    V8 = 5


class HotspotFrame(IntEnum):
    INTERPRETED = 0
    COMPILED = 1
    STUB = 2


class Outcome(IntEnum):
    COMPLETE = 0
    KERNEL_THREAD = 1
    TRUNCATED = 2
    NO_MAPPING = 3
    NO_RULE = 4
    BAD_FRAME = 5
    READ_FAULT = 6
    INTERPRETER_TORN = 7
    INTERPRETER_LEFT = 8
    COMPAT = 9
    COLD = 10
    COLD_DROPPED = 11
    LOST_COUNT = 12
    LOST_STACK = 13
    LOST_TAIL_CALL = 14
    LOST_SCRATCH = 15


class Counter(IntEnum):
    TICKS = 16
    UNSELECTED = 17
    NOT_DUE = 18
    SAMPLES = 19
    IDLE = 20
    UNWOUND = 21
    INTERPRETED = 22
    INTERPRETER_FRAMES = 23
    FRAME_POINTER_STEPS = 24
    CGROUP_WALKS = 25
    NO_CGROUP = 26
    NO_USER_REGISTERS = 27
    COLD_BYTES = 28
    FORKS_COPIED = 29
    EXECS_DROPPED = 30
    RING_FULL = 31


class ProcessFlag(IntEnum):
    COLD = 1


class MappingFlag(IntEnum):
    EVAL = 16777216


class TableFlag(IntEnum):
    READY = 1
    NO_ROWS = 2


class CfaKind(IntEnum):
    NONE = 0
    SP = 1
    FP = 2
    SP_DEREF = 3
    FP_DEREF = 4
    PLT = 5
    SIGNAL = 6
    END = 7
    REGISTER = 8
    SP_RA_REGISTER = 9


class FpKind(IntEnum):
    SAME = 0
    CFA = 1
    FP = 2
    SP = 3


class RecordType(IntEnum):
    STACK = 1
    COLD = 2


class CpythonMode(IntEnum):
    EVAL = 0
    CFRAME = 1
    CHAIN = 2
    ENTRY = 3


class HotspotRule(IntEnum):
    FRAME = 0
    ENTRY = 1
    ENTRY_RAX = 2
    PUSHED = 3
    FIXING = 4
    LEFT = 5
    LEFT_R13 = 6
    LEFT_JUMP = 7
    LEFT_BELOW = 8


class V8Frame(IntEnum):
    NONE = 0
    BYTECODE = 1
    COMPILED = 2
    BUILTIN = 3
    NOWHERE = 4


Slot: Final = np.dtype(
    {
        "names": ["period_ns", "epoch", "flags"],
        "formats": ["<u8", "<u4", "<u4"],
        "offsets": [0, 8, 12],
        "itemsize": 16,
    }
)

Config: Final = np.dtype(
    {
        "names": ["seed", "cold_bytes_per_second", "flags", "active", "selection", "reserved"],
        "formats": ["<u8", "<u8", "<u4", "<u4", "<u4", "<u4"],
        "offsets": [0, 8, 16, 20, 24, 28],
        "itemsize": 32,
    }
)

CgroupSlot: Final = np.dtype(
    {
        "names": ["slot", "selection"],
        "formats": ["<u4", "<u4"],
        "offsets": [0, 4],
        "itemsize": 8,
    }
)

SlotState: Final = np.dtype(
    {
        "names": ["due_ns", "ticks", "samples", "run_ns", "epoch", "reserved"],
        "formats": ["<i8", "<u8", "<u8", "<u8", "<u4", "<u4"],
        "offsets": [0, 8, 16, 24, 32, 36],
        "itemsize": 40,
    }
)

Process: Final = np.dtype(
    {
        "names": ["cookie", "first_mapping", "mappings", "fresh_until_ns", "flags", "program", "layout"],
        "formats": ["<u8", "<u4", "<u4", "<u8", "<u4", "<u2", "<u2"],
        "offsets": [0, 8, 12, 16, 24, 28, 30],
        "itemsize": 32,
    }
)

Mapping: Final = np.dtype(
    {
        "names": ["start", "end", "bias", "executable", "table"],
        "formats": ["<u8", "<u8", "<u8", "<u4", "<u4"],
        "offsets": [0, 8, 16, 24, 28],
        "itemsize": 32,
    }
)

Table: Final = np.dtype(
    {
        "names": ["base", "slab", "first", "pages", "flags", "generation", "reserved"],
        "formats": ["<u8", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4"],
        "offsets": [0, 8, 12, 16, 20, 24, 28],
        "itemsize": 32,
    }
)

Words: Final = np.dtype(
    {
        "names": ["pair"],
        "formats": ["<u8"],
        "offsets": [0],
        "itemsize": 8,
    }
)

Rule: Final = np.dtype(
    {
        "names": ["cfa", "fp", "ra_offset", "cfa_offset", "fp_offset", "cfa_extra"],
        "formats": ["<u1", "<u1", "<i2", "<i4", "<i4", "<i4"],
        "offsets": [0, 1, 2, 4, 8, 12],
        "itemsize": 16,
    }
)

CountKey: Final = np.dtype(
    {
        "names": ["stack", "cookie", "cgroup", "tgid", "tid", "epoch", "slot", "outcome"],
        "formats": ["<u8", "<u8", "<u8", "<u4", "<u4", "<u4", "<u2", "<u2"],
        "offsets": [0, 8, 16, 24, 28, 32, 36, 38],
        "itemsize": 40,
    }
)

CountValue: Final = np.dtype(
    {
        "names": ["count", "comm"],
        "formats": ["<u8", "S16"],
        "offsets": [0, 8],
        "itemsize": 24,
    }
)

StackRecord: Final = np.dtype(
    {
        "names": ["type", "kernel_frames", "user_frames", "stack", "cookie", "tgid", "layout", "reserved"],
        "formats": ["<u4", "<u2", "<u2", "<u8", "<u8", "<u4", "<u2", "<u2"],
        "offsets": [0, 4, 6, 8, 16, 24, 28, 30],
        "itemsize": 32,
    }
)

CpythonLayout: Final = np.dtype(
    {
        "names": ["mode", "tsd", "tsd_second", "thread_top", "thread_frame", "cframe_current", "cframe_previous", "frame_bytes", "frame_previous", "frame_code", "frame_at", "frame_entry", "entry_least", "code_start", "code_bytes", "code_filename", "code_line", "code_bytecode"],
        "formats": ["<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4"],
        "offsets": [0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 64, 68],
        "itemsize": 72,
    }
)

HotspotRegion: Final = np.dtype(
    {
        "names": ["start", "rule"],
        "formats": ["<u4", "<u4"],
        "offsets": [0, 4],
        "itemsize": 8,
    }
)

HotspotHeap: Final = np.dtype(
    {
        "names": ["low", "high", "segments", "shift"],
        "formats": ["<u8", "<u8", "<u8", "<u8"],
        "offsets": [0, 8, 16, 24],
        "itemsize": 32,
    }
)

HotspotLayout: Final = np.dtype(
    {
        "names": ["low", "high", "interpreter", "interpreter_end", "call_stub", "heaps", "block_header", "blob_bytes", "blob_name", "blob_size", "blob_frame_size", "blob_complete", "blob_complete_bits", "blob_code", "blob_code_is_offset", "nmethod_start", "nmethod_bytes", "nmethod_method", "nmethod_compile_id", "nmethod_orig_pc", "nmethod_deopt", "nmethod_deopt_mh", "nmethod_deopt_is_offset", "method_const", "const_bytes", "const_constants", "const_code_size", "const_name", "const_size", "frame_bcp", "regions", "reserved", "region"],
        "formats": ["<u8", "<u8", "<u8", "<u8", "<u8", (HotspotHeap, (4,)), "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", (HotspotRegion, (256,))],
        "offsets": [0, 8, 16, 24, 32, 40, 168, 172, 176, 180, 184, 188, 192, 196, 200, 204, 208, 212, 216, 220, 224, 228, 232, 236, 240, 244, 248, 252, 256, 260, 264, 268, 272],
        "itemsize": 2320,
    }
)

V8Layout: Final = np.dtype(
    {
        "names": ["function_bytes", "function_shared", "shared_bytes", "shared_data", "shared_script", "shared_numbers", "shared_flags", "script_bytes", "script_id", "map_type", "bytecode_type", "bytecode_data"],
        "formats": ["<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4"],
        "offsets": [0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44],
        "itemsize": 48,
    }
)

Registers: Final = np.dtype(
    {
        "names": ["pc", "sp", "fp", "r10", "rbx", "r12", "r13", "r14", "r15", "rax", "rdi"],
        "formats": ["<u8", "<u8", "<u8", "<u8", "<u8", "<u8", "<u8", "<u8", "<u8", "<u8", "<u8"],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80],
        "itemsize": 88,
    }
)

ColdRecord: Final = np.dtype(
    {
        "names": ["type", "tgid", "tid", "epoch", "slot", "kernel_frames", "stack_bytes", "cookie", "cgroup", "time_ns", "registers", "comm"],
        "formats": ["<u4", "<u4", "<u4", "<u4", "<u2", "<u2", "<u4", "<u8", "<u8", "<u8", Registers, "S16"],
        "offsets": [0, 4, 8, 12, 16, 18, 20, 24, 32, 40, 48, 136],
        "itemsize": 152,
    }
)

OUTCOME_HELP: Final = {
    Outcome.COMPLETE: "the user stack was unwound to its root",
    Outcome.KERNEL_THREAD: "the task has no user stack (kernel threads, execve); the kernel stack is whole",
    Outcome.TRUNCATED: "the stack is deeper than FH_MAX_USER_FRAMES; the frames nearest the leaf are kept",
    Outcome.NO_MAPPING: "a program counter lies in no executable mapping",
    Outcome.NO_RULE: "the executable has no unwind information there and the frame pointer did not help",
    Outcome.BAD_FRAME: "an unwind step did not move towards the root",
    Outcome.READ_FAULT: "a stack page could not be read",
    Outcome.INTERPRETER_TORN: "an interpreter's frames were being changed or made no sense; native frames are whole",
    Outcome.INTERPRETER_LEFT: "at the root of the stack, frames of an interpreter were left over",
    Outcome.COMPAT: "32-bit user space is not unwound",
    Outcome.COLD: "registers and stack were sent to the agent to be unwound there",
    Outcome.COLD_DROPPED: "like COLD, but the ring was full",
    Outcome.LOST_COUNT: "the count map was full",
    Outcome.LOST_STACK: "the stack was counted but its definition did not fit the ring buffer",
    Outcome.LOST_TAIL_CALL: "a tail call failed",
    Outcome.LOST_SCRATCH: "the scratch space of this CPU was busy",
}
COUNTER_HELP: Final = {
    Counter.TICKS: "perf ticks that reached the program",
    Counter.UNSELECTED: "ticks on tasks that no policy selects",
    Counter.NOT_DUE: "ticks on selected tasks between two samples",
    Counter.SAMPLES: "samples accepted, each of which ends in one outcome",
    Counter.IDLE: "ticks on the idle task",
    Counter.UNWOUND: "samples whose user stack the native unwinder began",
    Counter.INTERPRETED: "samples that an interpreter's unwinder began",
    Counter.INTERPRETER_FRAMES: "frames of interpreters",
    Counter.FRAME_POINTER_STEPS: "frames stepped by frame pointer for want of a rule",
    Counter.CGROUP_WALKS: "cgroups whose ancestors were walked",
    Counter.NO_CGROUP: "ticks whose cgroup could not be read",
    Counter.NO_USER_REGISTERS: "samples in kernel mode whose user registers could not be read",
    Counter.COLD_BYTES: "bytes of stack copied for the agent",
    Counter.FORKS_COPIED: "processes that inherited their parent's mappings at fork",
    Counter.EXECS_DROPPED: "processes whose mappings were dropped at exec",
    Counter.RING_FULL: "records that did not fit the ring buffer",
}
