package kvlayout

import (
	"encoding/json"
	"fmt"
	"slices"
)

// Limits of a geometry, which a peer may have sent. Their products stay far below 2^63.
const (
	MaxLayers    = 1 << 12
	MaxHeads     = 1 << 12
	MaxHeadBytes = 1 << 20
	MaxPageSize  = 1 << 16 // tokens
	MaxRegions   = 1 << 13 // K and V of MaxLayers layers
	MaxItemLen   = 1 << 40 // bytes, as in package wire
	MaxName      = 255     // bytes of DType and Model
)

// Order is how the elements of a page lie in a region. Its text form goes to native peers.
type Order uint8

// The orders of a page. A pair of unlike ones is refused.
const (
	TokenMajor Order = 1 + iota // [token][head][dim], as SGLang's engines register
	HeadMajor                   // [head][token][dim], as the embedded engine does: the pages of a head slice are contiguous
)

func (o Order) String() string {
	switch o {
	case TokenMajor:
		return "token-major"
	case HeadMajor:
		return "head-major"
	}
	return fmt.Sprintf("order %d", uint8(o))
}

// MarshalText implements encoding.TextMarshaler.
func (o Order) MarshalText() ([]byte, error) {
	if o != TokenMajor && o != HeadMajor {
		return nil, fmt.Errorf("%w: %s", ErrGeometry, o)
	}
	return []byte(o.String()), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (o *Order) UnmarshalText(b []byte) error {
	for _, known := range []Order{TokenMajor, HeadMajor} {
		if string(b) == known.String() {
			*o = known
			return nil
		}
	}
	return fmt.Errorf("%w: page order %.40q, want %q or %q", ErrGeometry, b, TokenMajor, HeadMajor)
}

// Geometry is how the KV memory of one rank is laid out. Its JSON form goes to native peers.
type Geometry struct {
	Order    Order  `json:"order"`
	MLA      bool   `json:"mla,omitempty"` // one region per layer, the same on all TP ranks; Order has no meaning but must agree
	DType    string `json:"dtype"`         // of the elements; empty: unknown, agrees with all
	Model    string `json:"model"`         // fingerprint of the weights; empty: unknown, agrees with all
	PageSize int    `json:"page_size"`     // tokens

	TP     int `json:"tp"`
	TPRank int `json:"tp_rank"`
	PP     int `json:"pp"`
	PPRank int `json:"pp_rank"`

	Layers  int `json:"layers"` // of the model
	Start   int `json:"start"`  // the rank holds layers [Start, End)
	End     int `json:"end"`
	KVHeads int `json:"kv_heads"` // of the model; MLA: 1

	// HeadBytes is the bytes of one head of one token, K or V alone; with MLA, of all that a layer keeps of one token.
	HeadBytes int `json:"head_bytes"`

	// ItemLens is the bytes of a page, one per registered region; empty: what the other fields say, the same for all. A decode rank may
	// register more regions than its layers need (a draft model's); they come last.
	ItemLens []uint64 `json:"item_lens,omitempty"`

	// LayerIDs names the layer of each registered region; empty: K of the stage's layers in order, then V (MLA: one region per layer).
	LayerIDs []uint32 `json:"layer_ids,omitempty"`

	// Pages is the number of pages of each region; 0: unbounded, as where page numbers are virtual.
	Pages int `json:"pages,omitempty"`
}

// ParseGeometry reads the JSON form and validates it. Unknown fields are ignored, so that peers of different releases can be paired.
func ParseGeometry(b []byte) (Geometry, error) {
	var g Geometry
	if err := json.Unmarshal(b, &g); err != nil {
		return Geometry{}, fmt.Errorf("%w: %w", ErrGeometry, err)
	}
	return g, g.Validate()
}

// Validate refuses, with ErrGeometry, a geometry that contradicts itself or is beyond a limit.
func (g Geometry) Validate() error {
	for _, f := range []struct {
		name      string
		n, lo, hi int
	}{
		{"page order", int(g.Order), int(TokenMajor), int(HeadMajor)},
		{"page size", g.PageSize, 1, MaxPageSize},
		{"TP", g.TP, 1, MaxRanks},
		{"TP rank", g.TPRank, 0, g.TP - 1},
		{"PP", g.PP, 1, MaxRanks},
		{"PP rank", g.PPRank, 0, g.PP - 1},
		{"layers", g.Layers, 1, MaxLayers},
		{"first layer", g.Start, 0, g.Layers - 1},
		{"end of the layers", g.End, g.Start + 1, g.Layers},
		{"KV heads", g.KVHeads, 1, MaxHeads},
		{"bytes per head", g.HeadBytes, 1, MaxHeadBytes},
		{"item lengths", len(g.ItemLens), 0, MaxRegions},
		{"layer ids", len(g.LayerIDs), 0, MaxRegions},
		{"bytes of the dtype's name", len(g.DType), 0, MaxName},
		{"bytes of the model's name", len(g.Model), 0, MaxName},
		{"pages", g.Pages, 0, 1 << 31},
	} {
		if f.n < f.lo || f.n > f.hi {
			return fmt.Errorf("%w: %s %d, want %d to %d", ErrGeometry, f.name, f.n, f.lo, f.hi)
		}
	}
	if g.MLA && g.KVHeads != 1 {
		return fmt.Errorf("%w: %d KV heads with MLA, want 1", ErrGeometry, g.KVHeads)
	}
	if !g.MLA && !divides(g.KVHeads, g.TP) {
		return fmt.Errorf("%w: %d KV heads over TP %d, one must divide the other", ErrGeometry, g.KVHeads, g.TP)
	}
	return g.validateRegions()
}

func (g Geometry) validateRegions() error {
	items, ids := len(g.ItemLens), len(g.LayerIDs)
	if items > 0 && ids > 0 && items != ids {
		return fmt.Errorf("%w: %d item lengths and %d layer ids, want as many", ErrGeometry, items, ids)
	}
	if items > 0 && ids == 0 && items < g.stageRegions() {
		return fmt.Errorf("%w: %d item lengths for %d regions of layers %d to %d", ErrGeometry, items, g.stageRegions(), g.Start, g.End)
	}
	if n := g.Regions(); n > MaxRegions {
		return fmt.Errorf("%w: %d regions, want at most %d", ErrGeometry, n, MaxRegions)
	}
	for i, n := range g.ItemLens {
		if n < 1 || n > MaxItemLen {
			return fmt.Errorf("%w: item length %d of region %d, want 1 to %d", ErrGeometry, n, i, uint64(MaxItemLen))
		}
	}
	if n := g.itemLen(); n > MaxItemLen {
		return fmt.Errorf("%w: %d bytes per page, want at most %d", ErrGeometry, n, uint64(MaxItemLen))
	}
	return nil
}

// Heads is the number of KV heads that this rank holds, at least 1.
func (g Geometry) Heads() int {
	if g.MLA {
		return 1
	}
	return max(1, g.KVHeads/g.TP)
}

// Regions is the number of regions that the rank registers.
func (g Geometry) Regions() int {
	if n := max(len(g.ItemLens), len(g.LayerIDs)); n > 0 {
		return n
	}
	return g.stageRegions()
}

// ItemLen is the bytes of one page of a region.
func (g Geometry) ItemLen(region int) uint64 {
	if len(g.ItemLens) > 0 {
		return g.ItemLens[region]
	}
	return g.itemLen()
}

// PageBytes is the bytes of one page of all regions: what a decode rank expects per page of a room, if prefill has a counterpart of each.
func (g Geometry) PageBytes() uint64 {
	n := uint64(0)
	for i := range g.Regions() {
		n += g.ItemLen(i)
	}
	return n
}

// At is the geometry of another rank of an instance with the same model, page size and order, cut into t; its layers are those of Stage,
// its regions and their lengths the usual ones.
func (g Geometry) At(t Topology, r Rank) Geometry {
	g.TP, g.TPRank, g.PP, g.PPRank = t.TP, r.TP, t.PP, r.PP
	g.Start, g.End = Stage(g.Layers, t.PP, r.PP)
	g.ItemLens, g.LayerIDs, g.Pages = nil, nil, 0
	return g
}

// Registered is what an SGLang decode rank's registration says about its memory.
type Registered struct {
	EngineRank int      // may be beyond TP
	TP         int      // attention TP size
	Regions    int      // number of KV pointers
	ItemLen    uint64   // bytes of a page of the first region
	ItemLens   []uint64 // per region; empty: all are ItemLen
	LayerIDs   []uint32 // per region, or empty
}

// Foreign is the geometry of an SGLang decode rank, as prefill rank g has to see it. A registration tells neither PP nor layers: with as
// many regions as g it is the same stage, with more it holds the whole model (and perhaps a draft model's regions after it).
func (g Geometry) Foreign(r Registered) (Geometry, error) {
	if r.TP < 1 || r.EngineRank < 0 || r.Regions < 0 || r.Regions > MaxRegions {
		return Geometry{}, fmt.Errorf("%w: registration of engine rank %d, TP %d, %d regions", ErrGeometry, r.EngineRank, r.TP, r.Regions)
	}
	own := g.Regions()
	d := g
	d.Order, d.TP, d.TPRank = TokenMajor, r.TP, r.EngineRank%r.TP
	d.LayerIDs, d.ItemLens, d.Pages = slices.Clone(r.LayerIDs), slices.Clone(r.ItemLens), 0
	if r.Regions != own && len(r.LayerIDs) == 0 {
		d.PP, d.PPRank, d.Start, d.End = 1, 0, 0, g.Layers
		if want := d.stageRegions(); r.Regions < want {
			return Geometry{}, incompatible(fmt.Sprintf("regions (decode needs %d for all %d layers, or as many as prefill)", want, g.Layers), own, r.Regions)
		}
	}
	if len(d.ItemLens) == 0 {
		d.ItemLens = slices.Repeat([]uint64{r.ItemLen}, r.Regions)
	}
	if len(d.ItemLens) != r.Regions || len(d.LayerIDs) > 0 && len(d.LayerIDs) != r.Regions {
		return Geometry{}, fmt.Errorf("%w: %d regions with %d item lengths and %d layer ids", ErrGeometry, r.Regions, len(d.ItemLens), len(d.LayerIDs))
	}
	return d, d.Validate()
}

func (g Geometry) stageRegions() int {
	if g.MLA {
		return g.End - g.Start
	}
	return 2 * (g.End - g.Start)
}

func (g Geometry) itemLen() uint64 {
	return uint64(g.PageSize) * uint64(g.Heads()) * uint64(g.HeadBytes)
}

// Compatible reports in what prefill rank p and decode rank d can't be paired, as an *IncompatibleError, or nil. It asks the questions that
// concern the two instances; ranks of a compatible pair may still be ErrNotPaired.
func Compatible(p, d Geometry) error {
	switch {
	case p.Model != d.Model && p.Model != "" && d.Model != "":
		return incompatible("model", p.Model, d.Model)
	case p.DType != d.DType && p.DType != "" && d.DType != "":
		return incompatible("KV dtype", p.DType, d.DType)
	case p.MLA != d.MLA:
		return incompatible("MLA", p.MLA, d.MLA)
	case p.Order != d.Order:
		return incompatible("page order", p.Order, d.Order)
	case p.PageSize != d.PageSize:
		return incompatible("page size", p.PageSize, d.PageSize)
	case p.Layers != d.Layers:
		return incompatible("layers", p.Layers, d.Layers)
	case p.KVHeads != d.KVHeads:
		return incompatible("KV heads", p.KVHeads, d.KVHeads)
	case p.HeadBytes != d.HeadBytes:
		return incompatible("bytes per head", p.HeadBytes, d.HeadBytes)
	case !divides(p.TP, d.TP):
		return incompatible("TP (one must divide the other)", p.TP, d.TP)
	}
	return nil
}

// HeadSlice returns, for non-MLA ranks that talk to each other, which of the source rank's heads go where on the destination rank: the first
// on either side, counted within the rank, and how many.
func HeadSlice(srcTP, dstTP, srcRank, dstRank, kvHeads int) (src, dst, n int) {
	heads := func(tp int) int { return max(1, kvHeads/tp) }
	first := func(tp, rank int) int { return rank / max(1, tp/kvHeads) * heads(tp) }
	if srcTP > dstTP {
		return 0, first(srcTP, srcRank) % heads(dstTP), heads(srcTP)
	}
	return first(dstTP, dstRank) % heads(srcTP), 0, heads(dstTP)
}
