package node

import (
	"slices"
	"time"

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
		n.unmail(p)
		delete(n.byRank, rankKey{p.instance, p.rank})
		p.leaving, p.queues = false, false
	}
	back := p.lost
	again := n.connected(p, ev.Instance)
	n.index(p)
	n.emit(event.PeerUp, note(0, ev.Endpoint))
	n.do(SendRegistration{ev.Endpoint, p.native()})
	if again {
		n.resend(p)
	}
	for _, a := range p.owed {
		n.sendAbort(p, a)
	}
	for _, m := range p.dummies {
		m.Native = p.native()
		n.do(m)
	}
	p.owed, p.dummies = nil, nil
	if back {
		n.ask(p)
	}
	for _, id := range slices.Clone(p.rooms.list) {
		r := n.rooms[id]
		t := r.target(p.endpoint)
		t.late = false
		if again && p.native() && (t.Dummy || !r.status.Terminal()) {
			t.sent = false // what the broken connection held may be lost, and the same word twice does no harm
		}
		n.publish(r)
	}
}

// lose fails every room of a peer. dead: its process is gone, so that it writes no more.
func (n *Decode) lose(p *peer, cause room.Cause, dead bool) {
	e := note(0, p.endpoint)
	e.Cause = cause
	n.emit(event.PeerDead, e)
	p.up, p.lost, p.owed, p.dummies = false, true, nil, nil
	for _, id := range slices.Clone(p.rooms.list) {
		r := n.rooms[id]
		t := r.target(p.endpoint)
		if cause.Code == room.PeerRestarted && t.late && !t.sent {
			continue // it is the new one's
		}
		t.silent = t.silent || dead
		n.conclude(r, room.Failed, cause)
		n.prove(r)
		n.rest(r)
	}
	if !dead {
		return
	}
	for _, e := range slices.Clone(p.withheld.list) {
		r := n.withheld[e]
		r.target(p.endpoint).silent = true
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
			if n.cfg.Unproven > 0 {
				n.arm(r.id, timerUnproven, n.cfg.Unproven)
			}
		case t.kind == timerUnproven && r.quarantined && !r.quiet:
			r.unproven = true
			n.rest(r)
		case t.kind == timerStall && t.stamp == r.stall && !r.status.Terminal():
			n.stalled(r)
		case t.kind == timerDeadline && t.stamp == r.stamp && !r.status.Terminal():
			if wait := n.cfg.Waiting - n.now.Sub(r.lastNamed()); r.posted && !r.arriving && wait > 0 {
				r.stamp = n.arm(r.id, timerDeadline, wait) // prefill's scheduler holds it
				continue
			}
			n.conclude(r, room.Failed, n.late(r))
		}
	}
	n.sweep(len(n.rooms), func(t timer) bool {
		r := n.rooms[t.room]
		return r != nil && (t.kind != timerDeadline || t.stamp == r.stamp) && (t.kind != timerStall || t.stamp == r.stall)
	})
	for _, p := range n.silent() {
		n.lose(p, room.Causef(room.PeerSilent, room.Decode, p.endpoint, "no sign of life for %v", n.cfg.CondemnAfter), false)
		delete(n.byRank, rankKey{p.instance, p.rank})
		n.retry(p)
	}
	for _, p := range slices.Clone(n.order) {
		if p.lost && len(p.rooms.list)+len(p.withheld.list) == 0 {
			n.release(p)
		}
	}
}

// ask aborts once more what a peer may still write to that was taken for dead and is back: its acknowledgement is the proof that it does not.
func (n *Decode) ask(p *peer) {
	var open []*recvRoom
	for _, id := range p.rooms.list {
		open = append(open, n.rooms[id])
	}
	for _, e := range p.withheld.list {
		open = append(open, n.withheld[e])
	}
	for _, r := range open {
		for _, t := range r.targets {
			if t.Endpoint == p.endpoint && t.sent && !t.silent && r.status == room.Failed {
				n.sendAbort(p, SendAbort{Endpoint: p.endpoint, Room: r.id, Epoch: r.epoch, Generation: n.numbered(r), Cause: r.cause})
			}
		}
	}
}

// release forgets a peer with what is indexed by it.
func (n *Decode) release(p *peer) {
	delete(n.byRank, rankKey{p.instance, p.rank})
	n.forget(p)
}

// index makes a native peer known by its rank, so that it can be answered.
func (n *Decode) index(p *peer) {
	if p.native() && p.up {
		n.byRank[rankKey{p.instance, p.rank}] = p
	}
}

// acknowledge tells a native prefill rank that its message has come.
func (n *Decode) acknowledge(inst room.InstanceID, rank int, id room.ID, e room.Epoch, seq uint64) {
	if p := n.byRank[rankKey{inst, rank}]; p != nil && seq != 0 {
		n.do(SendReceipt{p.endpoint, id, e, n.cfg.Rank, seq})
	}
}

// goodbye fails the rooms of an instance that is about to end; its connection's end will say more.
func (n *Decode) goodbye(ev GoodbyeHeard) {
	for _, id := range n.left(ev) {
		if r := n.rooms[id]; r != nil { // an instance may have several ranks in a room
			n.conclude(r, room.Failed, ev.Cause)
		}
	}
}

// queued notes which rooms a prefill rank's scheduler holds.
func (n *Decode) queued(ev QueuedHeard) {
	p := n.byRank[rankKey{ev.Instance, ev.Rank}]
	if p == nil {
		return
	}
	p.queues = true
	for _, id := range ev.Rooms {
		r := n.rooms[id]
		if r == nil {
			continue
		}
		for i := range r.targets {
			if r.targets[i].Endpoint == p.endpoint {
				r.targets[i].named = n.now
			}
		}
	}
}

// stalled fails a room that prefill's scheduler, which names the rooms that it holds, has not named for the limit.
func (n *Decode) stalled(r *recvRoom) {
	wait := n.cfg.Stall
	for _, t := range r.targets {
		p := n.peers[t.Endpoint]
		if t.Dummy || t.answered || !t.sent || p == nil || !p.queues {
			continue
		}
		left := n.cfg.Stall - n.now.Sub(t.named)
		if left <= 0 {
			n.conclude(r, room.Failed, room.Causef(room.Timeout, room.Prefill, t.Endpoint, "its scheduler has not named the room for %v", n.cfg.Stall))
			return
		}
		wait = min(wait, left)
	}
	r.stall = n.arm(r.id, timerStall, wait)
}

// lastNamed is when a prefill rank's scheduler has named the room last; the zero time if none does.
func (r *recvRoom) lastNamed() (last time.Time) {
	for _, t := range r.targets {
		if t.named.After(last) {
			last = t.named
		}
	}
	return last
}

// target is the room's target at an endpoint; its peer has the room in its list.
func (r *recvRoom) target(endpoint string) *target {
	return &r.targets[slices.IndexFunc(r.targets, func(t target) bool { return t.Endpoint == endpoint })]
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
