package tcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvferry/kvferry/transfer"
)

// Bounds of what is known of peers.
const (
	describeTries = 4                     // for a target that has just started and has no descriptor, or no data port, yet
	describeWait  = 50 * time.Millisecond // between them
	freshly       = 10 * time.Millisecond // a connection to a native peer that was in use then is taken without a look: writeV2 replaces a stale one
)

// peer is a destination: its descriptor and its connections of version 2.
type peer struct {
	e    *Engine
	name string
	ask  chan struct{} // has an element while somebody asks for the descriptor

	mu    sync.Mutex
	desc  *descriptor
	idle  []*link // the one used last at the end
	links int     // idle, in use, or being dialled
	queue []chan *link
	users int // batches; under Engine.mu
	used  time.Time
}

// link is a data connection to a target of version 2. One batch at a time has it.
type link struct {
	c      *net.TCPConn
	desc   *descriptor // by which it was dialled
	native bool
	sums   bool // requests carry checksums
	reused bool
	used   time.Time

	// The write under way.
	raw    syscall.RawConn
	try    func(uintptr) bool
	vector vector
	s      *stream
	n      int
	err    error
}

// errOtherInstance is a hello to an engine that is not the incarnation that the descriptor told of.
var errOtherInstance = errors.New("not the incarnation that it was")

// write writes what is pending of s, and takes away from it what is written, until all is or an error comes.
func (l *link) write(s *stream) (n int, err error) {
	l.s, l.n, l.err = s, 0, nil
	err = l.raw.Write(l.try)
	if err == nil {
		err = l.err
	}
	if errors.Is(err, os.ErrDeadlineExceeded) { // perhaps that of an earlier write
		if werr := s.waits(); werr != nil {
			err = werr
		}
	}
	l.s = nil
	return l.n, err
}

func (l *link) tryWrite(fd uintptr) bool {
	x := l.s.x
	for len(x.pending) > 0 {
		n, err := l.vector.writev(fd, x.pending)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			l.err = l.s.waits()
			return l.err != nil
		case err != nil:
			l.err = os.NewSyscallError("write", err)
			return true
		default:
			l.n += n
			x.pending = advance(x.pending, n)
		}
	}
	return true
}

// advance takes n bytes away from the front.
func advance(list [][]byte, n int) [][]byte {
	for len(list) > 0 && n >= len(list[0]) {
		n -= len(list[0])
		list = list[1:]
	}
	if n > 0 {
		list[0] = list[0][n:]
	}
	return list
}

// enter finds or makes a peer and counts a batch in.
func (e *Engine) enter(name string) (*peer, error) {
	if _, _, err := transfer.SplitName(name); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, transfer.ErrClosed
	}
	p := e.peers[name]
	if p == nil {
		p = &peer{e: e, name: name, ask: make(chan struct{}, 1)}
		e.peers[name] = p
	}
	p.users++
	e.wg.Add(1)
	return p, nil
}

// leave counts a batch out.
func (p *peer) leave() {
	p.e.mu.Lock()
	p.users--
	p.used = time.Now()
	p.e.mu.Unlock()
	p.e.wg.Done()
}

func (p *peer) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.links
}

// sweep closes connections that nobody uses and forgets peers that nobody writes to, until the engine is closed; then all of them.
func (e *Engine) sweep() {
	t := time.NewTicker(max(e.cfg.Keep/4, time.Millisecond))
	defer t.Stop()
	for {
		now := time.Now()
		select {
		case now = <-t.C:
		case <-e.ctx.Done():
			now = now.Add(100 * 365 * 24 * time.Hour)
		}
		e.mu.Lock()
		for name, p := range e.peers {
			p.trim(now.Add(-e.cfg.Keep))
			if p.users == 0 && p.count() == 0 && now.Sub(p.used) > e.cfg.Keep {
				delete(e.peers, name)
			}
		}
		e.mu.Unlock()
		if e.ctx.Err() != nil {
			return
		}
	}
}

// trim closes the idle connections that were last used before a time, and those whose peer is gone.
func (p *peer) trim(before time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = slices.DeleteFunc(p.idle, func(l *link) bool {
		if !l.used.Before(before) && l.silent() {
			return false
		}
		_ = l.c.Close() // idle
		p.links--
		return true
	})
}

// describe is the peer's descriptor, asked for once.
func (p *peer) describe(ctx context.Context) (*descriptor, error) {
	select {
	case p.ask <- struct{}{}:
	case <-ctx.Done():
		return nil, p.e.ended("descriptor of " + p.name)
	}
	defer func() { <-p.ask }()
	p.mu.Lock()
	d := p.desc
	p.mu.Unlock()
	for try := 1; d == nil; try++ {
		body, err := p.e.ask(ctx, p.name, typeMetadata, []byte("{}"))
		if err != nil {
			return nil, err
		}
		if d, err = readDescriptor(body); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", transfer.ErrProtocol, p.name, err)
		}
		if d == nil && try == describeTries {
			return nil, fmt.Errorf("%w: %s has no descriptor", transfer.ErrPeerGone, p.name)
		}
		if d == nil && !pause(ctx) {
			return nil, p.e.ended("descriptor of " + p.name)
		}
	}
	p.mu.Lock()
	p.desc = d
	p.mu.Unlock()
	return d, nil
}

