package tcp

import (
	"context"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/transfertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// proxy stands before one port of an engine.
type proxy struct {
	l  net.Listener
	to string
	wg sync.WaitGroup

	mu    sync.Mutex
	gate  chan struct{} // not nil: nothing flows to the engine until it is closed,
	allow int           // but for so many bytes
	flip  int           // this byte from now on is damaged; 0: none
	conns map[*net.TCPConn]struct{}
	cut   chan struct{}
}

// small makes a socket's buffers small, so that a stalled peer is felt soon.
func small(_, _ string, c syscall.RawConn) error {
	var err error
	if cerr := c.Control(func(fd uintptr) {
		err = os.NewSyscallError("setsockopt", syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 64<<10))
	}); cerr != nil {
		return cerr
	}
	return err
}

func newProxy(t *testing.T) *proxy {
	t.Helper()
	lc := net.ListenConfig{Control: small}
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return &proxy{l: l, conns: map[*net.TCPConn]struct{}{}, cut: make(chan struct{})}
}

func (p *proxy) port() int { return p.l.Addr().(*net.TCPAddr).Port }

// serve forwards to an address until end.
func (p *proxy) serve(to net.Addr) {
	p.to = to.String()
	p.wg.Go(func() {
		for {
			c, err := p.l.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.forward(c.(*net.TCPConn)) })
		}
	})
}

func (p *proxy) forward(a *net.TCPConn) {
	c, err := net.Dial("tcp", p.to)
	if err != nil {
		_ = a.SetLinger(0)
		_ = a.Close()
		return
	}
	b := c.(*net.TCPConn)
	if !p.add(a) || !p.add(b) {
		_ = a.Close()
		_ = b.Close()
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { p.pump(b, a, true) })
	wg.Go(func() { p.pump(a, b, false) })
	wg.Wait()
	p.mu.Lock()
	delete(p.conns, a)
	delete(p.conns, b)
	p.mu.Unlock()
	_ = a.Close()
	_ = b.Close()
}

func (p *proxy) add(c *net.TCPConn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.cut:
		return false
	default:
	}
	p.conns[c] = struct{}{}
	return true
}

// pump passes bytes, the end and a break on.
func (p *proxy) pump(to, from *net.TCPConn, gated bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if gated {
			p.mu.Lock()
			if p.flip > 0 && p.flip <= n {
				buf[p.flip-1] ^= 4
			}
			p.flip = max(0, p.flip-n)
			gate := p.gate
			if p.allow > 0 {
				gate = nil
				p.allow -= n
			}
			p.mu.Unlock()
			if gate != nil {
				select {
				case <-gate:
				case <-p.cut:
				}
			}
		}
		if _, werr := to.Write(buf[:n]); werr != nil {
			_ = from.SetLinger(0)
			_ = from.Close()
			return
		}
		if err != nil {
			if err.Error() != "EOF" {
				_ = to.SetLinger(0)
				_ = to.Close()
			}
			_ = to.CloseWrite()
			return
		}
	}
}

// damage flips a bit of the n-th byte from now on, counted from 1.
func (p *proxy) damage(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flip = n
}

func (p *proxy) stall(after int) (resume func()) {
	gate := make(chan struct{})
	p.mu.Lock()
	p.gate, p.allow = gate, after
	p.mu.Unlock()
	return sync.OnceFunc(func() {
		p.mu.Lock()
		p.gate, p.allow = nil, 0
		p.mu.Unlock()
		close(gate)
	})
}

// end resets every connection and takes no more.
func (p *proxy) end() {
	_ = p.l.Close()
	p.mu.Lock()
	select {
	case <-p.cut:
	default:
		close(p.cut)
	}
	for c := range p.conns {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// station is an engine behind its proxies.
type station struct {
	*Engine
	control, data *proxy
}

type fabric struct {
	mu       sync.Mutex
	stations map[string]*station
}

func newFabric(*testing.T) transfertest.Fabric { return &fabric{stations: map[string]*station{}} }

func (f *fabric) New(t *testing.T, native bool) transfer.Engine {
	return f.station(t, Config{Foreign: !native})
}

func (f *fabric) station(t *testing.T, cfg Config) *station {
	t.Helper()
	s := &station{control: newProxy(t), data: newProxy(t)}
	cfg.AdvertisePort, cfg.AdvertiseDataPort = s.control.port(), s.data.port()
	s.Engine = start(t, cfg)
	control, data := s.Addrs()
	s.control.serve(control)
	s.data.serve(data)
	t.Cleanup(func() {
		s.control.end()
		s.data.end()
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stations[s.Name()] = s
	return s
}

func (f *fabric) find(name string) *station {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stations[name]
}

func (f *fabric) Stall(name string, after int) func() {
	s := f.find(name)
	a, b := s.control.stall(after), s.data.stall(after)
	return func() { a(); b() }
}

func (f *fabric) Cut(name string) {
	s := f.find(name)
	s.control.end()
	s.data.end()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.Close(ctx) // nobody waits for a killed process
}

func (f *fabric) Junk(name string, b []byte) error {
	s := f.find(name)
	for _, p := range []*proxy{s.control, s.data} {
		c, err := net.Dial("tcp", p.l.Addr().String())
		if err != nil {
			return err
		}
		_, _ = c.Write(b) // it may be closed before all is written
		if err := c.Close(); err != nil {
			return err
		}
	}
	return nil
}

// start makes an engine that is closed when the test ends.
func start(t testing.TB, cfg Config) *Engine {
	t.Helper()
	e, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		if s := e.Stats(); s.ControlConns+s.DataConns+s.Links != 0 {
			t.Errorf("after close: %+v", s)
		}
	})
	return e
}

func TestEngine(t *testing.T) {
	transfertest.Run(t, transfertest.Config{
		Capabilities: transfer.Capabilities{ReceiverApplied: true, VirtualPages: true, Confirmed: true, CancelProves: true},
		Wire:         true,
		New:          newFabric,
	})
}
