/* SPDX-License-Identifier: Apache-2.0 */
/* The C side of main.go. */
#include "_cgo_export.h"

static volatile unsigned long sink;

__attribute__((noinline, noclone, noipa)) static void c_burn(unsigned long rounds) {
    for (unsigned long i = 0; i < rounds; i++)
        sink += i;
}

__attribute__((noinline, noclone, noipa)) static long c_inner(long x) {
    c_burn(1000000);
    return goCallback(x) + 1;
}

__attribute__((noinline, noclone, noipa)) long c_outer(long x) {
    return c_inner(x) + 1;
}
