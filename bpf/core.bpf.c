/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The entry program: every tick of every CPU ends here, most of them within a microsecond.
 *
 * tick -> which slot? -> is a sample due? -> kernel stack, user registers -> native unwinder, by tail call.
 * Three raw tracepoints keep what is known of processes true between the agent's own updates.
 */

/* bcc creates every map while it compiles, beside LLVM: the large ones have one entry here, and the agent
 * makes them at the size that SIZES of kernel/loader.py says, in which their bytes are counted below. */
#define FH_SIZED 1

/* key 0 -> struct fh_config; agent writes, nobody evicts; 40 B */
BPF_ARRAY(fh_config, struct fh_config, 1);
/* slot -> struct fh_slot; agent writes; 16 KiB */
BPF_ARRAY(fh_slots, struct fh_slot, FH_MAX_SLOTS);
/* slot -> struct fh_slot_state, per CPU; programs write; 40 KiB a CPU */
BPF_PERCPU_ARRAY(fh_slot_state, struct fh_slot_state, FH_MAX_SLOTS);
/* enum fh_outcome or fh_counter -> u64, per CPU; programs write */
BPF_PERCPU_ARRAY(fh_counters, u64, FH_COUNTER_COUNT);
/* tgid -> slot, for --pid; agent writes, fork copies, exit deletes; 8192 * 80 B = 640 KiB */
BPF_TABLE("hash", u32, u32, fh_tgid_slots, FH_SIZED);
/* cgroup id -> slot, as configured; agent writes; 4096 * 72 B = 288 KiB */
BPF_TABLE("hash", u64, u32, fh_cgroup_slots, FH_CGROUP_CACHE);
/* cgroup id -> its slot or its ancestors'; programs write, LRU evicts; 4096 * 72 B = 288 KiB */
BPF_TABLE("lru_hash", u64, struct fh_cgroup_slot, fh_cgroup_cache, FH_CGROUP_CACHE);
/* tgid -> struct fh_process; agent writes, fork copies, exec and exit delete; 8192 * 96 B = 768 KiB */
BPF_TABLE("hash", u32, struct fh_process, fh_processes, FH_SIZED);
/* index -> struct fh_mapping; agent writes extents through mmap; 2 MiB */
BPF_F_TABLE("array", u32, struct fh_mapping, fh_mappings, FH_SIZED, BPF_F_MMAPABLE);
/* index -> struct fh_table; agent writes through mmap; 512 KiB */
BPF_F_TABLE("array", u32, struct fh_table, fh_tables, FH_MAX_TABLES, BPF_F_MMAPABLE);
/* index -> struct fh_rule; agent appends through mmap; 256 KiB */
BPF_F_TABLE("array", u32, struct fh_rule, fh_rules, FH_MAX_RULES, BPF_F_MMAPABLE);
/* slab -> array of struct fh_words; agent makes slabs as tables need them; 1 MiB each */
BPF_F_TABLE("array", u32, struct fh_words, fh_slab, 1, BPF_F_INNER_MAP | BPF_F_MMAPABLE);
BPF_ARRAY_OF_MAPS(fh_slabs, "fh_slab", FH_MAX_SLABS);
/* struct fh_count_key -> struct fh_count_value; programs write, the agent drains the idle one; 2 * 1.8 MiB */
BPF_TABLE("hash", struct fh_count_key, struct fh_count_value, fh_counts_0, FH_SIZED);
BPF_TABLE("hash", struct fh_count_key, struct fh_count_value, fh_counts_1, FH_SIZED);
/* stack hash -> 1 if its definition was sent this interval; like the counts; 2 * 1 MiB */
BPF_TABLE("hash", u64, u8, fh_seen_0, FH_SIZED);
BPF_TABLE("hash", u64, u8, fh_seen_1, FH_SIZED);
/* struct fh_stack_record and words; 512 KiB, grown by the agent on machines with many CPUs */
BPF_RINGBUF_OUTPUT(fh_ring, 128);
/* struct fh_cold_record, kernel words, stack bytes; 8 MiB */
BPF_RINGBUF_OUTPUT(fh_cold_ring, FH_SIZED);
/* key 0 -> struct fh_scratch, per CPU: the sample in the making */
BPF_PERCPU_ARRAY(fh_scratch, struct fh_scratch, 1);
/* cpu -> struct fh_cold: too large for a per-CPU map; 38 KiB a CPU, the agent sets the number of CPUs */
BPF_TABLE("array", u32, struct fh_cold, fh_cold, 1);
/* enum fh_program -> program; agent writes and holds */
BPF_PROG_ARRAY(fh_programs, 16);

static __always_inline void fh_add(u32 counter, u64 amount) {
    u64 *value = fh_counters.lookup(&counter);
    if (value)
        *value += amount;
}

