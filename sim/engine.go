package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvferry/kvferry/node"
	"github.com/kvferry/kvferry/room"
)

// lease is a room's pages on decode as the receiving engine sees them.
type lease struct {
	p          *proc
	room       room.ID
	epoch      room.Epoch
	generation uint32
	pages      []int32
	aux        int32
	want       int          // pieces: each page, and the aux slot, from each rank that has something for this one
	got        map[int]bool // by rank of prefill and slot
	covered    bool
	sealed     bool
	idle       bool
	retired    bool
	quiet      bool // the node said that nothing can touch the pages
	unproven   bool // but by the operator's word alone
	poisoned   bool // a write to it ended in doubt
	threats    int  // writes that may still land here, wherever they are
}

const auxSlot = 1<<slotBits - 1

func (l *lease) String() string { return fmt.Sprintf("room %d of %v (epoch %x)", l.room, l.p, l.epoch) }

func (p *proc) leaseOf(e room.Epoch) *lease {
	for _, l := range p.leases {
		if l.epoch == e {
			return l
		}
	}
	return nil
}

func (p *proc) openLease(a node.OpenLease) {
	if p.leaseOf(a.Epoch) != nil {
		p.w.violate("lease", "%v opens a second lease for room %d", p, a.Room)
	}
	for _, l := range p.leases {
		if p.w.cfg.Virtual && l.generation == a.Generation && !l.retired {
			p.w.violate("promise", "%v gives generation %d to room %d while %v has it", p, a.Generation, a.Room, l)
		}
	}
	l := &lease{p: p, room: a.Room, epoch: a.Epoch, generation: a.Generation, pages: a.Pages, aux: a.Aux, got: map[int]bool{}}
	slots := len(a.Pages)
	if a.Aux >= 0 {
		slots++
	}
	for i := range p.w.cfg.Prefill {
		if !p.w.cfg.dummy(a.Room, i, p.rank) {
			l.want += slots
		}
	}
	p.leases = append(p.leases, l)
	p.rooms[a.Room].lease = l
	p.opened++
	l.count()
}

// count reports a lease that is full.
func (l *lease) count() {
	if len(l.got) < l.want || l.covered || l.sealed {
		return
	}
	l.covered = true
	if p := l.p; p.w.cfg.Coverage {
		p.w.after(p.rng.span(0, time.Millisecond), func() { p.deliver(node.Covered{Room: l.room, Epoch: l.epoch}) })
	}
}

func (p *proc) sealLease(a node.SealLease) {
	l := p.leaseOf(a.Epoch)
	if l == nil || l.sealed {
		p.w.violate("lease", "%v seals the lease of room %d, which is not open", p, a.Room)
		return
	}
	l.sealed = true
	stay := p.rng.span(0, 2*time.Millisecond) + p.linger
	p.linger = 0
	p.w.after(stay, func() {
		l.idle = true
		p.deliver(node.LeaseIdle(a))
	})
}

func (p *proc) retireLease(a node.RetireLease) {
	l := p.leaseOf(a.Epoch)
	if l == nil || !l.sealed || !l.idle || l.retired {
		p.w.violate("lease", "%v retires the lease of room %d, which is not sealed and idle", p, a.Room)
		return
	}
	l.retired = true
	p.retired++
	if l.threats > 0 && !l.unproven {
		p.w.violate("promise", "%v retires the page numbers of %v while %d writes may still use them", p, l, l.threats)
	}
}

// write is one write under way.
type write struct {
	p       *proc
	a       node.StartWrite
	fate    Op
	rng     rng
	pub     *publication // nil: it moves nothing
	to      *proc
	landed  int // pages
	refused bool
	at      time.Duration
	ended   bool // reported
	ok      bool
	life    *life
	threat  bool // it may still land
}

var errWrite = errors.New("the write failed")

func (p *proc) startWrite(a node.StartWrite) {
	w := p.w
	w.written[p.rank]++
	n := w.written[p.rank] // of all incarnations
	x := &write{p: p, a: a, at: w.now, life: p.rooms[a.Room], rng: newRNG(w.cfg.Seed, 0x3417e, uint64(p.rank), uint64(n)), fate: w.fates[[2]int{p.rank, n}]}
	if p.writes[a.Write] != nil {
		w.violate("writes", "%v starts write %d twice", p, a.Write)
	}
	p.writes[a.Write] = x
	p.started = append(p.started, x)
	p.count++
	p.startable(x)
	if x.pub != nil {
		x.pub.lease.threats++
		x.threat = true
	} else {
		x.fate.Mode = Done // there is nothing that could fail
	}
	d := x.rng.span(0, 3*time.Millisecond) + x.rng.delay(100*time.Millisecond)
	if x.fate.Mode == Hang || x.fate.Mode == HangDirty {
		d += x.fate.For
	}
	w.after(d/2, func() { x.land(0) })
	switch x.fate.Mode {
	case Done, Hang:
		w.after(d, func() { x.land(1) })
	case Dirty, HangDirty:
		w.after(d, func() { x.settle(errWrite, false) })
		w.after(d+x.fate.For, func() { x.land(1) })
	case Clean, Doubt:
		w.after(d, func() {
			x.calm()
			x.settle(errWrite, x.fate.Mode == Clean)
		})
	default:
		panic("sim: unknown fate")
	}
}

