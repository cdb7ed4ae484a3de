/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Reading the kernel's own structs. Every offset is a macro OFF_* that the loader child takes from the
 * running kernel's BTF, so that no kernel headers are needed and one text fits all kernels.
 */

#include <uapi/linux/bpf_perf_event.h>

static __always_inline u64 fh_kernel_u64(const void *base, u32 offset) {
    u64 value = 0;
    bpf_probe_read_kernel(&value, sizeof(value), base + offset);
    return value;
}

static __always_inline u32 fh_kernel_u32(const void *base, u32 offset) {
    u32 value = 0;
    bpf_probe_read_kernel(&value, sizeof(value), base + offset);
    return value;
}

/* 64 bits that identify one address space: exec gives a new mm and exec count, fork a new mm, and the start
 * time of the thread group tells a reused mm pointer apart. 0 for tasks without one. */
static __always_inline u64 fh_cookie(const void *task) {
    u64 mm = fh_kernel_u64(task, OFF_TASK_MM);
    u64 leader, cookie;
    if (!mm)
        return 0;
    leader = fh_kernel_u64(task, OFF_TASK_GROUP_LEADER);
    cookie = mm * 0x9e3779b97f4a7c15ULL;
    cookie ^= fh_kernel_u64((void *)leader, OFF_TASK_START_TIME) * 0xc2b2ae3d27d4eb4fULL;
    cookie ^= (u64)fh_kernel_u32(task, OFF_TASK_SELF_EXEC_ID) << 17;
    return cookie ? cookie : 1;
}

/* The kernfs node of the task's cgroup: in v2's hierarchy (`unified`), or in that of v1's pids controller,
 * which bpf_get_current_cgroup_id never tells. Not by the pids controller on v2: its state belongs to the
 * nearest ancestor where the controller is enabled. */
static __always_inline u64 fh_cgroup_node(const void *task, u32 unified) {
    u64 set = fh_kernel_u64(task, OFF_TASK_CGROUPS), state, cgroup;
    if (unified) {
        cgroup = fh_kernel_u64((void *)set, OFF_CSS_SET_DFL_CGRP);
    } else {
        state = fh_kernel_u64((void *)set, OFF_CSS_SET_SUBSYS + 8 * PIDS_CGROUP_SUBSYS);
        cgroup = fh_kernel_u64((void *)state, OFF_CSS_CGROUP);
    }
    return fh_kernel_u64((void *)cgroup, OFF_CGROUP_KN);
}
