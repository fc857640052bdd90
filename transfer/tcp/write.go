package tcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/kvferry/kvferry/transfer"
)

// Bounds of the initiator.
const (
	window     = 256      // requests without a status on one connection; Mooncake's lanes overflow at thousands
	copyBelow  = 16 << 10 // payloads below it are copied behind their headers, the others are written from where they are
	bounceLen  = 256 << 10
	vectorLen  = 64      // fragments of one vectored write
	twoLinks   = 1 << 20 // batches from this size on are spread over two connections
	v1Parallel = 8       // connections at a time to a target of version 1
)

// handle implements transfer.Handle.
type handle struct {
	cancel  context.CancelFunc
	done    chan struct{}
	settled chan struct{}

	mu  sync.Mutex
	err error
	end bool
}

func (h *handle) Done() <-chan struct{}    { return h.done }
func (h *handle) Settled() <-chan struct{} { return h.settled }

func (h *handle) Err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

func (h *handle) Cancel() {
	h.fail(transfer.ErrCanceled)
}

// fail makes err the outcome if there is none yet, and stops what is under way.
func (h *handle) fail(err error) {
	h.mu.Lock()
	if !h.end {
		h.end, h.err = true, err
		close(h.done)
	}
	h.mu.Unlock()
	h.cancel()
}

func (h *handle) finish() {
	h.mu.Lock()
	if !h.end {
		h.end = true
		close(h.done)
	}
	h.mu.Unlock()
	h.cancel()
	close(h.settled)
}

// part is the fragments that one connection carries, with the memory of its writer.
type part struct {
	frags   []transfer.Fragment
	bounce  []byte
	headers []byte
	vectors net.Buffers
}

var parts = sync.Pool{New: func() any { return &part{} }}

// Write implements transfer.Engine. Fragments without bytes are done at once.
func (e *Engine) Write(name string, batch []transfer.Fragment) (transfer.Handle, error) {
	p, err := e.peer(name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(e.ctx)
	h := &handle{cancel: cancel, done: make(chan struct{}), settled: make(chan struct{})}
	list := split(batch)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		cancel()
		return nil, transfer.ErrClosed
	}
	e.wg.Go(func() {
		defer h.finish()
		if len(list) == 0 {
			return
		}
		d, err := p.describe(ctx)
		if err != nil {
			h.fail(err)
			return
		}
		if d.ProtoVersion < 2 || e.cfg.Version1 {
			e.writeV1(ctx, h, p, d, list)
			return
		}
		var wg sync.WaitGroup
		for _, x := range list {
			wg.Go(func() {
				if err := p.carry(ctx, d, x); err != nil {
					p.forget()
					h.fail(err)
				}
				x.frags = x.frags[:0]
				parts.Put(x)
			})
		}
		wg.Wait()
	})
	return h, nil
}

// split copies the batch into one or two parts of about the same size.
func split(batch []transfer.Fragment) []*part {
	total := 0
	for _, f := range batch {
		total += len(f.Src)
	}
	if total == 0 {
		return nil
	}
	n := 1
	if total >= twoLinks && len(batch) > 1 {
		n = 2
	}
	list := make([]*part, 0, n)
	var x *part
	carried := 0
	for _, f := range batch {
		if len(f.Src) == 0 {
			continue
		}
		if x == nil || len(list) < n && carried >= total/n {
			x = parts.Get().(*part)
			list = append(list, x)
		}
		x.frags = append(x.frags, f)
		carried += len(f.Src)
	}
	return list
}

// carry writes a part over one connection. A connection that turns out to have been closed while it was idle is replaced once: writing the
// same bytes again does no harm.
func (p *peer) carry(ctx context.Context, d *descriptor, x *part) error {
	for fresh := false; ; fresh = true {
		l, err := p.get(ctx, d, fresh)
		if err != nil {
			return err
		}
		answered, err := p.stream(ctx, l, x)
		if err == nil {
			p.put(l)
			return nil
		}
		_ = l.c.Close()
		if ctx.Err() != nil {
			return transfer.ErrCanceled
		}
		if !fresh && l.reused && answered == 0 && reset(err) {
			continue
		}
		return err
	}
}

