package tcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/space"
)

// Config is fixed for an engine's life. Zero values take the defaults.
type Config struct {
	Bind      string // host of both listeners; default 127.0.0.1
	Port      int    // of the control listener; default any
	DataPort  int    // of the data listener; default any
	Advertise string // host under which peers reach both; default Bind
	Logger    *slog.Logger

	DialTimeout time.Duration // default 5 s, upstream's
	// Progress is how long a batch may go without a byte taken or a status read. Default 10 s.
	Progress time.Duration
	// Idle is how long a data connection may stay silent between requests at the target. Default 15 min: pooled initiators may lose a
	// write silently when the target closes.
	Idle time.Duration
	// MaxConns bounds the connections of each listener. Default 16,384: upstream's initiators open one for each request of a batch.
	MaxConns int
	// Native off makes the engine one that a kvferry peer can't tell from Mooncake's.
	Foreign bool
	// Version1 makes the target one of before version 2, and the initiator speak version 1 to everybody.
	Version1 bool
}

func (c Config) withDefaults() Config {
	if c.Bind == "" {
		c.Bind = "127.0.0.1"
	}
	if c.Advertise == "" {
		c.Advertise = c.Bind
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.DialTimeout, 5*time.Second)
	def(&c.Progress, 10*time.Second)
	def(&c.Idle, 15*time.Minute)
	if c.MaxConns == 0 {
		c.MaxConns = 16384
	}
	return c
}

// Engine implements transfer.Engine.
type Engine struct {
	cfg           Config
	name          string
	space         *space.Space
	control, data net.Listener

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]struct{} // of the target
	peers  map[string]*peer
	closed bool
}

var _ transfer.Engine = (*Engine)(nil)

// New binds both listeners and starts to serve.
func New(ctx context.Context, cfg Config) (*Engine, error) {
	cfg = cfg.withDefaults()
	e := &Engine{cfg: cfg, space: space.New(), conns: map[net.Conn]struct{}{}, peers: map[string]*peer{}}
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	var err error
	if e.control, err = lc.Listen(ctx, "tcp", net.JoinHostPort(cfg.Bind, strconv.Itoa(cfg.Port))); err != nil {
		return nil, fmt.Errorf("control listener: %w", err)
	}
	if e.data, err = lc.Listen(ctx, "tcp", net.JoinHostPort(cfg.Bind, strconv.Itoa(cfg.DataPort))); err != nil {
		return nil, errors.Join(fmt.Errorf("data listener: %w", err), e.control.Close())
	}
	e.name = net.JoinHostPort(cfg.Advertise, strconv.Itoa(portOf(e.control)))
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.wg.Go(func() { e.accept(e.control, e.serveControl) })
	e.wg.Go(func() { e.accept(e.data, e.serveData) })
	return e, nil
}

func portOf(l net.Listener) int {
	if a, ok := l.Addr().(*net.TCPAddr); ok {
		return a.Port
	}
	return 0
}

// Name implements transfer.Engine.
func (e *Engine) Name() string { return e.name }

// Capabilities implements transfer.Engine. Towards a peer of version 1, confirmation is the clean end of a connection that we half-closed.
func (e *Engine) Capabilities() transfer.Capabilities {
	return transfer.Capabilities{ReceiverApplied: true, VirtualPages: true, Confirmed: true}
}

// Register implements transfer.Engine.
func (e *Engine) Register(mem []byte, item int) (transfer.Region, error) {
	return e.space.Register(mem, item)
}

// Open implements transfer.Engine.
func (e *Engine) Open(g transfer.Grant) (transfer.Lease, error) { return e.space.Open(g) }

// accept serves connections until the listener is closed.
func (e *Engine) accept(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			e.cfg.Logger.Warn("accept", "error", err)
			select { // out of descriptors, most likely: the port must come back
			case <-time.After(10 * time.Millisecond):
			case <-e.ctx.Done():
				return
			}
			continue
		}
		e.mu.Lock()
		if e.closed || len(e.conns) >= 2*e.cfg.MaxConns {
			e.mu.Unlock()
			_ = c.Close()
			continue
		}
		e.conns[c] = struct{}{}
		e.wg.Go(func() {
			serve(c)
			_ = c.Close()
			e.mu.Lock()
			delete(e.conns, c)
			e.mu.Unlock()
		})
		e.mu.Unlock()
	}
}

// Close implements transfer.Engine.
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return transfer.ErrClosed
	}
	e.closed = true
	e.cancel()
	err := errors.Join(e.control.Close(), e.data.Close())
	for c := range e.conns {
		_ = c.Close()
	}
	for _, p := range e.peers {
		p.closeIdle()
	}
	e.mu.Unlock()
	done := make(chan struct{})
	go func() {
		e.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return err
	case <-ctx.Done():
		return errors.Join(err, fmt.Errorf("memory may still be in use: %w", ctx.Err()))
	}
}

// splitName parses a peer's name, host:port with an IPv6 host in brackets.
func splitName(name string) (host string, port string, err error) {
	host, port, err = net.SplitHostPort(name)
	if err == nil && (host == "" || strings.ContainsAny(host, " \t")) {
		err = fmt.Errorf("%w: peer %q has no host", transfer.ErrInvalid, name)
	}
	return host, port, err
}
