package tcp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/space"
)

// Config is fixed for an engine's life. Zero values take the defaults.
type Config struct {
	Bind     string // host of both listeners. Default 127.0.0.1; 0.0.0.0 and :: need Advertise
	Port     int    // of the control listener. Default any
	DataPort int    // of the data listener. Default any

	Advertise         string // host under which peers reach both. Default Bind
	AdvertisePort     int    // port under which peers reach the control listener. Default the one that is bound
	AdvertiseDataPort int    // likewise of the data listener

	Instance Instance               // of this incarnation. Default random
	OnNotify func(name, msg string) // called for each notify message, on its connection's goroutine. Default: they are acknowledged and dropped
	Logger   *slog.Logger           // default none

	// DialTimeout bounds connecting to a peer, and asking it one control message. Default 5 s, upstream's.
	DialTimeout time.Duration
	// Progress is how long a batch may go without a byte taken or a status read before it fails with ErrTimeout. Default 30 s, upstream's
	// for statuses: a peer may put bytes in place slowly.
	Progress time.Duration
	// Stall is how long the target waits for the rest of a header or payload that has begun. Default 60 s: a stopped process may go on.
	Stall time.Duration
	// Idle is how long a data connection may stay silent between requests at the target. Default 15 min: a pooled initiator of version 1
	// may lose a write when the target closes.
	Idle time.Duration
	// Keep is how long the initiator keeps a connection that no batch uses, and what it knows of a peer. Default 2 min.
	Keep time.Duration
	// MaxConns bounds the connections of each listener; when it is reached, the one that has been silent longest makes room, and where all
	// are at work newcomers wait in the kernel's queue. Default 8,192: upstream's initiators open one for each request of a batch, and a
	// refused one costs an outage.
	MaxConns int
	// PeerConns bounds the connections to one peer of version 2. Default 8.
	PeerConns int

	// NoChecksums leaves the CRC32C out that each write to a kvferry target carries, and fails by (ErrCorrupt).
	NoChecksums bool
	// Foreign makes the engine one that a kvferry peer can't tell from Mooncake's.
	Foreign bool
	// Version1 makes the target one of before version 2, and the initiator speak version 1 to everybody.
	Version1 bool
}

func (c Config) withDefaults() (Config, error) {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	if c.Bind == "" {
		c.Bind = "127.0.0.1"
	}
	if c.Advertise == "" {
		if ip := net.ParseIP(c.Bind); ip != nil && ip.IsUnspecified() {
			return c, fmt.Errorf("%w: bound to %s, which peers can't dial: want an address to advertise", transfer.ErrInvalid, c.Bind)
		}
		c.Advertise = c.Bind
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Instance == (Instance{}) {
		_, _ = rand.Read(c.Instance[:]) // never fails
	}
	def(&c.DialTimeout, 5*time.Second)
	def(&c.Progress, 30*time.Second)
	def(&c.Stall, time.Minute)
	def(&c.Idle, 15*time.Minute)
	def(&c.Keep, 2*time.Minute)
	if c.MaxConns == 0 {
		c.MaxConns = 8192
	}
	if c.PeerConns == 0 {
		c.PeerConns = 8
	}
	for _, v := range []struct {
		name   string
		n, max int
	}{{"Port", c.Port, 65535}, {"DataPort", c.DataPort, 65535}, {"AdvertisePort", c.AdvertisePort, 65535}, {"AdvertiseDataPort", c.AdvertiseDataPort, 65535},
		{"MaxConns", c.MaxConns, 1 << 20}, {"PeerConns", c.PeerConns, 1 << 10}} {
		if v.n < 0 || v.n > v.max {
			return c, fmt.Errorf("%w: %s is %d, want 0 to %d", transfer.ErrInvalid, v.name, v.n, v.max)
		}
	}
	return c, nil
}

// Engine implements transfer.Engine.
type Engine struct {
	cfg           Config
	name          string
	space         *space.Space
	limits        transfer.Limits
	control, data *listener
	counts        counters

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	jobs    chan func()  // for the goroutines that wait for one
	waiting atomic.Int64 // so many

	mu     sync.Mutex
	peers  map[string]*peer
	closed bool
}

var _ transfer.Engine = (*Engine)(nil)

// counters are what Stats reports.
type counters struct {
	in, sunk, out, refused, corrupt atomic.Uint64
}

// Stats is a snapshot of an engine's tables and totals.
type Stats struct {
	ControlConns, DataConns int    // at the target
	Peers, Links            int    // at the initiator: known peers, connections to them, in use or kept
	Spare                   int    // goroutines that wait for the next batch
	BytesIn, BytesSunk      uint64 // payload that came: put in place, dropped
	BytesOut                uint64 // payload of batches that went out, statuses seen or not
	Refused                 uint64 // requests that were not admitted
	Corrupt                 uint64 // writes that came with a wrong checksum
}

// New binds both listeners and starts to serve. ctx bounds binding alone.
func New(ctx context.Context, cfg Config) (*Engine, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	e := &Engine{cfg: cfg, space: space.New(), peers: map[string]*peer{}, jobs: make(chan func())}
	if e.control, err = listen(ctx, cfg.Bind, cfg.Port, cfg.MaxConns); err != nil {
		return nil, fmt.Errorf("control port: %w", err)
	}
	if e.data, err = listen(ctx, cfg.Bind, cfg.DataPort, cfg.MaxConns); err != nil {
		_ = e.control.Close()
		return nil, fmt.Errorf("data port: %w", err)
	}
	if e.cfg.AdvertisePort == 0 {
		e.cfg.AdvertisePort = e.control.port()
	}
	if e.cfg.AdvertiseDataPort == 0 {
		e.cfg.AdvertiseDataPort = e.data.port()
	}
	e.name = net.JoinHostPort(cfg.Advertise, strconv.Itoa(e.cfg.AdvertisePort))
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.wg.Go(func() { e.accept(e.control, e.serveControl) })
	e.wg.Go(func() { e.accept(e.data, e.serveData) })
	e.wg.Go(e.sweep)
	return e, nil
}

// Name implements transfer.Engine.
func (e *Engine) Name() string { return e.name }

// Instance is the id of this incarnation.
func (e *Engine) Instance() Instance { return e.cfg.Instance }

// Addrs are the addresses that are bound.
func (e *Engine) Addrs() (control, data net.Addr) { return e.control.Addr(), e.data.Addr() }

// Capabilities implements transfer.Engine. Towards a peer of version 1, confirmation is the clean end of a connection that we half-closed.
func (e *Engine) Capabilities() transfer.Capabilities {
	return transfer.Capabilities{ReceiverApplied: true, VirtualPages: true, Confirmed: true, CancelProves: true}
}

// Register implements transfer.Engine.
func (e *Engine) Register(mem []byte, item int) (transfer.Region, error) {
	return e.space.Register(mem, item)
}

// Open implements transfer.Engine.
func (e *Engine) Open(g transfer.Grant) (transfer.Lease, error) { return e.space.Open(g) }

// Restrict implements transfer.Engine.
func (e *Engine) Restrict(peer string, ranges []transfer.Range) error {
	return e.limits.Set(peer, ranges)
}

// Stats counts.
func (e *Engine) Stats() Stats {
	s := Stats{
		ControlConns: e.control.count(), DataConns: e.data.count(),
		BytesIn: e.counts.in.Load(), BytesSunk: e.counts.sunk.Load(), BytesOut: e.counts.out.Load(), Refused: e.counts.refused.Load(), Corrupt: e.counts.corrupt.Load(),
	}
	s.Spare = int(e.waiting.Load())
	e.mu.Lock()
	defer e.mu.Unlock()
	s.Peers = len(e.peers)
	for _, p := range e.peers {
		s.Links += p.count()
	}
	return s
}

// listener is a listener and the connections that came by it.
type listener struct {
	*net.TCPListener
	max int

	mu    sync.Mutex
	conns map[*conn]struct{}
	room  chan struct{} // has an element when a connection has ended
}

// conn is a connection at the target.
type conn struct {
	*net.TCPConn
	silent atomic.Int64 // since when it waits for a request, in Unix nanoseconds; 0: it is at work
}

func listen(ctx context.Context, host string, port, limit int) (*listener, error) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false) // pages are no reason for another kernel path
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil, err
	}
	return &listener{TCPListener: l.(*net.TCPListener), max: limit, conns: map[*conn]struct{}{}, room: make(chan struct{}, 1)}, nil
}

