package node

import (
	"slices"

	"github.com/kvferry/kvferry/event"
	"github.com/kvferry/kvferry/room"
)

func (n *Prefill) peerUp(ev PeerUp) {
	p := n.peers[ev.Endpoint]
	if p == nil {
		return
	}
	n.meet(p, ev.Instance)
	again := n.connected(p, ev.Instance)
	n.emit(event.PeerUp, note(0, ev.Endpoint))
	if again {
		n.resend(p)
	}
}

// meet notes which instance answers at an endpoint. Another one than before ends the rooms and registrations of the old one.
func (n *Prefill) meet(p *peer, id room.InstanceID) {
	if p.known && p.instance != id {
		n.lose(p, room.NewCause(room.PeerRestarted, room.Prefill, p.endpoint, ""), true)
		n.disown(p)
		n.unmail(p)
		p.leaving, p.before = false, p.instance
	}
	p.known, p.instance = true, id
}

func (n *Prefill) disown(p *peer) {
	for _, s := range slices.Clone(p.sessions) {
		n.unregister(s)
	}
}

func (n *Prefill) refused(ev PeerRefused) {
	if p := n.peers[ev.Endpoint]; p != nil {
		n.lose(p, room.NewCause(room.PeerDead, room.Prefill, ev.Endpoint, ev.Text), true)
		n.disown(p)
		n.forget(p)
	}
}

// lose fails every room of a peer. dead: its process is gone, so that it is past being told.
func (n *Prefill) lose(p *peer, cause room.Cause, dead bool) {
	e := note(0, p.endpoint)
	e.Cause = cause
	n.emit(event.PeerDead, e)
	for _, id := range slices.Clone(p.rooms.list) {
		r := n.rooms[id]
		for _, d := range r.dsts {
			if d.Endpoint == p.endpoint && dead {
				d.told, d.past = true, true
			}
		}
		r.acks = slices.DeleteFunc(r.acks, func(a ackTarget) bool { return dead && a.endpoint == p.endpoint })
		for _, w := range r.outstanding {
			if w.dst.Endpoint == p.endpoint {
				n.do(CancelWrite{w.id})
			}
		}
		if !r.status.Terminal() {
			n.conclude(r, room.Failed, cause)
		}
	}
}

func (n *Prefill) tick() {
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
		case t.kind == timerSettle && len(r.outstanding) > 0:
			for _, d := range r.dsts {
				if !d.Native && !d.Dummy {
					n.suspect(r, d)
				}
				d.told, d.past = true, true // what is still under way may land at any time: this decode must not learn that its pages are free
			}
			for _, w := range r.outstanding {
				if w.dst.Native {
					n.do(CancelWrite{w.id})
				}
			}
		case t.kind == timerDeadline && t.stamp == r.stamp && !r.status.Terminal():
			what := "decode published no pages within %v"
			if !r.opened {
				what = "no request came for the published pages within %v"
			}
			n.conclude(r, room.Failed, room.Causef(room.Timeout, room.Prefill, "", what, n.cfg.Bootstrap))
		}
	}
	n.sweep(len(n.rooms), func(t timer) bool {
		r := n.rooms[t.room]
		return r != nil && (t.kind != timerDeadline || t.stamp == r.stamp)
	})
	n.tombs.expire(n.now)
	n.promised.expire(n.now)
	for _, p := range n.silent() { // its process may still be there and go on, so its registrations stay until something else is known
		n.retry(p) // what is said from here on waits for the new connection
		n.lose(p, room.Causef(room.PeerSilent, room.Prefill, p.endpoint, "no sign of life for %v", n.cfg.CondemnAfter), false)
	}
	for _, p := range slices.Clone(n.order) {
		if p.lost && (len(p.sessions) == 0 || n.now.Sub(p.since) > LostLife) {
			n.disown(p)
			n.forget(p)
		}
	}
}

// back notes a sign of life of a peer by its own message, when the connection to it is not up again.
func (n *Prefill) back(p *peer) {
	if p.lost {
		p.lost, p.suspect, p.heard = false, false, n.now
	}
}

// goodbye fails what a decode instance that is about to end still wants.
func (n *Prefill) goodbye(ev GoodbyeHeard) {
	for _, id := range n.left(ev) {
		if r := n.rooms[id]; r != nil && !r.status.Terminal() {
			n.conclude(r, room.Failed, ev.Cause)
		}
	}
}

// stillQueued names to each native decode rank the rooms that this rank's owner is at work on.
func (n *Prefill) stillQueued() {
	for _, p := range n.order {
		if !p.native() || !p.up {
			continue
		}
		var list []room.ID
		for _, id := range p.rooms.list {
			if r := n.rooms[id]; r.opened && !r.status.Terminal() {
				list = append(list, id)
			}
		}
		for len(list) > MaxNamed {
			n.do(SendQueued{p.endpoint, n.cfg.Rank, list[:MaxNamed]})
			list = list[MaxNamed:]
		}
		n.do(SendQueued{p.endpoint, n.cfg.Rank, list})
	}
}
