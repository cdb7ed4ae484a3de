/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Everything that crosses the border between the kernel side and the agent: structs, enums, counters, limits.
 *
 * This header is the truth. tools/gen_abi.py compiles it with `gcc -g`, reads the DWARF and writes
 * agent/flameherd_agent/kernel/abi.py (numpy dtypes, IntEnums, counters with help); `make check` fails on
 * drift and the _Static_asserts fire again on the node. No struct is written twice by hand.
 */
#ifndef FLAMEHERD_ABI_H
#define FLAMEHERD_ABI_H

#ifdef FLAMEHERD_HOST
#include <stdint.h>
typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int16_t s16;
typedef int32_t s32;
typedef int64_t s64;
#endif

/* Limits. An enum, so that DWARF carries them. */
enum fh_limit {
    FH_MAX_SLOTS = 1024,            /* policy slots on one node; slot 0 = no policy */
    FH_MAX_PROCESSES = 8192,        /* processes whose mappings are loaded */
    FH_MAX_MAPPINGS = 65536,        /* executable mappings of all loaded processes */
    FH_MAX_EXECUTABLES = 1048576,   /* executable ids: 20 bits of a frame word; id 0 = none */
    FH_MAX_TABLES = 16384,          /* unwind tables that mappings refer to; table 0 = no file */
    FH_MAX_RULES = 16384,           /* distinct unwind rules of all executables */
    FH_MAX_SLABS = 64,              /* slabs of unwind rows */
    FH_SLAB_PAIRS = 131072,         /* pairs of words in one slab: 1 MiB */
    FH_TABLE_ROWS = 61440,          /* rows of one table at most: four such fill a slab */
    FH_PAGE_BITS = 16,              /* rows keep so many bits of their pc; an index has the others */
    FH_MAX_KERNEL_FRAMES = 127,     /* perf's own limit, kernel.perf_event_max_stack */
    FH_MAX_USER_FRAMES = 512,       /* native frames of one stack */
    FH_MAX_USER_WORDS = 880,        /* words of user frames where an interpreter's frames lie between */
    FH_FRAMES_PER_PROGRAM = 16,     /* native frames unwound before the next tail call */
    FH_STACK_WORDS = 1024,          /* kernel + user frame words, rounded up to a power of two */
    FH_COLD_PAGES = 9,              /* pages of stack copied for a process that is not loaded yet */
    FH_COLD_BYTES = 36864,          /* FH_COLD_PAGES * 4096 */
    FH_COLD_RING_BYTES = 8388608,   /* of fh_cold_ring */
    FH_COLD_KERNEL_WORDS = 128,     /* room for the kernel frames of a cold record */
    FH_CGROUP_CACHE = 4096,         /* cgroups whose slot is remembered */
    FH_MAX_COUNTS = 16384,          /* distinct (stack, thread, slot) of one interval */
    FH_CGROUP_DEPTH = 16,           /* ancestors of a cgroup that are searched for a policy */
    FH_COMM_BYTES = 16,             /* TASK_COMM_LEN */
    FH_RING_WAKE_BYTES = 65536,     /* of stacks that a CPU sends before it wakes the agent */
    FH_MAX_LAYOUTS = 256,           /* distinct layouts of one interpreter on a node; layout 0 = none */
    FH_INTERPRETER_BYTES = 512,     /* of scratch space for an interpreter's program */
    FH_CPYTHON_FRAME_BYTES = 128,   /* head of a frame that is read at once */
    FH_CPYTHON_CODE_BYTES = 128,    /* part of a code object that is read at once */
    FH_V8_OBJECT_BYTES = 128,       /* head of a V8 heap object that is read at once */
    FH_V8_MAX_BYTECODE = 1 << 28,   /* bytecode offsets are below */
    FH_V8_MOST_MARKER = 512,        /* types of frames, doubled, are below */
    FH_HOTSPOT_HEAPS = 4,           /* heaps of a HotSpot's code cache */
    FH_HOTSPOT_REGIONS = 256,       /* stretches of its interpreter's code with rules of their own */
    FH_HOTSPOT_BLOB_BYTES = 128,    /* head of a code blob that is read at once */
    FH_HOTSPOT_NMETHOD_BYTES = 224, /* part of a compiled method behind it */
    FH_HOTSPOT_CONST_BYTES = 64,    /* head of a ConstMethod */
};

