package zmtp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"
)

// maxBatch bounds the messages that a connection has in hand before it queues them.
const maxBatch = 256

// Message is a received message of at least one frame. Frames and their bytes belong to the receiver; frames up to 512 bytes may share an
// allocation of 4 KiB with their neighbours, so a long-lived small frame is better copied. Peer is the connection it came by, which may have
// ended meanwhile.
type Message struct {
	Frames [][]byte
	Peer   *Peer
}

// Pull is a bound PULL socket.
type Pull struct {
	cfg       Config
	listener  net.Listener
	addr      netip.AddrPort
	advertise string
	inbox     *inbox
	stop      chan struct{} // closed by Close
	wg        sync.WaitGroup

	mu          sync.Mutex
	conns       map[*conn]struct{}
	handshaking fifo[*conn] // oldest first; may hold some that are done with it
	greeting    int         // number of those that are not
	closed      bool
}

// Listen binds addr, host:port with an IPv6 host in brackets; an empty host is every address, port 0 a free one. ctx bounds the binding.
func Listen(ctx context.Context, addr string, cfg Config) (*Pull, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	ln, err := cfg.ListenConn(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("zmtp: listen on %q: %w", addr, err)
	}
	p := &Pull{cfg: cfg, listener: ln, inbox: newInbox(cfg.Limits), stop: make(chan struct{}), conns: map[*conn]struct{}{}}
	if a, ok := ln.Addr().(*net.TCPAddr); ok {
		p.addr = netip.AddrPortFrom(a.AddrPort().Addr().Unmap(), uint16(a.Port))
	}
	if p.advertise, err = advertised(cfg.Advertise, ln.Addr()); err != nil {
		_ = ln.Close() // the error at hand is the one to tell
		return nil, err
	}
	p.wg.Go(p.accept)
	return p, nil
}

// advertised completes the advertised address with the bound port.
func advertised(setting string, bound net.Addr) (string, error) {
	if setting == "" {
		return bound.String(), nil
	}
	if host, port, err := net.SplitHostPort(setting); err == nil {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || host == "" {
			return "", fmt.Errorf("%w: Advertise %q: want host or host:port, port 1 to 65535", ErrConfig, setting)
		}
		return setting, nil
	}
	_, port, err := net.SplitHostPort(bound.String())
	if err != nil {
		return "", fmt.Errorf("%w: Advertise %q needs a port: %w", ErrConfig, setting, err)
	}
	host := setting
	if len(host) > 1 && host[0] == '[' && host[len(host)-1] == ']' {
		host = host[1 : len(host)-1]
	}
	return net.JoinHostPort(host, port), nil
}

// Addr is the bound address; the zero value if ListenConn gave something else than TCP.
func (p *Pull) Addr() netip.AddrPort { return p.addr }

// Endpoint is tcp://host:port under which peers reach the socket: Advertise, with the bound port if it names none, or the bound address.
func (p *Pull) Endpoint() string { return "tcp://" + p.advertise }

// Recv waits for the next message until ctx ends. Connections take turns; the messages of one connection come in order, and may come after
// its Down event. What a Push sends on a new connection may come between messages that still wait from its old one. Several goroutines may
// receive. Errors: ErrClosed; ctx's cause.
func (p *Pull) Recv(ctx context.Context) (Message, error) {
	var m [1]Message
	_, err := p.inbox.get(ctx, m[:])
	return m[0], err
}

// RecvMany is Recv for who can use several messages at once: it waits for the first, and takes as many as are there already, at most
// len(into), which must not be 0. into[:n] is the caller's.
func (p *Pull) RecvMany(ctx context.Context, into []Message) (n int, err error) {
	return p.inbox.get(ctx, into)
}

// Queued returns the number of messages that wait to be received, and the memory that they and incomplete large messages take.
func (p *Pull) Queued() (messages, bytes int) { return p.inbox.length() }

// Peers returns the peers whose connections are up, in no order.
func (p *Pull) Peers() []*Peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	peers := make([]*Peer, 0, len(p.conns))
	for c := range p.conns {
		if c.isUp() {
			peers = append(peers, c.peer)
		}
	}
	return peers
}

