/* SPDX-License-Identifier: GPL-2.0 */
/* The state of one unwinding: lib/unwind.h moves it from frame to frame. */

struct fh_unwind {
    struct fh_registers r;
    u32 first_mapping;
    u32 mappings;
    u32 exact;   /* the pc is where execution is, not a return address */
    u32 outcome; /* enum fh_outcome, after FH_STEP_FAILED */
    u32 by_frame_pointer;
    u64 rbx_at;                /* where the rbx of this frame is saved; 0: in r.rbx; 1: not known */
    u32 steps;                 /* frames so far */
    struct fh_mapping mapping; /* that of the last frame: the next one is mostly in the same */
};
