package node

import (
	"github.com/kvferry/kvferry/event"
	"github.com/kvferry/kvferry/room"
)

func (n *Prefill) acknowledge(r *sendRoom) {
	if r.poisoned { // no acknowledgement, ever
		r.acks = nil
		return
	}
	for _, a := range r.acks {
		if !n.still(r.id, a.endpoint, 0) {
			continue
		}
		n.use(a.endpoint)
		n.do(SendAck{a.endpoint, r.id, n.cfg.Rank, a.generation})
	}
	r.acks = nil
}

// abort is decode's word that it gave a room up.
func (n *Prefill) abort(ev AbortHeard) {
	n.emit(event.AbortHeard, note(ev.Room, ev.Endpoint))
	if ev.Seq != 0 && ev.Endpoint != "" {
		n.use(ev.Endpoint)
		n.do(SendReceipt{ev.Endpoint, ev.Room, ev.Epoch, n.cfg.Rank, ev.Seq})
	}
	cause := ev.Cause
	if cause.IsZero() {
		cause = room.NewCause(room.PeerAborted, room.Prefill, ev.Endpoint, "")
	}
	r := n.rooms[ev.Room]
	_, heard := n.promised.get(ev.Epoch, n.now) // of the end of that life, so that it is not the one that is to come
	if r == nil {
		if t, over := n.tombs.get(ev.Room, n.now); !heard && (!over || !t.covers(ev.Endpoint, ev.Epoch)) {
			s := tombstone{id: ev.Room, cause: cause, overtaken: true}
			if ev.Epoch != 0 {
				s.epochs = []room.Epoch{ev.Epoch}
			}
			n.bury(s)
		}
		n.calm(ev)
		if ev.HasGeneration && ev.Endpoint != "" && n.still(ev.Room, ev.Endpoint, ev.Epoch) {
			n.use(ev.Endpoint)
			n.do(SendAck{ev.Endpoint, ev.Room, n.cfg.Rank, ev.Generation})
		}
		return
	}
	if ev.Epoch != 0 && (!r.knows(ev.Epoch) || heard && len(r.dsts) == 0) {
		n.drop(ev.Room, ev.Endpoint, "abort of another epoch")
		n.calm(ev)
		return
	}
	if ev.HasGeneration && ev.Endpoint != "" {
		r.owe(ackTarget{ev.Endpoint, ev.Generation})
	}
	if !r.status.Terminal() {
		n.conclude(r, room.Failed, cause)
	}
	n.rest(r)
	n.calm(ev)
}

// calm tells a native decode rank that nothing of this rank is under way for the life of the room that it aborted, if that is so.
func (n *Prefill) calm(ev AbortHeard) {
	if ev.Epoch != 0 && ev.Endpoint != "" && n.still(ev.Room, ev.Endpoint, ev.Epoch) {
		n.quiescent(ev.Endpoint, ev.Room, ev.Epoch)
	}
}

func (r *sendRoom) knows(e room.Epoch) bool {
	for _, d := range r.dsts {
		if d.Epoch == e {
			return true
		}
	}
	return len(r.dsts) == 0
}

// owe keeps one acknowledgement per endpoint, for the abort that came last; a poisoned room owes none.
func (r *sendRoom) owe(a ackTarget) {
	if r.poisoned {
		return
	}
	for i := range r.acks {
		if r.acks[i].endpoint == a.endpoint {
			r.acks[i] = a
			return
		}
	}
	r.acks = append(r.acks, a)
}

// quiescent tells a native decode rank, until it acknowledges it, that this rank has no write for a life of a room any more.
func (n *Prefill) quiescent(endpoint string, id room.ID, e room.Epoch) {
	n.promised.add(e, false, n.now)
	n.mail(n.use(endpoint), id, func(seq uint64) Action { return SendQuiescent{endpoint, id, e, n.cfg.Rank, seq} })
}
