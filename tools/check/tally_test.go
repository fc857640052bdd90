package main

import (
	"slices"
	"strings"
	"testing"
)

// TestTally: leaves are counted once, whatever their parents say; a failure that no test owns counts once.
func TestTally(t *testing.T) {
	for _, tc := range []struct {
		name, stream    string
		passed, skipped int
		failures        []string
	}{
		{"leaves", `{"Action":"pass","Package":"p","Test":"A/x"}
{"Action":"pass","Package":"p","Test":"A/y/z"}
{"Action":"pass","Package":"p","Test":"A/y"}
{"Action":"pass","Package":"p","Test":"A"}
{"Action":"skip","Package":"p","Test":"B"}
{"Action":"pass","Package":"p"}`, 2, 1, nil},
		{"a failing leaf is one failure", `{"Action":"fail","Package":"p","Test":"A/x"}
{"Action":"fail","Package":"p","Test":"A"}
{"Action":"fail","Package":"p"}`, 0, 0, []string{"p A/x"}},
		{"a parent that fails by itself", `{"Action":"pass","Package":"p","Test":"A/x"}
{"Action":"fail","Package":"p","Test":"A"}
{"Action":"fail","Package":"p"}`, 1, 0, []string{"p A"}},
		{"a package that does not compile", `{"ImportPath":"p","Action":"build-fail"}
{"Action":"fail","Package":"p"}`, 0, 0, []string{"p"}},
		{"a leak after all tests passed", `{"Action":"pass","Package":"p","Test":"A"}
{"Action":"fail","Package":"p"}`, 1, 0, []string{"p"}},
		{"a stream that breaks off", `{"Action":"pass","Package":"p","Test":"A"}`, 0, 0, []string{"p (no result)"}},
		{"no tests", `{"Action":"skip","Package":"p"}`, 0, 0, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var c check
			c.read(strings.NewReader(tc.stream))
			if c.passed != tc.passed || c.skipped != tc.skipped || !slices.Equal(c.failures, tc.failures) {
				t.Errorf("%d passed, %d skipped, failures %q; want %d, %d, %q", c.passed, c.skipped, c.failures, tc.passed, tc.skipped, tc.failures)
			}
		})
	}
}

// TestDeadline: only the fuzzing engine's own deadline is excused.
func TestDeadline(t *testing.T) {
	for out, want := range map[string]bool{
		"--- FAIL: FuzzX (4.10s)\n    context deadline exceeded\nFAIL\nfuzz: elapsed: 0s, gathering baseline coverage: 0/2 completed\n":                true,
		"--- FAIL: FuzzX (1.00s)\n    --- FAIL: FuzzX (0.00s)\n        x_test.go:9: context deadline exceeded\n    Failing input written to x\nFAIL\n": false,
		"--- FAIL: FuzzX (1.00s)\n    fuzzing process hung or terminated unexpectedly while minimizing: EOF\nFAIL\n":                                   false,
		"panic: context deadline exceeded\n": false,
	} {
		if got := deadline.MatchString(out); got != want {
			t.Errorf("%q: excused %v, want %v", out, got, want)
		}
	}
}
