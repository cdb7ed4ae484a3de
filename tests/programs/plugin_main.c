/* SPDX-License-Identifier: Apache-2.0 */
/* Opens library A, works in it, closes it, opens B in its place, works in it, and so on. The libraries have
 * the same code at the same offsets: a stale mapping shows as run_a over b_work. Chains: main, run_a,
 * a_entry, a_work, burn and main, run_b, b_entry, b_work, burn. */
#include "truth.h"
#include <dlfcn.h>

/* Time in each library before it is closed. */
#define SPAN_NS 500000000UL

typedef long (*entry_function)(long);

static void *opened(const char *path, const char *symbol, entry_function *entry) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL || (*entry = (entry_function)dlsym(library, symbol)) == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return library;
}

static FRAME void run_a(entry_function entry) {
    for (unsigned long end = truth_now_ns(CLOCK_MONOTONIC) + SPAN_NS; truth_now_ns(CLOCK_MONOTONIC) < end;)
        truth_sink += (unsigned long)entry(1);
}

static FRAME void run_b(entry_function entry) {
    for (unsigned long end = truth_now_ns(CLOCK_MONOTONIC) + SPAN_NS; truth_now_ns(CLOCK_MONOTONIC) < end;)
        truth_sink += (unsigned long)entry(2);
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    int rounds = 0;
    for (entry_function entry, before = NULL;; rounds++) {
        void *library = opened(argv[1], "a_entry", &entry);
        if (rounds == 0)
            truth_ready();
        if (before != NULL && before != entry) {
            fprintf(stderr, "the libraries did not get the same address\n");
            return 3;
        }
        before = entry;
        run_a(entry);
        dlclose(library);
        library = opened(argv[2], "b_entry", &entry);
        if (before != entry) {
            fprintf(stderr, "the libraries did not get the same address\n");
            return 3;
        }
        run_b(entry);
        dlclose(library);
    }
}
