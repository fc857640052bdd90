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
	"slices"
	"strings"
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

// cluster is prefill and decode workers behind a gateway that does not try again.
type cluster struct {
	gateway *process
	p, d    []*process
	base    map[*process]tables
}

// start makes two workers of each role.
func start(t *testing.T, chunk string) *cluster {
	t.Helper()
	p := []string{"--chunk", chunk}
	return startWith(t, [][]string{p, p}, [][]string{nil, nil})
}

// startWith makes a worker for each list of flags.
func startWith(t *testing.T, prefill, decode [][]string) *cluster {
	t.Helper()
	c := &cluster{base: map[*process]tables{}}
	for _, flags := range prefill {
		c.p = append(c.p, spawn(t, append([]string{"prefill", "--log", "error"}, flags...)...))
	}
	for _, flags := range decode {
		c.d = append(c.d, spawn(t, append([]string{"decode", "--log", "error"}, flags...)...))
	}
	for _, x := range c.workers() {
		c.base[x] = x.tables(t)
	}
	c.gateway = front(t, "-1", c.p, c.d)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return c
}

func (c *cluster) workers() []*process { return slices.Concat(c.p, c.d) }

// front starts a gateway before some workers.
func front(t *testing.T, retries string, prefill, decode []*process) *process {
	t.Helper()
	args := []string{"gateway", "--listen", "127.0.0.1:0", "--retries", retries, "--log", "error"}
	for _, p := range prefill {
		args = append(args, "--prefill", p.ready.URL+"@"+p.ready.Bootstrap)
	}
	for _, d := range decode {
		args = append(args, "--decode", d.ready.URL)
	}
	return spawn(t, args...)
}

func (p *process) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// tables is what must return to where it was.
type tables struct {
	Jobs  int `json:"jobs"`
	Slots int `json:"slots_free"`
	Ranks []struct{ PagesFree, Rooms, Halves, Writes, Unserved int }

	Goroutines  int `json:"goroutines"`
	Descriptors int `json:"descriptors"`
	DataOut     int `json:"data_out"`
	DataIn      int `json:"data_in"`
	Spare       int `json:"spare"`
}

// descriptors counts the open ones of a process that does not say it itself.
func (p *process) descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
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

// sameAs reports whether nothing of any request is left: no job, and slots, pages and the tables of every rank as they were at the start.
func (v tables) sameAs(start tables) bool {
	return v.Jobs == 0 && v.Slots == start.Slots && slices.Equal(v.Ranks, start.Ranks)
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

func (c *cluster) post(ctx context.Context, body string) answer { return c.gateway.post(ctx, body) }

// post sends a request to a gateway. Its limit only guards against hanging.
func (p *process) post(ctx context.Context, body string) answer {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	began := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.ready.URL+"/v1/completions", strings.NewReader(body))
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