// pause waits before another try.
func pause(ctx context.Context) bool {
	select {
	case <-time.After(describeWait):
		return true
	case <-ctx.Done():
		return false
	}
}

// forget drops a descriptor and the idle connections after a failure: the name may belong to another incarnation now.
func (p *peer) forget(d *descriptor) {
	p.mu.Lock()
	if p.desc == d {
		p.desc = nil
	}
	p.mu.Unlock()
	p.trim(time.Now().Add(time.Hour))
}

// get gives a batch a connection: an idle one unless fresh, or a new one, or, while there are as many as may be, the next that is given back.
func (p *peer) get(ctx context.Context, d *descriptor, fresh bool) (*link, error) {
	p.mu.Lock()
	for !fresh && len(p.idle) > 0 {
		l := p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		if l.desc == d && (l.native && time.Since(l.used) < freshly || l.silent()) {
			p.mu.Unlock()
			l.reused = true
			return l, nil
		}
		_ = l.c.Close() // stale
		p.links--
	}
	if p.links < p.e.cfg.PeerConns {
		p.links++
		p.mu.Unlock()
		return p.connect(ctx, d)
	}
	mine := make(chan *link, 1)
	p.queue = append(p.queue, mine)
	p.mu.Unlock()
	var l *link
	select {
	case l = <-mine:
	case <-ctx.Done():
		p.mu.Lock()
		i := slices.Index(p.queue, mine)
		if i >= 0 {
			p.queue = slices.Delete(p.queue, i, i+1)
		}
		p.mu.Unlock()
		if i < 0 { // it has been served in the meantime
			p.put(<-mine)
		}
		return nil, p.e.ended("wait for a connection to " + p.name)
	}
	if l != nil && l.desc == d && !fresh {
		l.reused = true
		return l, nil
	}
	if l != nil {
		_ = l.c.Close() // of an older descriptor, or not wanted
	}
	return p.connect(ctx, d)
}

// connect dials in the place that get has taken; it is given back on failure.
func (p *peer) connect(ctx context.Context, d *descriptor) (*link, error) {
	addr := d.dataAddr(p.name)
	for try := 1; ; try++ {
		l, err := p.open(ctx, d, addr)
		if err == nil {
			return l, nil
		}
		if try == 1 && errors.Is(err, syscall.ECONNREFUSED) && pause(ctx) { // a target listens on its data port last
			continue
		}
		p.put(nil)
		return nil, err
	}
}

// open dials, and says hello to a native peer.
func (p *peer) open(ctx context.Context, d *descriptor, addr string) (*link, error) {
	c, err := p.e.dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	l := &link{c: c, desc: d, native: d.Native > 0 && d.Instance != nil && !p.e.cfg.Foreign}
	l.try = l.tryWrite
	if l.raw, err = c.SyscallConn(); err != nil {
		_ = c.Close() // useless
		return nil, gone("connection to "+addr, err)
	}
	if !l.native {
		return l, nil
	}
	l.sums = d.Native >= sumsFrom && !p.e.cfg.NoChecksums
	_ = c.SetDeadline(time.Now().Add(p.e.cfg.DialTimeout))
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(past) })
	b := appendHeader(make([]byte, 0, headerLen+helloLen), header{size: helloSize, addr: helloAddr, op: opHello})
	b = append(append(b, p.e.cfg.Instance[:]...), d.Instance[:]...)
	var code uint32
	if _, err = c.Write(b); err == nil {
		if _, err = io.ReadFull(c, b[:statusLen]); err == nil {
			code, err = parseStatus(b)
		}
	}
	if !stop() {
		_ = c.Close() // useless
		return nil, p.e.ended("hello to " + addr)
	}
	_ = c.SetDeadline(time.Time{})
	switch {
	case err == nil && code == statusOK:
		return l, nil
	case errors.Is(err, errStatus):
		err = fmt.Errorf("%w: %s: %w", transfer.ErrProtocol, addr, err)
	case err == nil:
		err = fmt.Errorf("%w: %w: %s (status %d)", transfer.ErrPeerGone, errOtherInstance, addr, code)
	default:
		err = gone("hello to "+addr, err)
	}
	_ = c.Close() // useless
	return nil, err
}

// put gives a connection back, or, as nil, only its place.
func (p *peer) put(l *link) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) > 0 {
		next := p.queue[0]
		p.queue = p.queue[1:]
		next <- l // has room
		return
	}
	if l == nil {
		p.links--
		return
	}
	if l.desc != p.desc || p.e.ctx.Err() != nil {
		_ = l.c.Close() // nobody will want it
		p.links--
		return
	}
	l.used = now
	p.idle = append(p.idle, l)
}

// silent reports whether the connection is as an idle one should be: open, with nothing to read.
func (l *link) silent() bool {
	raw, err := l.c.SyscallConn()
	if err != nil {
		return false
	}
	ok := false
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		ok = errors.Is(err, unix.EAGAIN)
	})
	return err == nil && ok
}

// reset reports an error that a connection shows when its other end closed it while it was idle.
func reset(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
