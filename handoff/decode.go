package handoff

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"

	"github.com/kvferry/kvferry/backend"
	"github.com/kvferry/kvferry/kvlayout"
	"github.com/kvferry/kvferry/node"
	"github.com/kvferry/kvferry/room"
	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/zmtp"
)

// Decode is one decode rank: it finds prefill ranks, publishes pages to them, and knows when they have arrived. All methods are safe for
// concurrent use and none but Close waits for a peer.
type Decode struct {
	*rank
	core   *node.Decode
	cfg    DecodeConfig
	mem    *memory
	self   *backend.Introduction
	routes routes
	leases map[room.Epoch]transfer.Lease // by the life of the room; under mu
}

// DecodeConfig describes a decode rank.
type DecodeConfig struct {
	Control
	Memory    Memory
	Geometry  kvlayout.Geometry // of this rank
	Engine    transfer.Engine
	Directory Directory   // nil: a Lookup
	Node      node.Config // times; the rest is set here
}

// NewDecode registers the rank's memory with the engine, binds its control socket, and starts its goroutines: one that receives, one that
// ticks. The engine and the memory stay the caller's and must outlive Close.
func NewDecode(ctx context.Context, cfg DecodeConfig) (*Decode, error) {
	mem, err := register(cfg.Engine, cfg.Memory)
	if err != nil {
		return nil, err
	}
	if cfg.Directory == nil {
		cfg.Directory = &Lookup{}
	}
	nc := cfg.Node
	nc.Rank, nc.Pages, nc.Slots = cfg.Geometry.TPRank, mem.pages, mem.slots
	caps := cfg.Engine.Capabilities()
	nc.Virtual, nc.Coverage = caps.VirtualPages, caps.ReceiverApplied
	n := node.NewDecode(nc)
	r, err := newRank(ctx, room.Decode, cfg.Control, n, n.Ledger)
	if err != nil {
		return nil, err
	}
	d := &Decode{rank: r, core: n, cfg: cfg, mem: mem, leases: map[room.Epoch]transfer.Lease{}}
	d.self, err = introduce(r, cfg.Engine.Name(), cfg.Geometry, mem)
	if err != nil {
		r.cancel()
		_, _ = r.pull.Close() // nothing has come yet
		return nil, err
	}
	r.act = d.carry
	r.start(d.read)
	return d, nil
}

// Pages is the rank's page pool.
func (d *Decode) Pages() Pages { return Pages{d.rank} }

// Endpoint is the rank's control socket as its peers reach it.
func (d *Decode) Endpoint() string { return d.pull.Endpoint() }

// Counts are the sizes of all tables.
func (d *Decode) Counts() Counts { return d.counts() }

// Close fails every room as draining, waits until their pages are quiescent or ctx ends, and gives the sockets back.
func (d *Decode) Close(ctx context.Context) error {
	return d.close(ctx, room.NewCause(room.Draining, room.Decode, "", "the decode rank is closing"))
}

// Receiver is one room on a decode rank.
type Receiver struct {
	half
	d     *Decode
	epoch room.Epoch
}

// Destination is where a room's KV goes.
type Destination struct {
	Pages  []int32   // physical pages for the tokens after Prefix, in order; kept
	Aux    int       // aux slot; -1 where no aux region is registered
	State  [][]int32 // items per state component
	Prefix int       // tokens that this rank already holds, a multiple of the page size
}

// Open makes the receiver of a room and looks the prefill ranks up. Errors: node.ErrDuplicate while the number is in use here, ErrClosed.
// Everything later, a prefill that can't be found included, is the room's verdict.
func (d *Decode) Open(id room.ID, p Peer) (*Receiver, error) {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	rx := &Receiver{half: newHalf(id, d.rank), d: d, epoch: room.Epoch(binary.LittleEndian.Uint64(b[:]) | 1)}
	if err := d.enter(&rx.half, node.OpenReceive{Room: id, Epoch: rx.epoch}); err != nil {
		return nil, err
	}
	if route, ok := d.routes.get(p); ok {
		_ = d.stepFor(&rx.half, node.Routed{Room: id, Targets: route.Targets}) // a room that is gone needs no route
		return rx, nil
	}
	ctx, cancel := context.WithCancel(d.ctx)
	rx.whenDone(cancel)
	d.wg.Go(func() {
		defer cancel()
		route, err := d.cfg.Directory.Find(ctx, id, p, d.cfg.Geometry)
		if err != nil {
			rx.Abort(causeOfRoute(err, p.Bootstrap))
			return
		}
		d.routes.keep(p, route)
		_ = d.stepFor(&rx.half, node.Routed{Room: id, Targets: route.Targets})
	})
	return rx, nil
}

