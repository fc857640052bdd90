package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// last runs `kvferry up` to its end and returns the last JSON line.
func last(t *testing.T, args ...string) (code int, v map[string]any) {
	t.Helper()
	cmd := exec.Command(binary, append([]string{"up", "--json", "--listen", "127.0.0.1:0"}, args...)...)
	out, err := cmd.Output()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &v); err != nil {
		t.Fatalf("up %s: %v: %s", args, err, out)
	}
	if err != nil {
		code = cmd.ProcessState.ExitCode()
	}
	return code, v
}

func TestUpOnce(t *testing.T) {
	for _, args := range [][]string{nil, {"--prefill-tp", "2", "--decode-tp", "4", "--decode-pp", "2"}, {"--prefill", "2", "--decode", "2", "--chunk", "7", "--page-size", "8"}} {
		code, v := last(t, append(args, "--once", "--tokens", "12")...)
		share, _ := v["hidden_share"].(float64)
		bytes, _ := v["kv_bytes"].(float64)
		ttft, _ := v["ttft_ms"].(float64)
		if code != 0 || v["ok"] != true || v["identical"] != true || bytes <= 0 || share < 0 || share > 1 || ttft <= 0 || v["text"] == "" {
			t.Errorf("up %s: exit %d, %v", args, code, v)
		}
	}
}

// up serves until a signal and leaves nothing behind; its children end even when it is killed.
func TestUpEndsWithAllItsChildren(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			cmd := exec.Command(binary, "up", "--json", "--listen", "127.0.0.1:0", "--tokens", "4")
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var pids []int
			lines := bufio.NewScanner(out)
			for lines.Scan() {
				var e struct {
					Event string
					PID   int
				}
				_ = json.Unmarshal(lines.Bytes(), &e) // events of the room have other fields
				if e.Event == "worker" {
					pids = append(pids, e.PID)
				}
				if e.Event == "serving" {
					break
				}
			}
			began := time.Now()
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, out) // until it ends
			err = cmd.Wait()
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("it took %v to end", took)
			}
			if sig != syscall.SIGKILL && err != nil {
				t.Errorf("%v, want exit status 0", err)
			}
			for _, pid := range pids {
				until(t, fmt.Sprintf("worker %d ends", pid), func() bool { return syscall.Kill(pid, 0) != nil || zombie(pid) })
			}
			if len(pids) != 2 {
				t.Errorf("workers %v, want 2", pids)
			}
		})
	}
}

// children are the processes that a process has started.
func children(t *testing.T, pid int) (list []int) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range stats {
		b, _ := os.ReadFile(file) // the process may have ended
		_, rest, _ := strings.Cut(string(b), ") ")
		if f := strings.Fields(rest); len(f) > 1 && f[1] == strconv.Itoa(pid) {
			kid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, kid)
		}
	}
	return list
}

// zombie reports a process that has ended and that whoever adopted it has not reaped yet.
func zombie(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return strings.HasPrefix(rest, "Z")
}

func TestUpReportsAChildThatDies(t *testing.T) {
	cmd := exec.Command(binary, "up", "--json", "--listen", "127.0.0.1:0", "--tokens", "4")
	var msg bytes.Buffer
	cmd.Stderr = &msg
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	victim := 0
	for lines.Scan() {
		var e struct {
			Event, Name string
			PID         int
		}
		_ = json.Unmarshal(lines.Bytes(), &e) // events of the room have other fields
		if e.Name == "decode 0" {
			victim = e.PID
		}
		if e.Event == "serving" {
			if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	_, _ = io.Copy(io.Discard, out) // until it ends
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 1 || !strings.Contains(msg.String(), "decode 0 ended: signal: killed") {
		t.Errorf("%v, %s", err, msg.String())
	}
}
