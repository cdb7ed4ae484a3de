/* SPDX-License-Identifier: Apache-2.0 */
/* Built with -fno-asynchronous-unwind-tables -fno-omit-frame-pointer: see nocfi_main.c. */
__attribute__((noinline, noipa)) long bare_inner(long (*function)(long), long x) {
    volatile long room[5] = {x};
    return function(x) + room[0];
}

__attribute__((noinline, noipa)) long bare_outer(long (*function)(long), long x) {
    volatile long room[9] = {x};
    return bare_inner(function, x) + room[0];
}
