/* SPDX-License-Identifier: Apache-2.0 */
/* One of the two libraries of plugin_main.c: PREFIX is a or b. */
#include "truth.h"

#define PASTE(x, y) x##y
#define NAME(x, y) PASTE(x, y)

FRAME long NAME(PREFIX, _work)(long x) {
    burn(200000);
    return x;
}

FRAME long NAME(PREFIX, _entry)(long x) {
    return NAME(PREFIX, _work)(x) + 1;
}
