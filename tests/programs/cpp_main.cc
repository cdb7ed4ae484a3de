// SPDX-License-Identifier: Apache-2.0
// Templates, calls through the PLT into an own library and back, exceptions through all of them.
// Chain: main, outer(), lib_enter (library), callback, descend<6> … descend<0>, lib_leaf (library), lib_spin.
#include "truth.h"
#include <stdexcept>

extern "C" long lib_enter(long (*)(long), long);
extern "C" long lib_leaf(long);

namespace truth {

struct Guard {
    long value;
    FRAME ~Guard();
};

Guard::~Guard() {
    burn(200);
}

template <int N> FRAME long descend(long x) {
    Guard guard{x + N};
    return descend<N - 1>(x) + guard.value;
}

template <> FRAME long descend<0>(long x) {
    long spun = lib_leaf(x);
    if (x % 6 == 0)
        throw std::runtime_error("to the callback");
    if (x % 6 == 3)
        throw x; // through the library, to outer()
    return spun;
}

FRAME long callback(long x) {
    try {
        return descend<6>(x) + 1;
    } catch (const std::runtime_error &error) {
        return error.what()[0];
    }
}

FRAME long outer(long x) {
    try {
        return lib_enter(callback, x) + 1;
    } catch (long thrown) {
        return thrown;
    }
}

} // namespace truth

int main() {
    truth_ready();
    for (long x = 0;; x++)
        truth_sink += static_cast<unsigned long>(truth::outer(x));
}
