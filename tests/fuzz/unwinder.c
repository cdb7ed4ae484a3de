/* SPDX-License-Identifier: GPL-2.0 */
/*
 * bpf/lib under libFuzzer: any maps, any registers, any stack end in an outcome, within the arrays.
 *
 * Input: four counts, the registers, mappings, tables, rules, words, and the rest is the stack. Arrays are
 * copied to blocks of their exact size, so that AddressSanitizer sees a read beyond them. A word whose top
 * byte is 0xc0 stands for an address in the code, 0x50 for one in the stack: a fuzzer does not guess those.
 */
#include "../unwinder/host.c"
#include <stdlib.h>

#define CODE 0x7f0000010000ULL
#define STACK 0x7ffc00000000ULL

static const u8 *left;
static size_t left_bytes;

/* The next `count` elements, fewer at the input's end. */
static void *take(size_t size, u32 *count) {
    void *block;
    if (*count > left_bytes / size)
        *count = left_bytes / size;
    block = malloc(*count * size + (*count == 0));
    memcpy(block, left, *count * size);
    left += *count * size;
    left_bytes -= *count * size;
    return block;
}

static void place(void *from, size_t bytes) {
    u64 *word = from;
    for (size_t i = 0; i < bytes / 8; i++) {
        if (word[i] >> 56 == 0xc0)
            word[i] = CODE + (word[i] & 0xfff);
        else if (word[i] >> 56 == 0x50)
            word[i] = STACK + (word[i] & 0xfff);
    }
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size) {
    static u64 words[FH_MAX_USER_FRAMES];
    struct input in;
    struct fh_registers *registers;
    u32 one = 1, result;
    if (size < 4 + sizeof(*registers))
        return 0;
    left = data + 4;
    left_bytes = size - 4;
    registers = take(sizeof(*registers), &one);
    place(registers, sizeof(*registers));
    memset(&in, 0, sizeof(in));
    in.mapping_count = data[0] & 7;
    in.table_count = data[1] & 7;
    in.rule_count = data[2] & 31;
    in.pair_count = data[3] & 63;
    in.mappings = take(sizeof(*in.mappings), &in.mapping_count);
    place((void *)in.mappings, in.mapping_count * sizeof(*in.mappings));
    in.tables = take(sizeof(*in.tables), &in.table_count);
    in.rules = take(sizeof(*in.rules), &in.rule_count);
    in.words = take(sizeof(*in.words), &in.pair_count);
    in.stack_bytes = left_bytes;
    in.stack = take(1, &in.stack_bytes);
    place((void *)in.stack, in.stack_bytes);
    in.stack_at = STACK;
    result = unwind(&in, registers, words);
    if ((result & 0xffff) > FH_MAX_USER_FRAMES || result >> 16 >= FH_OUTCOME_COUNT)
        abort();
    for (u32 i = 0; i < (result & 0xffff); i++)
        if (words[i] >> 60 != FH_FRAME_NATIVE && words[i] >> 60 != FH_FRAME_RAW)
            abort();
    free(registers);
    free((void *)in.mappings);
    free((void *)in.tables);
    free((void *)in.rules);
    free((void *)in.words);
    free((void *)in.stack);
    return 0;
}
