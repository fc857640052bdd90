package worker

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"sync"

	"github.com/kvferry/kvferry/event"
	"github.com/kvferry/kvferry/handoff"
	"github.com/kvferry/kvferry/room"
)

// job is one request on this instance. The scheduler goroutine and the request's own share it; fields behind the blank line belong to the
// scheduler from admission on.
type job struct {
	*Request
	w      *Worker
	out    chan token // decode: tokens, closed at the end; room for all of them, so that the scheduler never waits for a client
	over   chan struct{}
	once   sync.Once
	err    error  // valid when over is closed
	finish string // why it ended without an error

	group   *handoff.Group
	halves  []handoff.Half
	senders []*handoff.Sender
	pages   [][]int32 // by rank: the page table, held by this job
	slot    int       // aux slot, -1: none
	pos     int       // tokens computed
	handed  int       // pages handed over, prefill
	chunk   int
	ids     []int32 // decode: tokens so far, the prompt included
}

type token struct {
	id     int32
	digest [32]byte
}

// end closes the job with its outcome, once.
func (j *job) end(finish string, err error) {
	j.once.Do(func() {
		j.finish, j.err = finish, err
		close(j.over)
	})
}

func (j *job) ended() bool {
	select {
	case <-j.over:
		return true
	default:
		return false
	}
}

// admit puts a request into the queue. Errors: draining, exhausted, superseded.
func (w *Worker) admit(q *Request) (*job, error) {
	j := &job{Request: q, w: w, over: make(chan struct{}), slot: -1, out: make(chan token, q.MaxTokens)}
	if text := w.quarantined(); text != "" {
		return nil, room.NewCause(room.Draining, w.cfg.Side, "", text)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.leaving:
		return nil, room.NewCause(room.Draining, w.cfg.Side, "", "the instance is leaving")
	case len(w.queue) >= w.cfg.MaxQueue:
		return nil, room.Causef(room.Exhausted, w.cfg.Side, "", "%d requests wait already", len(w.queue))
	}
	w.jobs++
	w.mu.Unlock()
	defer w.mu.Lock()
	if w.cfg.Side == room.Prefill {
		// The room is opened before there are pages: decode's metadata finds it, and pages are taken only for rooms whose decode has its
		// own. If both sides held pages while they wait for the other, two requests could wait for each other.
		if err := w.openSend(j); err != nil {
			j.end("", causeOf(err, room.Prefill))
			w.drop(j)
			return nil, j.err
		}
	}
	w.mu.Lock()
	w.queue = append(w.queue, j)
	w.mu.Unlock()
	return j, nil
}

// hold takes n pages of every rank and a slot, or nothing.
func (w *Worker) hold(j *job, n int) bool {
	w.mu.Lock()
	if len(w.slots) == 0 {
		w.mu.Unlock()
		return false
	}
	j.slot = w.slots[len(w.slots)-1]
	w.slots = w.slots[:len(w.slots)-1]
	w.mu.Unlock()
	for _, p := range w.pools {
		pages, ok := p.Alloc(n)
		if !ok {
			w.let(j)
			w.freeSlot(j.slot)
			j.slot = -1
			return false
		}
		j.pages = append(j.pages, pages)
	}
	return true
}

// let releases the job's hold on its pages; what its room still publishes or reads stays until it is quiescent.
func (w *Worker) let(j *job) {
	for i, pages := range j.pages {
		if err := w.pools[i].Release(pages); err != nil {
			w.cfg.Log.Error("release", "room", j.Room, "error", err)
		}
	}
	j.pages = nil
}

func (w *Worker) freeSlot(slot int) {
	w.mu.Lock()
	w.slots = append(w.slots, slot)
	w.mu.Unlock()
	w.poke()
}

// drop ends a job's part in the scheduler, whatever its outcome: room, pages, slot and count. The slot is free when the room is quiescent on
// every rank, since writes may still read or fill it.
func (w *Worker) drop(j *job) {
	if j.err != nil {
		for _, h := range j.halves { // so that the other side learns why; it changes no verdict
			h.Abort(causeOf(j.err, w.cfg.Side))
		}
	}
	w.let(j)
	for _, h := range j.halves {
		h.Clear()
	}
	w.emit(event.Finished, event.Event{Room: j.Room, Chunk: -1, Rank: -1})
	halves, slot := j.halves, j.slot
	w.settle.Go(func() {
		for _, h := range halves {
			<-clearedOf(h)
		}
		if slot >= 0 {
			w.freeSlot(slot)
		}
		w.mu.Lock()
		w.jobs--
		w.mu.Unlock()
		w.poke()
	})
}

func clearedOf(h handoff.Half) <-chan struct{} {
	switch h := h.(type) {
	case *handoff.Sender:
		return h.Cleared()
	case *handoff.Receiver:
		return h.Cleared()
	}
	panic("worker: a half of another kind")
}

// digestOf is the SHA-256 of logits as little-endian float32.
func digestOf(logits []float32) [32]byte {
	b := make([]byte, 0, 4*len(logits))
	for _, v := range logits {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return sha256.Sum256(b)
}
