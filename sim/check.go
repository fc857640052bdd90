package sim

import (
	"github.com/kvferry/kvferry/node"
	"github.com/kvferry/kvferry/room"
)

// bySession finds a process.
func (w *world) bySession(s string) *proc {
	for _, p := range w.procs {
		if s != "" && p.session == s {
			return p
		}
	}
	return nil
}

// heard notes what a node is about to hear.
func (p *proc) heard(ev node.Event) {
	switch ev := ev.(type) {
	case node.Registration:
		if !p.registered[ev.Session] {
			p.registered[ev.Session], p.fresh = true, ev.Session
		}
	case node.Metadata:
		if ev.Epoch != 0 {
			p.epochs[epochKey{ev.Room, ev.Endpoint}] = ev.Epoch
		}
	default: // told elsewhere
	}
}

// epochKey names the life of a room on a decode rank that a prefill rank has heard of last.
type epochKey struct {
	room     room.ID
	endpoint string
}

// changed is a new status for the owner.
func (p *proc) changed(ev node.Event, a node.Changed) {
	l := p.rooms[a.Room]
	switch {
	case l == nil:
		p.w.violate("resurrection", "%v reports %v for room %d, which is not open", p, a.Status, a.Room)
		return
	case room.Next(l.status, a.Status) != a.Status || l.status == a.Status:
		p.w.violate("verdict", "%v reports %v for room %d after %v", p, a.Status, a.Room, l.status)
	case l.quiet:
		p.w.violate("verdict", "%v reports %v for room %d, which is quiescent", p, a.Status, a.Room)
	}
	if a.Status.Terminal() && !l.status.Terminal() {
		l.since = p.w.now
		p.ended = append(p.ended, l)
		l.cause = a.Cause
	}
	if p.side == room.Prefill && a.Status >= room.WaitingForInput && a.Prefix != p.w.cfg.prefix(a.Room) {
		p.w.violate("prefix", "%v: room %d has prefix %d, want %d", p, a.Room, a.Prefix, p.w.cfg.prefix(a.Room))
	}
	l.status = a.Status
	switch a.Status {
	case room.Failed:
		p.w.failures++
		p.join(l)
		p.blamed(ev, l, a.Cause)
	case room.Success:
		p.succeeded(l)
	default: // no verdict
	}
}

// succeeded checks that Success means that every byte is in place.
func (p *proc) succeeded(l *life) {
	if p.side == room.Prefill {
		for _, x := range p.started {
			if x.life == l && !(x.ended && x.ok) {
				p.w.violate("success", "%v: room %d has succeeded with write %d unfinished or failed", p, l.id, x.a.Write)
			}
		}
		if !l.last {
			p.w.violate("success", "%v: room %d has succeeded before its last chunk", p, l.id)
		}
		return
	}
	if s := l.lease; s == nil || len(s.got) < s.want {
		p.w.violate("success", "%v: room %d has succeeded, but bytes are missing", p, l.id)
	}
}

// blamed checks that a failure has the cause of what has just happened.
func (p *proc) blamed(ev node.Event, l *life, c room.Cause) {
	if a, ok := ev.(node.AbortHeard); ok && a.Epoch != 0 {
		if e := p.epochs[epochKey{a.Room, a.Endpoint}]; p.w.epochs[e] > p.w.epochs[a.Epoch] {
			p.w.violate("epoch", "%v: room %d fails by an abort of epoch %x, and %s has published it in epoch %x since", p, l.id, a.Epoch, a.Endpoint, e)
		}
	}
	want, codes := blame(ev)
	switch {
	case c.IsZero():
		p.w.violate("cause", "%v: room %d failed without a cause", p, l.id)
	case !want.IsZero() && c != want:
		p.w.violate("cause", "%v: room %d failed with %v, want %v", p, l.id, c, want)
	case want.IsZero() && !contains(codes, c.Code):
		p.w.violate("cause", "%v: room %d failed with %v, from %s", p, l.id, c, describe(ev))
	}
}

func contains(list []room.Code, c room.Code) bool {
	for _, x := range list {
		if x == c {
			return true
		}
	}
	return false
}

