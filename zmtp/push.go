package zmtp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Push is a connected PUSH socket. It connects at once, keeps connecting, and queues meanwhile.
type Push struct {
	cfg      Config
	endpoint string
	address  string
	queue    *sendQueue
	peer     atomic.Pointer[Peer]

	cancel  context.CancelFunc
	stopped chan struct{} // closed when run has ended

	mu      sync.Mutex
	current *conn
	ending  bool  // no new connection
	ended   error // why the last connection ended
}

// ParseEndpoint checks an endpoint of the form tcp://host:port, an IPv6 host in brackets, and returns host:port.
func ParseEndpoint(endpoint string) (address string, err error) {
	address, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return "", fmt.Errorf("%w: endpoint %q: want tcp://host:port", ErrConfig, endpoint)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("%w: endpoint %q: %w", ErrConfig, endpoint, err)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || host == "" || strings.ContainsAny(host, "/*? ") {
		return "", fmt.Errorf("%w: endpoint %q: want tcp://host:port, port 1 to 65535", ErrConfig, endpoint)
	}
	if strings.Contains(host, ":") {
		if _, err := netip.ParseAddr(host); err != nil {
			return "", fmt.Errorf("%w: endpoint %q: %w", ErrConfig, endpoint, err)
		}
	}
	return address, nil
}

// Dial makes a Push for an endpoint such as tcp://10.0.0.1:5555 or tcp://[fd00::1]:5555. It does not wait for the connection.
func Dial(endpoint string, cfg Config) (*Push, error) {
	address, err := ParseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	if cfg, err = cfg.withDefaults(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Push{
		cfg: cfg, endpoint: endpoint, address: address, queue: newSendQueue(cfg.Limits),
		cancel: cancel, stopped: make(chan struct{}),
	}
	go p.run(ctx)
	return p, nil
}

// Endpoint is the endpoint that was dialled.
func (p *Push) Endpoint() string { return p.endpoint }

// Send queues a message of 1 to MaxFrames frames, and waits for room in the queue until ctx ends. The frames' bytes must not be changed
// afterwards: they are written from where they are. Several goroutines may send; each message is whole. Errors: ErrTooLarge, ErrClosed;
// ErrQueueFull wrapped with ctx's cause.
func (p *Push) Send(ctx context.Context, frames ...[]byte) error { return p.queue.send(ctx, frames) }

// TrySend is Send that never waits: ErrQueueFull at once.
func (p *Push) TrySend(frames ...[]byte) error {
	cost, size, err := p.queue.check(frames)
	if err == nil {
		_, err = p.queue.put(frames, cost, size, false)
	}
	return err
}

// TrySendAll is TrySend for several messages, which go out together. It stops at the first that can't be queued, and returns how many were.
func (p *Push) TrySendAll(messages ...[][]byte) (n int, err error) { return p.queue.putAll(messages) }

// Peer returns the other end of the latest connection that was up (nil: none was yet), and whether that connection still stands.
func (p *Push) Peer() (peer *Peer, connected bool) {
	peer = p.peer.Load()
	return peer, peer != nil && peer.Connected()
}

// Queued returns the number of messages that are not wholly written yet, and their size with overhead.
func (p *Push) Queued() (messages, bytes int) { return p.queue.length() }

// Close refuses further messages, sends what is queued, and waits until the peer has read it all; ctx bounds all of this, connecting
// included, and a ctx that has ended closes at once. dropped is the number of messages that the kernel had not wholly taken. err is ctx's
// cause when it ended first, or the connection's when that broke off: with dropped 0, everything was sent, but the peer has not confirmed
// that it read it. Close may be called again.
func (p *Push) Close(ctx context.Context) (dropped int, err error) {
	p.queue.close()
	select {
	case <-p.queue.drained:
		p.finish()
	case <-ctx.Done():
	case <-p.stopped:
	}
	select {
	case <-p.stopped:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	p.abort()
	<-p.stopped
	dropped, _ = p.queue.length()
	if p.ended != nil && err == nil && !errors.Is(p.ended, ErrPeerClosed) && !errors.Is(p.ended, ErrClosed) {
		err = fmt.Errorf("zmtp: close %s: %w", p.endpoint, p.ended)
	}
	return dropped, err
}

// finish lets the connection end when the peer has read everything, and no new one begin.
func (p *Push) finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ending = true
	if p.current == nil || !p.current.finish() {
		p.cancel()
	}
}

// abort ends everything now.
func (p *Push) abort() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ending = true
	p.cancel()
	if p.current != nil {
		p.current.fail(ErrClosed)
	}
}

// setCurrent makes c the connection, unless the socket is ending.
func (p *Push) setCurrent(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ending {
		return false
	}
	p.current = c
	return true
}

func (p *Push) isEnding() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ending
}

// run connects, serves and connects again.
func (p *Push) run(ctx context.Context) {
	defer close(p.stopped)
	pause, attempt := p.cfg.ReconnectMin, 0
	for !p.isEnding() {
		began := time.Now()
		up, err := p.once(ctx, attempt+1)
		if up {
			attempt = 0
			if time.Since(began) >= p.cfg.ReconnectMax {
				pause = p.cfg.ReconnectMin
				continue // a connection that had lasted: the answer to the next attempt tells whether the peer lives
			}
		} else {
			attempt++
		}
		if p.isEnding() {
			return
		}
		p.cfg.Logger.Debug("zmtp: connect again", "endpoint", p.endpoint, "cause", err, "after", pause)
		timer := time.NewTimer(pause - rand.N(pause/2+1))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		pause = min(2*pause, p.cfg.ReconnectMax)
	}
}

// once makes one connection and serves it to its end.
func (p *Push) once(ctx context.Context, attempt int) (up bool, err error) {
	dialCtx, cancel := context.WithTimeout(ctx, p.cfg.DialTimeout)
	nc, err := p.cfg.DialConn(dialCtx, "tcp", p.address)
	cancel()
	if err != nil {
		if ctx.Err() == nil {
			err = dialError(err)
			p.cfg.Events(ConnEvent{Kind: DialFailed, Endpoint: p.endpoint, Cause: err, Attempt: attempt})
		}
		return false, err
	}
	c := newConn(nc, &p.cfg, typePush, p.queue)
	if !p.setCurrent(c) {
		_ = nc.Close() // nothing was exchanged
		return false, ErrClosed
	}
	remote := nc.RemoteAddr().String()
	up, err = c.serve(func() {
		p.peer.Store(c.peer)
		p.cfg.Logger.Debug("zmtp: up", "endpoint", p.endpoint, "peer", remote)
		p.cfg.Events(ConnEvent{Kind: Up, Endpoint: p.endpoint, Remote: remote, Peer: c.peer})
	}, func([]message) error {
		return fmt.Errorf("%w: a PULL sent a message", ErrProtocol)
	})
	p.mu.Lock()
	p.current, p.ended = nil, err
	p.mu.Unlock()
	switch {
	case up:
		p.cfg.Events(ConnEvent{Kind: Down, Endpoint: p.endpoint, Remote: remote, Peer: c.peer, Cause: err, Stats: c.peer.Stats()})
	case ctx.Err() == nil:
		p.cfg.Events(ConnEvent{Kind: DialFailed, Endpoint: p.endpoint, Remote: remote, Cause: err, Attempt: attempt})
	}
	return up, err
}

// dialError gives a failed dial its name.
func dialError(err error) error {
	var ne net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: %w", ErrRefused, err)
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.As(err, &ne) && ne.Timeout():
		return fmt.Errorf("%w: %w", ErrDialTimeout, err)
	}
	return err
}
