package drill

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kvferry/kvferry/room"
)

// cap bounds every wait for something that must happen: beyond it a state hangs.
const patience = 10 * time.Second

// nursery starts children. One OS thread that lives as long as the nursery does it: the kernel kills them when it ends, so that none
// outlives us, however we end.
type nursery struct{ start chan func() }

func newNursery() *nursery {
	n := &nursery{start: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for run := range n.start {
			run()
		}
	}()
	return n
}

func (n *nursery) begin(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second
	err := make(chan error, 1)
	n.start <- func() { err <- cmd.Start() }
	return <-err
}

func (n *nursery) close() { close(n.start) }

// rank is a rank process as its drill sees it.
type rank struct {
	setup Setup
	name  string
	cmd   *exec.Cmd
	in    io.WriteCloser
	done  chan struct{} // it has ended and was reaped

	mu      sync.Mutex
	log     []word
	changed chan struct{} // closed and renewed with each word
	ended   int64         // when its output ended, as CLOCK_MONOTONIC; 0: not yet
	last    int           // number of the last order
	tail    []string      // of its log
}

// errEnded reports a process that is gone.
var errEnded = errors.New("process has ended")

// spawn starts a rank process; it is ready when await(evReady) says so.
func (n *nursery) spawn(self []string, s Setup) (*rank, error) {
	r := &rank{setup: s, name: fmt.Sprintf("%s %d", s.Side, s.TPRank), changed: make(chan struct{}), done: make(chan struct{})}
	r.cmd = exec.Command(self[0], self[1:]...)
	var err error
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	logs, err := r.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := n.begin(r.cmd); err != nil {
		return nil, fmt.Errorf("%s: %w", r.name, err)
	}
	var readers sync.WaitGroup
	readers.Go(func() { r.read(out) })
	readers.Go(func() { r.keep(logs) })
	go func() {
		readers.Wait()
		_ = r.cmd.Wait() // how it ends is the cell's business
		close(r.done)
	}()
	line, err := json.Marshal(s)
	if err == nil {
		_, err = r.in.Write(append(line, '\n'))
	}
	if err != nil {
		r.kill()
		return nil, fmt.Errorf("%s: %w", r.name, err)
	}
	return r, nil
}

func (r *rank) read(out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var w word
		if err := json.Unmarshal(lines.Bytes(), &w); err != nil {
			continue // the end of a process that was killed while it wrote
		}
		r.note(func() { r.log = append(r.log, w) })
	}
	r.note(func() { r.ended = monotonic() })
}

func (r *rank) note(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	close(r.changed)
	r.changed = make(chan struct{})
}

// tailLines is how much of a rank's log is kept for a cell that is not ok.
const tailLines = 60

func (r *rank) keep(logs io.Reader) {
	lines := bufio.NewScanner(logs)
	for lines.Scan() {
		r.mu.Lock()
		r.tail = append(r.tail, lines.Text())
		if len(r.tail) > tailLines {
			r.tail = r.tail[1:]
		}
		r.mu.Unlock()
	}
}

func (r *rank) lastWords() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.tail, "\n")
}

// end is when the process's output ended; 0: it has not.
func (r *rank) end() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

// find is the first word that fits, if it has been said.
func (r *rank) find(fits func(word) bool) (word, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.log {
		if fits(w) {
			return w, true
		}
	}
	return word{}, false
}

// wait waits for a word, for as long as patience lasts.
func (r *rank) wait(ctx context.Context, what string, fits func(word) bool) (word, error) {
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		r.mu.Lock()
		changed, ended := r.changed, r.ended
		r.mu.Unlock()
		if w, ok := r.find(fits); ok {
			return w, nil
		}
		if ended != 0 {
			return word{}, fmt.Errorf("%s: %s: %w", r.name, what, errEnded)
		}
		select {
		case <-changed:
		case <-limit.C:
			return word{}, fmt.Errorf("%s: %s: not within %v", r.name, what, patience)
		case <-ctx.Done():
			return word{}, ctx.Err()
		}
	}
}

func of(id room.ID, event string) func(word) bool {
	return func(w word) bool { return w.Room == id && w.Event == event }
}

// await waits for an event of a room, or of the process where there is none.
func (r *rank) await(ctx context.Context, id room.ID, event string) (word, error) {
	return r.wait(ctx, fmt.Sprintf("room %d %s", id, event), of(id, event))
}

// tell gives an order and does not wait.
func (r *rank) tell(o order) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	o.ID = r.last
	line, err := json.Marshal(o)
	if err != nil {
		return 0, err
	}
	if _, err := r.in.Write(append(line, '\n')); err != nil {
		return 0, fmt.Errorf("%s: %s: %w", r.name, o.Op, err)
	}
	return o.ID, nil
}

// do gives an order and waits for the reply.
func (r *rank) do(ctx context.Context, o order) (word, error) {
	id, err := r.tell(o)
	if err != nil {
		return word{}, err
	}
	w, err := r.wait(ctx, o.Op, func(w word) bool { return w.ID == id })
	if err == nil && w.Error != "" {
		err = fmt.Errorf("%s: %s: %s", r.name, o.Op, w.Error)
	}
	return w, err
}

func (r *rank) signal(sig syscall.Signal) error {
	if err := r.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("%s: %v: %w", r.name, sig, err)
	}
	return nil
}

// halted waits until no thread of a process that got SIGSTOP runs.
func (r *rank) halted() error {
	dir := fmt.Sprintf("/proc/%d/task", r.cmd.Process.Pid)
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		tasks, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		running := false
		for _, t := range tasks {
			b, err := os.ReadFile(dir + "/" + t.Name() + "/stat")
			_, rest, ok := strings.Cut(string(b), ") ")
			running = running || err == nil && ok && !strings.HasPrefix(rest, "T")
		}
		switch {
		case !running:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("%s: not stopped within %v", r.name, patience)
		}
	}
}

// kill ends the process for sure and waits for it.
func (r *rank) kill() {
	_ = r.cmd.Process.Kill() // it may have ended
	_ = r.in.Close()         // as well
	<-r.done
}
