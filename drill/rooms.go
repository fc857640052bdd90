package drill

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvferry/kvferry/handoff"
	"github.com/kvferry/kvferry/room"
)

// hand is one room and what its owner has of it.
type hand struct {
	id    room.ID
	life  uint64
	half  ender
	tx    *handoff.Sender
	rx    *handoff.Receiver
	pages []int32
	slot  int // -1: none

	quiet, letGo, back bool // nothing touches the pages any more; their owner wants them no more; they are on their way to the pool
}

// ender is what senders and receivers have in common.
type ender interface {
	handoff.Half
	Ready() <-chan struct{}
	Cleared() <-chan struct{}
}

var errRoom = errors.New("no such room here")

func (s *server) hand(id room.ID) (*hand, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.rooms[id]; h != nil {
		return h, nil
	}
	return nil, fmt.Errorf("%w: %d", errRoom, id)
}

// obey does one order.
func (s *server) obey(o order) (word, error) {
	switch o.Op {
	case "open":
		return word{}, s.open(o)
	case "tables":
		return word{Tables: s.tables()}, nil
	case "guards":
		return word{}, s.guards()
	case "hoard":
		return word{}, s.gather(o.Pages)
	case "share":
		s.mu.Lock()
		pages := s.hoard
		s.hoard = nil
		s.mu.Unlock()
		return word{}, s.pages().Release(pages)
	case "fault":
		s.engine.inject(o.Fault)
		return word{}, nil
	case "heal":
		s.engine.heal()
		return word{}, nil
	case "close":
		return word{}, s.close()
	}
	h, err := s.hand(o.Room)
	if err != nil {
		return word{}, err
	}
	switch o.Op {
	case "post":
		return word{}, s.post(h, o.Pages)
	case "chunk":
		return word{}, s.chunk(h, o)
	case "check":
		return word{}, s.arrived(h)
	case "abort":
		code, _ := room.ParseCode(o.Code)
		h.half.Abort(room.NewCause(code, s.side, "", o.Text))
	case "clear":
		h.half.Clear()
		s.mu.Lock()
		h.letGo = true
		s.mu.Unlock()
		return word{}, s.giveBack(h)
	default:
		return word{}, fmt.Errorf("unknown order %q", o.Op)
	}
	return word{}, nil
}

// open makes the room. Prefill has its pages and their content at once, decode takes its pages when it posts.
func (s *server) open(o order) error {
	h := &hand{id: o.Room, life: o.Life, slot: -1}
	if s.prefill != nil {
		if err := s.take(h, o.Pages); err != nil {
			return err
		}
		for i, p := range h.pages {
			s.stamp(p, h.stampOf(i))
		}
		s.stampAux(h.slot, h.stampOf(0))
		tx, err := s.prefill.Send(o.Room)
		if err != nil {
			return err
		}
		h.tx, h.half = tx, tx
	} else {
		rx, err := s.decode.Open(o.Room, handoff.Peer{Bootstrap: o.Boot, DPRank: -1})
		if err != nil {
			return err
		}
		h.rx, h.half = rx, rx
	}
	s.mu.Lock()
	s.rooms[h.id] = h
	s.mu.Unlock()
	s.watch(h)
	return nil
}

func (h *hand) stampOf(page int) stamp {
	return stamp{room: uint64(h.id), life: h.life, chunk: uint32(page * chunks / roomPages), page: uint32(page)}
}

