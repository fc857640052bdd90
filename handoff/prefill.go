package handoff

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvferry/kvferry/backend"
	"github.com/kvferry/kvferry/kvlayout"
	"github.com/kvferry/kvferry/node"
	"github.com/kvferry/kvferry/room"
	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/zmtp"
)

// Prefill is one prefill rank: it learns where decode ranks want a room's pages, and writes them there. All methods are safe for
// concurrent use and none but Close waits for a peer.
type Prefill struct {
	*rank
	cfg    PrefillConfig
	mem    *memory
	plans  map[string]*plan // by decode session; under mu
	writes map[node.WriteID]*flight
	named  time.Time // when StillQueued did something; under mu
}

// PrefillConfig describes a prefill rank.
type PrefillConfig struct {
	Control
	Memory   Memory
	Geometry kvlayout.Geometry // of this rank
	Engine   transfer.Engine
	Node     node.Config // times; the rest is set here
}

// flight is a write under way.
type flight struct {
	mu       sync.Mutex
	handle   transfer.Handle
	canceled bool
}

// NewPrefill binds the rank's control socket and starts its goroutines: one that receives and one that ticks. The engine and the memory stay the caller's and must outlive Close.
func NewPrefill(ctx context.Context, cfg PrefillConfig) (*Prefill, error) {
	mem, err := measure(cfg.Memory)
	if err != nil {
		return nil, err
	}
	nc := cfg.Node
	nc.Rank, nc.Pages = UniqueRank(cfg.Geometry), mem.pages
	n := node.NewPrefill(nc)
	r, err := newRank(ctx, room.Prefill, cfg.Control, n, n.Ledger)
	if err != nil {
		return nil, err
	}
	p := &Prefill{rank: r, cfg: cfg, mem: mem, plans: map[string]*plan{}, writes: map[node.WriteID]*flight{}}
	r.act = p.carry
	r.start(p.read)
	return p, nil
}

// UniqueRank is the number by which a prefill rank names itself in its messages.
func UniqueRank(g kvlayout.Geometry) int {
	return kvlayout.Topology{TP: g.TP, CP: 1, PP: g.PP}.Unique(kvlayout.Rank{TP: g.TPRank, PP: g.PPRank})
}

// Pages is the rank's page pool.
func (p *Prefill) Pages() Pages { return Pages{p.rank} }

// Endpoint is the rank's control socket as its peers reach it.
func (p *Prefill) Endpoint() string { return p.pull.Endpoint() }

// Counts are the sizes of all tables.
func (p *Prefill) Counts() Counts { return p.counts() }

// Close fails every room as draining, waits until no write reads their pages or ctx ends, and gives the sockets back.
func (p *Prefill) Close(ctx context.Context) error {
	return p.close(ctx, room.NewCause(room.Draining, room.Prefill, "", "the prefill rank is closing"))
}

// StillQueued is for the caller's scheduler loop, and for nothing else: it tells native decode ranks which of their rooms this rank holds, at
// most once a second however often it is called. A loop that hangs falls silent, and its rooms fail on decode.
func (p *Prefill) StillQueued() {
	now := time.Now()
	p.under(func() {
		if now.Sub(p.named) < time.Second {
			return
		}
		p.named = now
		_ = p.locked(node.StillQueued{})
	})
}

// Sender is one room on a prefill rank.
type Sender struct {
	half
	p *Prefill
}

// Chunk is what one prefill step has computed.
type Chunk struct {
	Pages []int32   // physical pages, in order of position, after decode's prefix; read until Quiescent
	Aux   int       // aux slot, read when Last; -1: none
	State [][]int32 // items per state component, read when Last
	Last  bool
}

// Send makes the sender of a room; decode makes itself known by its metadata, before or after. Errors: node.ErrDuplicate while the room has
// a sender here, ErrClosed.
func (p *Prefill) Send(id room.ID) (*Sender, error) {
	tx := &Sender{half: newHalf(id, p.rank), p: p}
	if err := p.enter(&tx.half, node.OpenSend{Room: id}); err != nil {
		return nil, err
	}
	return tx, nil
}

// Prefix is how many tokens decode already holds; it is known once Ready is closed. Chunks begin after it.
func (tx *Sender) Prefix() int {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	return tx.prefix
}

