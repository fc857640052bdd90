package transfertest

import (
	"context"
	"errors"
	"time"

	"github.com/kvferry/kvferry/transfer"
)

func isError(err, want error) bool { return errors.Is(err, want) }

// cancelInMidTransfer: a cancelled batch settles though its peer stands still, and reads its source no more. Once the receiver has sealed,
// nothing lands either.
func (s *suite) cancelInMidTransfer() {
	from, to := s.engine(), s.engine()
	x, l, batch := s.big(to)
	src := s.memory(len(x.mem)) // is taken away when the batch has settled
	s.fill(src.mem)
	for i := range batch {
		batch[i].Src = src.mem[i*x.item : (i+1)*x.item]
	}
	h, resume := s.stalled(from, x, batch)
	s.notDone(h)
	h.Cancel()
	s.fails(s.end(h), transfer.ErrCanceled)
	h.Cancel()
	s.free(src)
	if l != nil && s.cfg.Capabilities.CancelProves {
		s.released(l)
		copy(x.shadow, x.mem)
		resume()
		// What comes after the cancelled batch comes after all of it.
		y := s.target(to, x.item, 4)
		m := y.openAll(0)
		s.must(from, to.Name(), y.frag(0, 0, 0, s.source(len(y.mem))))
		s.whole(m)
		x.check()
		return
	}
	resume()
}

func (s *suite) cancelBeforeAndAfter() {
	from, to := s.engine(), s.engine()
	x := s.target(to, 1<<20, 8)
	l := x.openAll(0)
	for range 20 {
		h := s.start(from, to.Name(), transfer.Fragment{Src: s.source(1 << 20), Dst: x.addr(0, 0, 0)})
		h.Cancel()
		if err := s.end(h); err != nil {
			s.fails(err, transfer.ErrCanceled)
		}
	}
	h := s.start(from, to.Name(), x.frag(0, 0, 0, s.source(8<<20)))
	if err := s.end(h); err != nil {
		s.Fatalf("write: %v", err)
	}
	h.Cancel()
	if h.Err() != nil {
		s.Errorf("cancelled after its end: %v", h.Err())
	}
	x.check()
	s.whole(l)
}

func (s *suite) slowPeer() {
	from, slow, to := s.engine(), s.engine(), s.engine()
	x, _, batch := s.big(slow)
	var held []transfer.Handle
	h, resume := s.stalled(from, x, batch)
	held = append(held, h)
	for range 12 {
		held = append(held, s.start(from, slow.Name(), batch...))
	}
	y := s.target(to, 64<<10, 32)
	l := y.openAll(0)
	s.must(from, to.Name(), y.frag(0, 0, 0, s.source(2<<20)))
	y.check()
	s.whole(l)
	for _, h := range held {
		s.notDone(h)
	}
	for _, h := range held[1:] { // also those that wait for a connection
		h.Cancel()
		s.fails(s.end(h), transfer.ErrCanceled)
	}
	resume()
	if err := s.end(held[0]); err != nil {
		s.Errorf("the slow batch: %v", err)
	}
	for i, f := range batch {
		copy(x.shadow[i*x.item:], f.Src)
	}
	x.check()
}

func (s *suite) peerVanishes() {
	from, to := s.engine(), s.engine()
	x, _, batch := s.big(to)
	h, _ := s.stalled(from, x, batch)
	s.notDone(h)
	s.fabric.Cut(to.Name())
	s.fails(s.end(h), transfer.ErrPeerGone)
	s.fails(s.end(s.start(from, to.Name(), batch...)), transfer.ErrPeerGone)
	if !s.native {
		return
	}
	// Between two batches.
	next := s.engine()
	y := s.target(next, 4096, 4)
	y.openAll(0)
	s.must(from, next.Name(), y.frag(0, 0, 0, s.source(4096)))
	s.fabric.Cut(next.Name())
	s.fails(s.end(s.start(from, next.Name(), y.frag(0, 0, 0, s.source(4096)))), transfer.ErrPeerGone)
}

func (s *suite) writerVanishes() {
	from, to, other := s.engine(), s.engine(), s.engine()
	x, l, batch := s.big(to)
	h, resume := s.stalled(from, x, batch)
	s.fabric.Cut(from.Name())
	resume()
	h.Cancel()
	_ = s.end(h) // it may have been faster
	s.released(l)
	y := s.target(to, 4096, 4)
	m := y.openAll(0)
	s.must(other, to.Name(), y.frag(0, 0, 0, s.source(4*4096)))
	y.check()
	s.whole(m)
}