// Post publishes pages to the prefill ranks, once they are known. The room holds the pages until it is quiescent, whatever the caller does
// with its own hold. Errors: node.ErrPosted, node.ErrPages, node.ErrNoGeneration, node.ErrUnknownRoom after Clear.
func (rx *Receiver) Post(dst Destination) error {
	if err := rx.d.mem.check(dst.Aux, dst.State, true); err != nil {
		return fmt.Errorf("room %d: %w", rx.id, err)
	}
	if err := rx.rank.stepFor(&rx.half, node.Post{Room: rx.id, Pages: dst.Pages, Aux: int32(dst.Aux), State: dst.State, Prefix: dst.Prefix}); err != nil {
		return fmt.Errorf("room %d: post %d pages: %w", rx.id, len(dst.Pages), err)
	}
	return nil
}

// carry does the actions that only decode has. It runs under mu.
func (d *Decode) carry(a node.Action) {
	dialect := d.cfg.Dialect
	switch a := a.(type) {
	case node.SendRegistration:
		d.send(a.Endpoint, dialect.Registration(d.self, a.Native))
	case node.SendMetadata:
		a.Pages = virtual(a.Pages, a.Generation, d.mem.pages)
		if a.Aux >= 0 {
			a.Aux += int32(a.Generation) * int32(d.mem.auxSlots)
		}
		for i, list := range a.State {
			a.State[i] = virtual(list, a.Generation, d.mem.stateSlots(i))
		}
		d.send(a.Endpoint, dialect.Metadata(a, d.self))
	case node.SendAbort:
		d.send(a.Endpoint, dialect.Abort(a, d.self))
	case node.OpenLease:
		d.openLease(a)
	case node.SealLease:
		d.seal(a)
	case node.RetireLease:
		if l := d.leases[a.Epoch]; l != nil {
			delete(d.leases, a.Epoch)
			l.Retire()
		}
	}
}

// read reads one control message.
func (d *Decode) read(m zmtp.Message, from backend.From) received {
	ev, kind, err := d.cfg.Dialect.ReadDecode(m.Frames, from)
	if err != nil {
		d.unwanted(kind, err, m.Peer)
		return received{}
	}
	return received{ev: ev}
}

// seal ends the admission of writes to a room's items, and tells the node when no reader is inside them; mostly none is.
func (d *Decode) seal(a node.SealLease) {
	idle := node.LeaseIdle(a)
	l := d.leases[a.Epoch]
	if l == nil { // it could not be opened
		d.next = append(d.next, idle)
		return
	}
	l.Seal()
	select {
	case <-l.Idle():
		d.next = append(d.next, idle)
	default:
		d.wg.Go(func() {
			<-l.Idle()
			_ = d.step(idle)
		})
	}
}

// virtual renumbers slots of a pool for a generation.
func virtual(list []int32, generation uint32, pool int) []int32 {
	out := make([]int32, len(list))
	for i, p := range list {
		out[i] = int32(generation)*int32(pool) + p
	}
	return out
}

// openLease admits writes to a room's items. It runs under mu.
func (d *Decode) openLease(a node.OpenLease) {
	covered := node.Covered{Room: a.Room, Epoch: a.Epoch}
	g := transfer.Grant{Generation: a.Generation, OnCovered: func() { _ = d.step(covered) }}
	for _, r := range d.mem.kv {
		g.Windows = append(g.Windows, transfer.Window{Region: r, Items: a.Pages})
	}
	if a.Aux >= 0 {
		for _, r := range d.mem.aux {
			g.Windows = append(g.Windows, transfer.Window{Region: r, Items: []int32{a.Aux}})
		}
	}
	for i, list := range a.State {
		for _, r := range d.mem.state[i] {
			g.Windows = append(g.Windows, transfer.Window{Region: r, Items: list})
		}
	}
	l, err := d.cfg.Engine.Open(g)
	if err != nil {
		d.next = append(d.next, node.Fail{Room: a.Room, Cause: room.NewCause(room.Invalid, room.Decode, "", err.Error())})
		return
	}
	d.leases[a.Epoch] = l
}

// Silent is how many prefill ranks are known to write nothing more for the room.
func (rx *Receiver) Silent() int {
	n := 0
	rx.rank.under(func() { n = rx.d.core.Silent(rx.id, rx.epoch) })
	return n
}
