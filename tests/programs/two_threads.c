/* SPDX-License-Identifier: Apache-2.0 */
/* Two threads that take turns: "long" works 3 ms, "short" 1 ms. Ends by SIGTERM and prints each one's CPU
 * time. */
#define _GNU_SOURCE
#include "truth.h"
#include <pthread.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turned = PTHREAD_COND_INITIALIZER;
static int turn;

static FRAME void long_work(void) {
    unsigned long start = truth_now_ns(CLOCK_THREAD_CPUTIME_ID);
    while (truth_now_ns(CLOCK_THREAD_CPUTIME_ID) - start < 3000000UL)
        burn(5000);
}

static FRAME void short_work(void) {
    unsigned long start = truth_now_ns(CLOCK_THREAD_CPUTIME_ID);
    while (truth_now_ns(CLOCK_THREAD_CPUTIME_ID) - start < 1000000UL)
        burn(5000);
}

static void alternate(int mine, void (*work)(void)) {
    while (!truth_stopping) {
        pthread_mutex_lock(&mutex);
        while (turn != mine && !truth_stopping)
            pthread_cond_wait(&turned, &mutex);
        pthread_mutex_unlock(&mutex);
        work();
        pthread_mutex_lock(&mutex);
        turn = !mine;
        pthread_cond_signal(&turned);
        pthread_mutex_unlock(&mutex);
    }
    pthread_mutex_lock(&mutex);
    printf("%s_ns %lu\n", mine ? "short" : "long", truth_now_ns(CLOCK_THREAD_CPUTIME_ID));
    fflush(stdout);
    pthread_mutex_unlock(&mutex);
}

static void *long_body(void *argument) {
    pthread_setname_np(pthread_self(), "long");
    alternate(0, long_work);
    return argument;
}

static void *short_body(void *argument) {
    pthread_setname_np(pthread_self(), "short");
    alternate(1, short_work);
    return argument;
}

int main(void) {
    pthread_t long_thread, short_thread;
    signal(SIGTERM, truth_on_stop);
    if (pthread_create(&long_thread, NULL, long_body, NULL) != 0 ||
        pthread_create(&short_thread, NULL, short_body, NULL) != 0)
        return 1;
    truth_ready();
    pthread_join(long_thread, NULL);
    pthread_join(short_thread, NULL);
    truth_print_cpu();
}
