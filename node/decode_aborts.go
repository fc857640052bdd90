package node

import (
	"github.com/kvferry/kvferry/event"
	"github.com/kvferry/kvferry/room"
)

func (n *Decode) sendAborts(r *recvRoom) {
	for i := range r.targets {
		t := &r.targets[i]
		p := n.peers[t.Endpoint]
		if p == nil || p.lost || t.failed && p.native() {
			continue
		}
		a := SendAbort{Endpoint: t.Endpoint, Room: r.id, Epoch: r.epoch, Generation: n.numbered(r), Cause: r.cause}
		if p.up {
			n.sendAbort(p, a)
		} else {
			p.owed = append(p.owed, a) // it may have heard of the room, from its own side if not from here
		}
	}
}

// numbered is the generation of a room's ABORT; 0 when nothing was published, so that nothing needs to be acknowledged.
func (n *Decode) numbered(r *recvRoom) int64 {
	if r.abort == 0 && r.published {
		n.abortCount++
		r.abort = n.abortCount
		n.aborts[r.abort] = r
	}
	return r.abort
}

// sendAbort sends an ABORT; a native peer has to acknowledge it.
func (n *Decode) sendAbort(p *peer, a SendAbort) {
	if a.Native = p.native(); a.Native {
		n.mail(p, a.Room, func(seq uint64) Action { a.Seq = seq; return a })
	} else {
		n.do(a)
	}
	n.emit(event.AbortSent, note(a.Room, a.Endpoint))
}

// acked counts an acknowledgement of the current ABORT. Without a generation it proves nothing about this life of the room.
func (n *Decode) acked(ev AckHeard) {
	if r := n.aborts[ev.Generation]; r != nil && ev.HasGeneration && r.id == ev.Room {
		n.silenced(r, ev.Rank)
	}
}

func (n *Decode) silenced(r *recvRoom, rank int) {
	for i := range r.targets {
		if r.targets[i].Rank == rank {
			r.targets[i].silent = true
		}
	}
	n.prove(r)
	n.rest(r)
}

// silenced says that a prefill rank is known to write nothing more. A foreign one's Success, which may be about an older life of the number,
// is as good as its word when every byte is in place.
func (r *recvRoom) silenced(t target) bool { return t.silent || t.answered && r.covered }

// writersSilent reports that no prefill rank can write to the room's pages any more.
func (r *recvRoom) writersSilent() bool {
	for _, t := range r.targets {
		if t.sent && !t.Dummy && !r.silenced(t) {
			return false
		}
	}
	return true
}

// Silent is how many prefill ranks are known to write nothing more for a life of a room, while it is known.
func (n *Decode) Silent(id room.ID, e room.Epoch) int {
	r := n.life(id, e)
	if r == nil {
		r = n.withheld[e]
	}
	if r == nil {
		return 0
	}
	count := 0
	for _, t := range r.targets {
		if r.silenced(t) {
			count++
		}
	}
	return count
}
