/* SPDX-License-Identifier: GPL-2.0 */
/*
 * CPython's frames, as the unwinder meets them between native ones.
 *
 * CPython says where its frames belong: up to 3.9 each call of the evaluation function has one frame object;
 * from 3.10 on a structure in the C stack frame of that call (a CFrame, or from 3.12 on the shim below the
 * call's frames) is linked to them. Its address is the boundary here: the native frame whose part of the
 * stack holds it is an evaluation, whatever its symbols are called, and the frames of that call lie above it.
 *
 * The chain is untrusted memory: every read is checked, every loop bounded, and what contradicts itself is
 * torn, not guessed.
 */

#define FH_CPYTHON_SCANS 8         /* frames that one turn of the search looks at */
#define FH_CPYTHON_PUSHES 4        /* frames that one turn of the walk emits */
#define FH_CPYTHON_SCAN_LIMIT 2000 /* frames of one evaluation, in all turns */
#define FH_CPYTHON_NOWHERE (~0ULL)

enum fh_cpython_phase {
    FH_CPYTHON_BEGIN = 0,  /* the thread state is not known yet */
    FH_CPYTHON_SEARCH = 1, /* towards the shim of the evaluation that comes next */
    FH_CPYTHON_NATIVE = 2, /* native frames, up to the boundary */
    FH_CPYTHON_WALK = 3,   /* the frames of the evaluation at the boundary */
};

/* In fh_scratch.interpreter. */
struct fh_cpython {
    u64 phase;    /* enum fh_cpython_phase */
    u64 frame;    /* the next frame to emit; 0: none are left */
    u64 cframe;   /* the CFrame of the evaluation that comes next */
    u64 boundary; /* an address in the C stack frame of that evaluation */
    u64 after;    /* FH_CPYTHON_MODE_ENTRY: the frame behind the shim */
    u64 scan;     /* FH_CPYTHON_MODE_ENTRY: where the search is */
    u64 pending;  /* the native frame word of the evaluation, to be emitted after its frames */
    u32 scanned;
    u32 emitted; /* of this program's run */
    u32 reserved;
    u32 torn;
    u8 head[FH_CPYTHON_FRAME_BYTES];
    u8 code[FH_CPYTHON_CODE_BYTES];
};

_Static_assert(sizeof(struct fh_cpython) <= FH_INTERPRETER_BYTES, "the scratch space is the core's");

static __always_inline u64 fh_cpython_word(const u8 *bytes, u32 offset) {
    return *(const u64 *)(bytes + (offset & 0x78));
}

/* 32 bits of a code object that outlives its address: another one there later has another. */
static __always_inline u32 fh_cpython_tag(u64 filename, u64 name, u32 line) {
    return fh_mix(fh_mix(filename, name), line) >> 32;
}

static __always_inline void fh_cpython_tear(struct fh_cpython *p) {
    p->torn = 1;
    p->frame = 0;
    p->boundary = FH_CPYTHON_NOWHERE;
    p->phase = FH_CPYTHON_NATIVE;
}

/* The frame at an address, as far as it is of interest, to p->head. Not 0 on a fault. */
static __always_inline int fh_cpython_read_frame(const struct fh_cpython_layout *l, struct fh_cpython *p,
                                                 u64 at) {
    u32 bytes = l->frame_bytes;
    if (bytes > FH_CPYTHON_FRAME_BYTES)
        return -1;
    return fh_read_user(p->head, bytes, at);
}

/* The evaluation of p->cframe (3.10, 3.11) becomes the next one. */
static __always_inline void fh_cpython_enter_cframe(const struct fh_cpython_layout *l, struct fh_cpython *p) {
    u64 current = 0;
    p->phase = FH_CPYTHON_NATIVE;
    p->boundary = FH_CPYTHON_NOWHERE;
    if (l->mode == FH_CPYTHON_MODE_CHAIN) {
        if (p->cframe && fh_read_user(&current, 8, p->cframe + l->cframe_current - 1)) {
            fh_cpython_tear(p);
            return;
        }
        /* The first CFrame of a thread is in its thread state and has no frame. */
        p->frame = current;
    }
    if (p->frame && p->cframe)
        p->boundary = p->cframe;
}

