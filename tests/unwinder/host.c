/* SPDX-License-Identifier: GPL-2.0 */
/* bpf/lib in user space: the unwinder of the kernel side against saved stacks, under the sanitizers. */
#define FLAMEHERD_HOST
#include <stddef.h>
#include <string.h>
#include "../../bpf/abi.h"

#undef __always_inline /* glibc has one of its own */
#define __always_inline inline __attribute__((always_inline))

/* What the maps hold in the kernel. */
static const struct fh_mapping *mappings;
static const struct fh_table *tables;
static const struct fh_rule *rules;
static const struct fh_words *words_of_tables;
static u32 mapping_count, table_count, rule_count, pair_count;
static const u8 *stack;
static u64 stack_at;
static u32 stack_bytes;

static int fh_read_user(void *to, u32 bytes, u64 from) {
    if (from < stack_at || from - stack_at > stack_bytes || bytes > stack_bytes - (from - stack_at))
        return -1;
    memcpy(to, stack + (from - stack_at), bytes);
    return 0;
}

static struct fh_mapping *fh_mapping_at(u32 index) {
    return index < mapping_count ? (struct fh_mapping *)&mappings[index] : NULL;
}

static struct fh_table *fh_table_at(u32 index) {
    return index < table_count ? (struct fh_table *)&tables[index] : NULL;
}

static struct fh_rule *fh_rule_at(u32 index) {
    return index < rule_count ? (struct fh_rule *)&rules[index] : NULL;
}

static void *fh_slab_at(u32 slab) {
    return slab == 0 ? (void *)&words_of_tables : NULL;
}

static struct fh_words *fh_words_at(void *slab, u32 pair) {
    return slab && pair < pair_count ? (struct fh_words *)&words_of_tables[pair] : NULL;
}

#include "../../bpf/lib/unwind_types.h"
#include "../../bpf/lib/unwind.h"

struct input {
    const struct fh_mapping *mappings;
    const struct fh_table *tables;
    const struct fh_rule *rules;
    const struct fh_words *words;
    const u8 *stack;
    u64 stack_at;
    u32 mapping_count, table_count, rule_count, pair_count, stack_bytes;
};

/* Unwinds as fh_native does. Frame words go to `words` (FH_MAX_USER_FRAMES). Returns frames | outcome << 16.
 */
u32 unwind(const struct input *in, const struct fh_registers *registers, u64 *words) {
    struct fh_unwind u;
    u32 frames = 0;
    memset(&u, 0, sizeof(u));
    mappings = in->mappings;
    tables = in->tables;
    rules = in->rules;
    words_of_tables = in->words;
    stack = in->stack;
    stack_at = in->stack_at;
    mapping_count = in->mapping_count;
    table_count = in->table_count;
    rule_count = in->rule_count;
    pair_count = in->pair_count;
    stack_bytes = in->stack_bytes;
    u.r = *registers;
    u.exact = 1;
    u.mappings = mapping_count;
    while (frames < FH_MAX_USER_FRAMES) {
        int step;
        u64 word;
        if (!fh_find_mapping(&u, u.exact ? u.r.pc : u.r.pc - 1))
            return frames | FH_OUTCOME_NO_MAPPING << 16;
        word = fh_frame_word(&u);
        step = fh_step(&u);
        if (step == FH_STEP_COLD)
            return frames | FH_OUTCOME_COLD << 16;
        words[frames++] = word;
        if (step == FH_STEP_END)
            return frames | FH_OUTCOME_COMPLETE << 16;
        if (step == FH_STEP_FAILED)
            return frames | u.outcome << 16;
    }
    return frames | FH_OUTCOME_TRUNCATED << 16;
}

/* The rule's number at `pc` of a table that lies at the slab's word `first`. */
u32 find_rule(const struct fh_words *words, u32 pairs, u32 first, u32 pages, u32 pc) {
    struct fh_table table = {.first = first, .pages = pages};
    words_of_tables = words;
    pair_count = pairs;
    return fh_find_rule(&table, pc);
}
