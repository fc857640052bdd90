package tcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/kvferry/kvferry/transfer"
)

// past is a deadline that makes whoever waits return at once.
var past = time.Unix(1, 0)

// gone types a network error.
func gone(what string, err error) error {
	var ne net.Error
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
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
	if ctx.Err() != nil {
		if err == nil {
			_ = c.Close()
		}
		return nil, e.ended("connect to " + addr)
	}
	if err != nil {
		return nil, gone("connect to "+addr, err)
	}
	return c.(*net.TCPConn), nil
}

// ended is why a context of ours has ended.
func (e *Engine) ended(what string) error {
	if e.ctx.Err() != nil {
		return fmt.Errorf("%w: %s", transfer.ErrClosed, what)
	}
	return fmt.Errorf("%w: %s", transfer.ErrCanceled, what)
}

// ask sends a peer one control message and returns the answer. The connection is closed at once: a Mooncake daemon serves nobody else before.
func (e *Engine) ask(ctx context.Context, name string, typ byte, body []byte) ([]byte, error) {
	c, err := e.dial(ctx, name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }() // one message a connection
	_ = c.SetDeadline(time.Now().Add(e.cfg.DialTimeout))
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(past) })
	defer stop()
	got, answer := typ, []byte(nil)
	if _, err = c.Write(appendControl(nil, typ, body)); err == nil {
		got, answer, err = readControl(c)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, e.ended("ask " + name)
	case errors.Is(err, errControl):
		return nil, fmt.Errorf("%w: %s: %w", transfer.ErrProtocol, name, err)
	case err != nil:
		return nil, gone("answer of "+name, err)
	case got != typ:
		return nil, fmt.Errorf("%w: %s answered type %d to %d", transfer.ErrProtocol, name, got, typ)
	}
	return answer, nil
}

// asking checks a peer's name and joins the engine's life to a caller's context.
func (e *Engine) asking(ctx context.Context, name string) (context.Context, context.CancelFunc, error) {
	if _, _, err := transfer.SplitName(name); err != nil {
		return nil, nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, nil, transfer.ErrClosed
	}
	e.wg.Add(1)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(e.ctx, cancel)
	return ctx, func() { stop(); cancel(); e.wg.Done() }, nil
}

// Probe implements transfer.Engine. A peer from before probes closes without an answer, and is asked for its descriptor instead.
func (e *Engine) Probe(ctx context.Context, name string) error {
	ctx, done, err := e.asking(ctx, name)
	if err != nil {
		return err
	}
	defer done()
	_, err = e.ask(ctx, name, typeProbe, []byte("{}"))
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		_, err = e.ask(ctx, name, typeMetadata, []byte("{}"))
	}
	return err
}

// Notify sends a peer a notify message, which its engine hands to whoever asks for it. Errors: as Probe's; ErrProtocol when it is rejected.
func (e *Engine) Notify(ctx context.Context, peer, name, msg string) error {
	ctx, done, err := e.asking(ctx, peer)
	if err != nil {
		return err
	}
	defer done()
	body, err := json.Marshal(notification{name, msg})
	if err != nil {
		return fmt.Errorf("%w: %w", transfer.ErrInvalid, err)
	}
	if len(body) >= maxControl {
		return fmt.Errorf("%w: notify message of %d bytes, want less than %d", transfer.ErrInvalid, len(body), maxControl)
	}
	answer, err := e.ask(ctx, peer, typeNotify, body)
	if err != nil {
		return err
	}
	var n notification
	if err := json.Unmarshal(answer, &n); err != nil || n.Msg == "" {
		return fmt.Errorf("%w: %s rejects the notify message with %.100q", transfer.ErrProtocol, peer, answer)
	}
	return nil
}
