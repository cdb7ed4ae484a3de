/* SPDX-License-Identifier: GPL-2.0 */
/*
 * One step of native unwinding: from the registers of a frame to those of its caller.
 *
 * The same text runs in the kernel and, with FLAMEHERD_HOST, in user space against saved stacks, where it can
 * be debugged and fuzzed. Its surroundings provide
 *
 * - fh_read_user(void *to, u32 bytes, u64 from): 0, or not 0 on a fault;
 * - fh_mapping_at(u32), fh_table_at(u32), fh_rule_at(u32), fh_slab_at(u32): pointers, or NULL;
 * - fh_words_at(void *slab, u32 pair): pointer, or NULL.
 *
 * Source of the rules: System V x86-64 psABI 1.0 §3.4, DWARF 5 §6.4; the signal frame is Linux's rt_sigframe.
 */

enum fh_step {
    FH_STEP_CALLER = 0, /* the registers are the caller's now */
    FH_STEP_END = 1,    /* this frame was the outermost one */
    FH_STEP_COLD = 2,   /* the executable's table is not loaded yet */
    FH_STEP_FAILED = 3, /* see outcome */
};

/* rt_sigframe: after the return address there is a ucontext; its gregs start at 40 (struct sigcontext). */
#define FH_UCONTEXT_R10 56
#define FH_UCONTEXT_RBP 120
#define FH_UCONTEXT_RBX 128
#define FH_UCONTEXT_RSP 160
#define FH_UCONTEXT_RIP 168

#define FH_DWARF_RBX 3
#define FH_DWARF_RDI 5
#define FH_MAPPING_STEPS 16 /* 2^16 = FH_MAX_MAPPINGS */
#define FH_ROW_STEPS 17     /* 2^16 rows at most in a page */

/* The mapping that holds pc, copied to u->mapping: 1, or 0 if there is none. */
static __always_inline int fh_find_mapping(struct fh_unwind *u, u64 pc) {
    u32 low = 0, high = u->mappings;
    struct fh_mapping *m;
    if (pc >= u->mapping.start && pc < u->mapping.end)
        return 1;
    for (int i = 0; i < FH_MAPPING_STEPS; i++) {
        u32 middle;
        if (low >= high)
            break;
        middle = (low + high) >> 1;
        m = fh_mapping_at(u->first_mapping + middle);
        if (!m)
            return 0;
        if (m->start <= pc)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0)
        return 0;
    m = fh_mapping_at(u->first_mapping + low - 1);
    if (!m || pc < m->start || pc >= m->end)
        return 0;
    u->mapping = *m;
    return 1;
}

/* A word of a slab, taken by a shift: were a pointer moved by `index`, the verifier would follow every value
 * of it through the search (more than a million instructions, Linux 6.18). Not 0 outside the slab. */
static __always_inline int fh_word(void *slab, u32 index, u32 *word) {
    struct fh_words *words = fh_words_at(slab, index >> 1);
    if (!words)
        return -1;
    *word = words->pair >> ((index & 1) << 5);
    return 0;
}

/* The rule index that holds at `pc` (relative to the table's base); 0 = no information. */
static __always_inline u32 fh_find_rule(const struct fh_table *t, u32 pc) {
    u32 pages = t->pages, page = pc >> FH_PAGE_BITS;
    u32 begin, high, word, low = 0;
    void *slab;
    if (page >= pages)
        return 0;
    slab = fh_slab_at(t->slab);
    if (!slab)
        return 0;
    if (fh_word(slab, t->first + page, &begin) || fh_word(slab, t->first + page + 1, &high))
        return 0;
    high -= begin;
    begin += t->first;
    pc &= (1 << FH_PAGE_BITS) - 1;
    for (int i = 0; i < FH_ROW_STEPS; i++) {
        u32 middle;
        if (low >= high)
            break;
        middle = (low + high) >> 1;
        if (fh_word(slab, begin + middle, &word))
            return 0;
        if ((word & ((1 << FH_PAGE_BITS) - 1)) <= pc)
            low = middle + 1;
        else
            high = middle;
    }
    /* The row before: of this page, or the last one of an earlier page. */
    begin += low - 1;
    if (begin - t->first <= pages || fh_word(slab, begin, &word))
        return 0;
    return word >> FH_PAGE_BITS;
}

