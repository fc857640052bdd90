package handoff

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvferry/kvferry/backend"
	"github.com/kvferry/kvferry/event"
	"github.com/kvferry/kvferry/node"
	"github.com/kvferry/kvferry/room"
	"github.com/kvferry/kvferry/zmtp"
)

// Names of the READY properties by which kvferry peers recognise each other. libzmq ignores them.
const (
	propertyInstance     = "X-Kvferry-Instance"
	propertyCapabilities = "X-Kvferry-Capabilities"
	capabilities         = "native/1"
)

// ErrClosed reports a call on a rank that is being closed.
var ErrClosed = errors.New("rank is closed")

// stepper is a node of either side.
type stepper interface {
	Step(now time.Time, ev node.Event) ([]node.Action, error)
	Counts() node.Counts
}

// Control says how a rank's control plane is set up. Zero values take defaults.
type Control struct {
	Instance  room.InstanceID // of this process incarnation; required
	Dialect   backend.Dialect // required
	Bind      string          // host:port of the control socket; default 127.0.0.1:0
	Advertise string          // host or host:port under which peers reach it; default the bound address
	Logger    *slog.Logger    // default: nothing is logged
	Events    event.Sink
	ZMTP      zmtp.Config // limits and times; Properties, Events, Advertise and Logger are set here
}

// rank is the shell of one node: it owns the sockets, the clock and the halves, feeds the node and carries out its actions.
//
// mu serialises the node. Every action is carried out under it, in order, and none of them blocks: messages go to the outbox, writes and
// closing happen on goroutines of their own. Functions of owners run after mu is left.
type rank struct {
	cfg  Control
	side room.Side
	pull *zmtp.Pull
	log  *slog.Logger

	mu     sync.Mutex
	node   stepper
	ledger *node.Ledger
	act    func(node.Action) // the side's own actions
	halves map[room.ID]*half
	pushes map[string]*push
	after  []func()
	next   []node.Event // to be stepped before mu is left
	outbox
	closed bool
	freed  chan struct{} // closed and renewed when pages become free

	dropped atomic.Uint64 // messages that could not be queued
	unread  counters      // messages received and dropped, by kind

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// counters counts by name, bounded in names.
type counters struct {
	mu sync.Mutex
	n  map[string]uint64
}

const maxCounters = 64

func (c *counters) add(name string) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]uint64{}
	}
	if _, ok := c.n[name]; !ok && len(c.n) >= maxCounters {
		name = "other"
	}
	c.n[name]++
	return c.n[name]
}

func (c *counters) all() map[string]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.n)
}

