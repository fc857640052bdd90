package node

import (
	"slices"

	"github.com/kvferry/kvferry/event"
	"github.com/kvferry/kvferry/room"
)

// peerUp introduces this rank to a prefill rank at each new connection, then publishes what waits for it.
func (n *Decode) peerUp(ev PeerUp) {
	p := n.peers[ev.Endpoint]
	if p == nil {
		return
	}
	if p.known && p.instance != ev.Instance {
		n.lose(p, room.NewCause(room.PeerRestarted, room.Decode, ev.Endpoint, ""), true)
	}
	p.up, p.lost, p.known, p.instance, p.heard = true, false, true, ev.Instance, n.now
	n.emit(event.PeerUp, note(0, ev.Endpoint))
	n.do(SendRegistration{ev.Endpoint, p.native()})
	for _, a := range p.owed {
		a.Native = p.native()
		n.do(a)
		n.emit(event.AbortSent, note(a.Room, ev.Endpoint))
	}
	p.owed = nil
	for _, id := range slices.Clone(p.rooms.list) {
		n.publish(n.rooms[id])
	}
}

// lose fails every room of a peer. dead: its process is gone, so that it writes no more.
func (n *Decode) lose(p *peer, cause room.Cause, dead bool) {
	e := note(0, p.endpoint)
	e.Cause = cause
	n.emit(event.PeerDead, e)
	p.up, p.lost, p.owed = false, true, nil
	for _, id := range slices.Clone(p.rooms.list) {
		r := n.rooms[id]
		for i := range r.targets {
			if t := &r.targets[i]; t.Endpoint == p.endpoint && dead {
				t.silent = true
			}
		}
		n.conclude(r, room.Failed, cause)
		n.prove(r)
		n.rest(r)
	}
	if !dead {
		return
	}
	for _, e := range slices.Clone(p.withheld.list) {
		r := n.withheld[e]
		for i := range r.targets {
			if t := &r.targets[i]; t.Endpoint == p.endpoint {
				t.silent = true
			}
		}
		n.prove(r)
	}
}

func (n *Decode) tick() {
	for {
		t, ok := n.due()
		if !ok {
			break
		}
		r := n.rooms[t.room]
		if r == nil {
			continue
		}
		switch {
		case t.kind == timerQuarantine && r.status == room.Failed && !r.quiet && !r.quarantined:
			r.quarantined = true
			n.Ledger.quarantined += len(r.post.Pages)
			n.do(Quarantined{r.id, len(r.post.Pages)})
			e := note(r.id, "")
			e.Pages = len(r.post.Pages)
			n.emit(event.Quarantine, e)
		case t.kind == timerDeadline && t.stamp == r.stamp && !r.status.Terminal():
			n.conclude(r, room.Failed, n.late(r))
		}
	}
	for _, p := range n.silent() {
		n.lose(p, room.Causef(room.PeerSilent, room.Decode, p.endpoint, "no sign of life for %v", n.cfg.CondemnAfter), false)
		n.forget(p)
	}
}

// late is the cause of a room that is past the deadline of its state.
func (n *Decode) late(r *recvRoom) room.Cause {
	switch {
	case !r.routed:
		return room.Causef(room.Timeout, room.Decode, "", "prefill was not found within %v", n.cfg.Rendezvous)
	case n.cfg.Coverage && !slices.ContainsFunc(r.targets, func(t target) bool { return !t.Dummy && !t.answered }):
		return room.Causef(room.Incomplete, room.Decode, "", "prefill reported success, but bytes are missing after %v", n.cfg.Arrival)
	}
	return room.Causef(room.Timeout, room.Decode, "", "the KV did not arrive within %v", n.cfg.Waiting)
}
