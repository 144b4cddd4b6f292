// A chain of calls that is known beforehand: `chain MODE CPU_SECONDS`.
package main

import (
	"os"
	"runtime"
	"strconv"
	"time"
)

//go:noinline
func leaf(x uint64) uint64 {
	for i := 0; i < 400000; i++ {
		x = x*6364136223846793005 + 1442695040888963407
		x ^= x >> 29
	}
	return x
}

// The runtime reads a stack on a stack of its own.
//
//go:noinline
func system(x uint64) uint64 {
	for i := 0; i < 100; i++ {
		x += uint64(runtime.Callers(0, callers[:]))
	}
	return x
}

var callers [64]uintptr
var work = leaf

//go:noinline
func level2(x uint64) uint64 { return work(x+1) ^ 5 }

//go:noinline
func level1(x uint64) uint64 { return level2(x+1) + 7 }

func main() {
	seconds, _ := strconv.ParseFloat(os.Args[2], 64)
	end := time.Now().Add(time.Duration(seconds * 1e9))
	x := uint64(1)
	if os.Args[1] == "system" {
		work = system
	}
	for time.Now().Before(end) {
		x = level1(x)
	}
	os.Exit(int(x & 0))
}