// Close stops listening and ends all connections, with ErrClosed as their cause. dropped is the number of messages that were queued and not
// received; a second Close returns 0.
func (p *Pull) Close() (dropped int, err error) {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	for c := range p.conns {
		c.fail(ErrClosed)
	}
	p.mu.Unlock()
	if first {
		close(p.stop)
		err = p.listener.Close()
	}
	p.wg.Wait()
	return p.inbox.close(), err
}

// accept takes connections until the listener is closed. An error of the system's (no descriptor left) is waited out.
func (p *Pull) accept() {
	const pauseMin, pauseMax = 5 * time.Millisecond, time.Second
	pause := pauseMin
	for {
		nc, err := p.listener.Accept()
		if err == nil {
			pause = pauseMin
			p.start(nc)
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		p.cfg.Logger.Warn("zmtp: accept", "endpoint", p.Endpoint(), "err", err, "pause", pause)
		select {
		case <-time.After(pause):
		case <-p.stop:
			return
		}
		pause = min(2*pause, pauseMax)
	}
}

// start admits a connection, at the cost of the oldest that is still shaking hands if there are too many.
func (p *Pull) start(nc net.Conn) {
	c := newConn(nc, &p.cfg, typePull, nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = nc.Close() // nothing was exchanged
		return
	}
	l := &p.cfg.Limits
	if len(p.conns) >= l.MaxConns || p.greeting >= l.MaxHandshakes {
		victim := p.oldestHandshake()
		if victim == nil {
			_ = nc.Close() // nothing was exchanged
			p.wg.Go(func() { p.rejected(c, fmt.Errorf("%w: limit %d", ErrTooManyConns, l.MaxConns)) })
			return
		}
		p.drop(victim)
		victim.fail(fmt.Errorf("%w: a newer connection came while %d were open, %d of them without READY", ErrEvicted, len(p.conns)+1, p.greeting+1))
	}
	p.conns[c] = struct{}{}
	p.handshaking.push(c)
	p.greeting++
	c.greeting = true
	p.wg.Go(func() { p.serve(c) })
}

// oldestHandshake pops the connection that has been shaking hands longest; nil: none is. The caller holds mu.
func (p *Pull) oldestHandshake() *conn {
	for p.handshaking.n > 0 {
		if c := p.handshaking.pop(); c.greeting {
			return c
		}
	}
	return nil
}

// drop takes c out of the tables. The caller holds mu.
func (p *Pull) drop(c *conn) {
	delete(p.conns, c)
	p.greeted(c)
}

// greeted notes that c no longer shakes hands. The caller holds mu.
func (p *Pull) greeted(c *conn) {
	if !c.greeting {
		return
	}
	c.greeting = false
	p.greeting--
	for p.handshaking.n > 0 && !p.handshaking.peek().greeting {
		p.handshaking.pop()
	}
}

func (p *Pull) rejected(c *conn, cause error) {
	remote := c.peer.remote.String()
	p.cfg.Logger.Debug("zmtp: rejected", "endpoint", p.Endpoint(), "peer", remote, "cause", cause)
	p.cfg.Events(ConnEvent{Kind: Rejected, Endpoint: p.Endpoint(), Remote: remote, Cause: cause})
}

// serve reads one connection to its end.
func (p *Pull) serve(c *conn) {
	lane := p.inbox.open(c)
	c.dec.idle = func() error {
		if c.dec.between {
			return p.inbox.lend(lane)
		}
		return nil
	}
	c.dec.reserve = func(n int) error { return p.inbox.reserve(lane, n) }
	remote := c.peer.remote.String()
	up, cause := c.serve(func() {
		p.mu.Lock()
		p.greeted(c)
		p.mu.Unlock()
		p.cfg.Logger.Debug("zmtp: up", "endpoint", p.Endpoint(), "peer", remote)
		p.cfg.Events(ConnEvent{Kind: Up, Endpoint: p.Endpoint(), Remote: remote, Peer: c.peer})
	}, func(ms []message) error { return p.inbox.put(lane, ms) })
	p.inbox.leave(lane)
	p.mu.Lock()
	p.drop(c)
	p.mu.Unlock()
	if !up {
		p.rejected(c, cause)
		return
	}
	p.cfg.Logger.Debug("zmtp: down", "endpoint", p.Endpoint(), "peer", remote, "cause", cause)
	p.cfg.Events(ConnEvent{Kind: Down, Endpoint: p.Endpoint(), Remote: remote, Peer: c.peer, Cause: cause, Stats: c.peer.Stats()})
}
