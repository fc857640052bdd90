// Package interop_test puts kvferry beside the real SGLang, in both roles, by the scenarios of scenarios.py; see README.md and PROTOCOL.md.
//
// It needs a Python environment made by setup.sh (`make pyenv`), whose interpreter KVFERRY_PYTHON names. KVFERRY_INTEROP chooses scenarios:
// "quick" (the default), "all", or names with commas.
package interop_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// peerPackage is the program that takes SGLang's place: kvferry's library behind the harness's JSON lines.
const peerPackage = "github.com/kvferry/kvferry/internal/interoppeer"

// The scenarios that hold in both directions. quick has each thing once: a plain hand-off, unequal TP and PP, failure, hostile bytes.
var (
	quick = []string{"happy", "tp1-2", "tp4-2", "pp2-1", "concluded", "junk"}
	all   = []string{"happy", "many", "tp2-1", "tp1-2", "tp4-2", "pp2-1", "concluded", "junk"}
)

// hang ends a run of scenarios that does not end by itself; a direction takes well under a minute.
const hang = 5 * time.Minute

// row is one line of scenarios.py --json.
type row struct {
	Backend, Scenario, Prefill, Decode string
	OK                                 bool
	Seconds                            float64
	Result                             struct {
		Left          map[string]int
		DecodeReason  string  `json:"decode_reason"`
		SecondsToFail float64 `json:"seconds_to_decode"`
	}
	Error, Logs string
}

func TestSGLang(t *testing.T) {
	python := os.Getenv("KVFERRY_PYTHON")
	if python == "" {
		t.Skip("KVFERRY_PYTHON is not set, so there is no SGLang to meet; `make pyenv` makes the environment where the package registries can be reached")
	}
	names := quick
	switch v := os.Getenv("KVFERRY_INTEROP"); v {
	case "", "quick":
	case "all":
		names = all
	default:
		names = strings.Split(v, ",")
	}
	peer := filepath.Join(t.TempDir(), "interoppeer")
	if out, err := exec.Command("go", "build", "-o", peer, peerPackage).CombinedOutput(); err != nil {
		t.Fatalf("build of %s: %v\n%s", peerPackage, err, out)
	}
	peer += " --verbose"
	for _, direction := range []struct{ name, prefill, decode string }{
		{"prefill", peer, "sglang"}, // kvferry gives, SGLang takes
		{"decode", "sglang", peer},  // SGLang gives, kvferry takes
	} {
		t.Run(direction.name, func(t *testing.T) { scenarios(t, python, direction.prefill, direction.decode, names) })
	}
}

// scenarios runs the named scenarios and makes a subtest of each row.
func scenarios(t *testing.T, python, prefill, decode string, names []string) {
	cmd := exec.Command(python, "scenarios.py", "--json", "--backend", "mooncake", "--prefill", prefill, "--decode", decode, "--only", strings.Join(names, ","))
	var errs bytes.Buffer
	cmd.Stderr = &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the ranks are its children: one signal ends them all
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("%s: %v; KVFERRY_PYTHON must name the interpreter of an environment made by setup.sh", python, err)
	}
	kill := func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	guard := time.AfterFunc(hang, kill)
	defer guard.Stop()
	missing := map[string]bool{}
	for _, name := range names {
		missing[name] = true
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var r row
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Errorf("not a row: %q", lines.Text())
			continue
		}
		delete(missing, r.Scenario)
		t.Run(r.Scenario, func(t *testing.T) { judge(t, r) })
	}
	err = cmd.Wait()
	kill() // what a harness that ended early has left
	if len(missing) > 0 {
		t.Errorf("no result for %s (unknown, or the run ended early: %v)\n%s", strings.Join(slices.Sorted(maps.Keys(missing)), ", "), err, errs.String())
	}
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) { // 1: a row failed, and its subtest says so
		t.Errorf("scenarios.py: %v\n%s", err, errs.String())
	}
}

// judge checks one row: the scenario's own verdict, and that no table kept an entry of a room.
func judge(t *testing.T, r row) {
	t.Logf("%.2f s %s", r.Seconds, r.Result.DecodeReason)
	if !r.OK {
		t.Errorf("%s\n%s", r.Error, logs(r.Logs))
	}
	if len(r.Result.Left) > 0 {
		t.Errorf("entries left after every room was cleared: %v", r.Result.Left)
	}
}

// logs are the last lines of each rank's log.
func logs(dir string) string {
	const tail = 4000
	var b strings.Builder
	files, _ := filepath.Glob(filepath.Join(dir, "*.log")) // the pattern is well formed
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			data = []byte(err.Error())
		}
		b.WriteString("--- " + filepath.Base(f) + "\n" + string(data[max(0, len(data)-tail):]) + "\n")
	}
	return b.String()
}
