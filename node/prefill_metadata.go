package node

import (
	"slices"

	"github.com/kvferry/kvferry/room"
)

func (n *Prefill) register(ev Registration) {
	p := n.use(ev.Endpoint)
	if p.native() && ev.Instance == p.before && ev.Instance != p.instance && !ev.Instance.IsZero() {
		n.drop(0, ev.Endpoint, "registration of an instance that another one has taken the place of")
		return
	}
	n.meet(p, ev.Instance)
	n.back(p)
	if old, ok := n.sessions[ev.Session]; ok && old.Endpoint != ev.Endpoint {
		n.unregister(ev.Session)
	}
	n.sessions[ev.Session] = ev
	if !slices.Contains(p.sessions, ev.Session) {
		p.sessions = append(p.sessions, ev.Session)
	}
}

func (n *Prefill) unregister(session string) {
	if p := n.peers[n.sessions[session].Endpoint]; p != nil {
		p.sessions = slices.DeleteFunc(p.sessions, func(s string) bool { return s == session })
	}
	delete(n.sessions, session)
	n.doubts = slices.DeleteFunc(n.doubts, func(d doubt) bool { return d.session == session })
	n.do(Unregistered{session})
}

func (n *Prefill) metadata(ev Metadata) {
	r := n.rooms[ev.Room]
	said, ok := n.promised.get(ev.Epoch, n.now)
	t, over := n.tombs.get(ev.Room, n.now)
	switch {
	case ok && said.done:
		n.drop(ev.Room, ev.Endpoint, "metadata for a life of the room that has succeeded")
		return
	case r != nil && r.status == room.Failed:
		n.refuse(ev, r.cause)
		return
	case r == nil && over && t.covers(ev.Endpoint, ev.Epoch) && !t.cause.IsZero():
		n.refuse(ev, t.cause)
		return
	case ok:
		n.refuse(ev, room.NewCause(room.Aborted, room.Prefill, ev.Endpoint, "this life of the room is over"))
		return
	}
	if s, ok := n.sessions[ev.Session]; !ok && !ev.Dummy {
		n.turnAway(ev, r, room.Causef(room.Invalid, room.Prefill, ev.Endpoint, "session %s sent metadata before it registered", ev.Session))
		return
	} else if s.Refused != "" {
		n.turnAway(ev, r, room.NewCause(room.Incompatible, room.Prefill, ev.Endpoint, s.Refused))
		return
	}
	switch {
	case r == nil && (n.unserved >= MaxUnserved || len(n.rooms) >= MaxRooms):
		n.refuse(ev, room.NewCause(room.Exhausted, room.Prefill, ev.Endpoint, "too many rooms wait for their request"))
		return
	case r == nil:
		r = n.create(ev.Room)
		n.unserved++
		r.stamp = n.arm(r.id, timerDeadline, n.cfg.Bootstrap)
	case r.status > room.WaitingForInput || r.closed:
		n.drop(ev.Room, ev.Endpoint, "metadata for a room that is under way")
		return
	}
	d := &destination{Metadata: ev}
	for i, old := range r.dsts {
		if old.Session == ev.Session {
			r.dsts[i], d = d, nil
			break
		}
	}
	if d != nil {
		r.dsts = append(r.dsts, d)
	}
	p := n.use(ev.Endpoint)
	n.back(p)
	p.rooms.add(r.id)
	n.bootstrap(r)
}

// turnAway refuses metadata of a pair that can't exchange KV. The room has no other decode rank to wait for, whether its request is here or
// still to come.
func (n *Prefill) turnAway(ev Metadata, r *sendRoom, c room.Cause) {
	n.refuse(ev, c)
	switch {
	case r == nil:
		s := tombstone{id: ev.Room, cause: c, overtaken: true}
		if ev.Epoch != 0 {
			s.epochs = []room.Epoch{ev.Epoch}
		}
		n.bury(s)
	case r.status < room.WaitingForInput && !r.status.Terminal():
		n.conclude(r, room.Failed, c)
	}
}

// refuse answers metadata that is not served with its cause, to a foreign peer by its status message.
func (n *Prefill) refuse(ev Metadata, c room.Cause) {
	if ev.Dummy || ev.Endpoint == "" {
		return
	}
	n.use(ev.Endpoint)
	if ev.Native && n.still(ev.Room, ev.Endpoint, ev.Epoch) {
		n.promised.add(ev.Epoch, false, n.now)
		n.do(SendRefused{ev.Endpoint, ev.Room, ev.Epoch, n.cfg.Rank, c})
		return
	}
	n.do(SendStatus{ev.Endpoint, ev.Native, ev.Room, ev.Epoch, room.Failed, n.cfg.Rank, c, 0})
}
