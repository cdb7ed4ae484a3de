/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The unwinder of processes that run V8: native frames, V8's builtins and JavaScript's functions in their
 * true order, leaf first.
 *
 * It replaces fh_native for these processes. Code of V8 is what lies in memory without a file, or in the part
 * of the executable that the agent has marked as the builtins.
 */

/* index -> struct fh_v8_layout; agent writes; 16 KiB */
BPF_ARRAY(fh_v8_layouts, struct fh_v8_layout, FH_MAX_LAYOUTS);

int fh_v8(struct bpf_perf_event_data *ctx) {
    u32 zero = 0, next = FH_PROGRAM_V8, kernel, index;
    struct fh_scratch *s = fh_scratch.lookup(&zero);
    struct fh_v8_layout *l;
    struct fh_v8 *p;
    struct fh_unwind *u;
    u64 hash;
    if (!s)
        return 0;
    p = (struct fh_v8 *)s->interpreter;
    index = s->layout;
    l = fh_v8_layouts.lookup(&index);
    if (!l)
        goto lost;
    u = &s->u;
    hash = s->hash;
    kernel = s->kernel_frames;
    p->emitted = 0;
    if (!p->begun) {
        volatile struct pt_regs *live = &ctx->regs; /* as in fh_user_registers */
        fh_count(FH_COUNTER_INTERPRETED);
        /* The words mean something in this address space only. */
        hash = fh_mix(hash, s->key.cookie);
        p->begun = 1;
        p->torn = 0;
        p->probe = 0;
        p->runs = 0;
        p->function = 0;
        p->r9 = (live->cs & 3) == 3 ? live->r9 : 0;
    }
    for (int i = 0; i < FH_V8_FRAMES_PER_PROGRAM; i++) {
        u64 word, marker;
        u32 compiled, known, leaf = u->exact;
        if (s->user_frames >= FH_MAX_USER_WORDS || p->runs >= FH_V8_MOST_RUNS) {
            s->key.outcome = FH_OUTCOME_TRUNCATED;
            next = FH_PROGRAM_FINISH;
            break;
        }
        p->way = FH_V8_FRAME_NONE;
        p->linked = 1;
        p->first = 0;
        p->second = 0;
        p->ret = 0;
        known = fh_find_mapping(u, leaf ? u->r.pc : u->r.pc - 1);
        if (!known) {
            /* Pages of code come and go faster than the agent takes note: judged by its frame, below. */
            u->mapping.start = 0;
            u->mapping.end = 0;
            u->mapping.executable = 0;
            u->mapping.table = 0;
        }
        compiled = (u->mapping.executable & 0xfffff) == 0;
        word = fh_frame_word(u);
        if (!compiled && !p->probe && !(u->mapping.executable & FH_MAPPING_EVAL)) {
            int step = fh_step(u);
            if (step == FH_STEP_COLD) {
                next = FH_PROGRAM_COLD;
                break;
            }
            hash = fh_mix(hash, word);
            s->words[(kernel + s->user_frames) & (FH_STACK_WORDS - 1)] = word;
            s->user_frames++;
            if (step != FH_STEP_CALLER) {
                s->key.outcome = step == FH_STEP_END ? FH_OUTCOME_COMPLETE : u->outcome;
                if (step == FH_STEP_END && p->torn)
                    s->key.outcome = FH_OUTCOME_INTERPRETER_TORN;
                next = FH_PROGRAM_FINISH;
                break;
            }
            continue;
        }
        if (p->probe) {
            p->probe = 0;
            p->second = (u64)p->tag << 32;
            if (!compiled || !known) {
                /* It was no return address. p->frame is that of the caller still. */
                p->way = FH_V8_FRAME_NOWHERE;
                p->first = fh_v8_function_word(p) | (u64)p->way << 48;
                goto emit;
            }
            if (fh_v8_in_prologue(p, u->r.pc)) {
                /* Of baseline code, whose caller the frame is. */
                p->frame[FH_V8_FUNCTION] = u->r.rdi;
                if (!fh_v8_identify(l, p) && !fh_v8_compiled(p, u->r.pc - 1, &p->first, &p->second)) {
                    p->way = FH_V8_FRAME_COMPILED;
                    p->first |= (u64)p->way << 48;
                }
                if (!fh_read_user(&p->ret, 8, u->r.sp)) {
                    p->linked = 0;
                    u->r.sp += 8;
                    goto emit;
                }
            }
        }
        if (leaf) {
            u32 kind = fh_v8_leaf_kind(p, u->r.pc, compiled);
            if (kind == FH_V8_LEAF_REGISTER) {
                p->ret = u->r.r10;
                p->linked = 0;
            } else if (kind != FH_V8_LEAF_FRAME) {
                u64 at = u->r.sp;
                if (kind == FH_V8_LEAF_PUSHED)
                    at += 8;
                else if (kind == FH_V8_LEAF_POPPED)
                    at -= 8;
                else if (kind == FH_V8_LEAF_DROPPED)
                    at -= 8 * (u->r.rbx + 1);
                if (!fh_read_user(&p->ret, 8, at) && p->ret) {
                    if (kind != FH_V8_LEAF_DROPPED)
                        u->r.sp = at + 8;
                    p->linked = 0;
                }
            }
            if (!p->linked) {
                if (compiled) {
                    p->frame[FH_V8_FUNCTION] = 0;
                    if (kind == FH_V8_LEAF_LEFT || kind == FH_V8_LEAF_POPPED)
                        fh_read_user(&p->frame[FH_V8_FUNCTION], 8, u->r.sp - 32);
                    else if (kind <= FH_V8_LEAF_PUSHED)
                        p->frame[FH_V8_FUNCTION] = u->r.rdi;
                    if (!fh_v8_identify(l, p) && !fh_v8_compiled(p, u->r.pc, &p->first, &p->second)) {
                        p->way = FH_V8_FRAME_COMPILED;
                        p->first |= (u64)FH_V8_FRAME_COMPILED << 48;
                    }
                }
                goto emit;
            }
        }
        if (fh_read_user(p->frame, sizeof(p->frame), u->r.fp - 40)) {
            s->key.outcome = known ? FH_OUTCOME_BAD_FRAME : FH_OUTCOME_NO_MAPPING;
            next = s->user_frames == 0 ? FH_PROGRAM_COLD : FH_PROGRAM_FINISH;
            break;
        }
        marker = p->frame[FH_V8_CONTEXT];
        if (leaf && u->r.fp - 16 < u->r.sp) {
            /* The frame is being built: there is no context or no function in it yet. */
            if (compiled) {
                p->frame[FH_V8_FUNCTION] = u->r.rdi;
                if (!fh_v8_identify(l, p) && !fh_v8_compiled(p, u->r.pc, &p->first, &p->second)) {
                    p->way = FH_V8_FRAME_COMPILED;
                    p->first |= (u64)FH_V8_FRAME_COMPILED << 48;
                }
            }
        } else if ((marker & FH_V8_TAG_MASK) == 1) {
            if (fh_v8_identify(l, p)) {
                if (!known && leaf) {
                    s->key.outcome = FH_OUTCOME_NO_MAPPING;
                    next = FH_PROGRAM_COLD;
                    break;
                }
                if (!compiled)
                    p->torn = 1; /* code of V8's, but no function */
            } else {
                p->first = fh_v8_function_word(p);
                p->second = (u64)p->tag << 32;
                if (compiled) {
                    if (!fh_v8_compiled(p, leaf ? u->r.pc : u->r.pc - 1, &p->first, &p->second))
                        p->way = FH_V8_FRAME_COMPILED;
                } else if (p->builtin) {
                    p->way = FH_V8_FRAME_BUILTIN;
                } else if (!(u32)p->frame[FH_V8_OFFSET] &&
                           (!leaf || fh_v8_is_bytecode(l, p->frame[FH_V8_BYTECODE]))) {
                    u64 offset = p->frame[FH_V8_OFFSET] >> 32;
                    p->way = FH_V8_FRAME_BYTECODE;
                    if (leaf && u->r.fp - 40 < u->r.sp)
                        offset = l->bytecode_data - 1; /* not begun */
                    else if (leaf && u->r.r12 == p->frame[FH_V8_BYTECODE] && p->r9 >= l->bytecode_data - 1 &&
                             p->r9 < FH_V8_MAX_BYTECODE)
                        offset = p->r9;
                    p->second |= (u32)offset;
                } else {
                    /* A builtin without a frame, called by compiled code: where that is, lies at sp, mostly.
                     */
                    if (leaf && !fh_read_user(&p->ret, 8, u->r.sp) && p->ret) {
                        p->linked = 0;
                        u->r.sp += 8;
                        p->probe = 1;
                    } else {
                        p->way = FH_V8_FRAME_NOWHERE;
                    }
                }
                p->first |= (u64)p->way << 48;
            }
        } else if (!known && leaf && marker > FH_V8_MOST_MARKER) {
            s->key.outcome = FH_OUTCOME_NO_MAPPING;
            next = FH_PROGRAM_COLD;
            break;
        }
        if (p->linked && u->r.fp + 16 <= u->r.sp && !leaf) {
            s->key.outcome = FH_OUTCOME_BAD_FRAME;
            next = FH_PROGRAM_FINISH;
            break;
        }
    emit:
        if (p->way == FH_V8_FRAME_NONE || (leaf && !compiled && p->way != FH_V8_FRAME_BUILTIN)) {
            hash = fh_mix(hash, word);
            s->words[(kernel + s->user_frames) & (FH_STACK_WORDS - 1)] = word;
            s->user_frames++;
        }
        if (p->way != FH_V8_FRAME_NONE) {
            s->words[(kernel + s->user_frames) & (FH_STACK_WORDS - 1)] = p->first;
            s->words[(kernel + s->user_frames + 1) & (FH_STACK_WORDS - 1)] = p->second;
            hash = fh_mix(fh_mix(hash, p->first), p->second);
            s->user_frames += 2;
            p->emitted++;
        }
        u->exact = 0;
        u->rbx_at = 1;
        if (p->linked) {
            u->r.sp = u->r.fp + 16;
            p->ret = p->frame[FH_V8_RETURN];
            u->r.fp = p->frame[FH_V8_FP];
        }
        u->r.pc = p->ret;
        if (!p->ret) {
            s->key.outcome = p->torn ? FH_OUTCOME_INTERPRETER_TORN : FH_OUTCOME_COMPLETE;
            next = FH_PROGRAM_FINISH;
            break;
        }
    }
    s->hash = hash;
    p->runs++;
    fh_add(FH_COUNTER_INTERPRETER_FRAMES, p->emitted);
    if (next != FH_PROGRAM_V8 && u->by_frame_pointer)
        fh_add(FH_COUNTER_FRAME_POINTER_STEPS, u->by_frame_pointer);
    fh_programs.call(ctx, next);
lost:
    fh_count(FH_OUTCOME_LOST_TAIL_CALL);
    s->busy = 0;
    return 0;
}
