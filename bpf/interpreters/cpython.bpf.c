/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The unwinder of processes that run CPython: native frames and CPython's in their true order, leaf first.
 *
 * It replaces fh_native for these processes instead of taking turns with it: a tail call for each switch
 * would use up the kernel's 33 after sixteen evaluations. What differs from path to path (how many words
 * there are) is kept in the map, not in registers: the verifier then sees equal states where paths meet.
 */

/* index -> struct fh_cpython_layout; agent writes; 18 KiB */
BPF_ARRAY(fh_cpython_layouts, struct fh_cpython_layout, FH_MAX_LAYOUTS);

int fh_cpython(struct bpf_perf_event_data *ctx) {
    u32 zero = 0, next = FH_PROGRAM_CPYTHON, kernel, index;
    struct fh_scratch *s = fh_scratch.lookup(&zero);
    struct fh_cpython_layout *l;
    struct fh_cpython *p;
    struct fh_unwind *u;
    u64 hash;
    if (!s)
        return 0;
    p = (struct fh_cpython *)s->interpreter;
    index = s->layout;
    l = fh_cpython_layouts.lookup(&index);
    if (!l)
        goto lost;
    u = &s->u;
    hash = s->hash;
    kernel = s->kernel_frames;
    p->emitted = 0;
    if (p->phase == FH_CPYTHON_BEGIN) {
        fh_count(FH_COUNTER_INTERPRETED);
        /* The words mean something in this address space only. */
        hash = fh_mix(hash, s->key.cookie);
        fh_cpython_begin(l, p, fh_kernel_u64((const void *)bpf_get_current_task(), OFF_TASK_FSBASE));
    }
    for (int i = 0; i < FH_FRAMES_PER_PROGRAM; i++) {
        u64 word, below;
        int step;
        if (p->phase == FH_CPYTHON_SEARCH) {
            fh_cpython_search(l, p);
            continue;
        }
        if (s->user_frames >= FH_MAX_USER_WORDS) {
            s->key.outcome = FH_OUTCOME_TRUNCATED;
            next = FH_PROGRAM_FINISH;
            break;
        }
        if (p->phase == FH_CPYTHON_WALK) {
            for (int j = 0; j < FH_CPYTHON_PUSHES; j++) {
                u64 first = (u64)FH_FRAME_CPYTHON << 60, second = 0, previous;
                int last;
                if (s->user_frames >= FH_MAX_USER_WORDS)
                    break;
                if (p->frame == p->boundary) { /* the shim: all frames of this evaluation are out */
                    p->frame = p->after;
                    p->scan = p->after;
                    p->scanned = 0;
                    p->boundary = FH_CPYTHON_NOWHERE;
                    p->phase = p->frame ? FH_CPYTHON_SEARCH : FH_CPYTHON_NATIVE;
                    break;
                }
                if (p->frame) {
                    if (fh_cpython_read_frame(l, p, p->frame) ||
                        fh_cpython_frame_words(l, p, &first, &second)) {
                        fh_cpython_tear(p);
                        break;
                    }
                    previous = fh_cpython_word(p->head, l->frame_previous);
                    p->emitted++;
                } else {
                    /* An evaluation that has no frame yet, or none any more: the agent shifts the others. */
                    previous = 0;
                }
                s->words[(kernel + s->user_frames) & (FH_STACK_WORDS - 1)] = first;
                s->words[(kernel + s->user_frames + 1) & (FH_STACK_WORDS - 1)] = second;
                hash = fh_mix(fh_mix(hash, first), second);
                s->user_frames += 2;
                if (l->mode == FH_CPYTHON_MODE_ENTRY) {
                    p->frame = previous;
                    continue;
                }
                last = l->mode != FH_CPYTHON_MODE_CHAIN || p->head[l->frame_entry & 0x7f] >= l->entry_least;
                p->frame = previous;
                if (!last && previous)
                    continue;
                p->phase = FH_CPYTHON_NATIVE;
                if (l->mode != FH_CPYTHON_MODE_EVAL) {
                    if (fh_read_user(&p->cframe, 8, p->cframe + l->cframe_previous)) {
                        fh_cpython_tear(p);
                        break;
                    }
                    fh_cpython_enter_cframe(l, p);
                    if (!last || (p->frame != previous && !p->torn))
                        fh_cpython_tear(p); /* the two chains disagree */
                }
                break;
            }
            if (p->phase != FH_CPYTHON_WALK) {
                s->words[(kernel + s->user_frames) & (FH_STACK_WORDS - 1)] = p->pending;
                hash = fh_mix(hash, p->pending);
                s->user_frames++;
            }
            continue;
        }
        if (!fh_find_mapping(u, u->exact ? u->r.pc : u->r.pc - 1)) {
            s->key.outcome = FH_OUTCOME_NO_MAPPING;
            next = s->user_frames == 0 || s->fresh ? FH_PROGRAM_COLD : FH_PROGRAM_FINISH;
            break;
        }
        word = fh_frame_word(u);
        below = u->r.sp;
        step = fh_step(u);
        if (step == FH_STEP_COLD) {
            next = FH_PROGRAM_COLD;
            break;
        }
        if (step == FH_STEP_CALLER &&
            (l->mode == FH_CPYTHON_MODE_EVAL ? (u->mapping.executable & FH_MAPPING_EVAL) && !p->torn
                                             : p->boundary < u->r.sp)) {
            if (l->mode == FH_CPYTHON_MODE_EVAL || p->boundary >= below) {
                p->pending = word;
                p->phase = FH_CPYTHON_WALK;
                continue;
            }
            fh_cpython_tear(p);
        }
        hash = fh_mix(hash, word);
        s->words[(kernel + s->user_frames) & (FH_STACK_WORDS - 1)] = word;
        s->user_frames++;
        if (step != FH_STEP_CALLER) {
            s->key.outcome = step == FH_STEP_END ? FH_OUTCOME_COMPLETE : u->outcome;
            if (step == FH_STEP_END && (p->torn || p->frame))
                s->key.outcome = p->torn ? FH_OUTCOME_INTERPRETER_TORN : FH_OUTCOME_INTERPRETER_LEFT;
            next = FH_PROGRAM_FINISH;
            break;
        }
    }
    s->hash = hash;
    fh_add(FH_COUNTER_INTERPRETER_FRAMES, p->emitted);
    if (next != FH_PROGRAM_CPYTHON && u->by_frame_pointer)
        fh_add(FH_COUNTER_FRAME_POINTER_STEPS, u->by_frame_pointer);
    fh_programs.call(ctx, next);
lost:
    fh_count(FH_OUTCOME_LOST_TAIL_CALL);
    s->busy = 0;
    return 0;
}
