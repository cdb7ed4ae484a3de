/* SPDX-License-Identifier: GPL-2.0 */
/* The context of a perf_event program: x86-64 layout of the stable user API. */
#ifndef FLAMEHERD_SHIM_BPF_PERF_EVENT_H
#define FLAMEHERD_SHIM_BPF_PERF_EVENT_H
#include <linux/types.h>
struct pt_regs {
    unsigned long r15, r14, r13, r12, bp, bx;
    unsigned long r11, r10, r9, r8, ax, cx, dx, si, di;
    unsigned long orig_ax, ip, cs, flags, sp, ss;
};
struct bpf_perf_event_data {
    struct pt_regs regs;
    __u64 sample_period;
    __u64 addr;
};
#endif
