package handoff

import (
	"fmt"
	"sync"

	"github.com/kvferry/kvferry/backend"
	"github.com/kvferry/kvferry/kvlayout"
	"github.com/kvferry/kvferry/node"
	"github.com/kvferry/kvferry/transfer"
)

// plan says how this prefill rank writes to one decode rank.
type plan struct {
	in   *backend.Introduction
	kv   *kvlayout.Plan
	pool sync.Pool // of *batch
}

// batch is the reusable memory of one write.
type batch struct {
	pieces []kvlayout.Fragment
	frags  []transfer.Fragment
}

// newPlan pairs a decode rank with this one, or says why they can't exchange KV.
func newPlan(own kvlayout.Geometry, mem *memory, in *backend.Introduction) (*plan, error) {
	var theirs kvlayout.Geometry
	var err error
	if in.Native != nil {
		if theirs, err = kvlayout.ParseGeometry(in.Native); err == nil && theirs.Regions() != len(in.KV) {
			err = fmt.Errorf("%w: %d regions are registered, the geometry has %d", kvlayout.ErrGeometry, len(in.KV), theirs.Regions())
		}
		theirs.Pages = 0 // its page numbers are virtual
	} else {
		r := kvlayout.Registered{EngineRank: in.EngineRank, TP: in.TPSize, Regions: len(in.KV), LayerIDs: in.LayerIDs}
		for _, k := range in.KV {
			r.ItemLens = append(r.ItemLens, uint64(k.Item))
		}
		theirs, err = own.Foreign(r)
	}
	if err != nil {
		return nil, err
	}
	kv, err := kvlayout.NewPlan(own, theirs)
	if err != nil {
		return nil, err
	}
	if len(in.State) > len(mem.State) {
		return nil, fmt.Errorf("%w: decode has %d state components, prefill %d", kvlayout.ErrIncompatible, len(in.State), len(mem.State))
	}
	for i, component := range in.State {
		if len(component) != len(mem.State[i]) {
			return nil, fmt.Errorf("%w: state component %d has %d regions on decode, %d on prefill", kvlayout.ErrIncompatible, i, len(component), len(mem.State[i]))
		}
		for k, r := range component {
			if own := mem.State[i][k].Item; r.Item != 0 && r.Item != own {
				return nil, fmt.Errorf("%w: state component %d: items of %d bytes on decode, %d on prefill", kvlayout.ErrIncompatible, i, r.Item, own)
			}
		}
	}
	return &plan{in: in, kv: kv}, nil
}

// batch makes the fragments of a write: the chunk's pages, and with the last chunk state and aux.
func (pl *plan) batch(mem *memory, a node.StartWrite) (b *batch, bytes int64, err error) {
	b, _ = pl.pool.Get().(*batch)
	if b == nil {
		b = &batch{}
	}
	b.frags = b.frags[:0]
	b.pieces, err = pl.kv.Fragments(b.pieces[:0], a.Src, a.Dst)
	if err != nil {
		return b, 0, err
	}
	for _, f := range b.pieces {
		b.frags = append(b.frags, transfer.Fragment{Src: mem.KV[f.SrcRegion].Mem[f.SrcOff : f.SrcOff+f.Len], Dst: pl.in.KV[f.DstRegion].Base + f.DstOff})
		bytes += int64(f.Len)
	}
	if !a.Last {
		return b, bytes, nil
	}
	add := func(src Buffer, from int32, base uint64, to int32) {
		at := int(from) * src.Item
		b.frags = append(b.frags, transfer.Fragment{Src: src.Mem[at : at+src.Item], Dst: base + uint64(to)*uint64(src.Item)})
		bytes += int64(src.Item)
	}
	for i := range min(len(a.SrcState), len(a.DstState)) {
		if len(a.SrcState[i]) != len(a.DstState[i]) || i >= len(pl.in.State) {
			return b, 0, fmt.Errorf("%w: state component %d has %d items here, decode published %d", kvlayout.ErrPages, i, len(a.SrcState[i]), len(a.DstState[i]))
		}
		for k, src := range mem.State[i] {
			for j, from := range a.SrcState[i] {
				add(src, from, pl.in.State[i][k].Base, a.DstState[i][j])
			}
		}
	}
	if a.SrcAux >= 0 && a.DstAux >= 0 {
		for k := range min(len(mem.Aux), len(pl.in.Aux)) {
			add(mem.Aux[k], a.SrcAux, pl.in.Aux[k].Base, a.DstAux)
		}
	}
	return b, bytes, nil
}