/* A policy slot. Array `fh_slots`, written by the agent. */
struct fh_slot {
    u64 period_ns; /* nanoseconds of CPU time per sample; 0 = off */
    u32 epoch;     /* rate epoch: changes with every change of period_ns */
    u32 flags;     /* must be 0 */
};

enum fh_config_flag {
    FH_CONFIG_TGIDS = 1,   /* fh_tgid_slots is in use */
    FH_CONFIG_CGROUPS = 2, /* fh_cgroup_slots is in use */
    FH_CONFIG_UNIFIED = 4, /* the pids controller has no hierarchy of its own: cgroup v2's counts */
};

/* What the programs are told. Array `fh_config` with one entry, written by the agent. */
struct fh_config {
    u64 seed;                  /* of stack hashes and of the jitter */
    u64 cold_bytes_per_second; /* cap of copied stack bytes, for each CPU */
    u32 flags;                 /* enum fh_config_flag */
    u32 active;                /* 0 or 1: which of fh_counts_0/1 and fh_seen_0/1 is written */
    u32 selection;             /* changes with every change of fh_cgroup_slots: invalidates the cache */
    u32 reserved;
};

/* The slot of a cgroup, remembered. LRU hash `fh_cgroup_cache`: cgroup id -> this. */
struct fh_cgroup_slot {
    u32 slot;
    u32 selection; /* value of fh_config.selection that it was found under */
};

/* The accumulator and the meters of one slot on one CPU. Per-CPU array `fh_slot_state`. */
struct fh_slot_state {
    s64 due_ns;  /* CPU time left until the next sample */
    u64 ticks;   /* ticks that fell on tasks of this slot */
    u64 samples; /* samples accepted */
    u64 run_ns;  /* BPF run time of the accepted samples */
    u32 epoch;   /* epoch that due_ns was drawn in */
    u32 reserved;
};

/* The tail-call targets: indices of `fh_programs`. */
enum fh_program {
    FH_PROGRAM_NATIVE = 0,
    FH_PROGRAM_FINISH = 1,
    FH_PROGRAM_COLD = 2,
    FH_PROGRAM_CPYTHON = 3, /* native frames and CPython's: loaded once a process runs CPython */
    FH_PROGRAM_HOTSPOT = 4, /* likewise for HotSpot */
    FH_PROGRAM_V8 = 5,      /* likewise for V8 */
};

/* One frame is one 64-bit word, or more for some kinds. User frames: kind in bits 60-63, for native frames
 * the executable id in bits 40-59 and the address in the file in bits 0-39; for raw frames the virtual
 * address in bits 0-55. CPython frames: the code object's address in bits 0-55 (0: an evaluation without a
 * frame), then a word of its own: fh_cpython_tag() of the code object in bits 32-63, and where it is in the
 * bytecode in bits 0-31, in the units of its version. HotSpot frames: an address in bits 0-55 whose lowest
 * bits say of what (enum fh_hotspot_frame), then a word with fh_hotspot_tag() in bits 32-63 and the position
 * in bits 0-31. V8 frames: enum fh_v8_frame in bits 48-55, the function in
 * bits 0-47, then a word with a tag in bits 32-63 and the position in bits 0-31. Kernel frames are plain
 * kernel addresses, told apart by their place (the first kernel_count words). */