/* A callee-saved or scratch register of the leaf by its DWARF number: realigning prologues keep the CFA
 * there, wrappers of vfork the return address. */
static __always_inline u64 fh_leaf_register(const struct fh_registers *r, s32 number) {
    switch (number) {
    case FH_DWARF_RBX:
        return r->rbx;
    case FH_DWARF_RDI:
        return r->rdi;
    case 10:
        return r->r10;
    case 12:
        return r->r12;
    case 13:
        return r->r13;
    case 14:
        return r->r14;
    case 15:
        return r->r15;
    default:
        return 0;
    }
}

static __always_inline int fh_fail(struct fh_unwind *u, u32 outcome) {
    u->outcome = outcome;
    return FH_STEP_FAILED;
}

/* The caller by the frame pointer, for code without a rule. */
static __always_inline int fh_step_frame_pointer(struct fh_unwind *u) {
    u64 pair[2]; /* caller's rbp, return address */
    u->by_frame_pointer++;
    u->rbx_at = 1;
    if (u->r.fp == 0)
        return FH_STEP_END;
    if (u->r.fp < u->r.sp)
        return fh_fail(u, FH_OUTCOME_NO_RULE);
    if (fh_read_user(pair, sizeof(pair), u->r.fp))
        return fh_fail(u, FH_OUTCOME_NO_RULE);
    u->r.sp = u->r.fp + 16;
    u->r.fp = pair[0];
    u->r.pc = pair[1];
    u->exact = 0;
    return u->r.pc ? FH_STEP_CALLER : FH_STEP_END;
}

static __always_inline int fh_step_signal(struct fh_unwind *u) {
    u64 saved[7];
    u64 at = u->r.sp;
    if (fh_read_user(saved, 16, at + FH_UCONTEXT_RSP))
        return fh_fail(u, FH_OUTCOME_READ_FAULT);
    u->r.sp = saved[0];
    u->r.pc = saved[1];
    if (fh_read_user(saved, 32, at + FH_UCONTEXT_RBP))
        return fh_fail(u, FH_OUTCOME_READ_FAULT);
    u->r.fp = saved[0];
    u->r.rbx = saved[1];
    u->r.rax = saved[3];
    u->rbx_at = 0;
    if (fh_read_user(saved, 56, at + FH_UCONTEXT_R10))
        return fh_fail(u, FH_OUTCOME_READ_FAULT);
    u->r.r10 = saved[0];
    u->r.r12 = saved[2];
    u->r.r13 = saved[3];
    u->r.r14 = saved[4];
    u->r.r15 = saved[5];
    u->r.rdi = saved[6];
    u->exact = 1;
    return FH_STEP_CALLER;
}

