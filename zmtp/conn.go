package zmtp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// maxControl bounds the control bytes that wait for the writer; a PONG beyond it is not sent, because the peer is not reading.
const maxControl = 32 << 10

// conn is one connection: handshake, reader, writer. The owner runs serve; fail ends it from anywhere.
//
//	greeting out ─→ greeting in ─→ READY out ─→ READY in ─→ up ─ error, fail ─→ done
type conn struct {
	nc    net.Conn
	cfg   *Config
	ours  string // our socket type
	peer  *Peer
	dec   *decoder
	minor byte
	batch []message // decoded, on their way to the inbox
	spin  *spinReader

	greeting bool // a Pull's: counted among its handshakes, under its lock

	queue *sendQueue    // what the writer sends once up; nil for a PULL
	wake  chan struct{} // tells the writer that there is something to send; capacity 1
	done  chan struct{} // closed by fail

	mu     sync.Mutex
	ctl    []byte // greeting and commands that wait for the writer
	up     bool
	last   bool  // the writer ends its direction, and sends nothing more
	failed error // first cause; set before done is closed
}

func newConn(nc net.Conn, cfg *Config, ours string, queue *sendQueue) *conn {
	c := &conn{nc: nc, cfg: cfg, ours: ours, queue: queue, done: make(chan struct{})}
	c.peer = &Peer{id: lastPeerID.Add(1), remote: nc.RemoteAddr(), born: time.Now(), conn: c}
	c.dec = newDecoder(c, cfg.Limits)
	c.spin = newSpinReader(nc)
	if queue != nil {
		c.wake = queue.wake
	} else {
		c.wake = make(chan struct{}, 1)
	}
	return c
}

// Read reads from the socket and keeps the peer's counts.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.nc.Read(b)
	c.came(n)
	return n, err
}

// readSoon is Read for who expects an answer in a moment.
func (c *conn) readSoon(b []byte) (n int, err error) {
	if c.spin == nil {
		return c.Read(b)
	}
	n, err = c.spin.read(b)
	c.came(n)
	return n, err
}

func (c *conn) came(n int) {
	if n > 0 {
		c.peer.bytesIn.Add(uint64(n))
		c.peer.lastIn.Store(int64(time.Since(c.peer.born)))
	}
}

// fail ends the connection; the first cause is kept.
func (c *conn) fail(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed != nil {
		return
	}
	c.failed = cause
	close(c.done)
	_ = c.nc.Close() // the cause is known; the close adds nothing
}

func (c *conn) cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

// serve runs the connection until it ends. onUp is called once READY is in, before any message can flow; deliver takes the messages, in a
// slice that is used again. It returns whether the connection was up, and the cause of its end.
func (c *conn) serve(onUp func(), deliver func([]message) error) (wasUp bool, cause error) {
	writer := make(chan struct{})
	c.control(appendGreeting(nil))
	go func() {
		defer close(writer)
		c.writeLoop()
	}()
	err := c.handshake()
	if err == nil {
		wasUp = true
		onUp()
		c.setUp()
		err = c.readLoop(deliver)
	}
	c.fail(c.named(err))
	<-writer
	if c.queue != nil {
		c.queue.detach()
	}
	c.peer.down.Store(true)
	c.dec = nil // a Peer may be kept long, its buffers need not
	return wasUp, c.cause()
}

func (c *conn) isUp() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.up
}

func (c *conn) setUp() {
	c.mu.Lock()
	c.up = true
	c.mu.Unlock()
	if c.queue != nil {
		c.queue.attach(c)
	}
}

// finish ends our direction once the writer is idle; the peer answers by ending its own when it has read everything. A connection that
// can't do that, or is not up, is ended at once.
func (c *conn) finish() (waits bool) {
	_, can := c.nc.(closeWriter)
	c.mu.Lock()
	can = can && c.up
	c.last = can
	c.mu.Unlock()
	if !can {
		c.fail(ErrClosed)
		return false
	}
	c.signal()
	return true
}

type closeWriter interface{ CloseWrite() error }

func (c *conn) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// control queues bytes that go before any message.
func (c *conn) control(b []byte) {
	c.mu.Lock()
	if len(c.ctl)+len(b) <= maxControl {
		c.ctl = append(c.ctl, b...)
	}
	c.mu.Unlock()
	c.signal()
}

// controlSent says whether no control bytes wait: READY, above all, goes before any message. What the writer has in hand counts as sent,
// because nobody else writes then.
func (c *conn) controlSent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.ctl) == 0
}

func (c *conn) handshake() error {
	if err := c.nc.SetReadDeadline(time.Now().Add(c.cfg.HandshakeTimeout)); err != nil {
		return err
	}
	g, err := c.dec.greeting()
	if err != nil {
		return err
	}
	c.minor = g.minor
	c.control(appendReady(nil, ready{socketType: c.ours, props: c.cfg.Properties}))
	r, err := c.readReady()
	if err != nil {
		return err
	}
	want := typePull
	if c.ours == typePull {
		want = typePush
	}
	if r.socketType != want {
		return fmt.Errorf("%w: the peer is %q, want %s", ErrSocketType, clip([]byte(r.socketType)), want)
	}
	c.peer.props, c.peer.version = r.props, fmt.Sprintf("3.%d", min(g.minor, versionMinor))
	return c.nc.SetReadDeadline(time.Time{})
}

func (c *conn) readReady() (ready, error) {
	body, _, err := c.dec.next()
	if err != nil {
		return ready{}, err
	}
	if body == nil {
		return ready{}, fmt.Errorf("%w: a message before READY", ErrProtocol)
	}
	name, data, err := parseCommand(body)
	if err != nil {
		return ready{}, err
	}
	switch name {
	case cmdReady:
		return parseReady(data)
	case cmdError:
		return ready{}, fmt.Errorf("%w: %s", ErrPeerError, parseError(data))
	}
	return ready{}, fmt.Errorf("%w: command %q before READY", ErrProtocol, clip([]byte(name)))
}

