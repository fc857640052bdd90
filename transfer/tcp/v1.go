package tcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvferry/kvferry/transfer"
)

// v1Parallel is how many connections at a time a batch has to a target of version 1.
const v1Parallel = 8

// writeV1 sends each fragment over a connection of its own: such a target may serve no second one. There is no status, but after our half
// close it closes cleanly only when it has consumed the whole payload.
func (p *peer) writeV1(h *handle, d *descriptor, list []*part) {
	addr := d.dataAddr(p.name)
	var wg sync.WaitGroup
	for _, x := range list {
		var next atomic.Int64
		for range min(v1Parallel/len(list), len(x.frags)) {
			wg.Go(func() {
				for h.ctx.Err() == nil {
					i := int(next.Add(1)) - 1
					if i >= len(x.frags) {
						return
					}
					if err := p.oneV1(h.ctx, addr, x.frags[i]); err != nil {
						h.loose.Store(true)
						p.forget(d)
						h.fail(err)
					}
				}
			})
		}
	}
	wg.Wait()
	if h.ctx.Err() != nil {
		h.conclude(p.e.ended("write to " + p.name))
	}
}

// oneV1 writes one fragment.
func (p *peer) oneV1(ctx context.Context, addr string, f transfer.Fragment) (err error) {
	c, err := p.e.dial(ctx, addr)
	if err != nil {
		return err
	}
	defer func() {
		if ctx.Err() != nil {
			_ = c.SetLinger(0) // what the kernel still holds is not sent
			err = p.e.ended("write to " + addr)
		}
		_ = c.Close() // it carries nothing more
	}()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(past) })
	defer stop()
	limit := p.e.cfg.Progress
	head := appendHeader(nil, header{size: uint64(len(f.Src)), addr: f.Dst, op: opWrite})
	for _, b := range [][]byte{head, f.Src} {
		for len(b) > 0 {
			_ = c.SetWriteDeadline(time.Now().Add(limit))
			if ctx.Err() != nil {
				return transfer.ErrCanceled
			}
			n, err := c.Write(b)
			b = b[n:]
			if err != nil && (n == 0 || !errors.Is(err, os.ErrDeadlineExceeded)) {
				return gone("write to "+addr, err)
			}
		}
	}
	p.e.counts.out.Add(uint64(headerLen + len(f.Src)))
	if err := c.CloseWrite(); err != nil {
		return gone("end of write to "+addr, err)
	}
	_ = c.SetReadDeadline(time.Now().Add(limit))
	if ctx.Err() != nil {
		return transfer.ErrCanceled
	}
	if n, err := c.Read(head[:1]); n > 0 {
		return fmt.Errorf("%w: %s sent bytes after a write of version 1", transfer.ErrProtocol, addr)
	} else if !errors.Is(err, io.EOF) {
		return gone("confirmation of "+addr, err)
	}
	return nil
}
