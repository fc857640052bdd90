package llm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
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

// Validate refuses a geometry that does not fit a model.
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

// Instance computes with one KV memory per rank.
type Instance struct {
	m     *Model
	geo   Geometry
	kv    [][][]float32 // by rank, region
	pages int           // fewest of any rank
	rope  []float32     // cos, sin by position and pair
	mu    sync.Mutex
}

// NewInstance takes the KV memory of each rank: by rank index, then region. All regions are whole pages and aligned to 4 bytes; they stay
// the caller's, who may change pages that no running sequence uses.
func NewInstance(m *Model, geo Geometry, memory [][][]byte) (*Instance, error) {
	if err := geo.Validate(m.cfg); err != nil {
		return nil, err
	}
	if len(memory) != geo.Ranks() {
		return nil, fmt.Errorf("%w: memory for %d ranks, want %d", ErrGeometry, len(memory), geo.Ranks())
	}
	in := &Instance{m: m, geo: geo, pages: math.MaxInt}
	item := geo.ItemLen(m.cfg)
	for rank, regions := range memory {
		start, end := Stage(m.cfg.Layers, geo.PP, rank/geo.TP)
		if len(regions) != 2*(end-start) {
			return nil, fmt.Errorf("%w: rank %d has %d regions, want %d", ErrGeometry, rank, len(regions), 2*(end-start))
		}
		var fs [][]float32
		for _, b := range regions {
			if len(b) == 0 || len(b)%item != 0 || uintptr(unsafe.Pointer(&b[0]))%4 != 0 {
				return nil, fmt.Errorf("%w: rank %d has a region of %d bytes, want whole pages of %d", ErrGeometry, rank, len(b), item)
			}
			in.pages = min(in.pages, len(b)/item)
			fs = append(fs, unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), len(b)/4))
		}
		in.kv = append(in.kv, fs)
	}
	in.makeRope()
	return in, nil
}

// makeRope tabulates the rotation of every position.
func (in *Instance) makeRope() {
	c := in.m.cfg
	half := c.HeadDim / 2
	in.rope = make([]float32, c.Context*half*2)
	for i := range half {
		freq := math.Pow(float64(c.RopeBase), -2*float64(i)/float64(c.HeadDim))
		for p := range c.Context {
			s, co := math.Sincos(float64(p) * freq)
			in.rope[(p*half+i)*2], in.rope[(p*half+i)*2+1] = float32(co), float32(s)
		}
	}
}

// Seq is what one sequence contributes to a step.
type Seq struct {
	Tokens []int32   // to compute now, at least one
	Pos    int       // position of the first; what is before is in the pages
	Pages  [][]int32 // page tables by rank index: the page of positions [i×PageSize, (i+1)×PageSize)
	Logits bool      // the logits behind the last token are wanted
}

// Step computes a batch and returns, by sequence, the logits that are wanted. Nothing is computed when a sequence is invalid; when ctx ends
// in the middle, the pages of the new tokens hold anything.
func (in *Instance) Step(ctx context.Context, seqs []Seq) ([][]float32, error) {
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
		st.layer(l)
	}
	return st.logits(), nil
}

func (in *Instance) check(s Seq) error {
	c := in.m.cfg
	end := s.Pos + len(s.Tokens)
	switch {
	case len(s.Tokens) == 0 || s.Pos < 0:
		return fmt.Errorf("%w: %d tokens at position %d", ErrStep, len(s.Tokens), s.Pos)
	case end > c.Context:
		return fmt.Errorf("%w: position %d, the context has %d", ErrStep, end, c.Context)
	case len(s.Pages) != in.geo.Ranks():
		return fmt.Errorf("%w: page tables for %d ranks, want %d", ErrStep, len(s.Pages), in.geo.Ranks())
	}
	for _, id := range s.Tokens {
		if id < 0 || int(id) >= c.Vocab {
			return fmt.Errorf("%w: token %d, the vocabulary has %d", ErrStep, id, c.Vocab)
		}
	}
	need := (end + in.geo.PageSize - 1) / in.geo.PageSize
	for rank, table := range s.Pages {
		if len(table) < need {
			return fmt.Errorf("%w: %d pages on rank %d, want %d", ErrStep, len(table), rank, need)
		}
		for _, p := range table[:need] {
			if p < 0 || int(p) >= in.pages {
				return fmt.Errorf("%w: page %d on rank %d, want 0 to %d", ErrStep, p, rank, in.pages-1)
			}
		}
	}
	return nil
}

// workers splits n pieces of work over the processors and waits.
func workers(n int, f func(from, to int)) {
	w := min(runtime.GOMAXPROCS(0), n)
	if w <= 1 {
		f(0, n)
		return
	}
	var wg sync.WaitGroup
	for i := range w {
		wg.Go(func() { f(i*n/w, (i+1)*n/w) })
	}
	wg.Wait()
}
