// SPDX-License-Identifier: Apache-2.0

// Go calls C, which calls Go back.
// Chains: main.main, main.outer, (cgo) c_outer, c_inner, (cgo) main.goCallback, main.burn; and the same up to
// c_inner, c_burn.
package main

/*
#cgo CFLAGS: -O2
long c_outer(long x);
*/
import "C"

import (
	"fmt"
	"os"
)

var sink uint64

//go:noinline
func burn(rounds uint64) uint64 {
	x := rounds | 1
	for i := uint64(0); i < rounds; i++ {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	return x
}

//export goCallback
func goCallback(x C.long) C.long {
	return C.long(burn(1000000) + uint64(x))
}

//go:noinline
func outer(x int) uint64 {
	return uint64(C.c_outer(C.long(x))) + 1
}

func main() {
	fmt.Println("ready", os.Getpid())
	for x := 0; ; x++ {
		sink += outer(x)
	}
}
