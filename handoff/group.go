package handoff

import (
	"sync"

	"github.com/kvferry/kvferry/room"
)

// Group is a room on all ranks of one instance: it has one verdict. The first failure on any rank aborts the others with its cause.
type Group struct {
	halves []Half

	mu      sync.Mutex
	left    int
	verdict Verdict
	done    chan struct{}
}

// NewGroup joins the halves of one room, one per rank and at least one. It starts no goroutine.
func NewGroup(halves ...Half) *Group {
	g := &Group{halves: halves, left: len(halves), verdict: Verdict{Status: room.Success}, done: make(chan struct{})}
	for _, h := range halves {
		w, ok := h.(interface{ whenDone(func()) })
		if !ok {
			panic("handoff: a Half that this package did not make")
		}
		w.whenDone(func() { g.ended(h) })
	}
	return g
}

func (g *Group) ended(h Half) {
	v := h.Verdict()
	g.mu.Lock()
	first := !v.OK() && g.verdict.OK()
	if first {
		g.verdict = v
	}
	g.left--
	if g.left == 0 || first {
		select {
		case <-g.done:
		default:
			close(g.done)
		}
	}
	g.mu.Unlock()
	if first {
		for _, x := range g.halves {
			if x != h {
				x.Abort(v.Cause)
			}
		}
	}
}

// Done is closed with the group's verdict: at the first failure, or when every rank has succeeded.
func (g *Group) Done() <-chan struct{} { return g.done }

// Verdict is valid once Done is closed.
func (g *Group) Verdict() Verdict {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.verdict
}

// Abort fails the room on every rank.
func (g *Group) Abort(cause room.Cause) {
	for _, h := range g.halves {
		h.Abort(cause)
	}
}

// Clear clears the room on every rank.
func (g *Group) Clear() {
	for _, h := range g.halves {
		h.Clear()
	}
}
