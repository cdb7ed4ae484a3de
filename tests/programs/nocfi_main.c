/* SPDX-License-Identifier: Apache-2.0 */
/* Calls through code that has frame pointers but no unwind table (nocfi_middle.c) into code that has a table
 * but no frame pointers. Chain: main, bare_outer, bare_inner, leaf_work, burn. */
#include "truth.h"

long bare_outer(long (*function)(long), long x);

static FRAME long leaf_work(long x) {
    burn(500000);
    return x + 1;
}

int main(void) {
    truth_ready();
    for (;;)
        truth_sink += (unsigned long)bare_outer(leaf_work, 1);
}
