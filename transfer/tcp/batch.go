package tcp

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/kvferry/kvferry/transfer"
)

// twoLinks is the size from which on a batch is spread over two connections: below, the second costs more than it brings.
const twoLinks = 1 << 20

// handle implements transfer.Handle.
type handle struct {
	ctx     context.Context // ends when the batch is to stop at once: what it has under way is cut
	cancel  context.CancelFunc
	done    chan struct{}
	settled chan struct{}
	stopped atomic.Bool // nothing more is begun; what is under way ends by itself
	loose   atomic.Bool // requests were sent whose answers have not come

	mu    sync.Mutex
	err   error
	end   bool   // done is closed
	quiet bool   // settled is closed
	tell  func() // when it is
}

func (h *handle) Answered() bool { return !h.loose.Load() }

func (h *handle) Done() <-chan struct{}    { return h.done }
func (h *handle) Settled() <-chan struct{} { return h.settled }

func (h *handle) Err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

func (h *handle) Cancel() { h.fail(transfer.ErrCanceled) }

// WhenSettled calls f when the batch has settled. One caller may use it.
func (h *handle) WhenSettled(f func()) {
	h.mu.Lock()
	if !h.quiet {
		h.tell = f
		f = func() {}
	}
	h.mu.Unlock()
	f()
}

func (h *handle) settle() {
	h.mu.Lock()
	h.quiet = true
	close(h.settled)
	f := h.tell
	h.mu.Unlock()
	if f != nil {
		f()
	}
}

// conclude makes err the outcome if there is none yet.
func (h *handle) conclude(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.end {
		h.end, h.err = true, err
		close(h.done)
	}
}

// refuse fails the batch with the peer's word. What is under way has answers to come, and the connections stay sound.
func (h *handle) refuse(err error) {
	h.stopped.Store(true)
	h.conclude(err)
}

// fail fails the batch and cuts what is under way.
func (h *handle) fail(err error) {
	h.conclude(err)
	h.cancel()
}

// Write implements transfer.Engine.
func (e *Engine) Write(name string, batch []transfer.Fragment) (transfer.Handle, error) {
	if err := e.limits.Check(name, batch); err != nil {
		return nil, err
	}
	p, err := e.enter(name)
	if err != nil {
		return nil, err
	}
	h := &handle{done: make(chan struct{}), settled: make(chan struct{})}
	h.ctx, h.cancel = context.WithCancel(e.ctx)
	list := split(batch)
	e.spawn(func() {
		if len(list) > 0 {
			p.carry(h, list)
		}
		for _, x := range list {
			x.release()
		}
		h.conclude(nil)
		h.cancel()
		h.settle()
		p.leave() // was counted in by enter
	})
	return h, nil
}

// maxHands is how many goroutines of batches are kept when they have nothing to do: a new one begins by growing its stack.
const maxHands = 16

// spawn runs f on a goroutine that is free, or on a new one. The caller is counted in by enter.
func (e *Engine) spawn(f func()) {
	select {
	case e.jobs <- f:
	default:
		e.wg.Go(func() {
			for f != nil {
				f()
				f = e.job()
			}
		})
	}
}

// job waits for something to do; nil: enough others wait, or the engine is closed.
func (e *Engine) job() (f func()) {
	if e.waiting.Add(1) <= maxHands {
		select {
		case f = <-e.jobs:
		case <-e.ctx.Done():
		}
	}
	e.waiting.Add(-1)
	return f
}

// carry writes the parts of a batch.
func (p *peer) carry(h *handle, list []*part) {
	d, err := p.describe(h.ctx)
	if err != nil {
		h.fail(err)
		return
	}
	if d.ProtoVersion < 2 || p.e.cfg.Version1 {
		p.writeV1(h, d, list)
		return
	}
	one := func(x *part) {
		d := d
		err := p.writeV2(h, d, x)
		if errors.Is(err, errOtherInstance) { // what we know is of the one before
			p.forget(d)
			x.loose = false // what a connection to the one before has taken can't reach this one's memory
			if d, err = p.describe(h.ctx); err == nil {
				err = p.writeV2(h, d, x)
			}
		}
		if x.loose {
			h.loose.Store(true)
		}
		if err != nil {
			p.forget(d)
			h.fail(err)
		}
	}
	var wg sync.WaitGroup
	for _, x := range list[1:] {
		wg.Go(func() { one(x) })
	}
	one(list[0])
	wg.Wait()
}

// split copies the batch into one or two parts of about the same size, without the fragments that have no bytes.
func split(batch []transfer.Fragment) []*part {
	total, some := 0, 0
	for _, f := range batch {
		total += len(f.Src)
		if len(f.Src) > 0 {
			some++
		}
	}
	if some == 0 {
		return nil
	}
	n := 1
	if total >= twoLinks && some > 1 {
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