// Chunk queues a chunk and returns. It is written as soon as decode has published its pages. The room holds the pages until it is
// quiescent, whatever the caller does with its own hold. On a room that has its verdict it does nothing. Errors: node.ErrAfterLast,
// node.ErrPages, node.ErrUnknownRoom after Clear.
func (tx *Sender) Chunk(c Chunk) error {
	if err := tx.p.mem.check(c.Aux, c.State, false); err != nil {
		return fmt.Errorf("room %d: %w", tx.id, err)
	}
	if err := tx.rank.stepFor(&tx.half, node.Chunk{Room: tx.id, Pages: c.Pages, Aux: int32(c.Aux), State: c.State, Last: c.Last}); err != nil {
		return fmt.Errorf("room %d: chunk of %d pages: %w", tx.id, len(c.Pages), err)
	}
	return nil
}

// read reads one control message.
func (p *Prefill) read(m zmtp.Message, from backend.From) received {
	ev, in, kind, err := p.cfg.Dialect.ReadPrefill(m.Frames, from)
	if err != nil {
		p.unwanted(kind, err, m.Peer)
		return received{}
	}
	if in == nil {
		return received{ev: ev}
	}
	reg := node.Registration{Session: in.Session, Endpoint: endpointOf(in.Host, in.Port), Instance: from.Instance}
	pl, err := newPlan(p.cfg.Geometry, p.mem, in)
	if err != nil {
		reg.Refused = err.Error()
		p.log.Warn("a decode rank can't be served", "session", in.Session, "peer", reg.Endpoint, "error", err)
	}
	// Afterwards, because the step may end another incarnation's registration of the same session.
	return received{ev: reg, then: func() { p.plans[in.Session] = pl }}
}

// carry does the actions that only prefill has. It runs under mu.
func (p *Prefill) carry(a node.Action) {
	switch a := a.(type) {
	case node.StartWrite:
		f := &flight{}
		p.writes[a.Write] = f
		pl := p.plans[a.Session]
		p.wg.Add(1) // until it is reported
		p.after = append(p.after, func() {
			if len(a.Src) > inlinePages {
				go p.write(f, pl, a)
			} else {
				p.write(f, pl, a)
			}
		})
	case node.CancelWrite:
		if f := p.writes[a.Write]; f != nil {
			p.wg.Go(f.cancel)
		}
	case node.Unregistered:
		delete(p.plans, a.Session)
	}
}

func (f *flight) cancel() {
	f.mu.Lock()
	f.canceled = true
	h := f.handle
	f.mu.Unlock()
	if h != nil {
		h.Cancel()
	}
}

// errCanceled ends a write that was cancelled before it began.
var errCanceled = errors.New("cancelled before it began")

// inlinePages is up to how many pages a write is put together by whoever stepped the node: laying them out takes some microseconds.
const inlinePages = 32

// write begins to carry one chunk to one decode rank, and has it reported how that ended, when it has settled.
func (p *Prefill) write(f *flight, pl *plan, a node.StartWrite) {
	h, bytes, err := p.begin(f, pl, a)
	if err != nil {
		p.report(a, node.WriteSettled{Write: a.Write, Err: err, Proven: true})
		return
	}
	transfer.WhenSettled(h, func() {
		ev := node.WriteSettled{Write: a.Write, Err: h.Err(), Proven: true, Bytes: bytes}
		if ev.Err != nil {
			ev.Bytes, ev.Proven = 0, h.Answered()
		}
		p.report(a, ev)
	})
}

func (p *Prefill) report(a node.StartWrite, ev node.WriteSettled) {
	defer p.wg.Done()
	if ev.Err != nil {
		code := room.TransferFailed
		if errors.Is(ev.Err, transfer.ErrCorrupt) {
			code = room.Corrupt
		}
		ev.Cause = room.Causef(code, room.Prefill, a.Session, "chunk %d: %v", a.Chunk, ev.Err)
	}
	p.under(func() {
		delete(p.writes, a.Write)
		_ = p.locked(ev)
	})
}

// begin starts a write; after an error nothing has begun.
func (p *Prefill) begin(f *flight, pl *plan, a node.StartWrite) (h transfer.Handle, bytes int64, err error) {
	if pl == nil {
		return nil, 0, fmt.Errorf("session %s is not registered", a.Session)
	}
	b, bytes, err := pl.batch(p.mem, a)
	defer pl.pool.Put(b)
	if err != nil {
		return nil, 0, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.canceled {
		return nil, 0, errCanceled
	}
	h, err = p.cfg.Engine.Write(a.Session, b.frags)
	f.handle = h
	return h, bytes, err
}