static __always_inline void fh_count(u32 counter) {
    fh_add(counter, 1);
}

static __always_inline u64 fh_mix(u64 hash, u64 word) {
    hash = (hash ^ word) * 0x9fb21c651e98df25ULL;
    return hash ^ (hash >> 28);
}

/* The slot of a cgroup: its own, else that of the nearest configured ancestor, else 0. */
static __always_inline u32 fh_walk_cgroups(u64 node, u64 id, u32 selection) {
    struct fh_cgroup_slot found = {.slot = 0, .selection = selection};
    u64 ancestor = id;
    fh_count(FH_COUNTER_CGROUP_WALKS);
    for (int i = 0; i < FH_CGROUP_DEPTH; i++) {
        u32 *slot = fh_cgroup_slots.lookup(&ancestor);
        if (slot) {
            found.slot = *slot;
            break;
        }
        node = fh_kernel_u64((void *)node, OFF_KERNFS_PARENT);
        if (!node)
            break;
        ancestor = fh_kernel_u64((void *)node, OFF_KERNFS_ID);
    }
    fh_cgroup_cache.update(&id, &found);
    return found.slot;
}

static __always_inline u32 fh_select(const struct fh_config *config, u64 node, u64 id, u32 tgid) {
    struct fh_cgroup_slot *cached;
    if (config->flags & FH_CONFIG_TGIDS) {
        u32 *slot = fh_tgid_slots.lookup(&tgid);
        if (slot)
            return *slot;
    }
    if (!(config->flags & FH_CONFIG_CGROUPS))
        return 0;
    if (!node) {
        fh_count(FH_COUNTER_NO_CGROUP);
        return 0;
    }
    cached = fh_cgroup_cache.lookup(&id);
    if (cached && cached->selection == config->selection)
        return cached->slot;
    return fh_walk_cgroups(node, id, config->selection);
}

/* Whether this tick is a sample of its slot. CPU time is added up and compared with a threshold drawn anew
 * each time, uniform in [0.5, 1.5) periods: its mean is exactly one period, and no periodic program stays in
 * step. */
static __always_inline int fh_due(const struct fh_slot *slot, struct fh_slot_state *state, u64 tick_ns) {
    u64 period = slot->period_ns;
    state->ticks++;
    if (state->epoch != slot->epoch) {
        state->epoch = slot->epoch;
        state->due_ns = (s64)((period >> 10) * (bpf_get_prandom_u32() & 1023));
    }
    state->due_ns -= (s64)tick_ns;
    if (state->due_ns > 0)
        return 0;
    state->due_ns += (s64)((period >> 1) + (period >> 10) * (bpf_get_prandom_u32() & 1023));
    state->samples++;
    return 1;
}

/* The user registers of the current task: those of the interrupt, or, if it hit in kernel mode, those that
 * the kernel saved at its entry, at the top of the kernel stack (16 bytes lower with FRED). */
static __always_inline int fh_user_registers(struct bpf_perf_event_data *ctx, const void *task,
                                             struct fh_scratch *s) {
    struct fh_unwind *u = &s->u;
    u64 code_segment;
    s->executes = 0;
    u->exact = 1;
    if ((ctx->regs.cs & 3) == 3) {
        /* volatile: clang 14 would merge the two branches' loads into one through a moved context pointer,
         * which the verifier refuses ("dereference of modified ctx ptr"). */
        volatile struct pt_regs *live = &ctx->regs;
        u->r.pc = live->ip;
        u->r.sp = live->sp;
        u->r.fp = live->bp;
        u->r.r10 = live->r10;
        u->r.rbx = live->bx;
        u->r.r12 = live->r12;
        u->r.r13 = live->r13;
        u->r.r14 = live->r14;
        u->r.r15 = live->r15;
        u->r.rax = live->ax;
        u->r.rdi = live->di;
        code_segment = live->cs;
    } else {
        struct pt_regs saved = {};
        u64 top = fh_kernel_u64(task, OFF_TASK_STACK) + KERNEL_STACK_BYTES - sizeof(saved);
        bpf_probe_read_kernel(&saved, sizeof(saved), (void *)top);
        if ((saved.cs & 3) != 3)
            bpf_probe_read_kernel(&saved, sizeof(saved), (void *)(top - 16));
        if ((saved.cs & 3) != 3)
            return -1;
        u->r.pc = saved.ip;
        u->r.sp = saved.sp;
        u->r.fp = saved.bp;
        u->r.r10 = saved.r10;
        u->r.rbx = saved.bx;
        u->r.r12 = saved.r12;
        u->r.r13 = saved.r13;
        u->r.r14 = saved.r14;
        u->r.r15 = saved.r15;
        u->r.rax = saved.ax;
        u->r.rdi = saved.di;
        code_segment = saved.cs;
        s->executes = saved.orig_ax == SYSCALL_EXECVE || saved.orig_ax == SYSCALL_EXECVEAT;
    }
    return (code_segment & 0xffff) == USER_CODE_32 ? 1 : 0;
}

