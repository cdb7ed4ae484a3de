// SPDX-License-Identifier: Apache-2.0

// Methods, generics, an inlined function, a closure and a goroutine.
// Chains: main.main, main.outer, main.inlined, main.walker.step, main.descend[…], main.burn; and
// main.worker, main.work, main.burn.
package main

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

//go:noinline
func descend[T uint32 | uint64](value T) uint64 {
	return burn(100000+uint64(value)) + 1
}

type walker struct{ value uint64 }

//go:noinline
func (w *walker) step(x uint64) uint64 {
	var room [24]uint64
	room[x%24] = w.value
	return descend(x) + descend(uint32(x)) + room[(x+1)%24]
}

// Small enough for the compiler to inline it into outer.
func inlined(w *walker, x uint64) uint64 {
	return w.step(x) ^ 1
}

//go:noinline
func outer(w *walker, x uint64) uint64 {
	return inlined(w, x) + 2
}

//go:noinline
func work() uint64 {
	return burn(100000) + 3
}

//go:noinline
func worker(done chan<- uint64) {
	total := uint64(0)
	for i := 0; i < 2000; i++ {
		total += work()
	}
	done <- total
}

func main() {
	fmt.Println("ready", os.Getpid())
	w := &walker{value: 3}
	for x := uint64(0); ; x++ {
		sink += outer(w, x%100)
		if x%1000 == 0 {
			done := make(chan uint64)
			go worker(done)
			sink += <-done
		}
	}
}
