// A Go program that names its own code: the truth for the pclntab reader's tests.
//
// Reads lines "HEX", distances in bytes from the entry of main.anchor, and writes for each one line
// "function\tfile\tline" per frame, tab- and newline-separated, innermost inlined function first, then an
// empty line.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"sort"
	"strconv"
	"strings"
)

//go:noinline
func anchor() int { return 42 }

type pair[K comparable, V any] struct {
	key   K
	value V
}

func mapPairs[K comparable, V any](m map[K]V, less func(a, b pair[K, V]) bool) []pair[K, V] {
	var out []pair[K, V]
	for k, v := range m {
		out = append(out, pair[K, V]{k, v})
	}
	sort.Slice(out, func(i, j int) bool { return less(out[i], out[j]) })
	return out
}

func frames(pc uintptr) {
	// The second pc makes CallersFrames expand inlined calls at the first; its frames are not printed.
	second := reflect.ValueOf(anchor).Pointer() + 1
	iterator := runtime.CallersFrames([]uintptr{pc + 1, second})
	for {
		frame, more := iterator.Next()
		if frame.PC == second-1 || frame.Function == "" || frame.Function == "main.anchor" && !more {
			break
		}
		fmt.Printf("%s\t%s\t%d\n", frame.Function, frame.File, frame.Line)
		if !more || frame.Func != nil {
			break
		}
	}
	fmt.Println()
}

func main() {
	if len(os.Args) > 1 { // never in the tests: keeps code with inlined and generic calls in the file
		counts := map[string]int{}
		for _, word := range strings.Fields(strings.Join(os.Args[1:], " ")) {
			counts[strings.ToLower(word)]++
		}
		pairs := mapPairs(counts, func(a, b pair[string, int]) bool { return a.value > b.value })
		text, _ := json.Marshal(counts)
		fmt.Println(string(text), len(pairs), foreign(len(pairs)))
		return
	}
	base := reflect.ValueOf(anchor).Pointer()
	scanner := bufio.NewScanner(os.Stdin)
	for scanner.Scan() {
		distance, err := strconv.ParseInt(scanner.Text(), 16, 64)
		if err != nil {
			panic(err)
		}
		frames(base + uintptr(distance))
	}
}
