/* SPDX-License-Identifier: Apache-2.0 */
/* As many distinct functions deep as LEVELS says, each with a frame of another size.
 * Chain: main, level_1 … level_N, burn. */
#include "truth.h"

#define BOTTOM(n)                                                                                            \
    static FRAME long level_##n(long x) {                                                                    \
        burn(500000);                                                                                        \
        return x;                                                                                            \
    }
#define LEVEL(n, next)                                                                                       \
    static FRAME long level_##n(long x) {                                                                    \
        volatile char room[8 * (n % 5) + 8];                                                                 \
        room[0] = (char)x;                                                                                   \
        return level_##next(x + 1) + room[0];                                                                \
    }
#include LEVELS

int main(void) {
    truth_ready();
    for (;;)
        truth_sink += (unsigned long)level_1(1);
}
