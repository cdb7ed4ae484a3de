/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers on an alternate stack that burn CPU, for a signal that comes at any instruction (SIGALRM) and for
 * one that the program raises (SIGUSR1).
 * Chains: main, outer, interrupted, [burn | libc's raise], signal frame, on_alarm | on_user, handler_work,
 * burn. */
#include "truth.h"
#include <string.h>
#include <sys/time.h>

static FRAME void handler_work(unsigned long rounds) {
    burn(rounds);
    truth_sink++;
}

static FRAME void on_alarm(int signal_number) {
    handler_work(1500000);
    truth_sink += (unsigned long)signal_number;
}

static FRAME void on_user(int signal_number) {
    handler_work(300000);
    truth_sink += (unsigned long)signal_number;
}

static FRAME void interrupted(void) {
    burn(300000);
    raise(SIGUSR1);
    truth_sink++;
}

static FRAME void outer(void) {
    interrupted();
    truth_sink++;
}

static void handle(int signal_number, void (*handler)(int)) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = SA_ONSTACK | SA_RESTART;
    sigaddset(&action.sa_mask, SIGALRM);
    sigaddset(&action.sa_mask, SIGUSR1);
    if (sigaction(signal_number, &action, NULL) != 0)
        exit(1);
}

int main(void) {
    static char alternate[65536];
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    struct itimerval timer = {.it_interval = {0, 5000}, .it_value = {0, 5000}};
    if (sigaltstack(&stack, NULL) != 0)
        return 1;
    handle(SIGALRM, on_alarm);
    handle(SIGUSR1, on_user);
    truth_ready();
    if (setitimer(ITIMER_REAL, &timer, NULL) != 0)
        return 1;
    for (;;)
        outer();
}
