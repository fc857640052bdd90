package drill

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// kind is what a proxy stands for.
type kind uint8

const (
	kindBoot    kind = iota // bootstrap server
	kindControl             // rank's control socket
	kindName                // engine's control listener
	kindData                // engine's data listener
)

// proxy stands before one listener. Whoever dials it is refused once its target is.
type proxy struct {
	net   *network
	kind  kind
	owner side // of the target
	port  int

	mu    sync.Mutex
	l     net.Listener // nil: refused
	conns map[*conn]struct{}
}

// conn is two connections that are one to their ends.
type conn struct {
	near, far *net.TCPConn // who dialled, the target
	once      sync.Once
	gone      chan struct{} // closed when it was broken
}

// leg is one direction of a conn.
type leg struct {
	proxy    *proxy
	conn     *conn
	src, dst *net.TCPConn
	towards  side
	scan     scanner
	behind   []byte // a message that lets the next one pass first
}

// listenTries bounds how long a port may be in use by a connection that has it by chance.
const listenTries = 100

// listen opens the proxy, again if need be.
func (p *proxy) listen(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var lc net.ListenConfig
	for try := 0; p.l == nil; try++ {
		l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(proxyHost, strconv.Itoa(p.port)))
		if err == nil {
			p.l, p.port = l, l.Addr().(*net.TCPAddr).Port
			p.net.wg.Go(func() { p.accept(l) })
			return nil
		}
		if p.port == 0 || try == listenTries || ctx.Err() != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}

// refuse closes the listener.
func (p *proxy) refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.l != nil {
		_ = p.l.Close() // nothing is lost
		p.l = nil
	}
}

func (p *proxy) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.end(true)
	}
}

func (p *proxy) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		p.net.wg.Go(func() { p.carry(c.(*net.TCPConn)) })
	}
}

func (p *proxy) dial() (*net.TCPConn, error) {
	c, err := net.DialTimeout("tcp", net.JoinHostPort(p.net.host, strconv.Itoa(p.port)), time.Second)
	if err != nil {
		if errors.Is(err, syscall.ECONNREFUSED) {
			p.refuse()
		}
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// carry serves one connection to its end.
func (p *proxy) carry(near *net.TCPConn) {
	c := &conn{near: near, gone: make(chan struct{})}
	p.mu.Lock()
	p.conns[c] = struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.conns, c)
		p.mu.Unlock()
		c.end(c.far == nil)
	}()
	if !p.net.open(c.gone, p.owner) {
		return
	}
	far, err := p.dial()
	if err != nil {
		return
	}
	p.mu.Lock()
	c.far = far
	p.mu.Unlock()
	select {
	case <-c.gone: // before it was known
		_ = far.Close()
		return
	default:
	}
	in := &leg{proxy: p, conn: c, src: near, dst: far, towards: p.owner, scan: p.scanner(true)}
	out := &leg{proxy: p, conn: c, src: far, dst: near, towards: p.owner.other(), scan: p.scanner(false)}
	var wg sync.WaitGroup
	wg.Go(in.run)
	wg.Go(out.run)
	wg.Wait()
}

func (p *proxy) scanner(in bool) scanner {
	switch {
	case p.kind == kindControl:
		return &zmtpScanner{}
	case p.kind == kindData && in:
		return &dataScanner{}
	}
	return &plain{}
}

// end closes both ends, with a reset if it is to be noticed at once. Only the first call counts.
func (c *conn) end(reset bool) {
	c.once.Do(func() {
		close(c.gone)
		for _, x := range []*net.TCPConn{c.near, c.far} {
			if x != nil && reset {
				_ = x.SetLinger(0) // it may be at its end
			}
			if x != nil {
				_ = x.Close() // as well
			}
		}
	})
}

// errStuck is a direction whose far end takes nothing any more.
var errStuck = errors.New("can't be passed on")

func (l *leg) run() {
	buf := make([]byte, 64<<10)
	for {
		n, err := l.src.Read(buf)
		l.scan.feed(buf[:n])
		for p, ok := l.scan.next(); ok; p, ok = l.scan.next() {
			if !l.forward(p) {
				l.end(errStuck)
				return
			}
		}
		if err != nil {
			l.end(err)
			return
		}
	}
}

// forward passes a piece on as the network allows; false: it can't be.
func (l *leg) forward(p piece) bool {
	n := l.proxy.net
	raw := p.raw
	switch n.hold(l, p) {
	case drop:
		return true
	case double:
		raw = append(append([]byte(nil), raw...), raw...)
	case garble:
		for _, f := range p.frames[2:] {
			for i := range f {
				f[i] = '?'
			}
		}
	case swap:
		l.behind = raw
		return true
	case pass:
	}
	if !n.open(l.conn.gone, l.towards) {
		return false
	}
	for len(raw) > 0 {
		some := len(raw)
		if p.payload {
			if some = n.allow(l.conn.gone, some); some == 0 || !n.open(l.conn.gone, l.towards) {
				return false
			}
			n.damage(raw[:some])
		}
		n.pace(l.conn.gone, l.towards, some)
		if _, err := l.dst.Write(raw[:some]); err != nil {
			return false
		}
		raw = raw[some:]
	}
	return p.frames == nil || l.catchUp()
}

func (l *leg) catchUp() bool {
	if l.behind == nil {
		return true
	}
	_, err := l.dst.Write(l.behind)
	l.behind = nil
	return err == nil
}

// end passes the end of a direction on, in its turn. Before the end of a target is passed on its listener is tried, so that who
// connects again learns what it would learn without a proxy.
func (l *leg) end(cause error) {
	if !l.proxy.net.open(l.conn.gone, l.towards) {
		return
	}
	clean := errors.Is(cause, io.EOF) && l.catchUp()
	if target := l.src == l.conn.far; (target || errors.Is(cause, errStuck)) && l.proxy.kind != kindName {
		if c, err := l.proxy.dial(); err == nil {
			_ = c.Close() // it was only asked
		}
	}
	if clean && l.dst.CloseWrite() == nil {
		return
	}
	l.conn.end(true)
}
