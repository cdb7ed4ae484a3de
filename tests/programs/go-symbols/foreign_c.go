//go:build cgo

package main

// static int twice(int value) { return 2 * value; }
import "C"

func foreign(value int) int { return int(C.twice(C.int(value))) }