func (s *suite) peerCloses() {
	from, to := s.engine(), s.engine()
	x, l, batch := s.big(to)
	h, resume := s.stalled(from, x, batch)
	if err := to.Close(s.ctx()); err != nil {
		s.Fatalf("close: %v", err)
	}
	if l != nil {
		s.wait("Idle", l.Idle())
	}
	resume()
	// Of what had arrived before, a foreign engine may have been told that it is sunk.
	s.fails(s.end(h), transfer.ErrPeerGone, transfer.ErrSealed)
	if _, err := to.Register(make([]byte, 10), 1); !isError(err, transfer.ErrClosed) {
		s.Errorf("register after close: %v", err)
	}
}

func (s *suite) closeInMidTransfer() {
	from, to := s.engine(), s.engine()
	x, _, batch := s.big(to)
	h, _ := s.stalled(from, x, batch)
	late := s.start(from, to.Name(), batch...)
	if err := from.Close(s.ctx()); err != nil {
		s.Fatalf("close: %v", err)
	}
	for _, h := range []transfer.Handle{h, late} {
		select {
		case <-h.Settled():
		default:
			s.Fatal("closed before a batch has settled")
		}
		s.fails(s.end(h), transfer.ErrClosed, transfer.ErrCanceled)
	}
}

func (s *suite) doubleClose() {
	e, other := s.engine(), s.engine()
	x := s.target(e, 4096, 4)
	l := x.openAll(0)
	s.must(other, e.Name(), x.frag(0, 0, 0, s.source(4096)))
	done := make(chan error, 3)
	for range 3 {
		go func() { done <- e.Close(s.ctx()) }()
	}
	for range 3 {
		select {
		case err := <-done:
			if err != nil {
				s.Errorf("close: %v", err)
			}
		case <-time.After(hang):
			s.Fatal("Close does not return")
		}
	}
	if err := e.Close(context.Background()); err != nil {
		s.Errorf("close: %v", err)
	}
	if l != nil {
		s.wait("Idle", l.Idle())
		if _, err := e.Open(transfer.Grant{}); !isError(err, transfer.ErrClosed) {
			s.Errorf("open after close: %v", err)
		}
		l.Seal()
		l.Retire()
	}
	if _, err := e.Write(other.Name(), nil); !isError(err, transfer.ErrClosed) {
		s.Errorf("write after close: %v", err)
	}
	if _, err := e.Register(make([]byte, 10), 1); !isError(err, transfer.ErrClosed) {
		s.Errorf("register after close: %v", err)
	}
	if err := e.Probe(s.ctx(), other.Name()); !isError(err, transfer.ErrClosed) {
		s.Errorf("probe after close: %v", err)
	}
	if err := x.region.Unregister(s.ctx()); err != nil {
		s.Errorf("unregister after close: %v", err)
	}
	s.fails(s.end(s.start(other, e.Name(), transfer.Fragment{Src: s.source(10), Dst: 1})), transfer.ErrPeerGone)
}

func (s *suite) probe() {
	from, to := s.engine(), s.engine()
	if err := from.Probe(s.ctx(), to.Name()); err != nil {
		s.Errorf("probe: %v", err)
	}
	resume := s.fabric.Stall(to.Name(), 0)
	ctx, cancel := context.WithCancel(s.ctx())
	done := make(chan error, 1)
	go func() { done <- from.Probe(ctx, to.Name()) }()
	cancel()
	select {
	case err := <-done:
		if err != nil { // it may have been faster than the stall
			s.fails(err, transfer.ErrCanceled)
		}
	case <-time.After(hang):
		s.Fatal("a cancelled probe does not return")
	}
	resume()
	if err := from.Probe(s.ctx(), to.Name()); err != nil {
		s.Errorf("probe: %v", err)
	}
	s.fabric.Cut(to.Name())
	s.fails(from.Probe(s.ctx(), to.Name()), transfer.ErrPeerGone)
}

// junk: bytes that make no sense change nothing and stop nothing.
func (s *suite) junk() {
	from, to := s.engine(), s.engine()
	x := s.target(to, 64<<10, 8)
	l := x.openAll(0)
	for range 30 {
		b := make([]byte, 1+s.rng.IntN(3000))
		s.fill(b)
		err := s.fabric.Junk(to.Name(), b)
		if !s.cfg.Wire {
			s.fails(err, transfer.ErrUnsupported)
		} else if err != nil {
			s.Fatalf("junk: %v", err)
		}
	}
	x.check()
	s.must(from, to.Name(), x.frag(0, 0, 0, s.source(8*64<<10)))
	x.check()
	s.whole(l)
}
