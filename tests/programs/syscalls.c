/* SPDX-License-Identifier: Apache-2.0 */
/* Nearly all CPU time in the kernel. Chains: main, read_loop, read_zero, libc's read, kernel; and main,
 * getppid_loop, libc's getppid, kernel. */
#include "truth.h"
#include <fcntl.h>

static char buffer[65536];

static FRAME long read_zero(int file) {
    long got = read(file, buffer, sizeof buffer);
    return got + 1;
}

static FRAME void read_loop(int file) {
    for (int i = 0; i < 500; i++)
        truth_sink += (unsigned long)read_zero(file);
}

static FRAME void getppid_loop(void) {
    for (int i = 0; i < 5000; i++)
        truth_sink += (unsigned long)getppid();
}

int main(void) {
    int file = open("/dev/zero", O_RDONLY);
    if (file < 0)
        return 1;
    truth_ready();
    for (;;) {
        read_loop(file);
        getppid_loop();
    }
}