func (c *conn) readLoop(deliver func([]message) error) error {
	for {
		ms, err := c.dec.ready(c.batch[:0], maxBatch, c.command)
		if len(ms) == 0 && err == nil {
			body, m, more := c.dec.next()
			switch {
			case more != nil:
				return more
			case body == nil:
				ms = append(ms, m)
			default:
				err = c.command(body)
			}
		}
		c.peer.messagesIn.Add(uint64(len(ms)))
		c.batch = ms
		if len(ms) > 0 { // whole messages count, whatever ends the connection
			if err := deliver(ms); err != nil {
				return err
			}
			clear(ms)
		}
		if err != nil {
			return err
		}
	}
}

// command handles a command after READY. Unknown ones are no error: later minor versions may add some.
func (c *conn) command(body []byte) error {
	name, data, err := parseCommand(body)
	if err != nil {
		return err
	}
	switch name {
	case cmdPing:
		context, err := parsePing(data)
		if err != nil {
			return err
		}
		c.control(appendCommand(nil, cmdPong, context))
	case cmdError:
		return fmt.Errorf("%w: %s", ErrPeerError, parseError(data))
	case cmdReady:
		return fmt.Errorf("%w: READY twice", ErrProtocol)
	}
	return nil
}

// named gives an error of the socket the name that callers test for.
func (c *conn) named(err error) error {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrClosedPipe): // the latter from net.Pipe
		return ErrPeerClosed
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w: no READY within %v, %d bytes came", ErrHandshakeTimeout, c.cfg.HandshakeTimeout, c.peer.bytesIn.Load())
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("%w: %w", ErrPeerReset, err)
	}
	return err
}

// writeLoop sends what waits: control bytes first, then messages, as many as there are in one call. It ends with the connection.
func (c *conn) writeLoop() {
	ping := newPinger(c)
	defer ping.stop()
	var (
		ctl, spare []byte
		b          batch
		vec        net.Buffers
	)
	for {
		select {
		case <-ping.c:
			ping.tick()
		default:
		}
		cut, ok, last := false, true, false
		vec = append(vec[:0], nil) // the first is for control bytes
		if c.queue != nil {
			vec, cut, ok = c.queue.begin(&b, vec)
		}
		if ctl = nil; ok && !cut {
			c.mu.Lock()
			ctl, last = c.ctl, c.last
			c.ctl = spare[:0]
			c.mu.Unlock()
			vec[0], spare = ctl, ctl
		}
		if !ok || len(vec) == 1 && len(ctl) == 0 || last {
			if ok && c.queue != nil {
				c.queue.end(&b, 0, nil)
			}
			if last {
				c.closeWrite()
				return
			}
			select {
			case <-c.wake:
			case <-ping.c:
				ping.tick()
			case <-c.done:
				return
			}
			continue
		}
		n, err := c.write(vec)
		messages := 0
		if c.queue != nil {
			messages = c.queue.end(&b, max(n-len(ctl), 0), err)
		}
		c.wrote(n, messages)
		if err != nil {
			// A PULL reads on to the end: what the peer sent before it went is still to be had.
			if c.queue != nil {
				c.fail(c.named(err))
			}
			return
		}
	}
}

func (c *conn) closeWrite() {
	if err := c.nc.(closeWriter).CloseWrite(); err != nil {
		c.fail(c.named(err))
	}
}

// wrote counts what the kernel has taken.
func (c *conn) wrote(bytes, messages int) {
	c.peer.bytesOut.Add(uint64(bytes))
	c.peer.messagesOut.Add(uint64(messages))
}

func (c *conn) write(vec net.Buffers) (int, error) {
	if len(vec[0]) == 0 {
		vec = vec[1:]
	}
	if len(vec) == 1 {
		return c.nc.Write(vec[0])
	}
	w := vec // WriteTo consumes its receiver
	n, err := w.WriteTo(c.nc)
	return int(n), err
}

// pinger decides when PING is due. Used by the writer only.
type pinger struct {
	conn  *conn
	timer *time.Timer
	c     <-chan time.Time
}

func newPinger(c *conn) *pinger {
	p := &pinger{conn: c}
	if c.cfg.PingInterval > 0 {
		p.timer = time.NewTimer(c.cfg.PingInterval)
		p.c = p.timer.C
	}
	return p
}

func (p *pinger) stop() {
	if p.timer != nil {
		p.timer.Stop()
	}
}

// tick queues a PING if the peer has been silent for the interval, and sets the timer again.
//
// A libzmq PUSH that closes may leave messages in its kernel's send buffer, and bytes that reach a closed socket make its kernel throw those
// away. So a peer that may be libzmq gets no PING while its bytes wait in our socket: it is we who are silent then. Our own Push, known by
// its application properties, stays until its peer has read everything, and is pinged all the same, to hear from us.
func (p *pinger) tick() {
	c, interval := p.conn, p.conn.cfg.PingInterval
	if wait := interval - (time.Since(c.peer.born) - time.Duration(c.peer.lastIn.Load())); wait > 0 {
		p.timer.Reset(wait)
		return
	}
	if c.isUp() && c.minor >= 1 && (len(c.peer.props) > 0 || unread(c.nc) == 0) {
		c.control(pingFrame)
	}
	p.timer.Reset(interval)
}

// pingFrame has time to live 0 (the peer is not asked to give us up) and no context.
var pingFrame = appendCommand(nil, cmdPing, binary.BigEndian.AppendUint16(nil, 0))
