/* SPDX-License-Identifier: Apache-2.0 */
/* Two workers forked before "ready" and one more again and again afterwards, each living 200 ms.
 * Chain of all: main, spawn_worker, worker_loop, worker_task, burn. */
#include "truth.h"
#include <sys/prctl.h>
#include <sys/wait.h>

static FRAME void worker_task(void) {
    burn(100000);
    truth_sink++;
}

static FRAME void worker_loop(unsigned long span_ns) {
    for (unsigned long end = truth_now_ns(CLOCK_MONOTONIC) + span_ns;
         span_ns == 0 || truth_now_ns(CLOCK_MONOTONIC) < end;)
        worker_task();
}

static FRAME pid_t spawn_worker(unsigned long span_ns) {
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        worker_loop(span_ns);
        _exit(0);
    }
    return child;
}

int main(void) {
    if (spawn_worker(0) < 0 || spawn_worker(0) < 0)
        return 1;
    truth_ready();
    for (;;) {
        pid_t child = spawn_worker(200000000);
        if (child < 0 || waitpid(child, NULL, 0) < 0)
            return 1;
    }
}
