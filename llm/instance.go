package llm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"unsafe"
)

// ErrStep reports a batch that can't be computed: pages, tokens or positions that are not there.
var ErrStep = errors.New("invalid step")

// Geometry is how a model is cut: KV heads over TP, layers over PP, and how many tokens a page holds.
type Geometry struct{ TP, PP, PageSize int }

// Stage is the layers [start, end) of a pipeline rank; the last ranks take those left over.
func Stage(layers, pp, rank int) (start, end int) {
	base, rest := layers/pp, layers%pp
	extra := func(r int) int { return max(0, r-(pp-rest)) }
	return rank*base + extra(rank), (rank+1)*base + extra(rank+1)
}

// Validate refuses a geometry that does not fit a model, with ErrGeometry.
func (g Geometry) Validate(c Config) error {
	switch {
	case g.TP < 1 || c.KVHeads%g.TP != 0:
		return fmt.Errorf("%w: TP %d, want a divisor of the model's %d KV heads", ErrGeometry, g.TP, c.KVHeads)
	case g.PP < 1 || g.PP > c.Layers:
		return fmt.Errorf("%w: PP %d, want 1 to the model's %d layers", ErrGeometry, g.PP, c.Layers)
	case g.PageSize < 1 || g.PageSize > c.Context:
		return fmt.Errorf("%w: page size %d, want 1 to %d tokens", ErrGeometry, g.PageSize, c.Context)
	}
	return nil
}

// Ranks is the number of ranks; rank (pp, tp) has the index pp × TP + tp.
func (g Geometry) Ranks() int { return g.TP * g.PP }

// ItemLen is the bytes of one page of one region.
func (g Geometry) ItemLen(c Config) int { return c.KVHeads / g.TP * g.PageSize * c.HeadDim * 4 }

// Instance computes with one KV memory per rank. Its methods may be called by any number of goroutines; steps run one at a time.
type Instance struct {
	m     *Model
	geo   Geometry
	ranks []*rank
	freq  []float64 // rotation of each pair per position, in radians
	mu    sync.Mutex
}

// rank is what one rank computes with: its stage's layers, cut to its KV-head groups, and its KV memory. A group is a KV head with the heads
// that read it and its share of the FFN.
type rank struct {
	index, stage int
	start, end   int // layers of the stage
	first        int // its first group in the model
	groups       int
	pages        int
	kv           [][]float32 // by region: K of the stage's layers, then V
	layers       []shard
}

// shard is a rank's part of a layer: rows of q, k, v, gate and up, and by group the columns of attention output and FFN down.
type shard struct {
	q, k, v, gate, up *tensor
	o, down           []*tensor
}

// NewInstance takes the KV memory of each rank: by rank index, then region. A rank's regions have equally many whole pages and are aligned to
// 4 bytes; ranks may differ in their number of pages. The memory stays the caller's, who may change pages that no running step uses.
// Errors: ErrGeometry.
func NewInstance(m *Model, geo Geometry, memory [][][]byte) (*Instance, error) {
	c := m.cfg
	if err := geo.Validate(c); err != nil {
		return nil, err
	}
	if len(memory) != geo.Ranks() {
		return nil, fmt.Errorf("%w: memory for %d ranks, want %d", ErrGeometry, len(memory), geo.Ranks())
	}
	in := &Instance{m: m, geo: geo}
	for i := range c.HeadDim / 2 {
		in.freq = append(in.freq, exp(-2*float64(i)/float64(c.HeadDim)*ln(float64(c.RopeBase))))
	}
	for i, regions := range memory {
		r := &rank{index: i, stage: i / geo.TP, groups: c.KVHeads / geo.TP}
		r.start, r.end = Stage(c.Layers, geo.PP, r.stage)
		r.first = i % geo.TP * r.groups
		if err := r.use(regions, geo.ItemLen(c)); err != nil {
			return nil, err
		}
		for l := r.start; l < r.end; l++ {
			r.layers = append(r.layers, r.cut(c, &m.layers[l]))
		}
		in.ranks = append(in.ranks, r)
	}
	return in, nil
}