/* From the frame in u->r, whose mapping is u->mapping, to its caller. */
static __always_inline int fh_step(struct fh_unwind *u) {
    u64 pc = u->exact ? u->r.pc : u->r.pc - 1;
    u64 cfa, pair[2];
    int restores_fp;
    struct fh_table *table = fh_table_at(u->mapping.table);
    struct fh_rule *rule;
    u32 index;
    if (!table)
        return fh_fail(u, FH_OUTCOME_NO_RULE);
    if (!(table->flags & FH_TABLE_READY)) {
        if (table->flags & FH_TABLE_NO_ROWS)
            return fh_step_frame_pointer(u);
        return FH_STEP_COLD;
    }
    pc = pc - u->mapping.bias - table->base;
    if (pc >> 32)
        return fh_step_frame_pointer(u);
    index = fh_find_rule(table, (u32)pc);
    rule = fh_rule_at(index);
    if (!rule)
        return fh_fail(u, FH_OUTCOME_NO_RULE);
    switch (rule->cfa) {
    case FH_CFA_SP:
        cfa = u->r.sp + rule->cfa_offset;
        break;
    case FH_CFA_FP:
        cfa = u->r.fp + rule->cfa_offset;
        break;
    case FH_CFA_PLT:
        cfa = u->r.sp + 8 + ((u->r.pc & 15) >= (u32)rule->cfa_offset ? rule->cfa_extra : 0);
        break;
    case FH_CFA_SP_DEREF:
    case FH_CFA_FP_DEREF:
        cfa = (rule->cfa == FH_CFA_SP_DEREF ? u->r.sp : u->r.fp) + rule->cfa_offset;
        if (fh_read_user(&cfa, 8, cfa))
            return fh_fail(u, FH_OUTCOME_READ_FAULT);
        cfa += rule->cfa_extra;
        break;
    case FH_CFA_REGISTER:
        if (rule->cfa_extra == FH_DWARF_RBX && u->rbx_at != 1) {
            /* The dynamic loader's trampolines: their CFA is by rbx, which what they call has saved. */
            cfa = u->r.rbx;
            if (u->rbx_at && fh_read_user(&cfa, 8, u->rbx_at))
                return fh_fail(u, FH_OUTCOME_READ_FAULT);
        } else if (u->exact) {
            cfa = fh_leaf_register(&u->r, rule->cfa_extra);
        } else {
            return fh_step_frame_pointer(u);
        }
        cfa += rule->cfa_offset;
        break;
    case FH_CFA_SIGNAL:
        return fh_step_signal(u);
    case FH_CFA_END:
        return FH_STEP_END;
    case FH_CFA_SP_RA_REGISTER:
        /* vfork: its return address is off the stack, since the child would overwrite it there. */
        if (!u->exact)
            return fh_step_frame_pointer(u);
        cfa = u->r.sp + rule->cfa_offset;
        if (cfa < u->r.sp)
            return fh_fail(u, FH_OUTCOME_BAD_FRAME);
        u->r.sp = cfa;
        u->r.pc = fh_leaf_register(&u->r, rule->cfa_extra);
        u->exact = 0;
        return u->r.pc ? FH_STEP_CALLER : FH_STEP_END;
    default:
        return fh_step_frame_pointer(u);
    }
    /* Go switches from a goroutine's stack to the thread's and back along its frame pointers: only there may
     * the next frame lie below this one. */
    if (cfa <= u->r.sp && rule->cfa != FH_CFA_FP)
        return fh_fail(u, FH_OUTCOME_BAD_FRAME);
    if (rule->cfa == FH_CFA_SP || rule->cfa == FH_CFA_FP) {
        /* Not read before a frame asks for it. Below sp it was popped by an epilogue. */
        if (rule->cfa_extra && cfa + rule->cfa_extra >= u->r.sp)
            u->rbx_at = cfa + rule->cfa_extra;
    } else if (rule->cfa != FH_CFA_PLT) {
        u->rbx_at = 1;
    }
    /* Compilers do not say when an epilogue has popped rbp: a slot below sp is behind us, and rbp is
     * restored. Where the CFA is by rbp, it was not popped, and below sp is another stack. */
    restores_fp = rule->fp == FH_FP_CFA && (rule->cfa == FH_CFA_FP || cfa + rule->fp_offset >= u->r.sp);
    if (restores_fp && rule->fp_offset == rule->ra_offset - 8) {
        /* The usual place: the return address and the caller's rbp below it, in one read. */
        if (fh_read_user(pair, sizeof(pair), cfa + rule->fp_offset))
            return fh_fail(u, FH_OUTCOME_READ_FAULT);
        u->r.fp = pair[0];
    } else {
        /* The return address alone: what lies below it may be below sp, in a page that was never touched. */
        if (fh_read_user(&pair[1], 8, cfa + rule->ra_offset))
            return fh_fail(u, FH_OUTCOME_READ_FAULT);
        if (restores_fp || rule->fp == FH_FP_FP || rule->fp == FH_FP_SP) {
            u64 base = restores_fp ? cfa : rule->fp == FH_FP_FP ? u->r.fp : u->r.sp;
            if (fh_read_user(&u->r.fp, 8, base + rule->fp_offset))
                return fh_fail(u, FH_OUTCOME_READ_FAULT);
        }
    }
    u->r.sp = cfa;
    u->r.pc = pair[1];
    u->exact = 0;
    return u->r.pc ? FH_STEP_CALLER : FH_STEP_END;
}

/* The frame word of the frame in u->r, once its mapping is found. */
static __always_inline u64 fh_frame_word(const struct fh_unwind *u) {
    u64 pc = u->exact ? u->r.pc : u->r.pc - 1;
    if (u->mapping.executable == 0)
        return ((u64)FH_FRAME_RAW << 60) | (pc & 0x00ffffffffffffffULL);
    return ((u64)FH_FRAME_NATIVE << 60) | ((u64)(u->mapping.executable & 0xfffff) << 40) |
           ((pc - u->mapping.bias) & 0xffffffffffULL);
}
