/* SPDX-License-Identifier: Apache-2.0 */
/* What execstorm launches: 3 ms of CPU time in tiny_work, then gone. */
#include "truth.h"

static FRAME void tiny_work(void) {
    while (truth_now_ns(CLOCK_PROCESS_CPUTIME_ID) < 3000000UL)
        burn(20000);
}

int main(void) {
    tiny_work();
}
