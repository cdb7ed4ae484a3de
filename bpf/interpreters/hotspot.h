/* SPDX-License-Identifier: GPL-2.0 */
/*
 * HotSpot's frames, as the unwinder meets them between native ones.
 *
 * Everything that HotSpot generates lies in its code cache: the interpreter, one block, whose frames hang on
 * rbp; compiled methods, which keep nothing in rbp and have frames of a fixed size, told by the head of their
 * block; and stubs of all kinds. The block of a pc is found as HotSpot finds it, by the heap's segment map.
 * Only the leaf needs more: it may be where its frame is not made yet or left already. In the interpreter the
 * agent has found these places beforehand; in compiled code the instructions at pc tell.
 *
 * All of it is untrusted memory that changes while it is read: every read is checked, every loop bounded, and
 * what contradicts itself is torn, not guessed.
 */

#define FH_HOTSPOT_HOPS 8         /* links of the segment map that one turn follows */
#define FH_HOTSPOT_HOP_LIMIT 1024 /* in all turns for one frame: HotSpot mends longer chains */
#define FH_HOTSPOT_MAX_FRAME (1u << 20)
#define FH_HOTSPOT_MAX_ARGUMENTS 2048 /* bytes, of 255 words */
#define FH_HOTSPOT_FREE 0xff          /* segment without a block */
#define FH_HOTSPOT_FRAME_WORDS 10
#define FH_HOTSPOT_BEHIND 8 /* bytes of code read before the leaf's pc, of 24 */

/* The first eight characters of a blob's name. */
#define FH_HOTSPOT_NAME_NMETHOD 0x00646f6874656d6eULL  /* "nmethod" */
#define FH_HOTSPOT_NAME_NATIVE 0x6e2065766974616eULL   /* "native nmethod" */
#define FH_HOTSPOT_NAME_ROUTINES 0x74756f5262757453ULL /* "StubRoutines (…)" */
#define FH_HOTSPOT_NAME_ADAPTERS 0x204932432f433249ULL /* "I2C/C2I adapters" */

enum fh_hotspot_phase {
    FH_HOTSPOT_BEGIN = 0,
    FH_HOTSPOT_RUN = 1,
    FH_HOTSPOT_SEARCH = 2, /* in the segment map */
};

/* How the frame of a pc in the code cache is left. */
enum fh_hotspot_way {
    FH_HOTSPOT_AT_SP = 0,    /* return address at sp: no frame of its own */
    FH_HOTSPOT_SAVED = 1,    /* rbp at sp, return address above it */
    FH_HOTSPOT_FIXED = 2,    /* a whole frame of the blob's size */
    FH_HOTSPOT_UNSAVED = 3,  /* the same, but rbp is not saved yet */
    FH_HOTSPOT_BY_RBP = 4,   /* rbp leads to a frame */
    FH_HOTSPOT_MOVING = 5,   /* FIXED, one word is pushed on top */
    FH_HOTSPOT_IN_RAX = 6,   /* return address in rax, caller's sp in r13 */
    FH_HOTSPOT_POPPED = 7,   /* return address in rax, caller's sp is sp */
    FH_HOTSPOT_CALLING = 8,  /* AT_SP, in the caller's own code: a jump to the callee */
    FH_HOTSPOT_WAY_TORN = 9, /* makes no sense */
};

/* In fh_scratch.interpreter. */
struct fh_hotspot {
    u64 phase; /* enum fh_hotspot_phase */
    u64 blob;  /* whose head is in `head` */
    u64 end;   /* of the blob; 0: `head` holds nothing */
    u64 code;  /* first byte of its code */
    u64 name;  /* first eight characters */
    u64 segment;
    u64 first;  /* the frame's words; 0: the frame has none */
    u64 second; /* without the position */
    u32 heap;
    u32 hops;
    u32 emitted;                    /* of this program's run */
    u32 java;                       /* whether a frame of the code cache was seen */
    u8 head[FH_HOTSPOT_BLOB_BYTES]; /* of the blob, or of a ConstMethod */
    u8 nmethod[FH_HOTSPOT_NMETHOD_BYTES];
};

_Static_assert(sizeof(struct fh_hotspot) <= FH_INTERPRETER_BYTES, "the scratch space is the core's");

/* Offsets are the agent's, and checked by it; the masks are for the verifier, and stay inside the scratch
 * space. */
static __always_inline u64 fh_hotspot_u64(const u8 *bytes, u32 offset) {
    return *(const u64 *)(bytes + (offset & 0xf8));
}

