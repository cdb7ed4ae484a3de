/* SPDX-License-Identifier: Apache-2.0 */
/* A period of 10 ms by absolute deadlines: 3.7 ms busy by its own CPU clock, then asleep. Aliases with any
 * sampler whose period is a constant. */
#include "truth.h"

#define PERIOD_NS 10000000L
#define BUSY_NS 3700000UL

int main(void) {
    struct timespec deadline;
    signal(SIGTERM, truth_on_stop);
    truth_ready();
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    while (!truth_stopping) {
        unsigned long start = truth_now_ns(CLOCK_THREAD_CPUTIME_ID);
        while (truth_now_ns(CLOCK_THREAD_CPUTIME_ID) - start < BUSY_NS)
            burn(5000);
        deadline.tv_nsec += PERIOD_NS;
        if (deadline.tv_nsec >= 1000000000L) {
            deadline.tv_nsec -= 1000000000L;
            deadline.tv_sec++;
        }
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, NULL);
    }
    truth_print_cpu();
}
