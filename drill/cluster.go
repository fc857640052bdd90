package drill

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kvferry/kvferry/registry"
	"github.com/kvferry/kvferry/wire"
	"github.com/kvferry/kvferry/worker"
)

// daemon is a gateway or worker process that serves.
type daemon struct {
	name           string
	cmd            *exec.Cmd
	url, bootstrap string
	done           chan struct{}
	logs           bytes.Buffer // to be read when done is closed
}

// serve starts a command of kvferry and waits for its ready line.
func (n *nursery) serve(ctx context.Context, binary string, args ...string) (*daemon, error) {
	x := &daemon{name: args[0], cmd: exec.Command(binary, args...), done: make(chan struct{})}
	x.cmd.Stderr = &x.logs
	out, err := x.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := n.begin(x.cmd); err != nil {
		return nil, fmt.Errorf("%s: %w", x.name, err)
	}
	first := make(chan []byte, 1)
	go func() {
		r := bufio.NewReader(out)
		line, _ := r.ReadBytes('\n') // nothing, when it ends before
		first <- line
		_, _ = io.Copy(io.Discard, r) // until it ends
		_ = x.cmd.Wait()              // how it ends is the cell's business
		close(x.done)
	}()
	limit, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case line := <-first:
		var ready struct{ URL, Bootstrap string }
		if err := json.Unmarshal(line, &ready); err != nil {
			x.kill()
			return nil, fmt.Errorf("%s does not serve: %s", x.name, x.logs.String())
		}
		x.url, x.bootstrap = ready.URL, ready.Bootstrap
		return x, nil
	case <-limit.Done():
		x.kill()
		return nil, fmt.Errorf("%s does not serve: %w", x.name, limit.Err())
	}
}

func (x *daemon) kill() {
	_ = x.cmd.Process.Kill() // it may have ended
	<-x.done
}

// load is what a worker's tables say that must come back to where it was.
type load struct {
	Jobs  int `json:"jobs"`
	Slots int `json:"slots_free"`
	Ranks []struct{ PagesFree, Rooms, Halves, Writes, Unserved, Quarantined, UnprovenGenerations, Unacknowledged int }
}

func (l load) String() string {
	return fmt.Sprintf("jobs %d, slots free %d, rank %+v", l.Jobs, l.Slots, l.Ranks)
}

func getJSON(ctx context.Context, url string, v any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	return json.NewDecoder(resp.Body).Decode(v)
}

func (x *daemon) load(ctx context.Context) (l load, err error) {
	return l, getJSON(ctx, x.url+worker.TablesPath, &l)
}

// cluster is a gateway, a prefill and a decode worker, with the network between the workers.
type cluster struct {
	nursery *nursery
	binary  string
	net     *network
	workers map[side]*daemon
	base    map[side]load
	gateway *daemon
	born    []*daemon
}

// newCluster starts the workers, each with flags of its own, and the gateway.
func newCluster(ctx context.Context, binary string, n *nursery, flags map[side][]string) (*cluster, error) {
	c := &cluster{nursery: n, binary: binary, net: newNetwork(workerHost), workers: map[side]*daemon{}, base: map[side]load{}}
	boot, err := c.net.add(ctx, kindBoot, sideP)
	if err != nil {
		return c, err
	}
	at := func(host string) string { return net.JoinHostPort(host, strconv.Itoa(boot.port)) }
	for s, args := range map[side][]string{sideP: {"prefill", "--bootstrap", at(workerHost), "--chunk", "16"}, sideD: {"decode"}} {
		args = append(args, "--log", "error", "--host", workerHost, "--advertise", proxyHost)
		x, err := c.serve(ctx, append(args, flags[s]...)...)
		if err != nil {
			return c, err
		}
		c.workers[s] = x
		if c.base[s], err = x.load(ctx); err != nil {
			return c, err
		}
	}
	var info registry.Info
	if err := getJSON(ctx, c.workers[sideP].url+registry.InstancePath, &info); err != nil {
		return c, err
	}
	for _, r := range info.Ranks {
		if err := c.net.addAt(ctx, kindControl, sideP, r.Port); err != nil {
			return c, err
		}
	}
	c.workers[sideP].bootstrap = at(proxyHost)
	return c, c.front(ctx)
}

