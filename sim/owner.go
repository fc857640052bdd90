package sim

import (
	"errors"
	"time"

	"github.com/kvferry/kvferry/node"
	"github.com/kvferry/kvferry/room"
)

// life is one use of a room number by the owner of a rank, as the owner sees it.
type life struct {
	id       room.ID
	epoch    room.Epoch
	status   room.Status
	cause    room.Cause
	since    time.Duration // of the verdict
	use      int           // of the number
	ready    time.Duration // when it was opened, and on decode routed and posted
	closed   bool
	quiet    bool
	over     bool // Cleared was reported
	proof    node.Proof
	poisoned bool // on prefill: a write ended in doubt

	routed, posted, last bool
	met                  bool // on decode: it was routed before it had a verdict
	handed               int  // pages in chunks
	targets              []node.Target
	held, own            []int32 // pages that the room, the owner holds
	quarantined          int
	lease                *lease
}

// operate is an operation's time.
func (w *world) operate(o Op) {
	p := w.rank(o.Side, o.Rank)
	if o.Kind < Break {
		if !p.gone && !p.closed {
			p.run(func() { p.own(o) })
		}
		return
	}
	w.note("== %v", o)
	w.fault(p, o)
}

// own carries out what an owner does.
func (p *proc) own(o Op) {
	l := p.rooms[o.Room]
	switch o.Kind {
	case OpenSend:
		p.open(o.Room, node.OpenSend{Room: o.Room}, &life{id: o.Room, use: o.N, status: room.Absent})
	case OpenReceive:
		e := room.Epoch(p.rng.next() | 1)
		p.w.epochs[e] = len(p.w.epochs) + 1
		p.open(o.Room, node.OpenReceive{Room: o.Room, Epoch: e}, &life{id: o.Room, use: o.N, status: room.Absent, epoch: e})
	case Chunk:
		p.chunk(l, o)
	case Route:
		if l == nil || l.routed { // handoff looks a room up once
			return
		}
		if !l.status.Terminal() {
			l.ready, l.met = p.w.now, true
		}
		l.routed = true
		l.targets = p.w.route(o.Room, p.rank)
		_ = p.w.step(p, node.Routed{Room: o.Room, Targets: l.targets})
	case Post:
		p.post(l, o)
	case Fail:
		if l != nil { // handoff keeps another life of the number from being meant
			c := room.NewCause(room.ClientGone, o.Side, "", o.String())
			_ = p.w.step(p, node.Fail{Room: o.Room, Cause: c})
		}
	case Clear:
		if l != nil {
			p.clear(l)
		}
	default:
		panic("sim: not an owner's operation")
	}
}

// verdictKey names one use of a room number on one side.
type verdictKey struct {
	side room.Side
	id   room.ID
	use  int
}

// join makes a room one of all ranks of an instance, as handoff's Group does: the first failure is everybody's.
func (p *proc) join(l *life) {
	if !p.w.cfg.Group {
		return
	}
	key := verdictKey{p.side, l.id, l.use}
	if _, ok := p.w.failed[key]; ok {
		return
	}
	p.w.failed[key] = l.cause
	for _, q := range p.w.ranks[side(p.side)] {
		p.w.after(p.rng.span(0, time.Millisecond), func() {
			q.run(func() {
				if o := q.rooms[l.id]; o != nil && o.use == l.use && !o.status.Terminal() {
					_ = p.w.step(q, node.Fail{Room: l.id, Cause: l.cause})
				}
			})
		})
	}
}

func (p *proc) expect(what string, got, want error) bool {
	if !errors.Is(got, want) || (got == nil) != (want == nil) {
		p.w.violate("errors", "%v: %s: %v, want %v", p, what, got, want)
	}
	return got == nil
}

func (p *proc) open(id room.ID, ev node.Event, l *life) {
	var want error
	if p.rooms[id] != nil {
		want = node.ErrDuplicate
	} else {
		p.rooms[id] = l // before the node opens it, so that the first status finds it
		p.lives = append(p.lives, l)
	}
	l.ready = p.w.now
	if !p.expect("open", p.w.step(p, ev), want) {
		return
	}
	if c, ok := p.w.failed[verdictKey{p.side, id, l.use}]; ok {
		_ = p.w.step(p, node.Fail{Room: id, Cause: c})
	}
}

