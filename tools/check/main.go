// Command check runs everything that `make test` promises and ends with one line, `N passed, N failed[, N skipped]`, counted from what ran.
//
// Steps, in this order: build, lint, tidy, race, norace, fuzz, interop. Counted are the leaves: a test without subtests, a subtest without
// subtests of its own, a fuzz target, and each command of build, lint and tidy. A package that fails without a failing test (it does not
// compile, TestMain finds a leak, it panics) counts as one failure.
//
// A test that is too slow under the race detector lives in a file with the constraint `//go:build !race`; step norace finds those files by
// asking the go command, and runs their tests without the detector, and those of nested modules. Fuzz targets are found by asking the test binaries.
//
// The exit status is 1 when anything failed, 2 when the command line is wrong.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// options are the command line.
type options struct {
	python              string        // interpreter with the interop environment, or empty
	kvlint              string        // the built linter
	cache               string        // folder for test binaries and fuzz corpora
	fuzzEach, fuzzTotal time.Duration // most that one target, and all together, fuzz
}

// check is one run: what it was asked for and what it counted.
type check struct {
	options
	tally
}

func main() {
	var c check
	flag.StringVar(&c.python, "python", "", "interpreter with the interop environment; empty: the tests that need it skip")
	flag.StringVar(&c.kvlint, "kvlint", "", "path of the built kvlint")
	flag.StringVar(&c.cache, "cache", ".cache", "folder for test binaries and fuzz corpora")
	flag.DurationVar(&c.fuzzEach, "fuzz-each", 4*time.Second, "most time for one fuzz target")
	flag.DurationVar(&c.fuzzTotal, "fuzz-total", 90*time.Second, "most time for all fuzz targets together, their builds not counted")
	steps := []struct {
		name string
		run  func()
	}{{"build", c.build}, {"lint", c.lint}, {"tidy", c.tidy}, {"race", c.race}, {"norace", c.norace}, {"fuzz", c.fuzz}, {"interop", c.interop}}
	var names []string
	for _, s := range steps {
		names = append(names, s.name)
	}
	only := flag.String("only", strings.Join(names, ","), "steps to run")
	flag.Parse()
	chosen := strings.Split(*only, ",")
	for _, s := range chosen {
		if !slices.Contains(names, s) {
			fmt.Fprintf(os.Stderr, "check: -only: no step %q; steps are %s\n", s, strings.Join(names, ", "))
			os.Exit(2)
		}
	}
	for i, path := range []*string{&c.cache, &c.kvlint} {
		if i == 1 && *path == "" {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			fmt.Fprintln(os.Stderr, "check:", err)
			os.Exit(2)
		}
		*path = abs
	}
	for _, s := range steps {
		if slices.Contains(chosen, s.name) {
			began := time.Now()
			fmt.Printf("== %s\n", s.name)
			s.run()
			fmt.Printf("== %s took %.1f s\n", s.name, time.Since(began).Seconds())
		}
	}
	c.report()
}

// report prints what failed and the closing line, and ends the process.
func (c *check) report() {
	for _, f := range c.failures {
		fmt.Println("FAILED", f)
	}
	line := fmt.Sprintf("%d passed, %d failed", c.passed, len(c.failures))
	if c.skipped > 0 {
		line += fmt.Sprintf(", %d skipped", c.skipped)
	}
	fmt.Println(line)
	if len(c.failures) > 0 {
		os.Exit(1)
	}
	if c.passed == 0 {
		fmt.Fprintln(os.Stderr, "check: nothing ran")
		os.Exit(1)
	}
}