enum fh_frame_kind {
    FH_FRAME_NATIVE = 1,  /* executable id, address in the file */
    FH_FRAME_RAW = 2,     /* virtual address outside every known file: JIT code, anonymous memory */
    FH_FRAME_CPYTHON = 3, /* code object; a second word follows */
    FH_FRAME_HOTSPOT = 4, /* method, compiled method or stub; a second word follows */
    FH_FRAME_V8 = 5,      /* a function of V8's; a second word follows */
};

/* Of what a HotSpot frame's address is, in its two lowest bits; and what its position counts. */
enum fh_hotspot_frame {
    FH_HOTSPOT_FRAME_INTERPRETED = 0, /* Method; index of the bytecode */
    FH_HOTSPOT_FRAME_COMPILED =
        1, /* nmethod; bytes from its code's start to the byte behind the instruction's first */
    FH_HOTSPOT_FRAME_STUB = 2, /* another code blob; 1: the call stub */
};

/* What became of a sample. X(name, help): one list for the enum, the metric and the docs. */
#define FH_OUTCOMES(X)                                                                                       \
    X(COMPLETE, "the user stack was unwound to its root")                                                    \
    X(KERNEL_THREAD, "the task has no user stack (kernel threads, execve); the kernel stack is whole")       \
    X(TRUNCATED, "the stack is deeper than FH_MAX_USER_FRAMES; the frames nearest the leaf are kept")        \
    X(NO_MAPPING, "a program counter lies in no executable mapping")                                         \
    X(NO_RULE, "the executable has no unwind information there and the frame pointer did not help")          \
    X(BAD_FRAME, "an unwind step did not move towards the root")                                             \
    X(READ_FAULT, "a stack page could not be read")                                                          \
    X(INTERPRETER_TORN,                                                                                      \
      "an interpreter's frames were being changed or made no sense; native frames are whole")                \
    X(INTERPRETER_LEFT, "at the root of the stack, frames of an interpreter were left over")                 \
    X(COMPAT, "32-bit user space is not unwound")                                                            \
    X(COLD, "registers and stack were sent to the agent to be unwound there")                                \
    X(COLD_DROPPED, "like COLD, but the ring was full")                                                      \
    X(LOST_COUNT, "the count map was full")                                                                  \
    X(LOST_STACK, "the stack was counted but its definition did not fit the ring buffer")                    \
    X(LOST_TAIL_CALL, "a tail call failed")                                                                  \
    X(LOST_SCRATCH, "the scratch space of this CPU was busy")

enum fh_outcome {
#define X(name, help) FH_OUTCOME_##name,
    FH_OUTCOMES(X)
#undef X
        FH_OUTCOME_COUNT
};

/* Counters besides the outcomes. Per-CPU array `fh_counters`: first the outcomes, then these. */
#define FH_COUNTERS(X)                                                                                       \
    X(TICKS, "perf ticks that reached the program")                                                          \
    X(UNSELECTED, "ticks on tasks that no policy selects")                                                   \
    X(NOT_DUE, "ticks on selected tasks between two samples")                                                \
    X(SAMPLES, "samples accepted, each of which ends in one outcome")                                        \
    X(IDLE, "ticks on the idle task")                                                                        \
    X(UNWOUND, "samples whose user stack the native unwinder began")                                         \
    X(INTERPRETED, "samples that an interpreter's unwinder began")                                           \
    X(INTERPRETER_FRAMES, "frames of interpreters")                                                          \
    X(FRAME_POINTER_STEPS, "frames stepped by frame pointer for want of a rule")                             \
    X(CGROUP_WALKS, "cgroups whose ancestors were walked")                                                   \
    X(NO_CGROUP, "ticks whose cgroup could not be read")                                                     \
    X(NO_USER_REGISTERS, "samples in kernel mode whose user registers could not be read")                    \
    X(COLD_BYTES, "bytes of stack copied for the agent")                                                     \
    X(FORKS_COPIED, "processes that inherited their parent's mappings at fork")                              \
    X(EXECS_DROPPED, "processes whose mappings were dropped at exec")                                        \
    X(RING_FULL, "records that did not fit the ring buffer")