static __always_inline u32 fh_hotspot_u32(const u8 *bytes, u32 offset) {
    return *(const u32 *)(bytes + (offset & 0xfc));
}

static __always_inline u16 fh_hotspot_u16(const u8 *bytes, u32 offset) {
    return *(const u16 *)(bytes + (offset & 0xfe));
}

/* 32 bits that outlive an address: what lies there later has others. */
static __always_inline u32 fh_hotspot_tag(u64 one, u64 other) {
    return fh_mix(fh_mix(one, other), 1) >> 32;
}

/* Which heap holds pc, and where its segment map is to be searched: 0, or -1. */
static __always_inline int fh_hotspot_enter_heap(const struct fh_hotspot_layout *l, struct fh_hotspot *p,
                                                 u64 pc) {
    for (u32 i = 0; i < FH_HOTSPOT_HEAPS; i++) {
        if (pc >= l->heaps[i].low && pc < l->heaps[i].high) {
            p->heap = i;
            p->segment = (pc - l->heaps[i].low) >> (l->heaps[i].shift & 31);
            p->hops = 0;
            p->phase = FH_HOTSPOT_SEARCH;
            return 0;
        }
    }
    return -1;
}

/* A few links further: 1 at a block's first segment, 0 to go on, -1 torn. */
static __always_inline int fh_hotspot_search(const struct fh_hotspot_layout *l, struct fh_hotspot *p) {
    const struct fh_hotspot_heap *heap = &l->heaps[p->heap & (FH_HOTSPOT_HEAPS - 1)];
    for (int i = 0; i < FH_HOTSPOT_HOPS; i++) {
        u8 back = 0;
        if (fh_read_user(&back, 1, heap->segments + p->segment))
            return -1;
        if (back == 0)
            return 1;
        if (back == FH_HOTSPOT_FREE || back > p->segment)
            return -1;
        p->segment -= back;
    }
    p->hops += FH_HOTSPOT_HOPS;
    return p->hops < FH_HOTSPOT_HOP_LIMIT ? 0 : -1;
}

/* Read the head of the blob that begins at p->segment and holds pc: 0, or -1. */
static __always_inline int fh_hotspot_read_blob(const struct fh_hotspot_layout *l, struct fh_hotspot *p,
                                                u64 pc) {
    const struct fh_hotspot_heap *heap = &l->heaps[p->heap & (FH_HOTSPOT_HEAPS - 1)];
    u64 blob = heap->low + (p->segment << (heap->shift & 31)) + l->block_header;
    u32 bytes = l->blob_bytes, size;
    p->end = 0;
    if (bytes > FH_HOTSPOT_BLOB_BYTES || fh_read_user(p->head, bytes, blob))
        return -1;
    size = fh_hotspot_u32(p->head, l->blob_size);
    if (pc < blob || pc - blob >= size)
        return -1;
    if (fh_read_user(&p->name, 8, fh_hotspot_u64(p->head, l->blob_name)))
        return -1;
    p->blob = blob;
    p->code = l->blob_code_is_offset ? blob + fh_hotspot_u32(p->head, l->blob_code)
                                     : fh_hotspot_u64(p->head, l->blob_code);
    if (p->name == FH_HOTSPOT_NAME_NMETHOD || p->name == FH_HOTSPOT_NAME_NATIVE) {
        u64 method;
        bytes = l->nmethod_bytes;
        if (bytes > FH_HOTSPOT_NMETHOD_BYTES || fh_read_user(p->nmethod, bytes, blob + l->nmethod_start))
            return -1;
        method = fh_hotspot_u64(p->nmethod, l->nmethod_method);
        p->first = blob | FH_HOTSPOT_FRAME_COMPILED;
        p->second = (u64)fh_hotspot_tag(method, fh_hotspot_u32(p->nmethod, l->nmethod_compile_id)) << 32;
    } else {
        p->first = blob | FH_HOTSPOT_FRAME_STUB;
        p->second = (u64)fh_hotspot_tag(p->name, size) << 32;
    }
    p->first |= (u64)FH_FRAME_HOTSPOT << 60;
    p->end = blob + size;
    return 0;
}

/* The words of a frame of a Method: 0, or -1. `bcp`: where it is, 0: at its beginning; `other`: likewise if
 * it lies in the method's bytecode. */