// blame is the cause that an event brings, or the codes that the node may give it.
func blame(ev node.Event) (room.Cause, []room.Code) {
	switch ev := ev.(type) {
	case node.Fail:
		return ev.Cause, nil
	case node.WriteSettled:
		return ev.Cause, nil
	case node.GoodbyeHeard:
		return ev.Cause, nil
	case node.StatusHeard:
		return ev.Cause, []room.Code{room.PeerFailed}
	case node.AbortHeard:
		return ev.Cause, []room.Code{room.PeerAborted}
	case node.Clear:
		return room.Cause{}, []room.Code{room.Aborted}
	case node.PeerUp, node.Registration:
		return room.Cause{}, []room.Code{room.PeerRestarted}
	case node.PeerRefused:
		return room.Cause{}, []room.Code{room.PeerDead}
	case node.Routed:
		return room.Cause{}, []room.Code{room.Draining, room.Unavailable}
	case node.Tick:
		return room.Cause{}, []room.Code{room.Timeout, room.PeerSilent, room.Incomplete}
	case node.Metadata:
		return room.Cause{}, []room.Code{room.Incompatible, room.Invalid}
	case node.OpenSend: // what overtook it
		return room.Cause{}, []room.Code{room.PeerAborted, room.ClientGone, room.Aborted, room.Timeout, room.PeerSilent, room.PeerDead, room.PeerRestarted, room.PeerFailed,
			room.TransferFailed, room.Incomplete, room.Exhausted, room.Draining, room.Unavailable, room.Incompatible, room.Invalid}
	default:
		return room.Cause{}, nil
	}
}

func (p *proc) quiescent(a node.Quiescent) {
	l := p.rooms[a.Room]
	if l == nil || l.quiet || !l.status.Terminal() {
		p.w.violate("quiescence", "%v says that room %d is quiescent, which has no verdict or is quiescent", p, a.Room)
		return
	}
	l.quiet, l.proof, l.held, l.quarantined = true, a.Proof, nil, 0
	if p.side == room.Prefill {
		for _, x := range p.started {
			if x.life == l && !x.ended {
				p.w.violate("promise", "%v gives back the pages of room %d, which write %d reads", p, l.id, x.a.Write)
			}
		}
		return
	}
	if s := l.lease; s != nil {
		s.quiet, s.unproven = true, a.Proof == node.ProofNone
		s.safe("gives back the pages")
	}
}

// safe checks that nothing can touch a lease's pages.
func (l *lease) safe(what string) {
	p := l.p
	switch {
	case p.w.cfg.Virtual && !(l.sealed && l.idle):
		p.w.violate("promise", "%v %s of %v, which is not sealed and idle", p, what, l)
	case !p.w.cfg.Virtual && l.threats > 0 && !l.unproven:
		p.w.violate("promise", "%v %s of %v while %d writes may land there", p, what, l, l.threats)
	}
}

func (p *proc) quarantined(a node.Quarantined) {
	l := p.rooms[a.Room]
	if l == nil || l.quiet || l.quarantined > 0 || l.status != room.Failed || p.w.cfg.Virtual {
		p.w.violate("quarantine", "%v puts room %d in quarantine", p, a.Room)
		return
	}
	l.quarantined = a.Pages
}

func (p *proc) cleared(a node.Cleared) {
	l := p.rooms[a.Room]
	if l == nil || !l.closed || !l.quiet {
		p.w.violate("clear", "%v clears room %d, which the owner wants or which is not quiescent", p, a.Room)
		return
	}
	l.over = true
	for _, q := range p.w.procs {
		delete(p.epochs, epochKey{a.Room, q.endpoint})
	}
	delete(p.rooms, a.Room)
	for i, o := range p.lives {
		if o == l {
			p.lives = append(p.lives[:i], p.lives[i+1:]...)
			break
		}
	}
}

