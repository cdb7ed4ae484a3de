/* SPDX-License-Identifier: Apache-2.0 */
/* A loop in the vDSO. Chain: main, vdso_loop, libc's clock_gettime, the vDSO's. */
#include "truth.h"

static FRAME void vdso_loop(void) {
    struct timespec now;
    for (int i = 0; i < 100000; i++)
        clock_gettime(CLOCK_MONOTONIC, &now);
    truth_sink += (unsigned long)now.tv_nsec;
}

int main(void) {
    truth_ready();
    for (;;)
        vdso_loop();
}