func (l *listener) port() int { return l.Addr().(*net.TCPAddr).Port }

func (l *listener) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns)
}

// How long a connection must have been silent before another may take its place, because its request may be on its way: after a request, and
// before the first, when its initiator may be busy with thousands like it.
const (
	young = time.Second
	newer = 10 * time.Second
)

// crowded reports whether the limit is reached, and if so closes the connection that has been silent longest, if there is one.
func (l *listener) crowded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.conns) < l.max {
		return false
	}
	var oldest *conn
	least := time.Now().Add(-young).UnixNano()
	for c := range l.conns {
		if s := c.silent.Load(); s != 0 && s < least {
			oldest, least = c, s
		}
	}
	if oldest != nil {
		_ = oldest.Close() // its goroutine notices
	}
	return true
}

func (l *listener) add(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = struct{}{}
}

func (l *listener) remove(c *conn) {
	l.mu.Lock()
	delete(l.conns, c)
	l.mu.Unlock()
	select {
	case l.room <- struct{}{}:
	default:
	}
}

// end closes the listener and its connections.
func (l *listener) end() error {
	err := l.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		_ = c.Close()
	}
	return err
}

// accept serves connections until the engine is closed.
func (e *Engine) accept(l *listener, serve func(*conn)) {
	for {
		for l.crowded() {
			select {
			case <-l.room:
			case <-time.After(young / 4): // somebody may have fallen silent
			case <-e.ctx.Done():
				return
			}
		}
		tc, err := l.AcceptTCP()
		if err != nil {
			if e.ctx.Err() != nil {
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
		c := &conn{TCPConn: tc}
		c.silent.Store(time.Now().Add(newer - young).UnixNano())
		l.add(c)
		if e.ctx.Err() != nil { // end may have missed it
			_ = c.Close()
		}
		e.wg.Go(func() {
			defer l.remove(c)
			defer func() { _ = c.Close() }() // everything that had to be sent was
			serve(c)
		})
	}
}

// Close implements transfer.Engine.
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.cancel()
	err := errors.Join(e.control.end(), e.data.end())
	if err2 := e.space.Close(ctx); err2 != nil {
		return errors.Join(err, err2)
	}
	done := make(chan struct{})
	go func() { // ends with the last goroutine of the engine
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