static __always_inline int fh_hotspot_method(const struct fh_hotspot_layout *l, struct fh_hotspot *p,
                                             u64 method, u64 bcp, u64 other) {
    u64 constant, code, index;
    u32 bytes = l->const_bytes;
    if (!method || (method & 7) || method >> 56)
        return -1;
    if (fh_read_user(&constant, 8, method + l->method_const))
        return -1;
    if (bytes > FH_HOTSPOT_CONST_BYTES || fh_read_user(p->head, bytes, constant))
        return -1;
    code = constant + l->const_size;
    if (other - code < fh_hotspot_u16(p->head, l->const_code_size))
        bcp = other;
    index = bcp - code;
    if (index >= fh_hotspot_u16(p->head, l->const_code_size))
        index = 0; /* native methods have no bytecode */
    p->first = ((u64)FH_FRAME_HOTSPOT << 60) | method | FH_HOTSPOT_FRAME_INTERPRETED;
    p->second = (u64)fh_hotspot_tag(constant, fh_hotspot_u64(p->head, l->const_constants) ^
                                                  fh_hotspot_u64(p->head, l->const_name))
                    << 32 |
                (u32)index;
    return 0;
}

/* enum fh_hotspot_rule of a leaf in the interpreter. */
static __always_inline u32 fh_hotspot_rule_at(const struct fh_hotspot_layout *l, u32 at) {
    u32 low = 0, high = l->regions, rule = FH_HOTSPOT_RULE_FRAME;
    for (int i = 0; i < 9; i++) { /* 2^8 = FH_HOTSPOT_REGIONS */
        u32 middle;
        if (low >= high)
            break;
        middle = ((low + high) >> 1) & (FH_HOTSPOT_REGIONS - 1);
        if (l->region[middle].start <= at) {
            rule = l->region[middle].rule;
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return rule;
}

/* A frame of the interpreter: its words to p->first and p->second, the registers to its caller's. 0, or -1.
 */
static __always_inline int fh_hotspot_interpreted(const struct fh_hotspot_layout *l, struct fh_hotspot *p,
                                                  struct fh_unwind *u) {
    u64 frame[FH_HOTSPOT_FRAME_WORDS]; /* from rbp - 64 on: ..., Method, last sp, caller's sp, rbp, return
                                          address */
    u64 method = u->r.rbx, bcp = 0, other = 0, cfa = u->r.r13, pc = u->r.rax, fp = u->r.fp;
    u32 rule = FH_HOTSPOT_RULE_FRAME;
    p->first = 0;
    p->end = 0; /* `head` is used otherwise now */
    if (u->exact)
        rule = fh_hotspot_rule_at(l, (u32)(u->r.pc - l->interpreter));
    if (rule == FH_HOTSPOT_RULE_FRAME || rule == FH_HOTSPOT_RULE_FIXING) {
        if (fp < u->r.sp || fh_read_user(frame, sizeof(frame), fp - 64))
            return -1;
        if (rule == FH_HOTSPOT_RULE_FRAME) {
            method = frame[5];
            bcp = l->frame_bcp ? frame[1] : frame[0];
            if (u->exact)
                other = u->r.r13;
        }
        cfa = frame[7];
        fp = frame[8];
        pc = frame[9];
        if (cfa <= u->r.fp)
            return -1;
    } else if (rule == FH_HOTSPOT_RULE_PUSHED) {
        if (fh_read_user(frame, 16, u->r.sp))
            return -1;
        fp = frame[0];
        pc = frame[1];
    } else if (rule == FH_HOTSPOT_RULE_ENTRY || rule == FH_HOTSPOT_RULE_LEFT ||
               rule == FH_HOTSPOT_RULE_LEFT_BELOW) {
        if (fh_read_user(&pc, 8, rule == FH_HOTSPOT_RULE_LEFT_BELOW ? u->r.sp - 8 : u->r.sp))
            return -1;
    }
    if (rule >= FH_HOTSPOT_RULE_LEFT) {
        method = 0;
        cfa = rule == FH_HOTSPOT_RULE_LEFT_JUMP ? u->r.sp : u->r.rbx;
        if (rule == FH_HOTSPOT_RULE_LEFT_R13 || rule == FH_HOTSPOT_RULE_LEFT_JUMP)
            pc = u->r.r13;
    }
    if (cfa < u->r.sp || cfa - u->r.sp > FH_HOTSPOT_MAX_FRAME)
        return -1;
    if (method && fh_hotspot_method(l, p, method, bcp, other))
        return -1;
    u->r.sp = cfa;
    u->r.fp = fp;
    u->r.pc = pc;
    return 0;
}

/* How a leaf is left, by the instructions at its pc (opcodes: Intel SDM volume 2). `otherwise`: if they do
 * not tell; `complete`: the frame is made, so that they are no prologue. */
static __always_inline u32 fh_hotspot_leaf_way(u64 pc, int complete, int adapter, u32 otherwise) {
    u64 text[3] = {}; /* FH_HOTSPOT_BEHIND bytes before pc, then those from pc on */
    u64 before, here, next;
    if (fh_read_user(text, sizeof(text), pc - FH_HOTSPOT_BEHIND))
        return FH_HOTSPOT_WAY_TORN;
    before = text[0];
    here = text[1];
    next = text[2];
    switch (here & 0xff) {
    case 0xc3: /* ret */
    case 0x55: /* push rbp */
        return FH_HOTSPOT_AT_SP;
    case 0x5d: /* pop rbp */
        return FH_HOTSPOT_SAVED;
    case 0xc9: /* leave */
        return FH_HOTSPOT_BY_RBP;
    }
    /* push rbp, then mov rbp, rsp or sub rsp, n; or both */
    if ((before >> 56) == 0x55 && ((here & 0xffffff) == 0xec8b48 || (here & 0xfdffff) == 0xec8148))
        return FH_HOTSPOT_SAVED;
    if ((before >> 32) == 0xec8b4855 && (here & 0xfdffff) == 0xec8148)
        return FH_HOTSPOT_SAVED;
    /* The poll at a method's end, between pop rbp and ret: cmp rsp, [r15 + n]; ja */
    if ((here & 0xffffff) == 0x673b49 || (here & 0xffffff) == 0xa73b49)
        return FH_HOTSPOT_AT_SP;
    if ((here & 0xffff) == 0x870f && ((here >> 48) & 0xff) == 0xc3)
        return FH_HOTSPOT_AT_SP;
    /* Up to JDK 13: test [page], eax; ret: relative to rip, or by r10, which is loaded just before */
    if ((here & 0xffff) == 0x0585 && ((here >> 48) & 0xff) == 0xc3)
        return FH_HOTSPOT_AT_SP;
    if ((here & 0xffffffff) == 0xc3028541)
        return FH_HOTSPOT_AT_SP;
    if ((here & 0xffffff) == 0x578b4d && (here >> 32) == 0xc3028541) /* mov r10, [r15 + n] */
        return FH_HOTSPOT_AT_SP;
    if ((here & 0xffffff) == 0x978b4d && (here >> 56) == 0x41 && (next & 0xffffff) == 0xc30285)
        return FH_HOTSPOT_AT_SP;
    if ((here & 0xffff) == 0xba49 && ((next >> 16) & 0xffffffff) == 0xc3028541) /* mov r10, n */
        return FH_HOTSPOT_AT_SP;
    if (adapter) {
        /* and rsp, -16; push rax; sub rsp, n; mov [rsp], rax */
        if ((here & 0xffffffff) == 0xf0e48348 || (here & 0xff) == 0x50 || (here & 0xfdffff) == 0xec8148 ||
            (here & 0xffffffff) == 0x24048948)
            return FH_HOTSPOT_IN_RAX;
        if ((before >> 56) == 0x58 && (here & 0xffffff) == 0xec8b4c) /* pop rax; mov r13, rsp */
            return FH_HOTSPOT_POPPED;
        return FH_HOTSPOT_AT_SP;
    }
    /* mov rbx, Method; jmp: to the interpreter, by way of the caller's own code */
    if ((here & 0xffff) == 0xbb48 && ((next >> 16) & 0xff) == 0xe9)
        return FH_HOTSPOT_CALLING;
    if (complete) {
        /* Moves in memory: push [rsp + m]; pop [rsp + n]. Flags: pushf; and [rsp], n; popf */
        if ((here & 0xffffff) == 0x24448f || (here & 0xffffff) == 0x24848f ||
            (here & 0xffffffff) == 0x24448f48 || (here & 0xffffffff) == 0x24848f48 ||
            (here & 0xffffffff) == 0x24248148 || (here & 0xff) == 0x9d)
            return FH_HOTSPOT_MOVING;
        return otherwise;
    }
    /* mov [rsp + n], rbp behind sub rsp, m */
    if ((here & 0xffffffff) == 0x246c8948 || (here & 0xffffffff) == 0x24ac8948)
        return FH_HOTSPOT_UNSAVED;
    /* The barrier at a method's beginning: cmp dword [r15 + n], m; jcc */
    if ((here & 0xffffff) == 0x7f8141 || (here & 0xffffff) == 0xbf8141 || (before & 0xffffff) == 0x7f8141)
        return FH_HOTSPOT_FIXED;
    return FH_HOTSPOT_AT_SP;
}

/* A frame of the blob in p, compiled code or a stub: the registers to its caller's, the position to
 * p->second. 0, or -1. */
static __always_inline int fh_hotspot_compiled(const struct fh_hotspot_layout *l, struct fh_hotspot *p,
                                               struct fh_unwind *u) {
    u64 pair[2], cfa, pc = u->r.pc;
    u32 words = fh_hotspot_u32(p->head, l->blob_frame_size), way, compiled;
    p->second &= ~0xffffffffULL;
    compiled = p->name == FH_HOTSPOT_NAME_NMETHOD || p->name == FH_HOTSPOT_NAME_NATIVE;
    if (words < 2) /* no frame, or not told */
        way = compiled ? FH_HOTSPOT_AT_SP : FH_HOTSPOT_BY_RBP;
    else if (words < FH_HOTSPOT_MAX_FRAME / 8)
        way = FH_HOTSPOT_FIXED;
    else
        return -1;
    if (u->exact) {
        if (way == FH_HOTSPOT_FIXED) {
            s64 complete = (s32)fh_hotspot_u32(p->head, l->blob_complete);
            if (l->blob_complete_bits == 16)
                complete = (s16)fh_hotspot_u16(p->head, l->blob_complete);
            way = fh_hotspot_leaf_way(pc, complete >= 0 && (s64)(pc - p->code) >= complete, 0, way);
        } else {
            int routine = p->name == FH_HOTSPOT_NAME_ROUTINES;
            way = fh_hotspot_leaf_way(pc, 1, p->name == FH_HOTSPOT_NAME_ADAPTERS,
                                      routine ? FH_HOTSPOT_BY_RBP : FH_HOTSPOT_AT_SP);
        }
    }
    if (compiled) {
        u64 deopt = fh_hotspot_u64(p->nmethod, l->nmethod_deopt);
        u64 deopt_mh = fh_hotspot_u64(p->nmethod, l->nmethod_deopt_mh);
        if (l->nmethod_deopt_is_offset) {
            deopt = p->blob + fh_hotspot_u32(p->nmethod, l->nmethod_deopt);
            deopt_mh = p->blob + fh_hotspot_u32(p->nmethod, l->nmethod_deopt_mh);
        }
        /* A frame that is to be taken apart returns to a handler; where it was is kept in the frame. */
        if (!u->exact && (pc == deopt || pc == deopt_mh)) {
            u32 at = fh_hotspot_u32(p->nmethod, l->nmethod_orig_pc);
            if (at >= FH_HOTSPOT_MAX_FRAME || fh_read_user(&pc, 8, u->r.sp + at))
                return -1;
        }
        p->second |= (u32)(pc - p->code + u->exact);
    } else if (pc == l->call_stub) {
        p->second |= 1;
    }
    cfa = u->r.sp + 8 * words;
    if (way == FH_HOTSPOT_MOVING)
        cfa += 8;
    else if (way == FH_HOTSPOT_SAVED)
        cfa = u->r.sp + 16;
    else if (way == FH_HOTSPOT_BY_RBP)
        cfa = u->r.fp + 16;
    else if (way != FH_HOTSPOT_FIXED && way != FH_HOTSPOT_UNSAVED)
        cfa = u->r.sp + 8;
    if (way == FH_HOTSPOT_WAY_TORN || cfa <= u->r.sp || fh_read_user(pair, sizeof(pair), cfa - 16))
        return -1;
    if (way == FH_HOTSPOT_SAVED || way == FH_HOTSPOT_FIXED || way == FH_HOTSPOT_MOVING ||
        way == FH_HOTSPOT_BY_RBP)
        u->r.fp = pair[0];
    if (way == FH_HOTSPOT_BY_RBP &&
        pair[1] == ~0ULL) { /* a barrier's stub has a word more: where to deoptimise */
        cfa += 8;
        if (fh_read_user(&pair[1], 8, cfa - 8))
            return -1;
    }
    if (way == FH_HOTSPOT_CALLING) {
        p->first = 0;
        p->end = 0;
    } else if (way == FH_HOTSPOT_POPPED) {
        cfa = u->r.sp;
    } else if (u->exact && !compiled && (way == FH_HOTSPOT_AT_SP || way == FH_HOTSPOT_IN_RAX) &&
               u->r.r13 - u->r.sp < FH_HOTSPOT_MAX_ARGUMENTS) {
        cfa = u->r.r13; /* an adapter makes room for arguments */
    }
    u->r.pc = way == FH_HOTSPOT_POPPED || way == FH_HOTSPOT_IN_RAX ? u->r.rax : pair[1];
    u->r.sp = cfa;
    return 0;
}
