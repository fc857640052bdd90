// Package mem is the engine within one process: writes are copies between the memories of two engines of one [Network]. It has everything
// that an engine can have, so it serves as the fake in tests, in fake time too.
//
// Each batch has one goroutine, which ends when the batch settles. Close waits for it. There is no time-out: a stalled peer holds a batch
// until Cancel.
package mem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/space"
)

// piece is how many bytes are copied between two looks at what may have changed.
const piece = 256 << 10

// Network is the engines that can reach each other, and the faults between them.
type Network struct {
	mu      sync.Mutex
	engines map[string]*Engine
	last    int
}

// NewNetwork makes a network without engines.
func NewNetwork() *Network { return &Network{engines: map[string]*Engine{}} }

// Config is fixed for an engine's life.
type Config struct {
	// Foreign makes the engine one that does not know ErrSealed: what it writes to a sealed range is discarded, and it is told that all is
	// well. The same holds for what others write to it.
	Foreign bool
}

// Engine implements transfer.Engine.
type Engine struct {
	network *Network
	name    string
	foreign bool
	space   *space.Space
	limits  transfer.Limits
	done    chan struct{} // closed by Close and Cut

	mu     sync.Mutex
	end    error         // why done is closed
	stall  chan struct{} // not nil: nothing flows to this engine until it is closed,
	allow  int           // but for so many bytes
	wg     sync.WaitGroup
	closed bool
}

var _ transfer.Engine = (*Engine)(nil)

// New makes an engine. Its name is of no engine before it.
func (n *Network) New(cfg Config) *Engine {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last++
	e := &Engine{network: n, name: fmt.Sprintf("mem:%d", n.last), foreign: cfg.Foreign, space: space.New(), done: make(chan struct{})}
	n.engines[e.name] = e
	return e
}

func (n *Network) find(name string) *Engine {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.engines[name]
}

// Stall stops what flows to the named engine once another so many bytes have passed, in pieces of at most 256 KiB, until resume is called. It is
// for tests.
func (n *Network) Stall(name string, after int) (resume func()) {
	e := n.find(name)
	gate := make(chan struct{})
	e.mu.Lock()
	e.stall, e.allow = gate, after
	e.mu.Unlock()
	return sync.OnceFunc(func() {
		e.mu.Lock()
		e.stall = nil
		e.mu.Unlock()
		close(gate)
	})
}

// Cut ends the named engine as if its process had been killed: what flows to and from it breaks, and nobody reaches it again. It is for tests.
func (n *Network) Cut(name string) { n.find(name).finish(transfer.ErrPeerGone) }

// finish ends everything to and from the engine.
func (e *Engine) finish(why error) {
	e.network.mu.Lock()
	delete(e.network.engines, e.name)
	e.network.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.end == nil {
		e.end = why
		close(e.done)
	}
}

// Name implements transfer.Engine.
func (e *Engine) Name() string { return e.name }

// Capabilities implements transfer.Engine: everything.
func (e *Engine) Capabilities() transfer.Capabilities {
	return transfer.Capabilities{ReceiverApplied: true, VirtualPages: true, Confirmed: true, CancelProves: true}
}

// Register implements transfer.Engine.
func (e *Engine) Register(mem []byte, item int) (transfer.Region, error) {
	return e.space.Register(mem, item)
}

// Open implements transfer.Engine.
func (e *Engine) Open(g transfer.Grant) (transfer.Lease, error) { return e.space.Open(g) }

// Restrict implements transfer.Engine.
func (e *Engine) Restrict(peer string, ranges []transfer.Range) error {
	return e.limits.Set(peer, ranges)
}

// Probe implements transfer.Engine. A stalled peer is waited for.
func (e *Engine) Probe(ctx context.Context, peer string) error {
	to, err := e.dial(peer)
	if err != nil {
		return err
	}
	return e.flow(to, 1, ctx.Done())
}