enum fh_counter {
    FH_COUNTER_FIRST = FH_OUTCOME_COUNT - 1,
#define X(name, help) FH_COUNTER_##name,
    FH_COUNTERS(X)
#undef X
        FH_COUNTER_COUNT
};

enum fh_process_flag {
    FH_PROCESS_COLD =
        1, /* its libraries take each other's places: only the agent knows which was there when */
};

/* A loaded process. Hash `fh_processes`: tgid -> this. The agent writes it, fork copies it, exec and exit
 * delete it. `cookie` binds the entry to one address space: mm pointer, exec count and start time folded to
 * 64 bits. A sample whose cookie differs treats the process as not loaded. */
struct fh_process {
    u64 cookie;
    u32 first_mapping;  /* index into fh_mappings */
    u32 mappings;       /* how many; sorted by start */
    u64 fresh_until_ns; /* CLOCK_MONOTONIC; until then unknown code may just be too new: it goes cold */
    u32 flags;          /* enum fh_process_flag */
    u16 program;        /* enum fh_program that unwinds it */
    u16 layout;         /* index into that program's array of layouts; 0: native only */
};

enum fh_mapping_flag {
    FH_MAPPING_EVAL = 0x01000000, /* the code is an interpreter's evaluation loop */
};

/* An executable mapping. Array `fh_mappings`, MMAPABLE, written by the agent in extents, sorted by start. */
struct fh_mapping {
    u64 start;
    u64 end;
    u64 bias;       /* virtual address - address in the file; may wrap */
    u32 executable; /* bits 0-19 name the file in frame words, 0: executable memory with no file behind it;
                       bits 24-31: enum fh_mapping_flag */
    u32 table;      /* index into fh_tables; a file with several tables has several mappings */
};

enum fh_table_flag {
    FH_TABLE_READY = 1, /* rows are loaded */
    FH_TABLE_NO_ROWS =
        2, /* has none (or unreadable): step by frame pointer. Neither flag: not built yet, go cold */
};

/* The unwind table of an executable, or of a part of one with more than FH_TABLE_ROWS rows. Array
 * `fh_tables`, MMAPABLE, written by the agent. Table 0 is that of executable memory with no file behind it.
 */
struct fh_table {
    u64 base;       /* row pcs are relative to this address in the file */
    u32 slab;       /* index into fh_slabs */
    u32 first;      /* word in the slab where it begins */
    u32 pages;      /* stretches of 2^FH_PAGE_BITS bytes of code that it covers */
    u32 flags;      /* enum fh_table_flag */
    u32 generation; /* changes when the index is used again */
    u32 reserved;
};

/* Two words of unwind tables. Slabs: arrays, MMAPABLE; elements of arrays round up to 8 bytes. A table is, in
 * words: for each of its pages, where the rows of the page begin, counted from the table's first word; where
 * the last one's end; and the rows. A row has the low FH_PAGE_BITS of its pc in its low bits, and in the
 * others the index of the rule that holds from that pc on, up to the next row; rule 0 = no information. */
struct fh_words {
    u64 pair; /* the first in the low half */
};

/* How to find the caller's stack pointer (the CFA). */
enum fh_cfa_kind {
    FH_CFA_NONE = 0,     /* no information here: try the frame pointer */
    FH_CFA_SP = 1,       /* sp + cfa_offset */
    FH_CFA_FP = 2,       /* rbp + cfa_offset */
    FH_CFA_SP_DEREF = 3, /* *(sp + cfa_offset) + cfa_extra */
    FH_CFA_FP_DEREF = 4, /* *(rbp + cfa_offset) + cfa_extra */
    FH_CFA_PLT = 5,      /* sp + 8 + ((pc & 15) >= cfa_offset ? cfa_extra : 0): the PLT's DWARF expression */
    FH_CFA_SIGNAL = 6,   /* signal frame: registers from the ucontext at sp */
    FH_CFA_END = 7,      /* outermost frame: the return address is undefined */
    FH_CFA_REGISTER =
        8, /* register number cfa_extra (DWARF numbering) + cfa_offset; all but rbx at the leaf only */
    FH_CFA_SP_RA_REGISTER =
        9, /* sp + cfa_offset, and the return address is in register cfa_extra: at the leaf only */
};

