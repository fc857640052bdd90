package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// A handful of cells of each kind of fault: signals, the network, an engine, a message, a request.
func TestDrill(t *testing.T) {
	const only = "p-killed@in-flight,d-killed@last-byte,p-rank-killed@published,p-drain@queued,p-stopped@in-flight,p-slow@published,d-reset@queued," +
		"p-write-error@last-byte,p-write-vanishes@in-flight,p-write-error-lands@in-flight,d-msg-lost@last-byte,p-msg-malformed@in-flight,d-abort@rendezvous,d-out-of-pages@queued"
	out, err := exec.Command(binary, "drill", "--json", "--jobs", "3", "--only", only).Output()
	if err != nil {
		t.Errorf("%v", err)
	}
	n := 0
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); n++ {
		var c struct {
			Fault, Moment, Side, Engine string
			OK                          bool
			Problems                    []string
			Detect                      *struct{ P50, P99, Max float64 } `json:"detect_ms"`
		}
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatalf("%v: %s", err, lines.Text())
		}
		if !c.OK {
			t.Errorf("%s-%s@%s: %q", c.Side, c.Fault, c.Moment, c.Problems)
		}
		if c.Fault == "killed" && (c.Detect == nil || c.Detect.Max <= 0 || c.Detect.P50 > c.Detect.Max) {
			t.Errorf("%s-%s@%s: detected after %+v", c.Side, c.Fault, c.Moment, c.Detect)
		}
	}
	if n != 14 {
		t.Errorf("%d cells, want 14", n)
	}
}

// However a drill ends, its ranks end with it.
func TestDrillLeavesNoProcess(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		cmd := exec.Command(binary, "drill", "--jobs", "2", "--only", "p-stopped@rendezvous,d-stopped@rendezvous")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var kids []int
		until(t, "ranks of two cells run", func() bool { kids = children(t, cmd.Process.Pid); return len(kids) == 4 })
		time.AfterFunc(100*time.Millisecond, func() { _ = cmd.Process.Signal(sig) }) // it is running: the wait below fails else
		_ = cmd.Wait()                                                               // it was stopped
		for _, pid := range kids {
			until(t, "the rank ends", func() bool { return syscall.Kill(pid, 0) != nil || zombie(pid) })
		}
	}
}
