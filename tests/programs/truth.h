/* SPDX-License-Identifier: Apache-2.0 */
/* What every C and C++ truth program shares: say that it is ready, burn CPU at a known place, print its CPU
 * time. */
#ifndef TRUTH_H
#define TRUTH_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* A frame of a known chain: never inlined, cloned, merged with a twin or turned into a tail call. */
#define FRAME __attribute__((noinline, noclone, noipa))

static volatile unsigned long truth_sink;

/* The leaf of most chains: about 1 ns a round. */
static FRAME void burn(unsigned long rounds) {
    for (unsigned long i = 0; i < rounds; i++)
        truth_sink += i;
}

static void truth_ready(void) {
    printf("ready %d\n", (int)getpid());
    fflush(stdout);
}

static inline unsigned long truth_now_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (unsigned long)now.tv_sec * 1000000000UL + (unsigned long)now.tv_nsec;
}

/* Sampling programs end by SIGTERM and then print what the kernel says they used. */
static volatile sig_atomic_t truth_stopping;

static inline void truth_on_stop(int signal_number) {
    (void)signal_number;
    truth_stopping = 1;
}

static inline void truth_print_cpu(void) {
    printf("cpu_ns %lu\n", truth_now_ns(CLOCK_PROCESS_CPUTIME_ID));
    fflush(stdout);
}

#endif