int fh_tick(struct bpf_perf_event_data *ctx) {
    u64 started_ns = bpf_ktime_get_ns();
    u64 ids = bpf_get_current_pid_tgid(), node, cgroup;
    u32 tgid = ids >> 32, zero = 0, slot_id;
    struct fh_config *config;
    struct fh_slot *slot;
    struct fh_slot_state *state;
    struct fh_scratch *s;
    struct fh_process *process;
    const void *task;
    long bytes;
    int registers;
    fh_count(FH_COUNTER_TICKS);
    if ((u32)ids == 0) {
        fh_count(FH_COUNTER_IDLE);
        return 0;
    }
    config = fh_config.lookup(&zero);
    if (!config)
        return 0;
    task = (const void *)bpf_get_current_task();
    node = fh_cgroup_node(task, config->flags & FH_CONFIG_UNIFIED);
    cgroup = fh_kernel_u64((void *)node, OFF_KERNFS_ID);
    slot_id = fh_select(config, node, cgroup, tgid);
    slot = fh_slots.lookup(&slot_id);
    state = fh_slot_state.lookup(&slot_id);
    if (!slot_id || !slot || !state || !slot->period_ns) {
        fh_count(FH_COUNTER_UNSELECTED);
        return 0;
    }
    if (!fh_due(slot, state, ctx->sample_period)) {
        fh_count(FH_COUNTER_NOT_DUE);
        return 0;
    }
    fh_count(FH_COUNTER_SAMPLES);
    s = fh_scratch.lookup(&zero);
    if (!s)
        return 0;
    if (s->busy) {
        fh_count(FH_OUTCOME_LOST_SCRATCH);
        return 0;
    }
    s->busy = 1;
    s->started_ns = started_ns;
    s->key.cookie = fh_cookie(task);
    s->key.cgroup = cgroup;
    s->key.tgid = tgid;
    s->key.tid = (u32)ids;
    s->key.epoch = slot->epoch;
    s->key.slot = slot_id;
    s->key.outcome = FH_OUTCOME_KERNEL_THREAD;
    s->hash = config->seed;
    s->active = config->active;
    s->kernel_frames = 0;
    s->user_frames = 0;
    s->layout = 0;
    bpf_get_current_comm(&s->comm, sizeof(s->comm));
    if ((ctx->regs.cs & 3) != 3) {
        bytes = bpf_get_stack(ctx, s->words, FH_MAX_KERNEL_FRAMES * 8, 0);
        if (bytes > 0)
            s->kernel_frames = (u32)bytes >> 3;
    }
    if (!s->key.cookie || (fh_kernel_u32(task, OFF_TASK_FLAGS) & PF_KTHREAD)) {
        fh_programs.call(ctx, FH_PROGRAM_FINISH);
        goto lost;
    }
    s->u.steps = 0;
    s->u.by_frame_pointer = 0;
    s->u.rbx_at = 0;
    s->u.mapping.start = 0;
    s->u.mapping.end = 0;
    registers = fh_user_registers(ctx, task, s);
    if (registers) {
        if (registers < 0)
            fh_count(FH_COUNTER_NO_USER_REGISTERS);
        s->key.outcome = registers < 0 ? FH_OUTCOME_READ_FAULT : FH_OUTCOME_COMPAT;
        fh_programs.call(ctx, FH_PROGRAM_FINISH);
        goto lost;
    }
    s->leaf = s->u.r;
    process = fh_processes.lookup(&tgid);
    if (!process || process->cookie != s->key.cookie || (process->flags & FH_PROCESS_COLD)) {
        fh_programs.call(ctx, FH_PROGRAM_COLD);
        goto lost;
    }
    s->u.first_mapping = process->first_mapping;
    s->u.mappings = process->mappings;
    s->fresh = started_ns < process->fresh_until_ns;
    s->layout = process->layout;
    s->interpreter[0] = 0;
    fh_count(FH_COUNTER_UNWOUND);
    fh_programs.call(ctx, process->program);
lost:
    fh_count(FH_OUTCOME_LOST_TAIL_CALL);
    s->busy = 0;
    return 0;
}