// use takes the rank's memory.
func (r *rank) use(regions [][]byte, item int) error {
	if want := 2 * (r.end - r.start); len(regions) != want {
		return fmt.Errorf("%w: rank %d has %d regions, want %d", ErrGeometry, r.index, len(regions), want)
	}
	for i, b := range regions {
		switch {
		case len(b) == 0 || len(b)%item != 0:
			return fmt.Errorf("%w: rank %d has region %d of %d bytes, want whole pages of %d", ErrGeometry, r.index, i, len(b), item)
		case len(b) != len(regions[0]):
			return fmt.Errorf("%w: rank %d has region %d of %d pages, region 0 has %d", ErrGeometry, r.index, i, len(b)/item, len(regions[0])/item)
		case uintptr(unsafe.Pointer(&b[0]))%4 != 0:
			return fmt.Errorf("%w: rank %d has region %d at an address that is no multiple of 4", ErrGeometry, r.index, i)
		}
		r.kv = append(r.kv, unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), len(b)/4))
	}
	r.pages = len(regions[0]) / item
	return nil
}

// cut is the rank's part of a layer.
func (r *rank) cut(c Config, w *layer) shard {
	heads, ffn := c.Heads/c.KVHeads*c.HeadDim, c.FFN/c.KVHeads // a group's share
	rows := func(t *tensor, share int) *tensor { return t.part(r.first*share, (r.first+r.groups)*share, 0, t.cols) }
	return shard{q: rows(w.q, heads), k: rows(w.k, c.HeadDim), v: rows(w.v, c.HeadDim), gate: rows(w.gate, ffn), up: rows(w.up, ffn),
		o: w.o[r.first : r.first+r.groups], down: w.down[r.first : r.first+r.groups]}
}

// Seq is what one sequence contributes to a step.
type Seq struct {
	Tokens []int32   // to compute now, at least one
	Pos    int       // position of the first; what is before is in the pages
	Pages  [][]int32 // page tables by rank index: the page of positions [i×PageSize, (i+1)×PageSize)
	Logits bool      // the logits behind the last token are wanted
}

// Step computes a batch and returns, by sequence, the logits that are wanted (nil where not), which are the caller's. Sequences of a batch
// must not write to each other's pages. Errors: ErrStep, with nothing computed, when a sequence is invalid; ctx's own when it ends in the
// middle, and then the pages of the new tokens hold anything.
func (in *Instance) Step(ctx context.Context, seqs []Seq) ([][]float32, error) {
	return in.StepLayers(ctx, seqs, nil)
}

// StepLayers is Step, and calls done after each layer: its K and V of the batch's tokens are in the pages of the ranks of that stage and do
// not change in the rest of the step, so they can be sent while the next layers compute. done runs on the caller's goroutine, and the step
// waits for it.
func (in *Instance) StepLayers(ctx context.Context, seqs []Seq, done func(stage, layer int)) ([][]float32, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	total := 0
	for i, s := range seqs {
		if err := in.check(s); err != nil {
			return nil, fmt.Errorf("sequence %d: %w", i, err)
		}
		total += len(s.Tokens)
	}
	st := newStep(in, seqs, total)
	for l := range in.m.layers {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		ranks := in.stage(l)
		st.layer(ranks, l)
		if done != nil {
			done(ranks[0].stage, l)
		}
	}
	return st.logits(), nil
}

// stage is the ranks that hold a layer.
func (in *Instance) stage(layer int) []*rank {
	i := 0
	for layer >= in.ranks[i].end {
		i += in.geo.TP
	}
	return in.ranks[i : i+in.geo.TP]
}

func (in *Instance) check(s Seq) error {
	c := in.m.cfg
	switch {
	case len(s.Tokens) == 0 || s.Pos < 0:
		return fmt.Errorf("%w: %d tokens at position %d", ErrStep, len(s.Tokens), s.Pos)
	case s.Pos > c.Context || len(s.Tokens) > c.Context-s.Pos:
		return fmt.Errorf("%w: %d tokens at position %d, the context has %d", ErrStep, len(s.Tokens), s.Pos, c.Context)
	case len(s.Pages) != in.geo.Ranks():
		return fmt.Errorf("%w: page tables for %d ranks, want %d", ErrStep, len(s.Pages), in.geo.Ranks())
	}
	for _, id := range s.Tokens {
		if id < 0 || int(id) >= c.Vocab {
			return fmt.Errorf("%w: token %d, the vocabulary has %d", ErrStep, id, c.Vocab)
		}
	}
	need := (s.Pos + len(s.Tokens) + in.geo.PageSize - 1) / in.geo.PageSize
	for i, table := range s.Pages {
		if len(table) < need {
			return fmt.Errorf("%w: %d pages on rank %d, want %d", ErrStep, len(table), i, need)
		}
		for _, p := range table[:need] {
			if p < 0 || int(p) >= in.ranks[i].pages {
				return fmt.Errorf("%w: page %d on rank %d, want 0 to %d", ErrStep, p, i, in.ranks[i].pages-1)
			}
		}
	}
	return nil
}