// take gives the room its pages and an aux slot.
func (s *server) take(h *hand, n int) error {
	pages, ok := s.pages().Alloc(n)
	if !ok {
		return fmt.Errorf("room %d wants %d pages, %d are free", h.id, n, s.pages().Free())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h.pages = pages
	for i := range s.slots {
		if !s.slots[i] {
			s.slots[i], h.slot = true, i
			return nil
		}
	}
	return errors.New("no aux slot is free")
}

func (s *server) post(h *hand, n int) error {
	if err := s.take(h, n); err != nil {
		return err
	}
	err := h.rx.Post(handoff.Destination{Pages: h.pages, Aux: h.slot})
	return errors.Join(err, s.giveBack(h)) // it may have had its verdict before
}

func (s *server) chunk(h *hand, o order) error {
	s.mu.Lock()
	pages := h.pages
	s.mu.Unlock()
	if pages == nil {
		return nil // it had its verdict before
	}
	per := roomPages / chunks
	c := handoff.Chunk{Pages: pages[o.Chunk*per : (o.Chunk+1)*per], Aux: -1, Last: o.Chunk == chunks-1}
	if c.Last {
		c.Aux = h.slot
	}
	return h.tx.Chunk(c)
}

// watch tells what happens to a room.
func (s *server) watch(h *hand) {
	tell := func(c <-chan struct{}, f func() (word, bool)) {
		s.telling.Go(func() {
			<-c
			if w, ok := f(); ok {
				w.Room = h.id
				s.say(w)
			}
		})
	}
	tell(h.half.Ready(), func() (word, bool) { return word{Event: evMet}, h.half.Status() != room.Failed })
	tell(h.half.Done(), func() (word, bool) {
		v := h.half.Verdict()
		w := word{Event: evDone, Status: v.Status.String()}
		if !v.OK() {
			w.Code, w.Cause = v.Cause.Code.String(), v.Cause.Error()
		}
		return w, true
	})
	tell(h.half.Quiescent(), func() (word, bool) {
		s.mu.Lock()
		h.quiet = true
		h.letGo = h.letGo || h.tx != nil || !h.half.Verdict().OK()
		s.mu.Unlock()
		err := s.giveBack(h)
		w := word{Event: evQuiescent}
		if h.rx != nil {
			w.Proof = string(h.rx.Proof())
		}
		if err != nil {
			w.Error = err.Error()
		}
		return w, true
	})
	tell(h.half.Cleared(), func() (word, bool) {
		s.mu.Lock()
		delete(s.rooms, h.id)
		s.mu.Unlock()
		return word{Event: evCleared}, true
	})
}

// giveBack puts a room's pages under guard and into the pool, once nothing can touch them and their owner wants them no more.
func (s *server) giveBack(h *hand) error {
	s.mu.Lock()
	if !h.quiet || !h.letGo || h.back && h.pages == nil {
		s.mu.Unlock()
		return nil
	}
	h.back = true
	pages, slot := h.pages, h.slot
	h.pages, h.slot = nil, -1
	s.mu.Unlock()
	for _, p := range pages {
		s.stamp(p, guard)
	}
	err := s.pages().Release(pages)
	if slot >= 0 {
		s.stampAux(slot, guard)
		s.mu.Lock()
		s.slots[slot] = false
		s.mu.Unlock()
	}
	s.say(word{Event: evFree, Room: h.id})
	return err
}

// arrived checks that every byte of the room's pages is the sender's.
func (s *server) arrived(h *hand) error {
	for i, p := range h.pages {
		if err := s.check(p, h.stampOf(i)); err != nil {
			return err
		}
	}
	return auxShape.check(s.slot(h.slot), auxRegion, h.stampOf(0))
}

// guards checks that nobody has written to what is free.
func (s *server) guards() error {
	pages, ok := s.pages().Alloc(s.pages().Free())
	if !ok {
		return errors.New("the pool changes under the check")
	}
	defer func() { _ = s.pages().Release(pages) }() // they were just taken
	for _, p := range pages {
		if err := s.check(p, guard); err != nil {
			return fmt.Errorf("free %w", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, taken := range s.slots {
		if !taken {
			if err := auxShape.check(s.slot(i), auxRegion, guard); err != nil {
				return fmt.Errorf("free aux slot %d: %w", i, err)
			}
		}
	}
	return nil
}

// gather takes pages so that rooms find none.
func (s *server) gather(n int) error {
	pages, ok := s.pages().Alloc(n)
	if !ok {
		return fmt.Errorf("%d pages are free, not %d", s.pages().Free(), n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hoard = append(s.hoard, pages...)
	return nil
}

// close is a planned end: goodbye, and then the sockets.
func (s *server) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var err error
	if s.decode != nil {
		err = s.decode.Close(ctx)
	} else {
		err = s.prefill.Close(ctx)
	}
	told := make(chan struct{})
	go func() {
		s.telling.Wait()
		close(told)
	}()
	select {
	case <-told:
	case <-ctx.Done(): // rooms that are not quiescent never say so
	}
	return errors.Join(err, s.engine.Close(ctx))
}
