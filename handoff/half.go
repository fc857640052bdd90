package handoff

import (
	"sync"

	"github.com/kvferry/kvferry/node"
	"github.com/kvferry/kvferry/room"
)

// Verdict is the immutable end of a room: Success, or Failed with its first cause.
type Verdict struct {
	Status room.Status
	Cause  room.Cause // zero on Success
}

// OK reports whether the KV arrived whole.
func (v Verdict) OK() bool { return v.Status == room.Success }

// Err is the cause as an error, nil on Success.
func (v Verdict) Err() error {
	if v.OK() {
		return nil
	}
	return v.Cause
}

// Half is one rank's side of a room, a Sender or a Receiver.
type Half interface {
	Room() room.ID
	// Done is closed with the verdict.
	Done() <-chan struct{}
	// Verdict is valid once Done is closed.
	Verdict() Verdict
	// Quiescent is closed when nothing can read or write the pages for this room any more. It may never close; see Quarantined.
	Quiescent() <-chan struct{}
	// Abort fails the room with a cause, at any time, in any state; it is idempotent and changes no verdict.
	Abort(room.Cause)
	// Clear ends the owner's interest, aborts the room if it has no verdict, and lets it leave every table. The half stays readable.
	Clear()
	// Status is the room's status now.
	Status() room.Status
}

// half is what senders and receivers share. Its moments come under the rank's lock.
type half struct {
	id   room.ID
	rank *rank

	mu      sync.Mutex // guards what follows; held for moments only, after rank.mu where both are held
	status  room.Status
	cause   room.Cause
	prefix  int
	proof   node.Proof
	onDone  []func()
	pending int // pages in quarantine

	moments [endMoment]latch
}

// moment is one that can be waited for.
type moment uint8

const (
	ready moment = iota
	done
	quiet
	cleared
	endMoment
)

// latch is a moment's channel, which is made for the first who waits for it: a room that waits costs less memory then.
type latch struct {
	over bool
	c    chan struct{}
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func newHalf(id room.ID, r *rank) half { return half{id: id, rank: r, status: room.Absent} }

// when is closed at a moment.
func (h *half) when(m moment) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := &h.moments[m]
	switch {
	case l.over:
		return closed
	case l.c == nil:
		l.c = make(chan struct{})
	}
	return l.c
}

// comes tells that a moment has come, once. The half is locked.
func (h *half) comes(m moment) {
	l := &h.moments[m]
	if l.c != nil {
		close(l.c)
	}
	*l = latch{over: true}
}

func (h *half) Room() room.ID              { return h.id }
func (h *half) Done() <-chan struct{}      { return h.when(done) }
func (h *half) Quiescent() <-chan struct{} { return h.when(quiet) }

// Ready is closed when the other side is known (WaitingForInput), or with the verdict.
func (h *half) Ready() <-chan struct{} { return h.when(ready) }

// Cleared is closed when the room has left every table: after Clear, and once it is quiescent.
func (h *half) Cleared() <-chan struct{} { return h.when(cleared) }

func (h *half) Status() room.Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.status
}

func (h *half) Verdict() Verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Verdict{h.status, h.cause}
}

// Proof says how quiescence is known; empty while it is not.
func (h *half) Proof() node.Proof {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.proof
}

// Quarantined reports that quiescence was not proven in time: the ledger keeps the pages.
func (h *half) Quarantined() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pending > 0
}

func (h *half) Abort(cause room.Cause) {
	_ = h.rank.stepFor(h, node.Fail{Room: h.id, Cause: cause}) // a room that is gone needs no abort
}

func (h *half) Clear() { _ = h.rank.stepFor(h, node.Clear{Room: h.id}) }

// changed takes a new status. A verdict is taken once.
// The functions that it returns are to be called once the rank's lock is left.
func (h *half) changed(a node.Changed) (call []func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.status.Terminal() {
		return nil
	}
	was := h.status
	h.status, h.cause, h.prefix = a.Status, a.Cause, a.Prefix
	if a.Status.Terminal() {
		call, h.onDone = h.onDone, nil
		h.comes(done)
	}
	if was < room.WaitingForInput && (a.Status >= room.WaitingForInput || a.Status == room.Failed) {
		h.comes(ready)
	}
	return call
}

func (h *half) quiescent(p node.Proof) {
	h.mu.Lock()
	h.proof, h.pending = p, 0
	h.comes(quiet)
	h.mu.Unlock()
}

func (h *half) gone() {
	h.mu.Lock()
	h.comes(cleared)
	h.mu.Unlock()
}

func (h *half) quarantine(pages int) {
	h.mu.Lock()
	h.pending = pages
	h.mu.Unlock()
}

// whenDone calls f once there is a verdict, at once if there is one. No lock is held then; f must not block.
func (h *half) whenDone(f func()) {
	h.mu.Lock()
	if !h.status.Terminal() {
		h.onDone = append(h.onDone, f)
		h.mu.Unlock()
		return
	}
	h.mu.Unlock()
	f()
}