func newRank(ctx context.Context, side room.Side, cfg Control, n stepper, l *node.Ledger) (*rank, error) {
	if cfg.Instance.IsZero() || cfg.Dialect == nil {
		return nil, errors.New("handoff: Control.Instance and Control.Dialect are required")
	}
	if cfg.Bind == "" {
		cfg.Bind = "127.0.0.1:0"
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	r := &rank{cfg: cfg, side: side, node: n, ledger: l, log: cfg.Logger, halves: map[room.ID]*half{}, pushes: map[string]*push{}, freed: make(chan struct{})}
	z := r.zmtp()
	z.Advertise = cfg.Advertise
	pull, err := zmtp.Listen(ctx, cfg.Bind, z)
	if err != nil {
		return nil, fmt.Errorf("control socket on %s: %w", cfg.Bind, err)
	}
	r.pull = pull
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r, nil
}

// received is what a control message says to the node; then runs after its step, under the lock.
type received struct {
	ev   node.Event
	then func()
}

// start begins to receive and to tick; the side's fields must be set by then. What has come at once is stepped at once.
func (r *rank) start(read func(zmtp.Message, backend.From) received) {
	r.wg.Go(func() {
		messages, said := make([]zmtp.Message, 64), make([]received, 0, 64)
		var last *zmtp.Peer
		var from backend.From
		for {
			n, err := r.pull.RecvMany(r.ctx, messages)
			if err != nil {
				return
			}
			said = said[:0]
			for _, m := range messages[:n] {
				if m.Peer != last {
					last, from = m.Peer, backend.From{Instance: instanceOf(m.Peer), Remote: m.Peer.Remote().String()}
				}
				if s := read(m, from); s.ev != nil {
					said = append(said, s)
				}
			}
			clear(messages[:n])
			r.hear(said)
			clear(said)
		}
	})
	r.wg.Go(func() {
		t := time.NewTicker(node.TickInterval)
		defer t.Stop()
		for {
			select {
			case <-r.ctx.Done():
				return
			case <-t.C:
				r.tick()
			}
		}
	})
}

// hear steps the node with what was said.
func (r *rank) hear(said []received) {
	r.under(func() {
		for _, s := range said {
			_ = r.locked(s.ev)
			if s.then != nil {
				s.then()
			}
		}
	})
}

func (r *rank) zmtp() zmtp.Config {
	z := r.cfg.ZMTP
	z.Logger = r.cfg.Logger
	z.Properties = zmtp.Properties{propertyInstance: r.cfg.Instance.String(), propertyCapabilities: capabilities}
	return z
}

// instanceOf is who a connection's other end says it is; zero: foreign.
func instanceOf(p *zmtp.Peer) room.InstanceID {
	if p == nil {
		return room.InstanceID{}
	}
	text, _ := p.Properties().Get(propertyInstance)
	id, err := room.ParseInstanceID(text)
	if err != nil {
		return room.InstanceID{}
	}
	return id
}

// under runs f with the lock, and what f left to be stepped; then what was left to be done without it.
func (r *rank) under(f func()) {
	r.mu.Lock()
	f()
	for i := 0; i < len(r.next); i++ { // a step may leave another one
		_ = r.locked(r.next[i])
	}
	clear(r.next)
	r.next = r.next[:0]
	after := r.after
	r.after = nil
	batch := r.takeOut()
	r.mu.Unlock()
	r.sendOut(batch)
	for _, g := range after {
		g()
	}
}

// step feeds the node and carries out what it says.
func (r *rank) step(ev node.Event) (err error) {
	r.under(func() { err = r.locked(ev) })
	return err
}

// stepFor is step for the life of a room that h stands for; another life of the same number is left alone.
func (r *rank) stepFor(h *half, ev node.Event) (err error) {
	r.under(func() {
		if r.halves[h.id] != h {
			err = node.ErrUnknownRoom
			return
		}
		err = r.locked(ev)
	})
	return err
}

func (r *rank) locked(ev node.Event) error {
	free := r.ledger.Free()
	actions, err := r.node.Step(time.Now(), ev)
	for _, a := range actions { // none of them leads to another step under this lock
		r.do(a)
	}
	if r.ledger.Free() > free {
		close(r.freed)
		r.freed = make(chan struct{})
	}
	return err
}

func (r *rank) do(a node.Action) {
	d := r.cfg.Dialect
	switch a := a.(type) {
	case node.Emit:
		r.emit(a.Event)
	case node.Connect:
		r.connect(a.Endpoint)
	case node.Disconnect:
		if p := r.pushes[a.Endpoint]; p != nil {
			delete(r.pushes, a.Endpoint)
			r.out = append(r.out, letter{to: p})
		}
	case node.Changed:
		if h := r.halves[a.Room]; h != nil {
			r.after = append(r.after, h.changed(a)...)
		}
	case node.Quiescent:
		if a.Proof == node.ProofNone {
			r.log.Warn("quarantined pages are released: unproven", "room", a.Room)
		}
		if h := r.halves[a.Room]; h != nil {
			h.quiescent(a.Proof)
		}
	case node.Quarantined:
		if h := r.halves[a.Room]; h != nil {
			h.quarantine(a.Pages)
		}
		r.log.Warn("pages are quarantined: no proof that nothing writes to them", "room", a.Room, "pages", a.Pages)
	case node.Cleared:
		if h := r.halves[a.Room]; h != nil {
			delete(r.halves, a.Room)
			h.gone()
		}
	case node.SendStatus:
		r.send(a.Endpoint, d.Status(a))
	case node.SendQuiescent:
		r.send(a.Endpoint, d.Quiescent(a))
	case node.SendAck:
		r.send(a.Endpoint, d.Ack(a))
	case node.SendReceipt:
		r.send(a.Endpoint, d.Receipt(a))
	case node.SendQueued:
		r.send(a.Endpoint, d.Queued(a))
	case node.SendGoodbye:
		r.send(a.Endpoint, d.Goodbye(a))
	case node.SendRefused:
		r.send(a.Endpoint, d.Refused(a))
	default:
		r.act(a)
	}
}

func (r *rank) emit(e event.Event) {
	if e.Kind == event.PeerDead || e.Kind == event.PeerDown {
		r.log.Info("peer", "event", e.Kind, "peer", e.Peer, "cause", e.Cause.Code, "text", e.Cause.Text+e.Note)
	} else {
		r.log.Debug("room", "event", e.Kind, "room", e.Room, "peer", e.Peer, "cause", e.Cause.Code)
	}
	r.cfg.Events.Emit(e)
}

func (r *rank) tick() {
	r.under(func() {
		for _, endpoint := range slices.Sorted(maps.Keys(r.pushes)) {
			p := r.pushes[endpoint]
			if peer := p.peer.Load(); peer != nil {
				if at := peer.Stats().LastReceived; at.After(p.last) {
					p.last = at
					_ = r.locked(node.PeerHeard{Endpoint: endpoint, At: at})
				}
			}
		}
		_ = r.locked(node.Tick{})
	})
}

// enter adds a half before the node opens its room, so that the first status finds it.
func (r *rank) enter(h *half, ev node.Event) (err error) {
	r.under(func() {
		switch {
		case r.closed:
			err = ErrClosed
			return
		case r.halves[h.id] != nil:
			err = node.ErrDuplicate
		default:
			r.halves[h.id] = h
			if err = r.locked(ev); err != nil {
				delete(r.halves, h.id)
			}
		}
		if err != nil {
			err = fmt.Errorf("room %d: %w", h.id, err)
		}
	})
	return err
}

// unwanted counts and, at powers of two, logs a message that was dropped.
func (r *rank) unwanted(kind string, err error, from *zmtp.Peer) {
	if n := r.unread.add(kind); n&(n-1) == 0 {
		r.log.Warn("control message dropped", "kind", kind, "error", err, "peer", from.Remote(), "dropped_so_far", n)
	}
	r.cfg.Events.Emit(event.Event{At: time.Now(), Kind: event.Dropped, Side: r.side, Chunk: -1, Note: kind})
}

// Counts are the sizes of a rank's tables.
type Counts struct {
	node.Counts
	Halves, Connections int
	PagesFree, Pages    int
	MessagesDropped     uint64            // could not be queued for their peer
	MessagesUnread      map[string]uint64 // received, but not understood or not wanted, by kind
}

func (r *rank) counts() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Counts{r.node.Counts(), len(r.halves), len(r.pushes), r.ledger.Free(), r.ledger.Total(), r.dropped.Load(), r.unread.all()}
}