// watch looks at what a node says to its peers.
func (p *proc) watch(a node.Action) {
	if r, ok := a.(node.SendRefused); ok && p.epochs[epochKey{r.Room, r.Endpoint}] == r.Epoch {
		delete(p.epochs, epochKey{r.Room, r.Endpoint}) // that life will not be served, so it is nobody's
	}
	s, ok := a.(node.SendStatus)
	if !ok {
		return
	}
	if s.Seq != 0 {
		if old, ok := p.letters[s.Seq]; ok {
			if old != s {
				p.w.violate("cause", "%v repeats %s as %s", p, describe(old), describe(s))
			}
			return
		}
		p.letters[s.Seq] = s
	}
	if !s.Native && s.Status == room.Failed {
		p.harmless(s)
	}
	switch l := p.rooms[s.Room]; {
	case !s.Status.Terminal() || s.Status == room.Failed && s.Cause.IsZero():
		p.w.violate("status", "%v sends %s", p, describe(a))
	case l != nil && l.status.Terminal() && s.Native && (s.Status != l.status || s.Status == room.Failed && s.Cause != l.cause):
		p.w.violate("cause", "%v sends %s for room %d, whose verdict is %v, %v", p, describe(a), s.Room, l.status, l.cause)
	}
}

// harmless checks that a foreign decode is not told Failed, by which its pages are free for it, while this rank's bytes may land there.
func (p *proc) harmless(s node.SendStatus) {
	for _, x := range p.started {
		if !x.threat || x.a.Room != s.Room || x.to.endpoint != s.Endpoint || x.to.gone {
			continue
		}
		if l := x.to.rooms[s.Room]; l != nil && l.lease == x.pub.lease { // not an older life of the number
			p.w.violate("promise", "%v tells %v, which is foreign, that room %d failed while write %d may land there", p, x.to, s.Room, x.a.Write)
		}
	}
}

// allocated checks pages that the pool has given out.
func (p *proc) allocated(pages []int32) {
	for _, n := range pages {
		for _, l := range p.lives {
			for _, h := range l.held {
				if h == n {
					p.w.violate("promise", "%v: page %d is given out while room %d holds it", p, n, l.id)
				}
			}
		}
		for _, s := range p.leases {
			for _, h := range s.pages {
				if h == n {
					s.safe("gives out a page")
				}
			}
		}
	}
}

// check compares a node's tables with what its owner knows, after every step.
func (p *proc) check(ev node.Event) {
	c := p.node.Counts()
	var busy [poolPages]bool
	quarantined := 0
	for _, l := range p.lives {
		quarantined += l.quarantined
		for _, n := range l.held {
			busy[n] = true
		}
		for _, n := range l.own {
			busy[n] = true
		}
	}
	held := 0
	for _, b := range busy {
		if b {
			held++
		}
	}
	free := p.ledger.Free()
	switch {
	case p.calling: // the owner holds pages that no room has
	case p.ledger.Total()-free != held || p.ledger.Quarantined() != quarantined:
		p.w.violate("ledger", "%v: %d of %d pages are free and %d in quarantine; owners know of %d held, %d in quarantine (after %s)",
			p, free, p.ledger.Total(), p.ledger.Quarantined(), held, quarantined, describe(ev))
	}
	if c.Rooms-c.Unserved != len(p.lives) {
		p.w.violate("tables", "%v has %d rooms, %d of them unserved; its owner has %d (after %s)", p, c.Rooms, c.Unserved, len(p.lives), describe(ev))
	}
	if q := p.w.bySession(p.fresh); q != nil && q.gone && len(p.registered) == c.Registrations+1 {
		delete(p.registered, p.fresh) // it came too late
	}
	p.fresh = ""
	if len(p.registered) != c.Registrations || c.Peers != len(p.conns) {
		p.w.violate("tables", "%v has %d registrations and %d peers; %d have registered and %d connections are kept", p, c.Registrations, c.Peers, len(p.registered), len(p.conns))
	}
	if p.side == room.Prefill && c.Writes != p.count {
		p.w.violate("writes", "%v knows of %d writes, %d are under way", p, c.Writes, p.count)
	}
	if p.w.cfg.Virtual && p.side == room.Decode && c.UnprovenGenerations != p.opened-p.retired {
		p.w.violate("generations", "%v holds %d generations, %d leases are not retired", p, c.UnprovenGenerations, p.opened-p.retired)
	}
	if ev, ok := ev.(node.PeerRefused); ok {
		for _, l := range p.lives {
			for _, t := range l.targets {
				if t.Endpoint == ev.Endpoint && !l.status.Terminal() {
					p.w.violate("prompt", "%v: room %d goes on although %s refuses", p, l.id, ev.Endpoint)
				}
			}
		}
	}
}
