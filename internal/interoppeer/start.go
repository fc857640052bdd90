package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/kvferry/kvferry/backend/mooncake"
	"github.com/kvferry/kvferry/handoff"
	"github.com/kvferry/kvferry/kvlayout"
	"github.com/kvferry/kvferry/room"
	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/tcp"
)

// start makes the rank and says that it is ready.
func (p *peer) start(ctx context.Context) error {
	g := p.geometry()
	if err := g.Validate(); err != nil {
		return err
	}
	p.item, p.auxItem = int(g.ItemLen(0)), p.auxBytes
	mem, err := p.memory(g.Regions())
	if err != nil {
		return err
	}
	e, err := tcp.New(ctx, tcp.Config{})
	if err != nil {
		return err
	}
	p.engine = &engine{Engine: e}
	control := handoff.Control{Dialect: mooncake.Dialect{}, Logger: logger()}
	_, _ = rand.Read(control.Instance[:])
	if p.side == room.Prefill {
		err = p.startPrefill(ctx, handoff.PrefillConfig{Control: control, Memory: mem, Geometry: g, Engine: p.engine})
	} else {
		p.decode, err = handoff.NewDecode(ctx, handoff.DecodeConfig{Control: control, Memory: mem, Geometry: g, Engine: p.engine})
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(answer{"event": "ready", "role": p.role, "backend": p.backend, "bootstrap": p.bootstrap, "rank_port": p.port(),
		"item_bytes": p.item, "regions": len(p.kv), "session": e.Name(), "t_ns": monotonic()})
}

// geometry is this rank's, as sglang_peer.py lays its memory out. MLA always has layer numbers there.
func (p *peer) geometry() kvlayout.Geometry {
	g := kvlayout.Geometry{Order: kvlayout.TokenMajor, DType: "auto", PageSize: p.pageSize, TP: 1, PP: 1, Layers: p.layers, End: p.layers, KVHeads: p.heads, HeadBytes: p.headBytes}
	if p.mla {
		g.MLA, g.KVHeads, g.HeadBytes = true, 1, p.heads*p.headBytes
	}
	g = g.At(kvlayout.Topology{TP: p.tp, CP: 1, PP: p.pp}, kvlayout.Rank{TP: p.tpRank, PP: p.ppRank})
	if p.mla || p.layerIDs {
		regions := g.Regions()
		for i := range regions {
			g.LayerIDs = append(g.LayerIDs, uint32(g.Start+i%(g.End-g.Start)))
		}
	}
	return g
}

func (p *peer) memory(regions int) (m handoff.Memory, err error) {
	buffer := func(n, item int) (handoff.Buffer, error) {
		mem, err := transfer.NewMemory(n * item)
		if err != nil {
			return handoff.Buffer{}, err
		}
		return handoff.Buffer{Mem: mem.Bytes(), Item: item}, nil
	}
	for range regions {
		b, err := buffer(p.pages, p.item)
		if err != nil {
			return m, err
		}
		m.KV, p.kv = append(m.KV, b), append(p.kv, b.Mem)
	}
	b, err := buffer(p.auxSlots, p.auxItem)
	m.Aux, p.aux = []handoff.Buffer{b}, b.Mem
	return m, err
}

func (p *peer) counts() handoff.Counts {
	if p.prefill != nil {
		return p.prefill.Counts()
	}
	return p.decode.Counts()
}

func (p *peer) port() int {
	if p.prefill != nil {
		return portOf(p.prefill.Endpoint()[len("tcp://"):])
	}
	return portOf(p.decode.Endpoint()[len("tcp://"):])
}

// engine is the transfer engine with the faults and notes that the harness asks for.
type engine struct {
	transfer.Engine
	mu      sync.Mutex
	fault   string
	count   int
	pause   time.Duration
	noting  bool
	written [][3]any
}

func (e *engine) inject(o *op) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fault, e.count, e.pause = o.Fault, 1, time.Duration(o.Seconds*float64(time.Second))
	if o.Count != nil {
		e.count = *o.Count
	}
}

func (e *engine) notes(start bool) [][3]any {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.noting = e.noting || start
	return append([][3]any{}, e.written...)
}

// Write implements transfer.Engine.
func (e *engine) Write(peer string, batch []transfer.Fragment) (transfer.Handle, error) {
	e.mu.Lock()
	fault, pause := "", e.pause
	if e.count > 0 {
		e.count--
		fault = e.fault
	}
	if e.noting {
		n := 0
		for _, f := range batch {
			n += len(f.Src)
		}
		e.written = append(e.written, [3]any{monotonic(), peer, n})
	}
	e.mu.Unlock()
	switch fault {
	case "fail":
		return nil, fmt.Errorf("%w: injected", transfer.ErrPeerGone)
	case "fail_after":
		h, err := e.Engine.Write(peer, batch)
		if err != nil {
			return nil, err
		}
		return failing{h}, nil
	case "hold":
		time.Sleep(pause)
	}
	return e.Engine.Write(peer, batch)
}

// failing reports failure for a write whose bytes land all the same.
type failing struct{ transfer.Handle }

func (f failing) Err() error { return fmt.Errorf("%w: injected after the write", transfer.ErrPeerGone) }