/* From the thread's state to the first frame and the first boundary. */
static __always_inline void fh_cpython_begin(const struct fh_cpython_layout *l, struct fh_cpython *p,
                                             u64 fs_base) {
    u64 thread = 0, top = 0;
    p->frame = 0;
    p->cframe = 0;
    p->torn = 0;
    p->scanned = 0;
    p->boundary = FH_CPYTHON_NOWHERE;
    p->phase = FH_CPYTHON_NATIVE;
    if (fh_read_user(&thread, 8, fs_base + l->tsd))
        thread = 0;
    if (thread && l->tsd_second && fh_read_user(&thread, 8, thread + l->tsd_second - 1))
        thread = 0;
    if (!thread)
        return; /* a thread that has nothing to do with CPython */
    if (fh_read_user(&top, 8, thread + l->thread_top)) {
        p->torn = 1;
        return;
    }
    if (l->mode == FH_CPYTHON_MODE_EVAL) {
        p->frame = top;
        return;
    }
    if (l->mode == FH_CPYTHON_MODE_ENTRY) {
        if (l->cframe_current && top && fh_read_user(&top, 8, top + l->cframe_current - 1)) {
            p->torn = 1;
            return;
        }
        p->frame = top;
        p->scan = top;
        if (top)
            p->phase = FH_CPYTHON_SEARCH;
        return;
    }
    if (l->mode == FH_CPYTHON_MODE_CFRAME && fh_read_user(&p->frame, 8, thread + l->thread_frame)) {
        p->torn = 1;
        return;
    }
    p->cframe = top;
    fh_cpython_enter_cframe(l, p);
}

/* FH_CPYTHON_MODE_ENTRY: a few frames further towards the shim. */
static __always_inline void fh_cpython_search(const struct fh_cpython_layout *l, struct fh_cpython *p) {
    for (int i = 0; i < FH_CPYTHON_SCANS; i++) {
        u64 at = p->scan;
        if (!at || p->scanned >= FH_CPYTHON_SCAN_LIMIT || fh_cpython_read_frame(l, p, at)) {
            fh_cpython_tear(p);
            return;
        }
        p->scanned++;
        p->scan = fh_cpython_word(p->head, l->frame_previous);
        if (p->head[l->frame_entry & 0x7f] >= l->entry_least) {
            p->boundary = at;
            p->after = p->scan;
            p->phase = FH_CPYTHON_NATIVE;
            return;
        }
    }
}

/* What one frame says: the two words of it. Not 0 if it cannot be read. p->head is its head. */
static __always_inline int fh_cpython_frame_words(const struct fh_cpython_layout *l, struct fh_cpython *p,
                                                  u64 *first, u64 *second) {
    u32 bytes = l->code_bytes, line, where;
    u64 code = fh_cpython_word(p->head, l->frame_code) & 0x00fffffffffffff8ULL;
    if (bytes > FH_CPYTHON_CODE_BYTES || !code || fh_read_user(p->code, bytes, code + l->code_start))
        return -1;
    line = *(const u32 *)(p->code + (l->code_line & 0x7c));
    if (l->code_bytecode)
        where = (u32)((fh_cpython_word(p->head, l->frame_at) - code - l->code_bytecode) >> 1);
    else
        where = *(const u32 *)(p->head + (l->frame_at & 0x7c));
    *first = ((u64)FH_FRAME_CPYTHON << 60) | code;
    *second = (u64)fh_cpython_tag(fh_cpython_word(p->code, l->code_filename),
                                  fh_cpython_word(p->code, l->code_filename + 8), line)
                  << 32 |
              where;
    return 0;
}