func (p *proc) chunk(l *life, o Op) {
	if l != nil && o.From != l.handed && !p.w.cfg.Coverage {
		return // a chunk before it did not happen, and only coverage can tell
	}
	ev := node.Chunk{Room: o.Room, Aux: -1, Last: o.Last}
	if o.Last {
		ev.Aux = p.w.cfg.aux(o.Room)
	}
	pages, ok := p.alloc(o.N)
	if !ok {
		return
	}
	ev.Pages = pages
	var want error
	switch {
	case l == nil || l.closed:
		want = node.ErrUnknownRoom
	case l.last:
		want = node.ErrAfterLast
	case !l.status.Terminal():
		l.last = o.Last
		l.handed += o.N
		l.held = append(l.held, pages...)
	default: // accepted, and of no use
	}
	p.calling = true
	err := p.w.step(p, ev)
	p.calling = false
	p.expect("chunk", err, want)
	p.release(l, pages)
}

func (p *proc) post(l *life, o Op) {
	pages, ok := p.alloc(o.N)
	if !ok {
		return
	}
	ev := node.Post{Room: o.Room, Pages: pages, Aux: p.w.cfg.aux(o.Room), Prefix: p.w.cfg.prefix(o.Room)}
	var want error
	switch {
	case l == nil || l.closed:
		want = node.ErrUnknownRoom
	case l.posted:
		want = node.ErrPosted
	case !l.status.Terminal():
		l.posted, l.held, l.ready = true, pages, p.w.now
	default: // accepted, and of no use
	}
	p.calling = true
	got := p.w.step(p, ev)
	p.calling = false
	if errors.Is(got, node.ErrNoGeneration) && want == nil && p.w.cfg.Few {
		l.posted, l.held = false, nil
		p.release(nil, pages)
		_ = p.w.step(p, node.Fail{Room: o.Room, Cause: room.NewCause(room.Exhausted, room.Decode, "", got.Error())})
		return
	}
	p.expect("post", got, want)
	p.release(l, pages)
}

// alloc takes pages for the owner.
func (p *proc) alloc(n int) ([]int32, bool) {
	pages, ok := p.ledger.Alloc(nil, n)
	if ok {
		p.allocated(pages)
	}
	return pages, ok
}

// release lets go of the owner's pages, at once or when its room is cleared.
func (p *proc) release(l *life, pages []int32) {
	if l != nil && !l.closed && p.rng.oneIn(2) {
		l.own = append(l.own, pages...)
		return
	}
	if err := p.ledger.Release(pages); err != nil {
		p.w.violate("ledger", "%v: %v", p, err)
	}
}

func (p *proc) clear(l *life) {
	l.closed = true
	own := l.own
	l.own = nil
	p.release(nil, own)
	_ = p.w.step(p, node.Clear{Room: l.id})
}

// route tells a decode rank which processes serve a room.
func (w *world) route(id room.ID, j int) (list []node.Target) {
	for i, q := range w.ranks[0] {
		list = append(list, node.Target{Endpoint: q.endpoint, Rank: i, Dummy: w.cfg.dummy(id, i, j), Required: w.cfg.Decode})
	}
	return list
}

// fault carries out what happens to a process from outside.
func (w *world) fault(p *proc, o Op) {
	q := w.rank(o.Side.Other(), min(o.Peer, len(w.ranks[side(o.Side.Other())])-1))
	switch o.Kind {
	case Break:
		w.cut(p, q, o.N&1 != 0)
		if o.N&2 != 0 {
			w.cut(q, p, o.N&1 != 0)
		}
	case Hole:
		if w.net.holes == nil {
			w.net.holes = map[[2]int]time.Duration{}
		}
		w.net.holes[pairOf(p, q)] = max(w.net.holes[pairOf(p, q)], w.now+o.For)
	case Pause:
		p.pause(o.For)
	case Kill:
		p.kill(o.N == 1)
	case Start:
		p.kill(false)
		w.ranks[side(p.side)][p.rank] = w.boot(p.side, p.rank, p)
	case Repeat:
		for _, c := range p.order {
			if w.net.at[c.to] == q {
				c.again = o.For
			}
		}
	case Drop:
		for _, c := range p.order {
			if w.net.at[c.to] == q {
				c.drop = o.N
			}
		}
	case Linger:
		p.linger = o.For
	case Leave:
		p.run(func() { p.leave(o.For) })
	case Wedge:
		p.wedged = max(p.wedged, w.now+o.For)
	default:
		panic("sim: not a fault")
	}
}

// leave closes a rank, as handoff does.
func (p *proc) leave(d time.Duration) {
	if p.closed {
		return
	}
	p.closed = true
	c := room.NewCause(room.Draining, p.side, "", "it is closing")
	_ = p.w.step(p, node.Leave{Cause: c})
	for _, l := range append([]*life(nil), p.lives...) {
		_ = p.w.step(p, node.Fail{Room: l.id, Cause: c})
		p.clear(l)
	}
	p.w.after(d, func() { p.kill(false) })
}

func (w *world) cut(p, q *proc, late bool) {
	for _, c := range p.order {
		if c.ses != nil && c.ses.peer == q {
			c.end(late)
		}
	}
}
