/* SPDX-License-Identifier: Apache-2.0 */
/* After SIGUSR1: forks children one after another; each uses 4 ms of CPU time and ends, every other one
 * through a child of its own. Ends by SIGTERM and prints how many there were and what they used in all. */
#include "truth.h"
#include <sys/resource.h>
#include <sys/wait.h>

enum { CHILD_NS = 4000000 };

static FRAME void child(void) {
    while (truth_now_ns(CLOCK_PROCESS_CPUTIME_ID) < CHILD_NS)
        burn(10000);
    _exit(0);
}

static unsigned long ns(struct timeval time) {
    return (unsigned long)time.tv_sec * 1000000000UL + (unsigned long)time.tv_usec * 1000UL;
}

int main(void) {
    unsigned long count = 0;
    struct rusage children;
    sigset_t go;
    int number;
    sigemptyset(&go);
    sigaddset(&go, SIGUSR1);
    sigprocmask(SIG_BLOCK, &go, NULL);
    signal(SIGTERM, truth_on_stop);
    truth_ready();
    if (sigwait(&go, &number))
        return 1;
    for (; !truth_stopping; count++) {
        pid_t pid = fork();
        if (pid == 0) {
            signal(SIGTERM, SIG_IGN);
            if (count % 2 == 0 || fork() == 0)
                child();
            wait(NULL);
            _exit(0);
        }
        while (waitpid(pid, NULL, 0) < 0)
            ;
    }
    getrusage(RUSAGE_CHILDREN, &children);
    printf("children %lu\nchildren_ns %lu\n", count, ns(children.ru_utime) + ns(children.ru_stime));
}