// close fails every room with cause, waits until the quiescent ones have left or ctx ends, and closes the sockets.
func (r *rank) close(ctx context.Context, cause room.Cause) error {
	var waits []<-chan struct{}
	var err error
	r.under(func() {
		if r.closed {
			err = ErrClosed
			return
		}
		r.closed = true
		_ = r.locked(node.Leave{Cause: cause})
		for _, id := range slices.Sorted(maps.Keys(r.halves)) {
			waits = append(waits, r.halves[id].Cleared())
			_ = r.locked(node.Fail{Room: id, Cause: cause})
			_ = r.locked(node.Clear{Room: id})
		}
	})
	if err != nil {
		return err
	}
	for i, w := range waits {
		select {
		case <-w:
			continue
		case <-ctx.Done():
			err = fmt.Errorf("%d of %d rooms are not quiescent: %w", len(waits)-i, len(waits), ctx.Err())
		}
		break
	}
	r.cancel()
	r.under(func() {
		for _, endpoint := range slices.Sorted(maps.Keys(r.pushes)) {
			r.do(node.Disconnect{Endpoint: endpoint})
		}
	})
	r.wg.Wait()
	_, closeErr := r.pull.Close()
	return errors.Join(err, closeErr)
}

// Pages is the page pool of a rank. All methods are safe for concurrent use.
type Pages struct{ r *rank }

// Alloc takes n pages for the caller, or none and false.
func (p Pages) Alloc(n int) ([]int32, bool) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	return p.r.ledger.Alloc(make([]int32, 0, n), n)
}

// Release lets go of pages that Alloc gave. Pages that a room still holds become free when it is quiescent.
func (p Pages) Release(pages []int32) error {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	free := p.r.ledger.Free()
	err := p.r.ledger.Release(pages)
	if p.r.ledger.Free() > free {
		close(p.r.freed)
		p.r.freed = make(chan struct{})
	}
	return err
}

// Free and Total count pages.
func (p Pages) Free() int {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	return p.r.ledger.Free()
}

func (p Pages) Total() int { return p.r.ledger.Total() }

// Freed returns a channel that is closed when pages become free next.
func (p Pages) Freed() <-chan struct{} {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	return p.r.freed
}
