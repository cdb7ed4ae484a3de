/* SPDX-License-Identifier: Apache-2.0 */
/* The first process of a pod: holds its namespaces and reaps what nobody waits for. */
#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>
#include <unistd.h>

static void on_end(int signal_number) {
    (void)signal_number;
    _exit(0);
}

static void on_child(int signal_number) {
    (void)signal_number;
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
}

int main(void) {
    signal(SIGTERM, on_end);
    signal(SIGINT, on_end);
    signal(SIGCHLD, on_child);
    for (;;)
        pause();
}