/* How to find the caller's rbp. */
enum fh_fp_kind {
    FH_FP_SAME = 0, /* not changed, or not known */
    FH_FP_CFA = 1,  /* saved at CFA + fp_offset */
    FH_FP_FP = 2,   /* saved at rbp + fp_offset (a DWARF expression) */
    FH_FP_SP = 3,   /* saved at sp + fp_offset (a DWARF expression) */
};

/* One unwind rule (System V x86-64 psABI, DWARF 5 section 6.4). Array `fh_rules`: written by the agent, never
 * changed afterwards. Rule 0 is all zero. */
struct fh_rule {
    u8 cfa;         /* enum fh_cfa_kind */
    u8 fp;          /* enum fh_fp_kind */
    s16 ra_offset;  /* the return address is saved at CFA + this; -8 nearly everywhere */
    s32 cfa_offset; /* see enum fh_cfa_kind */
    s32 fp_offset;  /* see enum fh_fp_kind */
    s32 cfa_extra;  /* see enum fh_cfa_kind; with FH_CFA_SP and FH_CFA_FP: rbx is saved at CFA + this, 0 = it
                       is not */
};

/* What is counted. Two hashes `fh_counts_0/1`: key -> value; the agent flips and drains the idle one. */
struct fh_count_key {
    u64 stack;  /* seeded hash of the frame words */
    u64 cookie; /* address space, as in struct fh_process; 0 for kernel threads */
    u64 cgroup; /* id of the task's cgroup: finds the container even if the process is gone */
    u32 tgid;   /* initial pid namespace */
    u32 tid;    /* initial pid namespace */
    u32 epoch;  /* rate epoch of the slot */
    u16 slot;
    u16 outcome; /* enum fh_outcome */
};

struct fh_count_value {
    u64 count;
    char comm[FH_COMM_BYTES]; /* thread name at the first sample of the interval */
};

/* Records of the ring buffers `fh_ring` and `fh_cold_ring`. */
enum fh_record_type {
    FH_RECORD_STACK = 1, /* struct fh_stack_record, then the frame words: in fh_ring */
    FH_RECORD_COLD = 2,  /* struct fh_cold_record and what follows it: in fh_cold_ring */
};

struct fh_stack_record {
    u32 type;
    u16 kernel_frames;
    u16 user_frames; /* in words; leaf first, kernel before user */
    u64 stack;
    u64 cookie; /* address space that interpreters' frames belong to */
    u32 tgid;
    u16 layout; /* by which they were read; 0: there are none */
    u16 reserved;
};

/* How CPython links its frames to the C stack. */
enum fh_cpython_mode {
    FH_CPYTHON_MODE_EVAL = 0,   /* one frame object for each call of the evaluation function: up to 3.9 */
    FH_CPYTHON_MODE_CFRAME = 1, /* the same, and a CFrame on the C stack of each such call: 3.10 */
    FH_CPYTHON_MODE_CHAIN = 2,  /* each CFrame has a chain of frames up to one with is_entry: 3.11 */
    FH_CPYTHON_MODE_ENTRY =
        3, /* one chain; a shim frame on the C stack of each evaluation call: from 3.12 on */
};

/* Where a CPython of one version and build has what. Offsets in bytes. Array `fh_cpython_layouts`, written by
 * the agent before a process refers to it, never changed. */
