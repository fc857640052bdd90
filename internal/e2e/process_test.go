package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "kvferry-e2e-")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "kvferry")
	build := exec.Command("go", "build", "-trimpath", "-o", binary, "github.com/kvferry/kvferry/cmd/kvferry")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("build: %v\n%s", err, out))
	}
	// The processes that a test starts end with it; the directory goes when all of them have.
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// process is a running kvferry that has printed its ready line.
type process struct {
	cmd   *exec.Cmd
	ready struct {
		URL       string `json:"url"`
		Bootstrap string `json:"bootstrap"`
	}
	log  bytes.Buffer
	done chan struct{}
}

func spawn(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(binary, args...), done: make(chan struct{})}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Stderr = &p.log
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGCONT) // it may have ended
		_ = p.cmd.Process.Kill()
		<-p.done
	})
	line, err := bufio.NewReader(out).ReadBytes('\n')
	go func() {
		_ = p.cmd.Wait() // how it ends is the test's business where it matters
		close(p.done)
	}()
	if err == nil {
		err = json.Unmarshal(line, &p.ready)
	}
	if err != nil {
		<-p.done
		t.Fatalf("kvferry %s: %v\n%s", args, err, p.log.String())
	}
	return p
}

// cluster is two prefill and two decode workers behind a gateway that does not try again.
type cluster struct {
	gateway *process
	p, d    []*process
	base    map[*process]tables
}

func start(t *testing.T, chunk string) *cluster {
	c := &cluster{base: map[*process]tables{}}
	args := []string{"gateway", "--listen", "127.0.0.1:0", "--retries", "-1", "--log", "error"}
	for range 2 {
		p, d := spawn(t, "prefill", "--chunk", chunk, "--log", "error"), spawn(t, "decode", "--log", "error")
		c.p, c.d = append(c.p, p), append(c.d, d)
		args = append(args, "--prefill", p.ready.URL+"@"+p.ready.Bootstrap, "--decode", d.ready.URL)
	}
	for _, x := range append(append([]*process{}, c.p...), c.d...) {
		c.base[x] = x.tables(t)
	}
	c.gateway = spawn(t, args...)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return c
}

// tables is what must return to where it was.
type tables struct {
	Jobs  int `json:"jobs"`
	Slots int `json:"slots_free"`
	Ranks []struct{ PagesFree, Rooms, Halves, Writes, Unserved int }

	Goroutines  int `json:"goroutines"`
	Descriptors int `json:"descriptors"`
}

func (p *process) tables(t *testing.T) (v tables) {
	t.Helper()
	resp, err := http.Get(p.ready.URL + "/kvferry/v1/tables")
	if err != nil {
		t.Fatalf("%v\n%s", err, p.log.String())
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// until waits for a condition; the limit only guards against hanging.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 10 s", what)
		}
	}
}

func busy(t *testing.T, list []*process) *process {
	for _, p := range list {
		if p.tables(t).Jobs > 0 {
			return p
		}
	}
	return nil
}

type answer struct {
	status int
	body   string
	err    error
	took   time.Duration
}

func (c *cluster) post(ctx context.Context, body string) answer {
	began := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.gateway.ready.URL+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{err: err, took: time.Since(began)}
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, string(b), err, time.Since(began)}
}

var long = strings.Repeat("Package http provides HTTP client and server implementations. ", 20)

// Each victim in each phase of a request: whoever waits learns of it, the survivors serve on, and nothing of the request is left on them.
func TestFailuresInEachPhase(t *testing.T) {
	for _, victim := range []string{"prefill killed", "decode killed", "prefill stopped", "decode stopped", "client gone"} {
		for _, phase := range []string{"prefill", "decode"} {
			t.Run(victim+" in "+phase, func(t *testing.T) {
				c := start(t, "4")
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				var got answer
				var wg sync.WaitGroup
				wg.Go(func() {
					got = c.post(ctx, fmt.Sprintf(`{"prompt":%q,"max_tokens":150,"ignore_eos":true,"temperature":0,"stream":true}`, long))
				})
				var p, d *process
				until(t, "both legs are under way", func() bool { p, d = busy(t, c.p), busy(t, c.d); return p != nil && d != nil })
				if phase == "decode" {
					until(t, "prefill has ended", func() bool { return p.tables(t).Jobs == 0 })
				}
				began := time.Now()
				dead := c.strike(t, victim, p, d, leave)
				wg.Wait()
				if took := time.Since(began); took > 10*time.Second {
					t.Errorf("the client waited %v", took)
				}
				c.judge(t, victim, phase, got)
				c.recovered(t, dead)
			})
		}
	}
}

