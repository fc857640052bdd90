package main

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvferry/kvferry/handoff"
	"github.com/kvferry/kvferry/room"
)

// hang ends a wait for a room that the harness would wait for without end.
const hang = 2 * time.Minute

// topologyWait is how long a receiver waits for its prefill ranks.
const topologyWait = 15 * time.Second

var errHang = errors.New("no verdict")

// await waits for a channel of the library to be closed.
func await(c <-chan struct{}, limit time.Duration) bool {
	select { // a timer only where there is something to wait for
	case <-c:
		return true
	default:
	}
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-c:
		return true
	case <-t.C:
		return false
	}
}

// series is a `rounds` under way: rooms one after the other, some at a time.
type series struct {
	*peer
	o            *op
	began, ended []int64
	acknowledged atomic.Int64
}

// rounds carries n rooms of one page each from `first` on, this side's half of them. As many goroutines as rooms may be open take the next
// room each; nothing polls, so that the library is measured and not the harness.
func (p *peer) rounds(o *op) (answer, error) {
	if o.N < 1 || o.N > 1<<20 || !o.First.set {
		return nil, fmt.Errorf("%d rooms from %d on", o.N, o.First.id)
	}
	s := &series{peer: p, o: o, began: make([]int64, o.N), ended: make([]int64, o.N)}
	one := s.receive
	if p.prefill != nil {
		one = s.send
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, min(max(1, o.Inflight), o.N))
	began := monotonic()
	for w := range errs {
		wg.Go(func() {
			for errs[w] == nil {
				i := int(next.Add(1)) - 1
				if i >= o.N {
					return
				}
				errs[w] = one(i)
			}
		})
	}
	wg.Wait()
	a := answer{"seconds": float64(monotonic()-began) / 1e9, "began": s.began, "ended": s.ended}
	if o.Abort && p.decode != nil {
		a["acknowledged"] = s.acknowledged.Load()
	}
	return a, errors.Join(errs...)
}

func (s *series) room(i int) room.ID { return s.o.First.id + room.ID(i) }

// send is P's half of room i: sent, given up, or, where D is to abort it, only opened.
func (s *series) send(i int) error {
	tx, err := s.prefill.Send(s.room(i))
	if err != nil {
		return err
	}
	defer tx.Clear()
	if !await(tx.Ready(), hang) {
		return fmt.Errorf("room %d: %w", tx.Room(), errHang)
	}
	s.began[i] = monotonic()
	switch {
	case s.o.Abort:
	case s.o.Fail:
		tx.Abort(room.NewCause(room.Invalid, room.Prefill, "", "measured failure"))
	default:
		err = tx.Chunk(handoff.Chunk{Pages: []int32{int32(i % s.pages)}, Aux: i % s.auxSlots, Last: true})
	}
	if err == nil && !await(tx.Done(), hang) {
		err = fmt.Errorf("room %d: %w", tx.Room(), errHang)
	}
	s.ended[i] = monotonic()
	return err
}

// receive is D's half of room i, which ends with the verdict, or, where D aborts it, when its page may be used again.
func (s *series) receive(i int) error {
	rx, err := s.open(s.room(i), s.o, topologyWait)
	if err != nil {
		return err
	}
	defer rx.Clear()
	s.began[i] = monotonic()
	if err := rx.Post(handoff.Destination{Pages: []int32{int32(i % s.pages)}, Aux: i % s.auxSlots}); err != nil {
		return err
	}
	if !s.o.Abort {
		ok := await(rx.Done(), hang)
		s.ended[i] = monotonic()
		if !ok {
			return fmt.Errorf("room %d: %w", rx.Room(), errHang)
		}
		return nil
	}
	time.Sleep(s.o.pause()) // P has it by then
	s.began[i] = monotonic()
	rx.Abort(room.NewCause(room.Aborted, room.Decode, "", "Aborted by AbortReq."))
	limit := s.o.seconds(0)
	if limit == 0 {
		limit = hang
	}
	if await(rx.Done(), hang) && await(rx.Quiescent(), limit) {
		s.acknowledged.Add(1)
	}
	s.ended[i] = monotonic()
	return nil
}

// open makes a receiver and waits until its prefill ranks are known.
func (p *peer) open(id room.ID, o *op, limit time.Duration) (*handoff.Receiver, error) {
	addr := o.Bootstrap
	if addr == "" {
		addr = p.bootstrap
	}
	rx, err := p.decode.Open(id, handoff.Peer{Bootstrap: addr, DPRank: o.DPRank})
	if err != nil {
		return nil, err
	}
	if !await(rx.Ready(), limit) {
		rx.Clear()
		return nil, errors.New("no parallel info")
	}
	return rx, nil
}

// move carries one large room, this side's half of it: P sends the pages in chunks.
func (p *peer) move(o *op) (answer, error) {
	pages, err := o.pageList()
	if err != nil {
		return nil, err
	}
	var h handoff.Half
	var began int64
	if p.prefill != nil {
		h, began, err = p.moveOut(o, pages)
	} else {
		var rx *handoff.Receiver
		if rx, err = p.open(o.Room.id, o, topologyWait); err == nil {
			h, began = rx, monotonic()
			err = rx.Post(handoff.Destination{Pages: pages, Aux: o.aux(0)})
		}
	}
	if h != nil {
		defer h.Clear()
	}
	if err != nil {
		return nil, err
	}
	if !await(h.Done(), hang) {
		return nil, fmt.Errorf("room %d: %w", h.Room(), errHang)
	}
	return answer{"status": h.Status().String(), "began_ns": began, "ended_ns": monotonic()}, nil
}

func (p *peer) moveOut(o *op, pages []int32) (h handoff.Half, began int64, err error) {
	tx, err := p.prefill.Send(o.Room.id)
	if err != nil {
		return nil, 0, err
	}
	if !await(tx.Ready(), hang) {
		return tx, 0, fmt.Errorf("room %d: %w", tx.Room(), errHang)
	}
	size := o.Chunk
	if size < 1 {
		size = max(1, len(pages))
	}
	began = monotonic()
	for len(pages) > 0 && err == nil {
		n := min(size, len(pages))
		c := handoff.Chunk{Pages: pages[:n], Aux: -1}
		if pages = pages[n:]; len(pages) == 0 {
			c.Aux, c.Last = o.aux(0), true
		}
		err = tx.Chunk(c)
	}
	return tx, began, err
}

// threads names what has started each goroutine; for looking only.
func threads() []string {
	buf := make([]byte, 1<<20)
	var names []string
	for line := range strings.Lines(string(buf[:runtime.Stack(buf, true)])) {
		if name, ok := strings.CutPrefix(line, "created by "); ok {
			name, _, _ = strings.Cut(strings.TrimSpace(name), " in goroutine")
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