struct fh_cpython_layout {
    u32 mode;           /* enum fh_cpython_mode */
    u32 tsd;            /* from the thread's fs base: the thread state, or a pointer towards it */
    u32 tsd_second;     /* 0, or 1 + the offset in the block that the pointer leads to */
    u32 thread_top;     /* in the thread state: CFrame, or the frame */
    u32 thread_frame;   /* FH_CPYTHON_MODE_EVAL, FH_CPYTHON_MODE_CFRAME: frame object */
    u32 cframe_current; /* 1 + offset of the frame in a CFrame; 0: thread_top is the frame itself */
    u32 cframe_previous;
    u32 frame_bytes; /* how much of a frame to read */
    u32 frame_previous;
    u32 frame_code;
    u32 frame_at;    /* instruction: a pointer, or an index where code_bytecode is 0 */
    u32 frame_entry; /* a byte: is_entry, or owner */
    u32 entry_least; /* value from which on the byte means an entry frame */
    u32 code_start;  /* how much of a code object to read, and from where */
    u32 code_bytes;
    u32 code_filename; /* from code_start: co_filename and, behind it, co_name */
    u32 code_line;     /* from code_start: co_firstlineno */
    u32 code_bytecode; /* co_code_adaptive */
};

/* How a stretch of HotSpot's interpreter keeps its frame, while it makes or leaves one. */
enum fh_hotspot_rule {
    FH_HOTSPOT_RULE_FRAME = 0,      /* rbp leads to the frame */
    FH_HOTSPOT_RULE_ENTRY = 1,      /* return address at sp, caller's sp in r13, Method in rbx */
    FH_HOTSPOT_RULE_ENTRY_RAX = 2,  /* the same, return address in rax */
    FH_HOTSPOT_RULE_PUSHED = 3,     /* the same, rbp at sp, return address above it */
    FH_HOTSPOT_RULE_FIXING = 4,     /* rbp leads to a frame that is being filled; Method in rbx */
    FH_HOTSPOT_RULE_LEFT = 5,       /* return address at sp, caller's sp in rbx; the method is done */
    FH_HOTSPOT_RULE_LEFT_R13 = 6,   /* the same, return address in r13 */
    FH_HOTSPOT_RULE_LEFT_JUMP = 7,  /* the same, caller's sp is sp */
    FH_HOTSPOT_RULE_LEFT_BELOW = 8, /* the same, return address below sp */
};

/* Code of the interpreter from here up to the next region. */
struct fh_hotspot_region {
    u32 start; /* from the interpreter's first byte */
    u32 rule;  /* enum fh_hotspot_rule */
};

/* A heap of the code cache. */
struct fh_hotspot_heap {
    u64 low;
    u64 high;
    u64 segments; /* address of the segment map: a byte for each segment */
    u64 shift;    /* log2 of a segment's bytes */
};

/* Where one JVM has what: addresses in the process, offsets in bytes. Array `fh_hotspot_layouts`, written by
 * the agent before the process refers to it, not changed while it lives. */
struct fh_hotspot_layout {
    u64 low; /* the code cache as it is reserved */
    u64 high;
    u64 interpreter;
    u64 interpreter_end;
    u64 call_stub; /* return address into it */
    struct fh_hotspot_heap heaps[FH_HOTSPOT_HEAPS];
    u32 block_header; /* of a heap's block, in front of the blob */
    u32 blob_bytes;   /* how much of a CodeBlob to read */
    u32 blob_name;
    u32 blob_size;
    u32 blob_frame_size;
    u32 blob_complete;      /* _frame_complete_offset */
    u32 blob_complete_bits; /* 16 or 32 */
    u32 blob_code;          /* _code_begin, or _code_offset */
    u32 blob_code_is_offset;
    u32 nmethod_start; /* how much of an nmethod to read, and from where */
    u32 nmethod_bytes;
    u32 nmethod_method; /* from nmethod_start, like the following */
    u32 nmethod_compile_id;
    u32 nmethod_orig_pc;
    u32 nmethod_deopt; /* _deopt_handler_begin or its offset from the blob; then that for method handles */
    u32 nmethod_deopt_mh;
    u32 nmethod_deopt_is_offset;
    u32 method_const; /* in a Method */
    u32 const_bytes;  /* how much of a ConstMethod to read; the bytecode lies behind const_size */
    u32 const_constants;
    u32 const_code_size;
    u32 const_name; /* the aligned word that holds the name's index */
    u32 const_size;
    u32 frame_bcp; /* index into the words from rbp - 64 on: where a frame keeps its bytecode pointer */
    u32 regions;
    u32 reserved;
    struct fh_hotspot_region region[FH_HOTSPOT_REGIONS]; /* sorted */
};