/* The sample is complete: count it, and send its stack the first time in an interval. */
int fh_finish(struct bpf_perf_event_data *ctx) {
    u32 zero = 0, words, slot_id, outcome;
    u64 hash, wake = BPF_RB_NO_WAKEUP;
    struct fh_count_value *known, fresh = {};
    struct fh_slot_state *state;
    struct fh_scratch *s = fh_scratch.lookup(&zero);
    u8 one = 1, *seen;
    long full;
    if (!s)
        return 0;
    hash = s->hash;
    for (u32 i = 0; i < FH_MAX_KERNEL_FRAMES; i++) {
        if (i >= s->kernel_frames)
            break;
        hash = fh_mix(hash, s->words[i]);
    }
    hash = fh_mix(hash, s->kernel_frames);
    s->key.stack = hash;
    outcome = s->key.outcome;
    seen = s->active ? fh_seen_1.lookup(&hash) : fh_seen_0.lookup(&hash);
    if (!seen) {
        s->record.type = FH_RECORD_STACK;
        s->record.kernel_frames = s->kernel_frames;
        s->record.user_frames = s->user_frames;
        s->record.stack = hash;
        s->record.cookie = s->key.cookie;
        s->record.tgid = s->key.tgid;
        s->record.layout = s->layout;
        words = (s->kernel_frames + s->user_frames) &
                (FH_STACK_WORDS - 1); /* never more; the verifier is told so */
        /* The agent looks by itself four times a second; deep stacks would fill the ring before. */
        s->unannounced += sizeof(s->record) + 8 * words;
        if (s->unannounced > FH_RING_WAKE_BYTES) {
            s->unannounced = 0;
            wake = BPF_RB_FORCE_WAKEUP;
        }
        if (fh_ring.ringbuf_output(&s->record, sizeof(s->record) + 8 * words, wake)) {
            fh_count(FH_COUNTER_RING_FULL);
            outcome = FH_OUTCOME_LOST_STACK;
            goto done;
        }
        if (s->active)
            fh_seen_1.update(&hash, &one);
        else
            fh_seen_0.update(&hash, &one);
    }
    known = s->active ? fh_counts_1.lookup(&s->key) : fh_counts_0.lookup(&s->key);
    if (known) {
        lock_xadd(&known->count, 1);
    } else {
        fresh.count = 1;
        __builtin_memcpy(fresh.comm, s->comm, sizeof(fresh.comm));
        full = s->active ? fh_counts_1.update(&s->key, &fresh) : fh_counts_0.update(&s->key, &fresh);
        if (full)
            outcome = FH_OUTCOME_LOST_COUNT;
    }
done:
    fh_count(outcome);
    slot_id = s->key.slot;
    state = fh_slot_state.lookup(&slot_id);
    if (state)
        state->run_ns += bpf_ktime_get_ns() - s->started_ns;
    s->busy = 0;
    return 0;
}

/* raw_tracepoint sched_process_fork(parent, child): a new process starts with its parent's slot and mappings,
 * so that it is sampled and unwound from its first tick. */
int fh_fork(struct bpf_raw_tracepoint_args *ctx) {
    const void *parent = (const void *)ctx->args[0], *child = (const void *)ctx->args[1];
    u32 parent_tgid = fh_kernel_u32(parent, OFF_TASK_TGID);
    u32 child_tgid = fh_kernel_u32(child, OFF_TASK_TGID);
    struct fh_process *known, copy;
    u32 *slot;
    if (parent_tgid == child_tgid)
        return 0;
    slot = fh_tgid_slots.lookup(&parent_tgid);
    if (slot) {
        u32 inherited = *slot;
        fh_tgid_slots.update(&child_tgid, &inherited);
    }
    known = fh_processes.lookup(&parent_tgid);
    if (known && known->cookie == fh_cookie(parent)) {
        copy = *known;
        copy.cookie = fh_cookie(child);
        fh_processes.update(&child_tgid, &copy);
        fh_count(FH_COUNTER_FORKS_COPIED);
    }
    return 0;
}

/* raw_tracepoint sched_process_exec(task, old pid, bprm): the mappings are gone, the slot stays. */
int fh_exec(struct bpf_raw_tracepoint_args *ctx) {
    u32 tgid = fh_kernel_u32((const void *)ctx->args[0], OFF_TASK_TGID);
    if (!fh_processes.delete(&tgid))
        fh_count(FH_COUNTER_EXECS_DROPPED);
    return 0;
}

/* raw_tracepoint sched_process_exit(task, …): speaks of threads; the process ends with the last of them. */
int fh_exit(struct bpf_raw_tracepoint_args *ctx) {
    const void *task = (const void *)ctx->args[0];
    u32 tgid = fh_kernel_u32(task, OFF_TASK_TGID);
    u64 signal = fh_kernel_u64(task, OFF_TASK_SIGNAL);
    if (fh_kernel_u32((void *)signal, OFF_SIGNAL_LIVE) != 0)
        return 0;
    fh_processes.delete(&tgid);
    fh_tgid_slots.delete(&tgid);
    return 0;
}
