package cli

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
)

// tailLines is how many log lines of a child are kept for the case that it dies.
const tailLines = 12

// child is a worker process.
type child struct {
	name  string
	cmd   *exec.Cmd
	ready ready
	done  chan struct{} // it has ended
	err   error         // how, valid when done is closed

	mu   sync.Mutex
	tail []string
}

// family is the children of one `up`. They are started by one OS thread that lives as long as the family: the kernel kills them when it ends,
// so that no child outlives us, however we end.
type family struct {
	start chan func()
	kids  []*child
	wg    sync.WaitGroup
	log   io.Writer // children's logs go here line by line; nil: only their tails are kept
	mu    sync.Mutex
}

func newFamily(log io.Writer) *family {
	f := &family{start: make(chan func()), log: log}
	go func() {
		runtime.LockOSThread()
		for run := range f.start {
			run()
		}
	}()
	return f
}

// add starts a child and waits for its ready line.
func (f *family) add(ctx context.Context, name string, args ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	k := &child{name: name, cmd: exec.Command(self, args...), done: make(chan struct{})}
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	k.cmd.WaitDelay = time.Second
	out, err := k.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	logs, err := k.cmd.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	started := make(chan error)
	f.start <- func() { started <- k.cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	f.kids = append(f.kids, k)
	first := make(chan error, 1)
	var readers sync.WaitGroup
	readers.Go(func() { k.readReady(out, first) })
	readers.Go(func() { f.readLog(k, logs) })
	f.wg.Go(func() {
		readers.Wait() // before Wait, which closes the pipes
		k.err = k.cmd.Wait()
		close(k.done)
	})
	select {
	case err := <-first:
		if err == nil {
			return k, nil
		}
		<-k.done
		return nil, k.died()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (k *child) readReady(out io.Reader, first chan<- error) {
	r := bufio.NewReader(out)
	line, err := r.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &k.ready)
	}
	first <- err
	_, _ = io.Copy(io.Discard, r) // nothing else is of interest
}

func (f *family) readLog(k *child, logs io.Reader) {
	s := bufio.NewScanner(logs)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		k.mu.Lock()
		k.tail = append(k.tail, s.Text())
		if len(k.tail) > tailLines {
			k.tail = k.tail[1:]
		}
		k.mu.Unlock()
		if f.log != nil {
			f.mu.Lock()
			_, _ = fmt.Fprintf(f.log, "%s: %s\n", k.name, s.Text()) // nothing is left to report to
			f.mu.Unlock()
		}
	}
	_, _ = io.Copy(io.Discard, logs) // a line beyond the bound
}

// died says how a child ended, with its last words.
func (k *child) died() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	how := "exit status 0"
	if k.err != nil {
		how = k.err.Error()
	}
	if len(k.tail) == 0 {
		return fmt.Errorf("%s ended: %s", k.name, how)
	}
	return fmt.Errorf("%s ended: %s; its last log lines:\n  %s", k.name, how, strings.Join(k.tail, "\n  "))
}

// stop ends all children: politely, then for sure.
func (f *family) stop() {
	for _, k := range f.kids {
		_ = k.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = k.cmd.Process.Signal(syscall.SIGCONT)
	}
	late := time.After(1200 * time.Millisecond)
	for _, k := range f.kids {
		select {
		case <-k.done:
		case <-late:
			for _, x := range f.kids {
				_ = syscall.Kill(-x.cmd.Process.Pid, syscall.SIGKILL) // its whole group
			}
			<-k.done
		}
	}
	f.wg.Wait()
	close(f.start)
}

// watch returns the error of the first child that ends, or nil when ctx ends.
func (f *family) watch(ctx context.Context) error {
	first := make(chan *child, len(f.kids))
	for _, k := range f.kids {
		go func() {
			select {
			case <-k.done:
				first <- k
			case <-ctx.Done():
			}
		}()
	}
	select {
	case k := <-first:
		return k.died()
	case <-ctx.Done():
		return nil
	}
}

var errNoOutput = errors.New("no answer")
