package sim

import (
	"time"

	"github.com/kvferry/kvferry/node"
	"github.com/kvferry/kvferry/room"
)

// finish lets a world come to rest: no more faults, then every deadline passes, then every owner lets go, then tombstones expire. It checks
// that every room has got a verdict and that nothing is left.
func (w *world) finish() {
	w.note("== the faults are over")
	for _, p := range w.procs {
		if p.paused() {
			p.until = w.now
			p.resume()
		}
	}
	w.net.holes = nil
	w.play(w.now + 5*time.Second)
	if w.cfg.Faults == 0 {
		w.acknowledged()
	}
	w.calm = true
	w.play(w.now + w.cfg.patience())
	for _, p := range w.procs {
		p.judged()
	}
	if w.cfg.Faults == 0 && w.cfg.Group {
		w.prompt()
	}
	w.note("== owners let go")
	for _, p := range w.procs {
		for _, l := range append([]*life(nil), p.lives...) {
			if !p.gone && !l.closed {
				p.clear(l)
			}
		}
	}
	w.play(w.now + node.TombstoneLife + 10*time.Second)
	if len(w.violations) > 0 {
		return
	}
	for _, p := range w.procs {
		p.empty()
	}
}

// patience is how long the longest deadline is.
func (c Config) patience() time.Duration {
	if c.Short {
		return 150 * time.Second
	}
	return 420 * time.Second
}

// calmTick is how often clocks tick at the end: as seldom as a node lets pass for no pause of its own.
func (c Config) calmTick(time.Duration) time.Duration { return 10 * node.TickInterval }

// acknowledged checks, in a world without faults, that no word waits for its receipt for long.
func (w *world) acknowledged() {
	waits := make([]int, len(w.procs))
	for range 5 {
		for i, p := range w.procs {
			if p.node.Counts().Unacknowledged > 0 {
				waits[i]++
			}
		}
		w.play(w.now + 500*time.Millisecond)
	}
	for i, n := range waits {
		if n == 5 {
			w.violate("letters", "%v: words are not acknowledged, and nothing is in the way", w.procs[i])
		}
	}
}

// prompt checks, in a world without faults, that a failure on one side is known on the other at once: after a second at most, from when both
// have met.
func (w *world) prompt() {
	for _, p := range w.procs {
		for _, l := range p.ended {
			if l.status != room.Failed {
				continue
			}
			if at, ok := w.sent(p, l); ok && l.since > max(at, l.ready)+time.Second {
				w.violate("prompt", "%v: room %d was sent whole at %v and failed at %v with %v", p, l.id, at, l.since, l.cause)
			}
			for _, q := range w.ranks[side(p.side.Other())] {
				if o := q.only(l.id); o != nil && p.only(l.id) == l && w.met(p, l, q, o) && o.since > max(l.since, o.ready, l.ready)+time.Second {
					w.violate("prompt", "%v: room %d failed at %v, %v knows at %v", p, l.id, l.since, q, o.since)
				}
			}
		}
	}
}

// sent says whether all prefill ranks have succeeded with a life of a room on decode, and when.
func (w *world) sent(p *proc, l *life) (at time.Duration, ok bool) {
	if p.side != room.Decode || !l.met || l.lease == nil || len(l.lease.got) < l.lease.want || p.only(l.id) != l {
		return 0, false
	}
	for i, q := range w.ranks[0] {
		o := q.only(l.id)
		switch {
		case w.cfg.dummy(l.id, i, p.rank):
		case o == nil || o.status != room.Success:
			return 0, false
		default:
			at = max(at, o.since)
		}
	}
	return at, true
}

// met says whether two sides of a room have something to do with each other.
func (w *world) met(p *proc, l *life, q *proc, o *life) bool {
	if p.side == room.Prefill {
		return o.met && o.posted && !w.cfg.dummy(l.id, p.rank, q.rank)
	}
	return l.met && !w.cfg.dummy(l.id, q.rank, p.rank)
}

// only is the life of a room on a process, if its number has been used but once.
func (p *proc) only(id room.ID) (found *life) {
	for _, o := range p.w.cfg.Ops {
		if o.Room == id && o.N == 1 && (o.Kind == OpenSend || o.Kind == OpenReceive) {
			return nil // the number has a second use
		}
	}
	for _, l := range p.ended {
		if l.id == id && found != nil {
			return nil
		} else if l.id == id {
			found = l
		}
	}
	return found
}