// dial checks a peer's name and finds the peer; nil: it is gone.
func (e *Engine) dial(peer string) (*Engine, error) {
	if _, _, err := transfer.SplitName(peer); err != nil {
		return nil, err
	}
	e.mu.Lock()
	closed := e.closed
	e.mu.Unlock()
	if closed {
		return nil, transfer.ErrClosed
	}
	return e.network.find(peer), nil
}

// flow waits until n bytes may flow to the peer, and reports why nothing flows any more.
func (e *Engine) flow(to *Engine, n int, canceled <-chan struct{}) error {
	if to == nil {
		return transfer.ErrPeerGone
	}
	for {
		to.mu.Lock()
		gate, end := to.stall, to.end
		if gate != nil && to.allow >= n {
			to.allow -= n
			gate = nil
		}
		to.mu.Unlock()
		select {
		case <-canceled:
			return transfer.ErrCanceled
		case <-e.done:
			return e.end
		default:
		}
		if end != nil {
			return transfer.ErrPeerGone
		}
		if gate == nil {
			return nil
		}
		select {
		case <-gate:
		case <-to.done:
		case <-e.done:
		case <-canceled:
		}
	}
}

// handle implements transfer.Handle.
type handle struct {
	done, settled, canceled chan struct{}
	cancel                  func()
	err                     error // before done is closed
	frags                   []transfer.Fragment
	cursor                  space.Cursor
}

func (h *handle) Done() <-chan struct{}    { return h.done }
func (h *handle) Settled() <-chan struct{} { return h.settled }
func (h *handle) Cancel()                  { h.cancel() }

// Answered implements transfer.Handle: a copy is over when it returns.
func (h *handle) Answered() bool { return true }

func (h *handle) Err() error {
	select {
	case <-h.done:
		return h.err
	default:
		return nil
	}
}

// Write implements transfer.Engine.
func (e *Engine) Write(peer string, batch []transfer.Fragment) (transfer.Handle, error) {
	to, err := e.dial(peer)
	if err != nil {
		return nil, err
	}
	if err := e.limits.Check(peer, batch); err != nil {
		return nil, err
	}
	h := &handle{done: make(chan struct{}), settled: make(chan struct{}), canceled: make(chan struct{}), frags: slices.Clone(batch)}
	h.cancel = sync.OnceFunc(func() { close(h.canceled) })
	h.cursor.Kick = func() {} // a copy waits for nobody
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, transfer.ErrClosed
	}
	e.wg.Go(func() {
		for _, f := range h.frags {
			if h.err = e.carry(h, to, f); h.err != nil {
				h.err = fmt.Errorf("write to %s: %w", peer, h.err)
				break
			}
		}
		h.frags = nil
		close(h.done)
		close(h.settled)
	})
	return h, nil
}

// carry copies one fragment.
func (e *Engine) carry(h *handle, to *Engine, f transfer.Fragment) error {
	if len(f.Src) == 0 {
		return nil
	}
	if err := e.flow(to, 0, h.canceled); err != nil {
		return err
	}
	native := !e.foreign && !to.foreign
	c := &h.cursor
	defer c.End()
	if err := to.space.Begin(c, f.Dst, uint64(len(f.Src))); err != nil {
		if !native && errors.Is(err, transfer.ErrSealed) {
			return nil
		}
		return err
	}
	for src := f.Src; len(src) > 0; {
		if err := e.flow(to, min(len(src), piece), h.canceled); err != nil {
			return err
		}
		mem := c.Next(piece)
		if mem == nil {
			break
		}
		n := copy(mem, src)
		c.Place(n)
		src = src[n:]
	}
	if c.Sunk() && native {
		return transfer.ErrSealed
	}
	return nil
}

// Close implements transfer.Engine.
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.finish(transfer.ErrClosed)
	if err := e.space.Close(ctx); err != nil {
		return err
	}
	settled := make(chan struct{})
	go func() { // ends when the batches do, at the latest when their peers' locks are free
		e.wg.Wait()
		close(settled)
	}()
	select {
	case <-settled:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("batches have not settled: %w", ctx.Err())
	}
}
