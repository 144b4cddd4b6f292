// A chain of calls that is known beforehand: `chain MODE CPU_SECONDS`.
package main

import (
	"os"
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

//go:noinline
func level2(x uint64) uint64 { return leaf(x+1) ^ 5 }

//go:noinline
func level1(x uint64) uint64 { return level2(x+1) + 7 }

func main() {
	seconds, _ := strconv.ParseFloat(os.Args[2], 64)
	end := time.Now().Add(time.Duration(seconds * 1e9))
	x := uint64(1)
	for time.Now().Before(end) {
		x = level1(x)
	}
	os.Exit(int(x & 0))
}
