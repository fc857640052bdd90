package zmtp

import (
	"context"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
)

// memNet is a network in memory for tests in a synctest bubble. One listener at a time; without one, dialling is refused.
type memNet struct {
	mu sync.Mutex
	ln *memListener
}

type memListener struct {
	net   *memNet
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (n *memNet) listen(context.Context, string, string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ln = &memListener{net: n, conns: make(chan net.Conn), done: make(chan struct{})}
	return n.ln, nil
}

func (n *memNet) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	n.mu.Lock()
	ln := n.ln
	n.mu.Unlock()
	if ln == nil {
		return nil, syscall.ECONNREFUSED
	}
	ours, theirs := net.Pipe()
	select {
	case ln.conns <- theirs:
		return ours, nil
	case <-ln.done:
		return nil, syscall.ECONNREFUSED
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *memListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *memListener) Close() error {
	l.once.Do(func() {
		close(l.done)
		l.net.mu.Lock()
		defer l.net.mu.Unlock()
		if l.net.ln == l {
			l.net.ln = nil
		}
	})
	return nil
}

func (l *memListener) Addr() net.Addr { return &net.UnixAddr{Name: "mem", Net: "mem"} }

func (n *memNet) config(cfg Config) Config {
	cfg.DialConn, cfg.ListenConn = n.dial, n.listen
	return cfg
}

// raw is a peer played by the test, byte by byte.
type raw struct {
	t testing.TB
	net.Conn
	dec *decoder
}

func newRaw(t testing.TB, c net.Conn) *raw {
	t.Cleanup(func() { _ = c.Close() }) // it may be closed already
	return &raw{t: t, Conn: c, dec: newDecoder(c, testLimits())}
}

func (r *raw) send(b []byte) {
	r.t.Helper()
	if _, err := r.Write(b); err != nil {
		r.t.Fatal(err)
	}
}

// handshake plays a peer of ZMTP 3.minor.
func (r *raw) handshake(minor byte, socketType string, props Properties) {
	r.t.Helper()
	sent := make(chan struct{})
	go func() { // as a real peer's kernel would: neither side waits for the other's first bytes
		defer close(sent)
		g := appendGreeting(nil)
		g[11] = minor
		_, _ = r.Write(appendReady(g, ready{socketType, props})) // a failure shows when reading
	}()
	if _, err := r.dec.greeting(); err != nil {
		r.t.Fatal(err)
	}
	if name, _ := r.command(); name != cmdReady {
		r.t.Fatalf("got %s, want READY", name)
	}
	<-sent
}

// command reads the next command; messages before it are dropped. "" and nil at the end of the stream.
func (r *raw) command() (name string, data []byte) {
	r.t.Helper()
	for {
		body, _, err := r.dec.next()
		if err != nil {
			return "", nil
		}
		if body == nil {
			continue
		}
		name, data, err = parseCommand(body)
		if err != nil {
			r.t.Fatal(err)
		}
		return name, data
	}
}

// drain reads to the end of the stream.
func (r *raw) drain() { _, _ = io.Copy(io.Discard, r.Conn) }
