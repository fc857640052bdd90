package sim

import (
	"fmt"
	"time"

	"github.com/kvferry/kvferry/node"
	"github.com/kvferry/kvferry/room"
)

// proc is a process: one incarnation of a rank, with its node, connections, memory and owner.
type proc struct {
	w        *world
	side     room.Side
	rank     int
	life     int // incarnations of the rank before it
	endpoint string
	session  string          // decode: names its memory
	instance room.InstanceID // zero: it stands for a foreign implementation
	node     stepper
	ledger   *node.Ledger
	rng      rng

	gone, vanished bool // its process is dead; its host too
	until          time.Duration
	inbox          []func()      // what came while it stood still
	named          time.Duration // when its scheduler said StillQueued
	closed         bool          // it has said goodbye
	wedged         time.Duration // its scheduler hangs until then

	conns map[string]*conn
	order []*conn

	rooms           map[room.ID]*life
	ended           []*life // those that got a verdict
	lives           []*life // all that were not cleared, in order
	leases          []*lease
	retired, opened int
	linger          time.Duration   // readers of the next sealed lease stay
	registered      map[string]bool // decode ranks that introduced themselves, by session
	fresh           string          // the one that has introduced itself in this step
	epochs          map[epochKey]room.Epoch
	letters         map[uint64]node.SendStatus
	writes          map[node.WriteID]*write
	started         []*write // all
	count           int      // of writes that have not settled
	calling         bool     // the owner holds pages that no room has
}

func (p *proc) String() string { return fmt.Sprintf("%v%d.%d", p.side, p.rank, p.life) }

// boot starts a process, in the place of old if there is one.
func (w *world) boot(s room.Side, rank int, old *proc) *proc {
	p := &proc{w: w, side: s, rank: rank, conns: map[string]*conn{}, rooms: map[room.ID]*life{}, letters: map[uint64]node.SendStatus{}, registered: map[string]bool{}, epochs: map[epochKey]room.Epoch{}, writes: map[node.WriteID]*write{}}
	if old != nil {
		p.life = old.life + 1
	}
	p.rng = newRNG(w.cfg.Seed, 0x960c, uint64(s), uint64(rank), uint64(p.life))
	native := w.cfg.nativeAt(s, rank)
	port := p.life
	if native {
		p.instance = room.InstanceID{byte(s), byte(rank), byte(p.life), 1}
		if old != nil && w.cfg.Peers == Native && !p.rng.oneIn(3) {
			port = -1 // it comes back at the same address
		}
	}
	p.session = fmt.Sprintf("session-%v%d.%d", s, rank, p.life)
	p.endpoint = fmt.Sprintf("tcp://%v%d:%d", s, rank, port)
	if port < 0 {
		p.endpoint = old.endpoint
	}
	w.net.at[p.endpoint] = p
	cfg := w.cfg.node(s, rank)
	if s == room.Prefill {
		n := node.NewPrefill(cfg)
		p.node, p.ledger = n, n.Ledger
	} else {
		n := node.NewDecode(cfg)
		p.node, p.ledger = n, n.Ledger
	}
	if w.cfg.wrap != nil {
		p.node = w.cfg.wrap(p.side, p.node, p.ledger)
	}
	w.procs = append(w.procs, p)
	w.after(p.rng.span(0, node.TickInterval), p.tick)
	return p
}

func (p *proc) native() bool { return !p.instance.IsZero() }

// paused says that the process stands still.
func (p *proc) paused() bool { return p.w.now < p.until }

// run does f as soon as the process does anything.
func (p *proc) run(f func()) {
	switch {
	case p.gone:
	case p.paused():
		p.inbox = append(p.inbox, f)
	default:
		f()
	}
}

// deliver steps an event as soon as the process does anything.
func (p *proc) deliver(ev node.Event) { p.run(func() { _ = p.w.step(p, ev) }) }

// pause stops the process for a while.
func (p *proc) pause(d time.Duration) {
	if p.gone || p.w.now+d <= p.until {
		return
	}
	p.until = p.w.now + d
	p.w.push(p.until, p.resume)
}

func (p *proc) resume() {
	if p.paused() {
		return
	}
	inbox := p.inbox
	p.inbox = nil
	for _, f := range inbox {
		p.run(f)
	}
}

// tick is the process's clock, as handoff's: what was heard, then Tick. Its scheduler loop says once a second that it turns.
func (p *proc) tick() {
	if p.gone {
		return
	}
	if !p.paused() {
		p.hear()
		_ = p.w.step(p, node.Tick{})
		if p.side == room.Prefill && p.w.now >= p.named+time.Second && p.w.now >= p.wedged {
			p.named = p.w.now
			_ = p.w.step(p, node.StillQueued{})
		}
	}
	pause := node.TickInterval
	if p.w.calm {
		pause = p.w.cfg.calmTick(p.w.now)
	}
	p.w.after(pause, p.tick)
}

// kill ends the process. A host that vanishes answers nothing; else its kernel closes its sockets.
func (p *proc) kill(vanished bool) {
	if p.gone {
		return
	}
	p.gone, p.vanished = true, vanished
	p.w.note("%v is gone, vanished %v", p, vanished)
	p.inbox = nil
	for _, x := range p.started {
		x.calm() // a process that is dead writes no more
	}
	p.hungUp()
}
