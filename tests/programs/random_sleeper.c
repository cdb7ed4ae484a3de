/* SPDX-License-Identifier: Apache-2.0 */
/* Busy for a random 0–8 ms, then asleep for a random 0–8 ms. The sequence is fixed by the seed. */
#include "truth.h"

static unsigned long up_to_8ms(unsigned *seed) {
    return (unsigned long)rand_r(seed) % 8000000UL;
}

int main(void) {
    unsigned seed = 1;
    signal(SIGTERM, truth_on_stop);
    truth_ready();
    while (!truth_stopping) {
        unsigned long start = truth_now_ns(CLOCK_THREAD_CPUTIME_ID);
        unsigned long busy_ns = up_to_8ms(&seed);
        while (truth_now_ns(CLOCK_THREAD_CPUTIME_ID) - start < busy_ns)
            burn(5000);
        struct timespec rest = {0, (long)up_to_8ms(&seed)};
        nanosleep(&rest, NULL);
    }
    truth_print_cpu();
}
