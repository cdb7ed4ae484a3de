/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The native unwinder as a chain of tail calls, and the way out for samples that it cannot unwind yet.
 */

/* key 0 -> struct fh_cold_meter, per CPU */
BPF_PERCPU_ARRAY(fh_cold_meters, struct fh_cold_meter, 1);

int fh_native(struct bpf_perf_event_data *ctx) {
    u32 zero = 0;
    struct fh_scratch *s = fh_scratch.lookup(&zero);
    struct fh_unwind *u;
    u32 next = FH_PROGRAM_NATIVE, at, frames;
    u64 hash;
    if (!s)
        return 0;
    u = &s->u;
    hash = s->hash;
    at = s->kernel_frames + s->user_frames;
    frames = s->user_frames;
    for (int i = 0; i < FH_FRAMES_PER_PROGRAM; i++) {
        int step;
        u64 word;
        if (!fh_find_mapping(u, u->exact ? u->r.pc : u->r.pc - 1)) {
            /* The leaf in unknown memory: the agent's view of the process is out of date. Further up that is
             * so while the process is fresh; later it is rather a frame that was never one. */
            s->key.outcome = FH_OUTCOME_NO_MAPPING;
            next = frames == 0 || s->fresh ? FH_PROGRAM_COLD : FH_PROGRAM_FINISH;
            break;
        }
        word = fh_frame_word(u);
        step = fh_step(u);
        if (step == FH_STEP_COLD) {
            next = FH_PROGRAM_COLD;
            break;
        }
        hash = fh_mix(hash, word);
        s->words[at & (FH_STACK_WORDS - 1)] = word;
        at++;
        frames++;
        if (step != FH_STEP_CALLER) {
            s->key.outcome = step == FH_STEP_END ? FH_OUTCOME_COMPLETE : u->outcome;
            next = FH_PROGRAM_FINISH;
            break;
        }
        if (frames >= FH_MAX_USER_FRAMES) {
            s->key.outcome = FH_OUTCOME_TRUNCATED;
            next = FH_PROGRAM_FINISH;
            break;
        }
    }
    s->hash = hash;
    s->user_frames = frames;
    if (next != FH_PROGRAM_NATIVE && u->by_frame_pointer)
        fh_add(FH_COUNTER_FRAME_POINTER_STEPS, u->by_frame_pointer);
    fh_programs.call(ctx, next);
    fh_count(FH_OUTCOME_LOST_TAIL_CALL);
    s->busy = 0;
    return 0;
}

/* The process or one of its executables is not loaded: registers and the stack from sp on go to the agent. */
int fh_send_cold(struct bpf_perf_event_data *ctx) {
    u32 zero = 0, cpu = bpf_get_smp_processor_id(), at, chunk, slot_id;
    u64 now = bpf_ktime_get_ns();
    struct fh_scratch *s = fh_scratch.lookup(&zero);
    struct fh_cold *cold = fh_cold.lookup(&cpu);
    struct fh_cold_meter *meter = fh_cold_meters.lookup(&zero);
    struct fh_config *config = fh_config.lookup(&zero);
    struct fh_slot_state *state;
    long failed;
    int unreadable = 0;
    if (!s)
        return 0;
    if (!cold || !meter || !config) {
        fh_count(FH_OUTCOME_LOST_SCRATCH);
        s->busy = 0;
        return 0;
    }
    if (meter->window != now >> 29) {
        meter->window = now >> 29;
        meter->bytes = 0;
    }
    at = 0;
    if (meter->bytes < config->cold_bytes_per_second >> 1) {
        chunk = 4096 - ((u32)s->leaf.sp & 4095);
        for (int i = 0; i < FH_COLD_PAGES; i++) {
            if (at > FH_COLD_BYTES - 4096)
                break;
            if (bpf_probe_read_user(&cold->stack[at], chunk, (void *)(s->leaf.sp + at))) {
                unreadable = at == 0;
                break;
            }
            at += chunk;
            chunk = 4096;
        }
    }
    if (unreadable && s->executes) {
        s->key.outcome = FH_OUTCOME_KERNEL_THREAD;
        s->user_frames = 0;
        s->hash = config->seed;
        fh_programs.call(ctx, FH_PROGRAM_FINISH);
        fh_count(FH_OUTCOME_LOST_TAIL_CALL);
        s->busy = 0;
        return 0;
    }
    meter->bytes += at;
    fh_add(FH_COUNTER_COLD_BYTES, at);
    cold->record.type = FH_RECORD_COLD;
    cold->record.tgid = s->key.tgid;
    cold->record.tid = s->key.tid;
    cold->record.epoch = s->key.epoch;
    cold->record.slot = s->key.slot;
    cold->record.kernel_frames = s->kernel_frames;
    cold->record.stack_bytes = at;
    cold->record.cookie = s->key.cookie;
    cold->record.cgroup = s->key.cgroup;
    cold->record.time_ns = now;
    cold->record.registers = s->leaf;
    __builtin_memcpy(cold->record.comm, s->comm, sizeof(s->comm));
    for (u32 i = 0; i < FH_MAX_KERNEL_FRAMES; i++) {
        /* Else LLVM 19 computes the number of rounds and unrolls them up to a `!=`: no bound that the
         * verifier sees. */
        asm volatile("" : "+r"(i));
        if (i >= s->kernel_frames)
            break;
        cold->kernel[i] = s->words[i];
    }
    if (at > FH_COLD_BYTES)
        at = FH_COLD_BYTES;
    failed = fh_cold_ring.ringbuf_output(cold, sizeof(*cold) - FH_COLD_BYTES + at, 0);
    if (failed)
        fh_count(FH_COUNTER_RING_FULL);
    fh_count(failed ? FH_OUTCOME_COLD_DROPPED : FH_OUTCOME_COLD);
    slot_id = s->key.slot;
    state = fh_slot_state.lookup(&slot_id);
    if (state)
        state->run_ns += bpf_ktime_get_ns() - s->started_ns;
    s->busy = 0;
    return 0;
}
