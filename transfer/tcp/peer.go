package tcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/kvferry/kvferry/transfer"
)

// maxIdle bounds the connections that are kept to one peer between batches.
const maxIdle = 8

// peer is a destination: its descriptor and the connections that no batch uses.
type peer struct {
	e    *Engine
	name string

	ask  sync.Mutex // one descriptor request at a time
	desc *descriptor

	mu     sync.Mutex
	idle   []*link
	closed bool
}

// link is a data connection to a target of version 2.
type link struct {
	c      *net.TCPConn
	native bool
	reused bool
}

func (e *Engine) peer(name string) (*peer, error) {
	if _, _, err := splitName(name); err != nil {
		return nil, fmt.Errorf("%w: peer %q, want host:port", transfer.ErrInvalid, name)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, transfer.ErrClosed
	}
	p := e.peers[name]
	if p == nil {
		p = &peer{e: e, name: name}
		e.peers[name] = p
	}
	return p, nil
}

// gone types a network error.
func gone(what string, err error) error {
	var ne net.Error
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%w: %s", transfer.ErrCanceled, what)
	case errors.As(err, &ne) && ne.Timeout():
		return fmt.Errorf("%w: %s: %w", transfer.ErrTimeout, what, err)
	}
	return fmt.Errorf("%w: %s: %w", transfer.ErrPeerGone, what, err)
}

func (e *Engine) dial(ctx context.Context, addr string) (*net.TCPConn, error) {
	d := net.Dialer{Timeout: e.cfg.DialTimeout}
	d.SetMultipathTCP(false)
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// control asks a peer one control message.
func (e *Engine) control1(ctx context.Context, name string, typ byte, body []byte) ([]byte, error) {
	c, err := e.dial(ctx, name)
	if err != nil {
		return nil, gone("connect to "+name, err)
	}
	defer func() { _ = c.Close() }() // one message a connection
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_ = c.SetDeadline(time.Now().Add(e.cfg.DialTimeout))
	if _, err := c.Write(appendControl(nil, typ, body)); err != nil {
		return nil, gone("ask "+name, err)
	}
	got, answer, err := readControl(c)
	if errors.Is(err, errControl) {
		return nil, fmt.Errorf("%w: %s: %w", transfer.ErrProtocol, name, err)
	}
	if err != nil {
		return nil, gone("answer of "+name, err)
	}
	if got != typ {
		return nil, fmt.Errorf("%w: %s answered type %d to %d", transfer.ErrProtocol, name, got, typ)
	}
	return answer, nil
}

// Probe asks whether a peer's engine answers. A peer from before probes closes without an answer, and is asked for its descriptor instead.
func (e *Engine) Probe(ctx context.Context, name string) error {
	if _, _, err := splitName(name); err != nil {
		return fmt.Errorf("%w: peer %q, want host:port", transfer.ErrInvalid, name)
	}
	_, err := e.control1(ctx, name, typeProbe, []byte("{}"))
	if errors.Is(err, io.EOF) {
		_, err = e.control1(ctx, name, typeMetadata, []byte("{}"))
	}
	return err
}

// describe asks for the descriptor once; a target that has just started may not have one yet, and is asked again.
func (p *peer) describe(ctx context.Context) (*descriptor, error) {
	p.ask.Lock()
	defer p.ask.Unlock()
	if p.desc != nil {
		return p.desc, nil
	}
	for try := 0; ; try++ {
		body, err := p.e.control1(ctx, p.name, typeMetadata, []byte("{}"))
		if err != nil {
			return nil, err
		}
		if json.Valid(body) && string(trim(body)) == "null" && try < 3 {
			select {
			case <-time.After(50 * time.Millisecond):
				continue
			case <-ctx.Done():
				return nil, fmt.Errorf("%w: descriptor of %s", transfer.ErrCanceled, p.name)
			}
		}
		d, err := readDescriptor(body)
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", transfer.ErrProtocol, p.name, err)
		}
		p.desc = &d
		return p.desc, nil
	}
}

func trim(b []byte) []byte {
	for len(b) > 0 && (b[len(b)-1] == '\n' || b[len(b)-1] == ' ') {
		b = b[:len(b)-1]
	}
	return b
}

// forget drops what is known of a peer after a failure.
func (p *peer) forget() {
	p.ask.Lock()
	p.desc = nil
	p.ask.Unlock()
	p.closeIdleKeepOpen()
}

func (p *peer) dataAddr(d *descriptor) string {
	host := d.DataHost
	if host == "" {
		host, _, _ = net.SplitHostPort(d.Name)
	}
	if host == "" {
		host, _, _ = net.SplitHostPort(p.name)
	}
	return net.JoinHostPort(host, strconv.Itoa(d.DataPort))
}

// get returns an idle connection or a new one. fresh: never an idle one.
func (p *peer) get(ctx context.Context, d *descriptor, fresh bool) (*link, error) {
	if !fresh {
		p.mu.Lock()
		if n := len(p.idle); n > 0 {
			l := p.idle[n-1]
			p.idle = p.idle[:n-1]
			p.mu.Unlock()
			l.reused = true
			return l, nil
		}
		p.mu.Unlock()
	}
	addr := p.dataAddr(d)
	c, err := p.e.dial(ctx, addr)
	if err != nil {
		return nil, gone("connect to "+addr, err)
	}
	l := &link{c: c, native: d.Native > 0 && !p.e.cfg.Foreign}
	if !l.native {
		return l, nil
	}
	var hello [headerLen]byte
	putHeader(hello[:], header{helloSize, helloAddr, opHello})
	_ = c.SetDeadline(time.Now().Add(p.e.cfg.DialTimeout))
	if _, err = c.Write(hello[:]); err == nil {
		_, err = io.ReadFull(c, hello[:statusLen])
	}
	_ = c.SetDeadline(time.Time{})
	if err == nil {
		var code uint32
		if code, err = parseStatus(hello[:]); err == nil && code != statusOK {
			err = fmt.Errorf("%w: hello answered with status %d", transfer.ErrProtocol, code)
		}
	}
	if err != nil {
		return nil, errors.Join(gone("hello to "+addr, err), c.Close())
	}
	return l, nil
}

// put keeps a sound connection for the next batch.
func (p *peer) put(l *link) {
	p.mu.Lock()
	if !p.closed && len(p.idle) < maxIdle {
		p.idle = append(p.idle, l)
		l = nil
	}
	p.mu.Unlock()
	if l != nil {
		_ = l.c.Close()
	}
}

func (p *peer) closeIdle() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.closeIdleKeepOpen()
}

func (p *peer) closeIdleKeepOpen() {
	p.mu.Lock()
	idle := p.idle
	p.idle = nil
	p.mu.Unlock()
	for _, l := range idle {
		_ = l.c.Close()
	}
}

// reset reports an error that a connection shows when its other end closed it while it was idle.
func reset(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