func (c *cluster) strike(t *testing.T, victim string, p, d *process, leave func()) (dead *process) {
	who, what, _ := strings.Cut(victim, " ")
	switch who {
	case "client":
		leave()
		return nil
	case "prefill":
		dead = p
	default:
		dead = d
	}
	sig := syscall.SIGKILL
	if what == "stopped" {
		sig = syscall.SIGSTOP
	}
	if err := dead.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	return dead
}

// judge checks what the client got. Decode needs prefill no more once the KV is there, so that request succeeds.
func (c *cluster) judge(t *testing.T, victim, phase string, got answer) {
	switch {
	case victim == "client gone":
		if got.err == nil && !strings.Contains(got.body, "[DONE]") {
			t.Errorf("the client that left got %d %.200s", got.status, got.body)
		}
	case strings.HasPrefix(victim, "prefill") && phase == "decode":
		if got.err != nil || got.status != 200 || !strings.Contains(got.body, "[DONE]") {
			t.Errorf("%d %v %.300s, want the whole stream", got.status, got.err, got.body)
		}
	default:
		if got.err != nil || !strings.Contains(got.body, `"cause"`) || strings.Contains(got.body, "[DONE]") || phase == "prefill" && got.status < 500 {
			t.Errorf("%d %v %.300s, want an error with its cause", got.status, got.err, got.body)
		}
	}
}

func (c *cluster) recovered(t *testing.T, dead *process) {
	until(t, "a new request succeeds", func() bool {
		a := c.post(t.Context(), `{"prompt":"Reader is","max_tokens":3}`)
		return a.err == nil && a.status == 200
	})
	for x, want := range c.base {
		if x == dead {
			continue
		}
		until(t, "tables return", func() bool {
			got := x.tables(t)
			ok := got.Jobs == 0 && got.Slots == want.Slots
			for i, r := range got.Ranks {
				ok = ok && r == want.Ranks[i]
			}
			return ok
		})
	}
}

// Goroutines and descriptors settle with the connections that are kept between requests; then no request leaves one behind.
func TestNothingGrowsWithRequests(t *testing.T) {
	c := start(t, "64")
	all := append(append([]*process{}, c.p...), c.d...)
	const rounds, requests = 4, 32
	var counts [rounds]map[*process]tables
	for round := range rounds {
		var wg sync.WaitGroup
		for i := range requests {
			wg.Go(func() {
				if a := c.post(t.Context(), fmt.Sprintf(`{"prompt":"Reader %d is","max_tokens":3}`, i)); a.err != nil || a.status != 200 {
					t.Errorf("%d %v %.200s", a.status, a.err, a.body)
				}
			})
		}
		wg.Wait()
		counts[round] = map[*process]tables{}
		for _, x := range all {
			until(t, "tables return", func() bool {
				v := x.tables(t)
				counts[round][x] = v
				return v.Jobs == 0 && v.Slots == c.base[x].Slots && v.Ranks[0] == c.base[x].Ranks[0]
			})
		}
	}
	for i, x := range all {
		before, after := counts[1][x], counts[rounds-1][x]
		if g, f := after.Goroutines-before.Goroutines, after.Descriptors-before.Descriptors; g > requests/2 || f > requests/2 {
			t.Errorf("worker %d: %d goroutines and %d descriptors more after %d more requests", i, g, f, (rounds-2)*requests)
		}
	}
}

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
