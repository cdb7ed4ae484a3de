/* SPDX-License-Identifier: Apache-2.0 */
/* 200 threads that all want the CPU. Chain: thread_body, thread_step, burn. */
#include "truth.h"
#include <pthread.h>

static FRAME void thread_step(void) {
    burn(100000);
    truth_sink++;
}

static FRAME void *thread_body(void *argument) {
    for (;;)
        thread_step();
    return argument;
}

int main(void) {
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 65536);
    for (int i = 0; i < 200; i++)
        if (pthread_create(&thread, &attributes, thread_body, NULL) != 0)
            return 1;
    truth_ready();
    for (;;)
        pause();
}