// stream sends all requests of a part and reads as many statuses. The reader runs beside the writer: a target that refuses closes with
// payload unread, and its word would be lost to a reset otherwise.
func (p *peer) stream(ctx context.Context, l *link, x *part) (answered int, err error) {
	stop := context.AfterFunc(ctx, func() { _ = l.c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	slots := make(chan struct{}, window)
	ended := make(chan struct{})
	var readErr error
	go func() {
		answered, readErr = p.statuses(ctx, l, len(x.frags), slots)
		close(ended)
	}()
	writeErr := p.send(ctx, l, x, slots, ended)
	if writeErr != nil {
		// The status may say why. It is either there already or does not come.
		_ = l.c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	}
	<-ended
	if readErr != nil && !errors.Is(readErr, errBroken) {
		return answered, readErr
	}
	if writeErr != nil {
		return answered, gone("write to "+p.name, writeErr)
	}
	if readErr != nil {
		return answered, readErr
	}
	if !stop() { // cancelled: the deadline is in the past
		return answered, transfer.ErrCanceled
	}
	_ = l.c.SetDeadline(time.Time{})
	return answered, nil
}

// errBroken is a connection that ended before all statuses had come.
var errBroken = errors.New("connection ended")

// statuses reads n status frames; each frees a slot of the window.
func (p *peer) statuses(ctx context.Context, l *link, n int, slots <-chan struct{}) (answered int, err error) {
	var buf [window * statusLen]byte
	have := 0
	for answered < n {
		if ctx.Err() == nil {
			_ = l.c.SetReadDeadline(time.Now().Add(p.e.cfg.Progress))
		}
		if ctx.Err() != nil { // after the deadline: AfterFunc's must not be undone
			return answered, transfer.ErrCanceled
		}
		k, err := l.c.Read(buf[have:min(len(buf), (n-answered)*statusLen)])
		have += k
		at := 0
		for ; have-at >= statusLen; at += statusLen {
			code, err := parseStatus(buf[at:])
			if err != nil {
				return answered, fmt.Errorf("%w: %s: %w", transfer.ErrProtocol, p.name, err)
			}
			if code != statusOK {
				return answered, refusal(p.name, code)
			}
			answered++
			<-slots
		}
		have = copy(buf[:], buf[at:have])
		if err != nil && answered < n {
			return answered, fmt.Errorf("%w: %w", errBroken, gone("status of "+p.name, err))
		}
	}
	return answered, nil
}

func refusal(name string, code uint32) error {
	switch code {
	case statusSealed:
		return fmt.Errorf("%w: %s", transfer.ErrSealed, name)
	case statusOutOfRange:
		return fmt.Errorf("%w: %s", transfer.ErrOutOfRange, name)
	}
	return fmt.Errorf("%w: %s answered status %d", transfer.ErrNotRegistered, name, code)
}

// sender gathers headers and payloads for as few system calls as possible.
type sender struct {
	*part
	c        *net.TCPConn
	progress time.Duration
	n        int // headers in use
}

// send writes every request of a part.
func (p *peer) send(ctx context.Context, l *link, x *part, slots chan<- struct{}, ended <-chan struct{}) error {
	s := sender{part: x, c: l.c, progress: p.e.cfg.Progress}
	if x.headers == nil {
		x.bounce, x.headers = make([]byte, 0, bounceLen), make([]byte, vectorLen*headerLen)
		x.vectors = make(net.Buffers, 0, 2*vectorLen+1)
	}
	x.bounce, x.vectors = x.bounce[:0], x.vectors[:0]
	for _, f := range x.frags {
		select {
		case slots <- struct{}{}:
		default: // the window is full: what is gathered must be on its way before a status can come
			if err := s.flush(ctx); err != nil {
				return err
			}
			select {
			case slots <- struct{}{}:
			case <-ended:
				return errBroken
			}
		}
		if err := s.add(ctx, f); err != nil {
			return err
		}
	}
	return s.flush(ctx)
}

// add gathers one request. Small payloads are copied; a large one follows the bytes gathered so far as a vector of its own.
func (s *sender) add(ctx context.Context, f transfer.Fragment) error {
	h := header{uint64(len(f.Src)), f.Dst, opWrite | flagV2}
	if len(f.Src) < copyBelow {
		if len(s.vectors) > 0 || len(s.bounce)+headerLen+len(f.Src) > cap(s.bounce) {
			if err := s.flush(ctx); err != nil {
				return err
			}
		}
		n := len(s.bounce)
		s.bounce = s.bounce[:n+headerLen]
		putHeader(s.bounce[n:], h)
		s.bounce = append(s.bounce, f.Src...)
		return nil
	}
	if len(s.bounce) > 0 || s.n == vectorLen {
		if err := s.flush(ctx); err != nil {
			return err
		}
	}
	b := s.headers[s.n*headerLen : (s.n+1)*headerLen]
	s.n++
	putHeader(b, h)
	s.vectors = append(s.vectors, b, f.Src)
	return nil
}

func (s *sender) flush(ctx context.Context) (err error) {
	_ = s.c.SetWriteDeadline(time.Now().Add(s.progress))
	if ctx.Err() != nil {
		return transfer.ErrCanceled
	}
	if len(s.bounce) > 0 {
		_, err = s.c.Write(s.bounce)
	} else if len(s.vectors) > 0 {
		v := s.vectors
		_, err = v.WriteTo(s.c)
		clear(s.vectors) // no reference to the sources is kept
	}
	s.bounce, s.vectors, s.n = s.bounce[:0], s.vectors[:0], 0
	return err
}

// writeV1 sends each request over a connection of its own: such a target may serve no second one. There is no status, but after our half
// close it closes cleanly only when it has consumed the whole payload.
func (e *Engine) writeV1(ctx context.Context, h *handle, p *peer, d *descriptor, list []*part) {
	limit := make(chan struct{}, v1Parallel)
	var wg sync.WaitGroup
	for _, x := range list {
		for _, f := range x.frags {
			limit <- struct{}{}
			if ctx.Err() != nil {
				break
			}
			wg.Go(func() {
				defer func() { <-limit }()
				if err := e.oneV1(ctx, p.dataAddr(d), f); err != nil {
					p.forget()
					h.fail(err)
				}
			})
		}
	}
	wg.Wait()
}

func (e *Engine) oneV1(ctx context.Context, addr string, f transfer.Fragment) error {
	c, err := e.dial(ctx, addr)
	if err != nil {
		return gone("connect to "+addr, err)
	}
	defer func() { _ = c.Close() }() // it carries nothing more
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var b [headerLen]byte
	putHeader(b[:], header{uint64(len(f.Src)), f.Dst, opWrite})
	if _, err := c.Write(b[:]); err != nil {
		return gone("write to "+addr, err)
	}
	for src := f.Src; len(src) > 0; {
		_ = c.SetWriteDeadline(time.Now().Add(e.cfg.Progress))
		if ctx.Err() != nil {
			return transfer.ErrCanceled
		}
		n, err := c.Write(src[:min(len(src), bounceLen)])
		src = src[n:]
		if err != nil {
			return gone("write to "+addr, err)
		}
	}
	if err := c.CloseWrite(); err != nil {
		return gone("end of write to "+addr, err)
	}
	_ = c.SetReadDeadline(time.Now().Add(e.cfg.Progress))
	if ctx.Err() != nil {
		return transfer.ErrCanceled
	}
	if n, err := c.Read(b[:1]); n > 0 {
		return fmt.Errorf("%w: %s sent bytes after a write of version 1", transfer.ErrProtocol, addr)
	} else if !errors.Is(err, io.EOF) {
		return gone("confirmation of "+addr, err)
	}
	return nil
}
