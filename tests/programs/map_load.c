/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a hash map of 65,536 entries over and over by BPF_MAP_LOOKUP_BATCH: while the kernel copies a
 * bucket, it runs no BPF program in an interrupt of this CPU. Ends by SIGTERM and prints the CPU time that it
 * used. */
#include "truth.h"
#include <linux/bpf.h>
#include <string.h>
#include <sys/syscall.h>

enum { ENTRIES = 65536 };

static unsigned int keys[ENTRIES], values[ENTRIES];

static long bpf(int command, union bpf_attr *attributes) {
    return syscall(__NR_bpf, command, attributes, sizeof *attributes);
}

int main(void) {
    union bpf_attr create = {.map_type = BPF_MAP_TYPE_HASH,
                             .key_size = sizeof keys[0],
                             .value_size = sizeof values[0],
                             .max_entries = ENTRIES};
    int map = (int)bpf(BPF_MAP_CREATE, &create);
    if (map < 0)
        return 1;
    for (unsigned int i = 0; i < ENTRIES; i++) {
        union bpf_attr update = {
            .map_fd = (unsigned int)map, .key = (unsigned long)&i, .value = (unsigned long)&i};
        if (bpf(BPF_MAP_UPDATE_ELEM, &update) < 0)
            return 1;
    }
    signal(SIGTERM, truth_on_stop);
    truth_ready();
    while (!truth_stopping) {
        unsigned int position;
        union bpf_attr batch;
        memset(&batch, 0, sizeof batch);
        batch.batch.out_batch = (unsigned long)&position;
        batch.batch.keys = (unsigned long)keys;
        batch.batch.values = (unsigned long)values;
        batch.batch.count = ENTRIES;
        batch.batch.map_fd = (unsigned int)map;
        bpf(BPF_MAP_LOOKUP_BATCH, &batch); /* ENOENT: that was all of it */
        if (batch.batch.count == 0)
            return 1;
    }
    truth_print_cpu();
}