/* What the words of a V8 frame say. */
enum fh_v8_frame {
    FH_V8_FRAME_NONE = 0,     /* no such frame */
    FH_V8_FRAME_BYTECODE = 1, /* SharedFunctionInfo, tagged; position: bytecode offset as in frames */
    FH_V8_FRAME_COMPILED = 2, /* SharedFunctionInfo, tagged; position: lower half of the program counter */
    FH_V8_FRAME_BUILTIN = 3,  /* SharedFunctionInfo of a function that is part of V8; no position */
    FH_V8_FRAME_NOWHERE = 4,  /* SharedFunctionInfo; where in it is not known */
};

/* Where a V8 of one version has what. Offsets in bytes, from the object's start. Array `fh_v8_layouts`,
 * written by the agent before a process refers to it, never changed. */
struct fh_v8_layout {
    u32 function_bytes;  /* how much of a JSFunction to read */
    u32 function_shared; /* its SharedFunctionInfo */
    u32 shared_bytes;    /* how much of a SharedFunctionInfo to read */
    u32 shared_data;     /* bytecode, code, or a small number: a builtin's */
    u32 shared_script;
    u32 shared_numbers; /* 8 bytes: length, parameter count, function token offset, more */
    u32 shared_flags;   /* 4 bytes, and 4 of the function's number in its script */
    u32 script_bytes;   /* how much of a Script to read */
    u32 script_id;
    u32 map_type;      /* instance type in a Map */
    u32 bytecode_type; /* instance type of bytecode arrays */
    u32 bytecode_data; /* the first bytecode in a bytecode array */
};

/* User registers, as much as unwinding needs. DWARF numbers: rax 0, rbx 3, rdi 5, rbp 6, rsp 7, r10 10,
 * r12-r15, rip 16. */
struct fh_registers {
    u64 pc;
    u64 sp;
    u64 fp;
    u64 r10;
    u64 rbx;
    u64 r12;
    u64 r13;
    u64 r14;
    u64 r15;
    u64 rax;
    u64 rdi; /* glibc's vfork keeps its return address there */
};

/* In the ring buffer `fh_cold_ring`: this, then FH_COLD_KERNEL_WORDS words of which the first kernel_frames
 * are the kernel stack, then stack_bytes of user stack from sp on. */
struct fh_cold_record {
    u32 type;
    u32 tgid;
    u32 tid;
    u32 epoch;
    u16 slot;
    u16 kernel_frames;
    u32 stack_bytes; /* 0: over the cap */
    u64 cookie;
    u64 cgroup;
    u64 time_ns; /* CLOCK_MONOTONIC */
    struct fh_registers registers;
    char comm[FH_COMM_BYTES];
};

_Static_assert(sizeof(struct fh_words) == 8, "array elements round up to 8 bytes");
_Static_assert(FH_TABLE_ROWS <= 1 << FH_PAGE_BITS, "FH_ROW_STEPS of lib/unwind.h");
_Static_assert(sizeof(struct fh_rule) == 16, "the rule table is indexed in user space too");
_Static_assert(sizeof(struct fh_count_key) == 40, "no padding: hash keys are compared bytewise");
_Static_assert(sizeof(struct fh_mapping) == 32, "mappings are written through mmap as numpy rows");
_Static_assert(sizeof(struct fh_table) == 32, "tables are written through mmap as numpy rows");

#endif