// startable finds the truth about a write and checks that it may begin.
func (p *proc) startable(x *write) {
	a := x.a
	if len(a.Src) != len(a.Dst) {
		p.w.violate("writes", "%v: %d pages to %d", p, len(a.Src), len(a.Dst))
	}
	numbers := a.Dst
	if x.withAux() {
		numbers = append(append([]int32(nil), a.Dst...), a.DstAux)
	}
	for _, n := range numbers {
		pub := p.w.pub(n)
		if x.pub != nil && x.pub != pub {
			p.w.violate("promise", "%v: write %d mixes the pages of two publications", p, a.Write)
		}
		x.pub = pub
	}
	if x.pub == nil {
		return
	}
	l := x.pub.lease
	x.to = l.p
	switch {
	case l.room != a.Room || l.p.session != a.Session || x.pub.target != p.rank:
		p.w.violate("promise", "%v: write %d of room %d to %s goes to the pages of %v", p, a.Write, a.Room, a.Session, l)
	case l.p.gone:
	case p.w.cfg.Virtual && l.retired, !p.w.cfg.Virtual && l.quiet && !l.unproven:
		p.w.violate("promise", "%v: write %d begins after %v was given back", p, a.Write, l)
	}
}

// land puts half of a write in place.
func (x *write) land(half int) {
	w := x.p.w
	if x.p.gone {
		return
	}
	if x.threat && !x.to.gone {
		wait := w.hole(x.p, x.to)
		if w.cfg.Virtual || w.cfg.Coverage { // its process puts the bytes in place
			wait = max(wait, x.to.until)
		}
		if w.now < wait {
			w.push(wait, func() { x.land(half) })
			return
		}
		x.move(half)
	}
	if half == 0 {
		return
	}
	x.calm()
	switch {
	case x.to != nil && x.to.gone:
		x.settle(errWrite, x.rng.oneIn(2))
	case x.refused:
		x.settle(errWrite, true)
	default:
		x.settle(nil, true)
	}
}

// move puts what belongs to a half, and has not arrived, in place.
func (x *write) move(half int) {
	end := len(x.a.Dst)
	if half == 0 {
		end = (end + 1) / 2
	}
	for ; x.landed < end; x.landed++ {
		n := x.a.Dst[x.landed]
		x.place(n, int(n)&(1<<slotBits-1))
	}
	if half == 1 && x.withAux() {
		x.place(x.a.DstAux, auxSlot)
	}
	if x.landed == len(x.a.Dst) && !x.withAux() {
		x.calm() // there is no second half
	}
}

// withAux says that the aux slot goes with it.
func (x *write) withAux() bool { return x.a.Last && x.a.DstAux >= 0 && x.a.SrcAux >= 0 }

// place is a page's bytes arriving.
func (x *write) place(n int32, slot int) {
	l := x.pub.lease
	w := x.p.w
	if w.cfg.Virtual {
		g := uint32(n>>slotBits) & (1<<(tagBits-slotBits) - 1)
		for _, o := range x.to.leases {
			if o.generation != g || o.retired {
				continue
			}
			if o != l {
				w.violate("promise", "a write of %v for %v reaches the range of %v", x.p, l, o)
			}
			if o.sealed {
				x.refused = x.refused || x.p.native() && x.to.native()
				return
			}
		}
	}
	if l.idle && w.cfg.Virtual {
		return // the sink
	}
	if l.quiet && !l.unproven && !w.cfg.Virtual {
		w.violate("promise", "a write of %v for %v reaches a page that was given back", x.p, l)
		return
	}
	l.got[x.pub.target<<slotBits|slot] = true
	l.count()
}

// calm says that nothing of the write can land any more.
func (x *write) calm() {
	if x.threat {
		x.threat = false
		x.pub.lease.threats--
	}
}

// poison notes that a room's writes from here have left a doubt.
func (x *write) poison() {
	x.life.poisoned = true
	for _, o := range x.p.started {
		if o.life == x.life && o.pub != nil {
			o.pub.lease.poisoned = true
		}
	}
}

// settle reports the end of a write.
func (x *write) settle(err error, proven bool) {
	if x.ended {
		return
	}
	x.ended, x.ok = true, err == nil
	if err != nil && !proven || x.p.w.now-x.at >= 5*time.Second {
		x.poison()
	}
	ev := node.WriteSettled{Write: x.a.Write, Err: err, Proven: proven}
	if err != nil {
		ev.Cause = room.NewCause(room.TransferFailed, room.Prefill, x.a.Session, err.Error())
	}
	p := x.p
	p.run(func() {
		p.count--
		delete(p.writes, x.a.Write)
		_ = p.w.step(p, ev)
	})
}

// cancelWrite stops a write or not: engines differ.
func (p *proc) cancelWrite(a node.CancelWrite) {
	x := p.writes[a.Write]
	if x == nil {
		p.w.violate("writes", "%v cancels write %d, which it does not have", p, a.Write)
		return
	}
	if x.ended {
		return
	}
	after := x.rng.span(0, 5*time.Millisecond)
	switch x.rng.n(3) {
	case 0: // it goes on
	case 1:
		p.w.after(after, func() {
			if !x.ended {
				x.calm()
			}
			x.settle(errWrite, true)
		})
	default: // given up, but what was sent may still land
		p.w.after(after, func() { x.settle(errWrite, false) })
	}
}
