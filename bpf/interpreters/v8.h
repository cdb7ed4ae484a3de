/* SPDX-License-Identifier: GPL-2.0 */
/*
 * V8's frames, as the unwinder meets them between native ones.
 *
 * All code that V8 generates keeps a frame pointer, and what a frame is stands in the frame itself: below the
 * saved rbp lies either a tagged context, then the frame is a JavaScript function's and the function lies
 * below that, or a small number, the frame's type. So frames are told apart by their contents, and the pc
 * only says which code of the function runs: bytecode (the pc is in the builtins, which are part of the
 * executable file), or compiled code.
 *
 * Only the leaf may be without a frame of its own: in a prologue or an epilogue, which its instructions tell,
 * or in a builtin that needs none.
 *
 * Objects move. What is noted of a function is where its SharedFunctionInfo lies and a tag of numbers that
 * stay the same; the collector leaves the new address in the place of a moved object's map, and that is
 * followed. The heap is untrusted memory: every read is checked, and nothing is walked here but the frames.
 *
 * Layout of frames: V8's src/execution/frame-constants.h and frames.h.
 */

#define FH_V8_FRAMES_PER_PROGRAM 8 /* as many as the verifier has patience for */
#define FH_V8_MOST_RUNS 30 /* of the program, one behind the other: the kernel's limit is 33 tail calls */
#define FH_V8_TAG_MASK 3
#define FH_V8_LEAF_BEFORE 16 /* bytes of code in front of the leaf's pc that are looked at */
#define FH_V8_PREFACE 14     /* most bytes of compiled code in front of its `push rbp` */

/* A frame from fp - 40 to fp + 16, as words. */
enum fh_v8_slot {
    FH_V8_OFFSET = 0,   /* bytecode offset, or feedback vector */
    FH_V8_BYTECODE = 1, /* bytecode array */
    FH_V8_FUNCTION = 3,
    FH_V8_CONTEXT = 4, /* or the type */
    FH_V8_FP = 5,
    FH_V8_RETURN = 6,
    FH_V8_SLOTS = 7,
};

/* In fh_scratch.interpreter. */
struct fh_v8 {
    u64 begun;
    u64 r9; /* of the leaf, if it was in user mode: the offset in the bytecode, while a handler keeps it */
    u64 frame[FH_V8_SLOTS];
    /* Of the frame in the making: what the verifier need not tell apart is not kept in registers. */
    u64 first;
    u64 second;
    u64 ret;      /* where it returns to */
    u32 way;      /* enum fh_v8_frame */
    u32 linked;   /* its caller is found by its frame pointer */
    u64 shared;   /* SharedFunctionInfo of the last function, tagged */
    u64 function; /* the last function, tagged */
    u32 tag;
    u32 builtin; /* the last function is one of V8's own */
    u32 emitted; /* of this program's run */
    u32 torn;
    u32 probe; /* pc was read from sp, where a return address was likely */
    u32 runs;  /* of the program */
    u8 code[40];
    u8 object[FH_V8_OBJECT_BYTES];
};

_Static_assert(sizeof(struct fh_v8) <= FH_INTERPRETER_BYTES, "the scratch space is the core's");

static __always_inline u64 fh_v8_word(const u8 *bytes, u32 offset) {
    return *(const u64 *)(bytes + (offset & 0x78));
}

/* The head of a heap object to p->object, wherever the collector has moved it. Not 0 if it cannot be read. */
static __always_inline int fh_v8_read_object(struct fh_v8 *p, u64 *tagged, u32 bytes) {
    u64 map;
    if ((*tagged & FH_V8_TAG_MASK) != 1 || bytes > FH_V8_OBJECT_BYTES)
        return -1;
    if (fh_read_user(p->object, bytes, *tagged - 1))
        return -1;
    map = *(const u64 *)p->object;
    if (map & 1)
        return 0;
    *tagged = map + 1;
    return fh_read_user(p->object, bytes, map) || !(p->object[0] & 1) ? -1 : 0;
}

/* Which function a frame of JavaScript is of: p->shared, p->tag, p->builtin. Not 0 if it cannot be told. */
static __always_inline int fh_v8_identify(const struct fh_v8_layout *l, struct fh_v8 *p) {
    u64 function = p->frame[FH_V8_FUNCTION], shared, script, numbers, data, hash;
    u32 literal;
    if (function && function == p->function)
        return 0; /* the same as in the frame before */
    p->function = 0;
    shared = function;
    if (fh_v8_read_object(p, &shared, l->function_bytes))
        return -1;
    shared = fh_v8_word(p->object, l->function_shared);
    if (fh_v8_read_object(p, &shared, l->shared_bytes))
        return -1;
    script = fh_v8_word(p->object, l->shared_script);
    data = fh_v8_word(p->object, l->shared_data);
    /* Length, parameters, token offset, more; the first and the last of them change. */
    numbers = fh_v8_word(p->object, l->shared_numbers) >> 16 & 0xffffffff;
    literal = fh_v8_word(p->object, l->shared_flags) >> 32;
    hash = fh_mix(numbers, literal);
    p->builtin = !(data & 1);
    if (!p->builtin) {
        if (fh_v8_read_object(p, &script, l->script_bytes))
            return -1;
        /* Workers count their scripts from the same number on, but have them elsewhere. */
        hash = fh_mix(fh_mix(hash, fh_v8_word(p->object, l->script_id)), script);
    } else {
        hash = fh_mix(hash, data);
    }
    p->shared = shared;
    p->tag = hash >> 32;
    p->function = function;
    return 0;
}