func (c *cluster) serve(ctx context.Context, args ...string) (*daemon, error) {
	x, err := c.nursery.serve(ctx, c.binary, args...)
	if err == nil {
		c.born = append(c.born, x)
	}
	return x, err
}

// front starts a gateway. It tries nothing twice.
func (c *cluster) front(ctx context.Context) (err error) {
	p, d := c.workers[sideP], c.workers[sideD]
	c.gateway, err = c.serve(ctx, "gateway", "--listen", "127.0.0.1:0", "--retries", "-1", "--log", "error", "--prefill", p.url+"@"+p.bootstrap, "--decode", d.url)
	return err
}

func (c *cluster) close() {
	for _, x := range c.born {
		_ = x.cmd.Process.Kill() // all at once; it may have ended
	}
	for _, x := range c.born {
		x.kill()
	}
	c.net.close()
	http.DefaultClient.CloseIdleConnections()
}

var dataPort = regexp.MustCompile(`"tcp_data_port": *"?(\d+)`)

// discover puts proxies before decode's sockets while the first request passes: decode names its control socket and its engine to prefill,
// and the engine names its data port.
func (c *cluster) discover(ctx context.Context, body string) error {
	var reg wire.MooncakeRegistration
	named := newTrap(kindControl, sideP, 1, func(f [][]byte) bool {
		m, err := wire.ParseMooncakeRegistration(f)
		if err == nil {
			reg = m
		}
		return err == nil
	})
	port := 0
	described := newTrap(kindName, sideP, 1, func(f [][]byte) bool {
		m := dataPort.FindSubmatch(f[0])
		if m != nil {
			port, _ = strconv.Atoi(string(m[1])) // digits
		}
		return m != nil
	})
	c.net.lay(named)
	done := make(chan reply, 1)
	go func() { done <- c.gateway.ask(ctx, body, nil) }()
	if err := until(ctx, "decode names itself", named.caught); err != nil {
		return err
	}
	_, name, err := net.SplitHostPort(reg.Session)
	if err != nil {
		return err
	}
	engine, err := strconv.Atoi(name)
	if err != nil {
		return err
	}
	if err := errors.Join(c.net.addAt(ctx, kindControl, sideD, int(reg.Addr.Port)), c.net.addAt(ctx, kindName, sideD, engine)); err != nil {
		return err
	}
	c.net.lay(described)
	c.net.spring(named, pass)
	if err := until(ctx, "its engine describes itself", described.caught); err != nil {
		return err
	}
	if err := c.net.addAt(ctx, kindData, sideD, port); err != nil {
		return err
	}
	c.net.spring(described, pass)
	select {
	case a := <-done:
		return a.whole()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// reply is what a client got.
type reply struct {
	status int
	body   string
	err    error
	at     int64 // CLOCK_MONOTONIC
}

// ask sends a request to a gateway; began is closed when the first token has come.
func (x *daemon) ask(ctx context.Context, body string, began chan<- struct{}) (a reply) {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	defer func() { a.at = monotonic() }()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, x.url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return reply{err: err}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	a.status = resp.StatusCode
	var all strings.Builder
	var once sync.Once
	lines := bufio.NewReader(resp.Body)
	for a.err == nil {
		var line string
		line, a.err = lines.ReadString('\n')
		all.WriteString(line)
		if began != nil && strings.HasPrefix(line, "data: {") {
			once.Do(func() { close(began) })
		}
	}
	if errors.Is(a.err, io.EOF) {
		a.err = nil
	}
	a.body = all.String()
	return a
}

// whole is nil for an answer that is complete.
func (a reply) whole() error {
	if a.err != nil || a.status != http.StatusOK || strings.Contains(a.body, "data: ") && !strings.Contains(a.body, "[DONE]") {
		return fmt.Errorf("the client got %d %.200s %w", a.status, a.body, a.err)
	}
	return nil
}

func until(ctx context.Context, what string, c <-chan struct{}) error {
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-c:
		return nil
	case <-t.C:
		return fmt.Errorf("%s: not within %v", what, patience)
	case <-ctx.Done():
		return ctx.Err()
	}
}
