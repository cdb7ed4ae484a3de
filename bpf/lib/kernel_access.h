/* SPDX-License-Identifier: GPL-2.0 */
/* What lib/unwind.h asks of its surroundings, given by the kernel: helpers and maps. */

static __always_inline int fh_read_user(void *to, u32 bytes, u64 from) {
    return bpf_probe_read_user(to, bytes, (void *)from) != 0;
}

static __always_inline struct fh_mapping *fh_mapping_at(u32 index) {
    return fh_mappings.lookup(&index);
}

static __always_inline struct fh_table *fh_table_at(u32 index) {
    return fh_tables.lookup(&index);
}

static __always_inline struct fh_rule *fh_rule_at(u32 index) {
    return fh_rules.lookup(&index);
}

static __always_inline void *fh_slab_at(u32 slab) {
    return fh_slabs.lookup(&slab);
}

static __always_inline struct fh_words *fh_words_at(void *slab, u32 pair) {
    return bpf_map_lookup_elem(slab, &pair);
}