static __always_inline u64 fh_v8_function_word(const struct fh_v8 *p) {
    return (u64)FH_FRAME_V8 << 60 | (p->shared & 0xffffffffffffULL);
}

/* The words of a frame of the last function in compiled code, but for the kind. The bytes that end at pc
 * belong to the tag: other code may lie there one day. Not 0 if they cannot be read. */
static __always_inline int fh_v8_compiled(const struct fh_v8 *p, u64 pc, u64 *first, u64 *second) {
    u64 bytes = 0;
    if (fh_read_user(&bytes, 8, pc - 7))
        return -1;
    *first = fh_v8_function_word(p);
    *second = (fh_mix(fh_mix(p->tag, bytes), (u32)pc) & 0xffffffff00000000ULL) | (u32)pc;
    return 0;
}

/* Whether a heap object is a bytecode array. */
static __always_inline int fh_v8_is_bytecode(const struct fh_v8_layout *l, u64 tagged) {
    u64 map = 0;
    u16 type = 0;
    if ((tagged & FH_V8_TAG_MASK) != 1 || fh_read_user(&map, 8, tagged - 1))
        return 0;
    if (!(map & 1))
        return 1; /* moved a moment ago: its other slots have told enough */
    return !fh_read_user(&type, 2, map - 1 + l->map_type) && type == l->bytecode_type;
}

enum fh_v8_leaf {
    FH_V8_LEAF_FRAME = 0,  /* has a frame of its own, or cannot be told */
    FH_V8_LEAF_ENTRY = 1,  /* in a prologue: the return address is at sp, the function in rdi */
    FH_V8_LEAF_PUSHED = 2, /* the same, and rbp was pushed */
    FH_V8_LEAF_LEFT = 3,   /* in an epilogue: the return address is at sp, the frame was below */
    /* In an epilogue that drops the arguments, whose number is in rcx, or rbx in baseline code: */
    FH_V8_LEAF_POPPED = 4,   /* the return address is below sp, it was popped */
    FH_V8_LEAF_REGISTER = 5, /* the arguments are dropped: it is in r10 */
    FH_V8_LEAF_DROPPED = 6,  /* likewise, in r8: it is still below the arguments, which rbx counts */
};

/* Whether the leaf is where it has no frame: by the instructions around its pc. */
static __always_inline int fh_v8_leaf_kind(struct fh_v8 *p, u64 pc, int compiled) {
    const u8 *at = p->code + FH_V8_LEAF_BEFORE;
    if (fh_read_user(p->code, sizeof(p->code), pc - FH_V8_LEAF_BEFORE))
        return FH_V8_LEAF_FRAME;
    if (at[0] == 0xc3 || at[0] == 0xc2) /* ret */
        return FH_V8_LEAF_LEFT;
    if (at[-1] == 0x55 && at[0] == 0x48 && at[1] == 0x89 && at[2] == 0xe5) /* mov rbp, rsp */
        return FH_V8_LEAF_PUSHED;
    for (int i = 0; i <= FH_V8_PREFACE; i++) { /* push rbp; mov rbp, rsp */
        if (at[i] == 0x55 && at[i + 1] == 0x48 && at[i + 2] == 0x89 && at[i + 3] == 0xe5)
            return FH_V8_LEAF_ENTRY;
        if (!compiled)
            break;
    }
    /* Baseline code begins with: mov ebx, n; mov r12, bytecode; call the prologue */
    if (compiled && ((at[0] == 0xbb && at[5] == 0x49 && at[6] == 0xbc) ||
                     (at[-5] == 0xbb && at[0] == 0x49 && at[1] == 0xbc) ||
                     (at[-15] == 0xbb && at[-10] == 0x49 && at[-9] == 0xbc && at[0] == 0xe8)))
        return FH_V8_LEAF_ENTRY;
    /* mov rsp, rbp; pop rbp; cmp rcx, n; jg 3; ret n; pop r10; lea rsp, [rsp + 8 rcx]; push r10; ret.
     * The builtin that leaves baseline code has r8 and rbx there. */
    if (at[-1] == 0x5d && at[0] == 0x48 && (at[1] == 0x83 || at[1] == 0x81) && at[2] == 0xf9)
        return FH_V8_LEAF_LEFT;
    if (at[0] == 0x7f && at[1] == 0x03 && (at[2] == 0xc2 || at[2] == 0xc3))
        return FH_V8_LEAF_LEFT;
    if (at[-1] == 0x5d && at[0] == 0x41 && (at[1] & 0xf8) == 0x58)
        return FH_V8_LEAF_LEFT;
    if (at[0] == 0x48 && at[1] == 0x8d && at[2] == 0x24 && (at[3] & 0xef) == 0xcc && at[4] == 0x41)
        return FH_V8_LEAF_POPPED;
    if (at[0] == 0x41 && (at[1] & 0xf8) == 0x50 && at[2] == 0xc3)
        return at[1] == 0x52 ? FH_V8_LEAF_REGISTER : FH_V8_LEAF_DROPPED;
    return FH_V8_LEAF_FRAME;
}

/* Whether a return address is that of the call which every baseline code begins with. */
static __always_inline int fh_v8_in_prologue(struct fh_v8 *p, u64 ret) {
    return !fh_read_user(p->code, 20, ret - 20) && p->code[0] == 0xbb && p->code[5] == 0x49 &&
           p->code[6] == 0xbc && p->code[15] == 0xe8;
}
