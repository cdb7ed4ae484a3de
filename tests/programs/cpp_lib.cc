// SPDX-License-Identifier: Apache-2.0
// The library of cpp_main.cc: exceptions pass through lib_enter.
#include "truth.h"

extern "C" FRAME long lib_spin(long x) {
    burn(200000); // a throw is some 5 % of it
    return x;
}

extern "C" FRAME long lib_leaf(long x) {
    return lib_spin(x) + 1;
}

extern "C" FRAME long lib_enter(long (*function)(long), long x) {
    volatile long kept = x;
    return function(x) + kept;
}
