//go:build !cgo

package main

func foreign(value int) int { return 2 * value }
