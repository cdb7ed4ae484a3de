/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The sample in the making, and the tail calls that make it: entry -> native (up to 32 times) -> finish, or
 * -> cold.
 */

struct fh_scratch {
    u64 started_ns;
    u64 hash; /* of the user words so far */
    u32 busy;
    u32 active;
    u32 kernel_frames;
    u32 user_frames;
    u32 fresh;       /* unknown code goes cold */
    u32 unannounced; /* bytes of stacks sent since the agent was last woken */
    u16 layout;      /* of the process's interpreter */
    u16 executes;    /* in execve, which takes the user stack away before it makes another */
    struct fh_count_key key;
    char comm[FH_COMM_BYTES];
    struct fh_registers leaf; /* as sampled: a cold sample starts again from here */
    struct fh_unwind u;
    u64 interpreter[FH_INTERPRETER_BYTES / 8]; /* of its program; the first word is 0 as it begins */
    struct fh_stack_record record;             /* the words follow, so that both leave in one record */
    u64 words[FH_STACK_WORDS];
};

struct fh_cold {
    struct fh_cold_record record;
    u64 kernel[FH_COLD_KERNEL_WORDS];
    u8 stack[FH_COLD_BYTES];
};

/* Copied bytes of one CPU in the present window of 2^29 ns, about half a second. */
struct fh_cold_meter {
    u64 window;
    u64 bytes;
};
