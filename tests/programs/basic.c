/* SPDX-License-Identifier: Apache-2.0 */
/* A plain recursion, built static, PIE and not: main, recurse × 20, bottom, burn. */
#include "truth.h"

static FRAME long bottom(long x) {
    burn(200000);
    return x;
}

static FRAME long recurse(long depth) {
    volatile long kept = depth;
    if (depth == 1)
        return bottom(depth) + kept;
    return recurse(depth - 1) + kept;
}

int main(void) {
    truth_ready();
    for (;;)
        truth_sink += (unsigned long)recurse(20);
}
