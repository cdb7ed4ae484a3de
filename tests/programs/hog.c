/* SPDX-License-Identifier: Apache-2.0 */
/* One CPU, all the time. Ends by SIGTERM and prints the CPU time that it used. */
#include "truth.h"

int main(void) {
    signal(SIGTERM, truth_on_stop);
    truth_ready();
    while (!truth_stopping)
        burn(100000);
    truth_print_cpu();
}
