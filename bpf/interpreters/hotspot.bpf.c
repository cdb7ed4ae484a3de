/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The unwinder of processes that run HotSpot: native frames and Java's in their true order, leaf first.
 *
 * It replaces fh_native for these processes, like CPython's: see there.
 */

/* index -> struct fh_hotspot_layout, one for each JVM; agent writes; 580 KiB */
BPF_ARRAY(fh_hotspot_layouts, struct fh_hotspot_layout, FH_MAX_LAYOUTS);

int fh_hotspot(struct bpf_perf_event_data *ctx) {
    u32 zero = 0, next = FH_PROGRAM_HOTSPOT, kernel, index;
    struct fh_scratch *s = fh_scratch.lookup(&zero);
    struct fh_hotspot_layout *l;
    struct fh_hotspot *p;
    struct fh_unwind *u;
    u64 hash;
    if (!s)
        return 0;
    p = (struct fh_hotspot *)s->interpreter;
    index = s->layout;
    l = fh_hotspot_layouts.lookup(&index);
    if (!l)
        goto lost;
    u = &s->u;
    hash = s->hash;
    kernel = s->kernel_frames;
    p->emitted = 0;
    if (p->phase == FH_HOTSPOT_BEGIN) {
        fh_count(FH_COUNTER_INTERPRETED);
        /* The words mean something in this address space only. */
        hash = fh_mix(hash, s->key.cookie);
        p->phase = FH_HOTSPOT_RUN;
        p->end = 0;
        p->java = 0;
    }
    for (int i = 0; i < FH_FRAMES_PER_PROGRAM; i++) {
        u64 pc = u->exact ? u->r.pc : u->r.pc - 1;
        int step = FH_STEP_CALLER;
        if (s->user_frames >= FH_MAX_USER_WORDS) {
            s->key.outcome = FH_OUTCOME_TRUNCATED;
            next = FH_PROGRAM_FINISH;
            break;
        }
        if (pc >= l->low && pc < l->high) {
            int torn = 0;
            if (pc >= l->interpreter && pc < l->interpreter_end) {
                torn = fh_hotspot_interpreted(l, p, u);
            } else {
                if (p->phase == FH_HOTSPOT_SEARCH) {
                    int found = fh_hotspot_search(l, p);
                    if (found == 0)
                        continue;
                    p->phase = FH_HOTSPOT_RUN;
                    torn = found < 0 || fh_hotspot_read_blob(l, p, pc);
                } else if (pc < p->blob || pc >= p->end) {
                    torn = fh_hotspot_enter_heap(l, p, pc);
                    if (!torn)
                        continue;
                }
                if (!torn)
                    torn = fh_hotspot_compiled(l, p, u);
            }
            if (torn) {
                s->key.outcome = FH_OUTCOME_INTERPRETER_TORN;
                next = FH_PROGRAM_FINISH;
                break;
            }
            p->java = 1;
            u->exact = 0;
            u->rbx_at = 1;
            if (!u->r.pc)
                step = FH_STEP_END;
        } else {
            if (!fh_find_mapping(u, pc)) {
                s->key.outcome = FH_OUTCOME_NO_MAPPING;
                /* Behind Java frames it is rather a step that went wrong: a cold sample would lose them all.
                 */
                next = s->user_frames == 0 || (s->fresh && !p->java) ? FH_PROGRAM_COLD : FH_PROGRAM_FINISH;
                break;
            }
            p->end = 0; /* the blob's words are gone */
            p->first = fh_frame_word(u);
            step = fh_step(u);
            if (step == FH_STEP_COLD) {
                next = FH_PROGRAM_COLD;
                break;
            }
        }
        if (p->first) {
            hash = fh_mix(hash, p->first);
            s->words[(kernel + s->user_frames) & (FH_STACK_WORDS - 1)] = p->first;
            s->user_frames++;
            if (p->first >> 60 == FH_FRAME_HOTSPOT) {
                hash = fh_mix(hash, p->second);
                s->words[(kernel + s->user_frames) & (FH_STACK_WORDS - 1)] = p->second;
                s->user_frames++;
                p->emitted++;
            }
        }
        if (step != FH_STEP_CALLER) {
            s->key.outcome = step == FH_STEP_END ? FH_OUTCOME_COMPLETE : u->outcome;
            next = FH_PROGRAM_FINISH;
            break;
        }
    }
    s->hash = hash;
    fh_add(FH_COUNTER_INTERPRETER_FRAMES, p->emitted);
    if (next != FH_PROGRAM_HOTSPOT && u->by_frame_pointer)
        fh_add(FH_COUNTER_FRAME_POINTER_STEPS, u->by_frame_pointer);
    fh_programs.call(ctx, next);
lost:
    fh_count(FH_OUTCOME_LOST_TAIL_CALL);
    s->busy = 0;
    return 0;
}
