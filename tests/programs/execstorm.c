/* SPDX-License-Identifier: Apache-2.0 */
/* execstorm RATE SECONDS PROGRAM: launches PROGRAM at RATE a second by the clock, reaps, prints how many ran.
 */
#include "truth.h"
#include <errno.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

int main(int argc, char **argv) {
    if (argc != 4 || atol(argv[1]) <= 0)
        return 2;
    long step_ns = 1000000000L / atol(argv[1]), wanted = atol(argv[1]) * atol(argv[2]), launched = 0;
    char *arguments[] = {argv[3], NULL};
    struct timespec deadline;
    truth_ready();
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    for (; launched < wanted; launched++) {
        pid_t child;
        if (posix_spawn(&child, argv[3], NULL, NULL, arguments, environ) != 0)
            return 1;
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
        deadline.tv_nsec += step_ns;
        if (deadline.tv_nsec >= 1000000000L) {
            deadline.tv_nsec -= 1000000000L;
            deadline.tv_sec++;
        }
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, NULL);
    }
    while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
        ;
    printf("launched %ld\n", launched);
}
