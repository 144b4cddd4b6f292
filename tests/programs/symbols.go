// Much code of the standard library, for comparing names: what it computes does not matter.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"sort"
	"strings"
	"sync"
)

type counted struct {
	Word  string `json:"word"`
	Count int    `json:"count"`
}

func words(text string) []counted {
	counts := map[string]int{}
	for _, word := range regexp.MustCompile(`\w+`).FindAllString(text, -1) {
		counts[strings.ToLower(word)]++
	}
	var all []counted
	for word, count := range counts {
		all = append(all, counted{word, count})
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Count > all[j].Count })
	return all
}

func main() {
	var wait sync.WaitGroup
	for _, text := range os.Args {
		wait.Add(1)
		go func(text string) {
			defer wait.Done()
			out, err := json.Marshal(words(text))
			fmt.Println(string(out), err)
		}(text)
	}
	wait.Wait()
}
