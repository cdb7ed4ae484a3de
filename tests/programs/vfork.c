/* SPDX-License-Identifier: Apache-2.0 */
/* vfork and exec, then exec again in the same process: every address space has its own chain.
 * Chains: main, parent_work, burn; main, first_work, first_inner, burn; main, second_work, second_inner,
 * burn. */
#include "truth.h"
#include <string.h>
#include <sys/wait.h>

static FRAME void spin(unsigned long span_ns) {
    for (unsigned long end = truth_now_ns(CLOCK_MONOTONIC) + span_ns; truth_now_ns(CLOCK_MONOTONIC) < end;)
        burn(100000);
}

static FRAME void parent_work(void) {
    spin(100000000);
    truth_sink++;
}

static FRAME void first_inner(void) {
    spin(200000000);
    truth_sink++;
}

static FRAME void first_work(void) {
    first_inner();
    truth_sink++;
}

static FRAME void second_inner(void) {
    spin(200000000);
    truth_sink++;
}

static FRAME void second_work(void) {
    second_inner();
    truth_sink++;
}

static FRAME pid_t launch(const char *self) {
    pid_t child = vfork();
    if (child == 0) {
        execl(self, "vfork", "first", (char *)NULL);
        _exit(127);
    }
    return child;
}

int main(int argc, char **argv) {
    static char self[4096];
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        return 1;
    if (argc == 2 && strcmp(argv[1], "first") == 0) {
        first_work();
        execl(self, "vfork", "second", (char *)NULL);
        return 1;
    }
    if (argc == 2) {
        second_work();
        return 0;
    }
    truth_ready();
    for (;;) {
        int status;
        pid_t child = launch(self);
        if (child < 0 || waitpid(child, &status, 0) < 0 || status != 0)
            return 1;
        parent_work();
    }
}
