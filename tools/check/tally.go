package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// tally counts what ran.
type tally struct {
	passed, skipped int
	failures        []string
}

func (t *tally) fail(what string) { t.failures = append(t.failures, what) }

// event is one line of `go test -json`: see `go doc test2json`, and `go help buildjson` for the build's.
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

// outcome gathers one package's run.
type outcome struct {
	output  map[string]*strings.Builder // by test; "" is the package's own
	parents map[string]bool             // tests with subtests
	results map[string]string           // pass, fail or skip, by test
}

// goTest runs `go test -json` in a folder with the arguments and counts its leaves.
func (c *check) goTest(dir, env string, args []string) {
	cmd := exec.Command("go", append([]string{"test", "-json", "-vet=off"}, args...)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env)
	if c.python != "" {
		cmd.Env = append(cmd.Env, "KVFERRY_PYTHON="+c.python)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		c.fail("go test: " + err.Error())
		return
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		c.fail("go test: " + err.Error())
		return
	}
	failedBefore := len(c.failures)
	c.read(out)
	if err := cmd.Wait(); err != nil && len(c.failures) == failedBefore {
		c.fail("go test: " + err.Error()) // it failed and no event said why
	}
}

// read counts a stream of events and prints one line per package, the output of what failed and the reason of what skipped.
func (c *check) read(r io.Reader) {
	pkgs := map[string]*outcome{}
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if line = bytes.TrimSpace(line); len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Println(string(line))
			} else {
				c.take(pkgs, e)
			}
		}
		if err != nil {
			break
		}
	}
	for name := range pkgs {
		c.fail(name + " (no result)") // the go command ended before this package's last event
	}
}

func (c *check) take(pkgs map[string]*outcome, e event) {
	if e.Action == "build-output" {
		fmt.Print(e.Output)
		return
	}
	if e.Package == "" {
		return
	}
	p := pkgs[e.Package]
	if p == nil {
		p = &outcome{map[string]*strings.Builder{}, map[string]bool{}, map[string]string{}}
		pkgs[e.Package] = p
	}
	for parent, at := e.Test, strings.LastIndexByte(e.Test, '/'); at >= 0; at = strings.LastIndexByte(parent, '/') {
		parent = parent[:at]
		p.parents[parent] = true
	}
	switch e.Action {
	case "output":
		if p.output[e.Test] == nil {
			p.output[e.Test] = &strings.Builder{}
		}
		p.output[e.Test].WriteString(e.Output)
	case "pass", "fail", "skip":
		if e.Test != "" {
			p.results[e.Test] = e.Action
			return
		}
		delete(pkgs, e.Package)
		c.close(p, e)
	}
}

// close counts a package that has ended.
func (c *check) close(p *outcome, end event) {
	passed, failed, skipped := 0, 0, 0
	for test, result := range p.results {
		if p.parents[test] && (result != "fail" || failedBelow(p, test)) {
			continue
		}
		switch result {
		case "pass":
			passed++
		case "skip":
			skipped++
			fmt.Printf("skip %s %s: %s\n", end.Package, test, reason(p.output[test]))
		case "fail":
			failed++
			c.fail(end.Package + " " + test)
			fmt.Printf("--- FAIL %s %s\n%s", end.Package, test, text(p.output[test]))
		}
	}
	if end.Action == "fail" && failed == 0 {
		failed++
		c.fail(end.Package)
	}
	if end.Action == "fail" {
		fmt.Print(text(p.output[""]))
	}
	c.passed, c.skipped = c.passed+passed, c.skipped+skipped
	fmt.Printf("%-4s %s (%.1f s): %d passed, %d failed, %d skipped\n", map[string]string{"pass": "ok", "fail": "FAIL", "skip": "none"}[end.Action], end.Package, end.Elapsed, passed, failed, skipped)
}

func failedBelow(p *outcome, test string) bool {
	for other, result := range p.results {
		if result == "fail" && strings.HasPrefix(other, test+"/") {
			return true
		}
	}
	return false
}

func text(b *strings.Builder) string {
	if b == nil {
		return ""
	}
	return b.String()
}

// reason is the message that a skipped test gave, on one line.
func reason(b *strings.Builder) string {
	var out []string
	for line := range strings.Lines(text(b)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "===") && !strings.HasPrefix(line, "---") {
			out = append(out, line)
		}
	}
	return strings.Join(out, " ")
}