// judged checks that every life on a process has its verdict, but for those that their owner left half done.
func (p *proc) judged() {
	if p.gone {
		return
	}
	for _, l := range p.lives {
		if l.status.Terminal() {
			continue
		}
		if p.side == room.Prefill && l.status >= room.WaitingForInput && !l.last || p.side == room.Decode && l.routed && !l.posted {
			continue
		}
		if p.side == room.Decode && p.w.idle(l.id) {
			continue
		}
		p.w.violate("verdict", "%v: room %d has none, it is %v", p, l.id, l.status)
	}
}

// vanished says whether a process of a prefill rank has vanished with its host, so that its end can't be seen.
func (w *world) vanished(rank int) bool {
	for _, p := range w.procs {
		if p.side == room.Prefill && p.rank == rank && p.vanished {
			return true
		}
	}
	return false
}

// idle says that a prefill rank holds a room and has not handed over all of it: it may take its time.
func (w *world) idle(id room.ID) bool {
	for _, q := range w.ranks[0] {
		if l := q.rooms[id]; !q.gone && l != nil && !l.last && !l.status.Terminal() {
			return true
		}
	}
	return false
}

// empty checks that nothing is left.
func (p *proc) empty() {
	if p.gone {
		return
	}
	c := p.node.Counts()
	for _, q := range p.w.procs {
		if q.gone && !q.vanished && p.registered[q.session] && !p.w.net.at[q.endpoint].vanished {
			p.w.violate("empty", "%v keeps the registration of %v, which is gone", p, q)
		}
		if q.gone && !q.vanished && p.conns[q.endpoint] != nil && p.w.net.at[q.endpoint] == q {
			p.w.violate("empty", "%v keeps a connection to %v, which is gone", p, q)
		}
	}
	if p.side == room.Prefill {
		if c.Rooms+c.Unserved+c.Writes+c.Tombstones+c.Promises+c.Unacknowledged != 0 || c.Doubts > p.doubts() {
			p.w.violate("empty", "%v is left with %+v", p, c)
		}
		return
	}
	if c.Unacknowledged != 0 {
		p.w.violate("empty", "%v is left with %+v", p, c)
	}
	p.excused(c)
}

// doubts is how many lives of rooms a prefill rank may keep in doubt: those that it has left so, on decode ranks that are not known to be gone.
func (p *proc) doubts() int {
	type pair struct {
		l       *life
		session string
	}
	seen := map[pair]bool{}
	for _, x := range p.started {
		if x.life.poisoned && p.registered[x.a.Session] {
			seen[pair{x.life, x.a.Session}] = true
		}
	}
	return len(seen)
}

// excused checks that what stays on decode stays for want of proof.
func (p *proc) excused(c node.Counts) {
	for _, l := range p.lives {
		if p.w.cfg.Virtual || l.lease == nil || !l.lease.doubt() {
			p.w.violate("empty", "%v: room %d is %v, cleared and not gone", p, l.id, l.status)
		}
	}
	if !p.w.cfg.Virtual {
		return
	}
	for _, s := range p.leases {
		if !s.retired && !s.doubt() {
			p.w.violate("empty", "%v withholds the numbers of %v", p, s)
		}
	}
}

// doubt says whether there is a reason for which it can't be known that nothing is written to a lease any more: a word between the two was
// lost and is not repeated, one took the other for dead, or a write to it ended in doubt.
func (l *lease) doubt() bool {
	for _, p := range l.p.w.procs { // foreign words don't tell the lives of a number apart
		for _, o := range p.leases {
			if o.poisoned && o.room == l.room {
				return true
			}
		}
	}
	again := false // only the newest ABORT of a number is acknowledged to a foreign decode
	for _, o := range l.p.leases {
		again = again || o != l && o.room == l.room
	}
	for i := range l.p.w.cfg.Prefill {
		pair := [2]int{i, l.p.rank}
		native := l.p.native() && l.p.w.cfg.nativeAt(room.Prefill, i)
		if (again || l.p.w.net.lossy[pair]) && !native || l.p.w.vanished(i) {
			return true
		}
	}
	return false
}
