/* SPDX-License-Identifier: Apache-2.0 */
/* Comparators that sort with the next comparator: 60 levels of own code and libc in turn, no frame pointers.
 * Chain: main, then (libc's qsort, cmp_N) for N = 1…60, then burn. */
#include "truth.h"

#define BOTTOM(n)                                                                                            \
    static FRAME int cmp_##n(const void *a, const void *b) {                                                 \
        burn(100000);                                                                                        \
        return *(const int *)a - *(const int *)b;                                                            \
    }
#define LEVEL(n, next)                                                                                       \
    static FRAME int cmp_##n(const void *a, const void *b) {                                                 \
        int pair[2] = {*(const int *)a, *(const int *)b};                                                    \
        qsort(pair, 2, sizeof pair[0], cmp_##next);                                                          \
        return pair[0] - pair[1];                                                                            \
    }
#include LEVELS

int main(void) {
    truth_ready();
    for (;;) {
        int pair[2] = {2, 1};
        qsort(pair, 2, sizeof pair[0], cmp_1);
    }
}
