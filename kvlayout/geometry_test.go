package kvlayout

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
)

func sample() Geometry {
	g := Geometry{Order: HeadMajor, DType: "f32", Model: "a", KVHeads: 8, HeadBytes: 128, PageSize: 16, Layers: 6}
	return g.At(Topology{TP: 2, CP: 1, PP: 2}, Rank{TP: 1, PP: 1})
}

func TestCompatible(t *testing.T) {
	if err := Compatible(sample(), sample()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		change func(*Geometry)
		want   IncompatibleError
	}{
		{func(g *Geometry) { g.Model = "b" }, IncompatibleError{"model", "a", "b"}},
		{func(g *Geometry) { g.DType = "f16" }, IncompatibleError{"KV dtype", "f32", "f16"}},
		{func(g *Geometry) { g.MLA, g.KVHeads = true, 1 }, IncompatibleError{"MLA", "false", "true"}},
		{func(g *Geometry) { g.Order = TokenMajor }, IncompatibleError{"page order", "head-major", "token-major"}},
		{func(g *Geometry) { g.PageSize = 32 }, IncompatibleError{"page size", "16", "32"}},
		{func(g *Geometry) { g.Layers = 7 }, IncompatibleError{"layers", "6", "7"}},
		{func(g *Geometry) { g.KVHeads = 4 }, IncompatibleError{"KV heads", "8", "4"}},
		{func(g *Geometry) { g.HeadBytes = 64 }, IncompatibleError{"bytes per head", "128", "64"}},
	} {
		d := sample()
		c.change(&d)
		_, err := NewPlan(sample(), d)
		var e *IncompatibleError
		if !errors.Is(err, ErrIncompatible) || !errors.As(err, &e) || *e != c.want {
			t.Errorf("error %v, want %v", err, &c.want)
		}
	}
	unknown := sample()
	unknown.Model, unknown.DType = "", ""
	if err := Compatible(sample(), unknown); err != nil {
		t.Errorf("what is not known must agree with all: %v", err)
	}
	// 6 and 4 both divide 12 heads, but neither divides the other.
	g := Geometry{Order: TokenMajor, KVHeads: 12, HeadBytes: 4, PageSize: 1, Layers: 1}
	_, err := NewPlan(g.At(Topology{6, 1, 1}, Rank{}), g.At(Topology{4, 1, 1}, Rank{}))
	var e *IncompatibleError
	if !errors.As(err, &e) || e.Prefill != "6" || e.Decode != "4" {
		t.Errorf("TP 6 → 4: error %v", err)
	}
	d := sample()
	d.ItemLens = slices.Repeat([]uint64{17}, 6)
	if _, err := NewPlan(sample(), d); !errors.Is(err, ErrIncompatible) {
		t.Errorf("unlike item lengths: error %v", err)
	}
}

func TestRanksRefuses(t *testing.T) {
	one := Topology{1, 1, 1}
	for _, c := range []struct {
		p, d    Topology
		rank    Rank
		pairing Pairing
		want    error
	}{
		{Topology{3, 1, 1}, Topology{2, 1, 1}, Rank{}, Pairing{}, ErrIncompatible},
		{Topology{2, 1, 1}, Topology{3, 1, 1}, Rank{}, Pairing{MLA: true}, ErrIncompatible},
		{Topology{1, 2, 1}, Topology{1, 2, 1}, Rank{}, Pairing{}, ErrIncompatible},
		{Topology{1, 1, 1}, Topology{1, 1, 2}, Rank{}, Pairing{}, ErrIncompatible},
		{Topology{1, 1, 3}, Topology{1, 1, 2}, Rank{}, Pairing{Layers: 2}, ErrIncompatible},
		{Topology{1, 1, 0}, one, Rank{}, Pairing{}, ErrGeometry},
		{Topology{MaxRanks + 1, 1, 1}, one, Rank{}, Pairing{}, ErrGeometry},
		{one, one, Rank{PP: 1}, Pairing{}, ErrGeometry},
		{one, one, Rank{TP: -1}, Pairing{}, ErrGeometry},
	} {
		if m, err := Ranks(c.p, c.d, c.rank, c.pairing); !errors.Is(err, c.want) {
			t.Errorf("%+v: %+v, error %v", c, m, err)
		}
	}
	if _, ok := one.Rank(1); ok {
		t.Error("a rank beyond the topology")
	}
	if _, ok := one.Rank(-1); ok {
		t.Error("a negative rank")
	}
}

// TestForeign reads SGLang decode ranks' registrations as prefill sees them.
func TestForeign(t *testing.T) {
	base := Geometry{Order: TokenMajor, KVHeads: 4, HeadBytes: 8, PageSize: 4, Layers: 6}
	stage := base.At(Topology{2, 1, 2}, Rank{TP: 1, PP: 1}) // layers 3 to 6
	for _, c := range []struct {
		name    string
		r       Registered
		from    int // first region of decode that K of layer 3 goes to
		v       int
		refused error
	}{
		{name: "same stage", r: Registered{EngineRank: 3, TP: 2, Regions: 6, ItemLen: 64}, from: 0, v: 3},
		{name: "whole model", r: Registered{EngineRank: 1, TP: 2, Regions: 12, ItemLen: 64}, from: 3, v: 9},
		{name: "draft model behind", r: Registered{EngineRank: 1, TP: 2, Regions: 14, ItemLen: 64}, from: 3, v: 9},
		{name: "item lengths", r: Registered{EngineRank: 1, TP: 2, Regions: 12, ItemLens: slices.Repeat([]uint64{64}, 12)}, from: 3, v: 9},
		{name: "TP 4", r: Registered{EngineRank: 2, TP: 4, Regions: 12, ItemLen: 32}, from: 3, v: 9},
		{name: "another stage", r: Registered{TP: 2, Regions: 8, ItemLen: 64}, refused: ErrIncompatible},
		{name: "nothing", r: Registered{TP: 2}, refused: ErrIncompatible},
		{name: "no TP", r: Registered{Regions: 6, ItemLen: 64}, refused: ErrGeometry},
		{name: "too few item lengths", r: Registered{TP: 2, Regions: 12, ItemLens: []uint64{64}}, refused: ErrGeometry},
		{name: "empty items", r: Registered{EngineRank: 1, TP: 2, Regions: 12}, refused: ErrGeometry},
		{name: "other items", r: Registered{EngineRank: 1, TP: 2, Regions: 12, ItemLen: 65}, refused: ErrIncompatible},
		{name: "heads that do not fit", r: Registered{EngineRank: 2, TP: 4, Regions: 12, ItemLen: 64}, refused: ErrIncompatible},
		{name: "another rank's", r: Registered{EngineRank: 2, TP: 2, Regions: 12, ItemLen: 64}, refused: ErrNotPaired},
	} {
		d, err := stage.Foreign(c.r)
		var plan *Plan
		if err == nil {
			plan, err = NewPlan(stage, d)
		}
		if c.refused != nil {
			if !errors.Is(err, c.refused) {
				t.Errorf("%s: error %v, want %v", c.name, err, c.refused)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		frags, err := plan.Fragments(nil, []int32{0}, []int32{0})
		if err != nil || frags[0].DstRegion != c.from || frags[len(frags)-1].DstRegion != c.v+2 {
			t.Errorf("%s: %+v, error %v", c.name, frags, err)
		}
	}
	if err := Compatible(sample(), mustForeign(t, sample())); !errors.Is(err, ErrIncompatible) {
		t.Errorf("head-major prefill, SGLang decode: error %v", err)
	}
}

func mustForeign(t *testing.T, p Geometry) Geometry {
	t.Helper()
	d, err := p.Foreign(Registered{EngineRank: p.TPRank, TP: p.TP, Regions: p.Regions(), ItemLen: p.ItemLen(0)})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestStage(t *testing.T) {
	for _, c := range []struct {
		layers, size int
		ends         []int
	}{{6, 3, []int{2, 4, 6}}, {7, 3, []int{2, 4, 7}}, {8, 3, []int{2, 5, 8}}, {1, 1, []int{1}}} {
		at := 0
		for rank, want := range c.ends {
			start, end := Stage(c.layers, c.size, rank)
			if start != at || end != want {
				t.Errorf("stage %d of %d of %d layers: [%d, %d), want [%d, %d)", rank, c.size, c.layers, start, end, at, want)
			}
			at = end
		}
	}
}

func TestWindows(t *testing.T) {
	for _, c := range []struct {
		prefix, from, to int
		last             bool
		want             Window
	}{
		{0, 0, 32, false, Window{0, 2}},
		{0, 0, 30, false, Window{0, 1}},
		{0, 30, 47, false, Window{1, 2}},
		{0, 30, 47, true, Window{1, 3}},
		{0, 3, 5, false, Window{0, 0}},
		{0, 3, 5, true, Window{0, 1}},
		{32, 32, 48, false, Window{0, 1}},
		{32, 0, 32, false, Window{0, 0}},
		{32, 0, 40, true, Window{0, 1}},
		{32, 32, 32, true, Window{0, 0}}, // all of the prompt is there
		{0, 0, 0, true, Window{0, 0}},
	} {
		if got, err := ChunkWindow(c.prefix, c.from, c.to, c.last, 16); err != nil || got != c.want {
			t.Errorf("%+v: %v, error %v", c, got, err)
		}
	}
	for _, c := range [][4]int{{1, 0, 16, 16}, {-16, 0, 16, 16}, {0, -1, 16, 16}, {0, 2, 1, 16}, {0, 0, 1, 0}} {
		if got, err := ChunkWindow(c[0], c[1], c[2], false, c[3]); !errors.Is(err, ErrPages) {
			t.Errorf("%v: %v, error %v, want ErrPages", c, got, err)
		}
	}
	if _, err := RoomPages(15, 16, 16); !errors.Is(err, ErrPages) {
		t.Errorf("a prefix longer than the prompt: error %v", err)
	}
	if _, _, err := AppendShard(nil, nil, []int32{1}, Window{0, 2}, 0, 2); !errors.Is(err, ErrPages) {
		t.Errorf("pages that do not fill the window: error %v", err)
	}
	if _, _, err := AppendShard(nil, nil, nil, Window{}, 2, 2); !errors.Is(err, ErrGeometry) {
		t.Errorf("shard 2 of 2: error %v", err)
	}
}

func TestDCPRefuses(t *testing.T) {
	sound := DCPChunk{PageSize: 4, Size: 2, Rank: 1, Tokens: -1, Src: []int32{1, 2}, Dst: []int32{1}}
	if _, _, err := DCPTokens(sound); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		change func(*DCPChunk)
		want   error
	}{
		{func(c *DCPChunk) { c.Dst = nil }, ErrPages},
		{func(c *DCPChunk) { c.First = 1 }, ErrPages},
		{func(c *DCPChunk) { c.Tokens = 9 }, ErrPages},
		{func(c *DCPChunk) { c.Prefix = 4 }, ErrPages},
		{func(c *DCPChunk) { c.Rank = 2 }, ErrGeometry},
		{func(c *DCPChunk) { c.Size = 0 }, ErrGeometry},
		{func(c *DCPChunk) { c.PageSize = 0 }, ErrGeometry},
	} {
		bad := sound
		c.change(&bad)
		if _, _, err := DCPTokens(bad); !errors.Is(err, c.want) {
			t.Errorf("%+v: error %v, want %v", bad, err, c.want)
		}
	}
}

func FuzzParseGeometry(f *testing.F) {
	g := sample()
	for _, seed := range []Geometry{g, regionsNamed(g)} {
		b, err := json.Marshal(seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"order":"head-major","tp":9223372036854775807}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := ParseGeometry(b)
		if err != nil {
			if !errors.Is(err, ErrGeometry) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		out, err := json.Marshal(g)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseGeometry(out)
		if err != nil {
			t.Fatal(err)
		}
		if second, err := json.Marshal(again); err != nil || !bytes.Equal(out, second) {
			t.Fatalf("%s became %s, error %v", out, second, err)
		}
		if n := g.Regions(); n < 1 || n > MaxRegions {
			t.Fatalf("%d regions", n)
		}
		for i := range g.Regions() {
			if n := g.ItemLen(i); n < 1 || n > MaxItemLen {
				t.Fatalf("region %d has %d bytes per page", i, n)
			}
		}
	})
}

func regionsNamed(g Geometry) Geometry {
	g.Order = TokenMajor
	g.ItemLens, g.LayerIDs, g.Pages = []uint64{1, 2}, []uint32{1, 1}, 5
	return g
}

// FuzzPlan makes plans of two geometries of any shape, sound or not, and holds every fragment against the regions of both sides.
func FuzzPlan(f *testing.F) {
	f.Add(uint64(1), byte(2), byte(4), byte(1), byte(2), byte(8), byte(7), byte(16), false)
	f.Add(uint64(2), byte(4), byte(2), byte(3), byte(1), byte(2), byte(6), byte(1), false)
	f.Add(uint64(3), byte(6), byte(4), byte(2), byte(2), byte(12), byte(2), byte(3), true)
	f.Fuzz(func(t *testing.T, seed uint64, ptp, dtp, ppp, dpp, heads, layers, pageSize byte, ids bool) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		base := Geometry{Order: Order(1 + rnd.IntN(2)), KVHeads: int(heads), HeadBytes: 1 + rnd.IntN(4), PageSize: int(pageSize % 32), Layers: int(layers % 16), MLA: heads == 1 && rnd.IntN(2) == 0}
		side := func(tp, pp byte) Geometry {
			if tp == 0 || pp == 0 {
				return base
			}
			g := base.At(Topology{int(tp), 1, int(pp)}, Rank{TP: rnd.IntN(int(tp)), PP: rnd.IntN(int(pp))})
			g.Pages = 1 + rnd.IntN(6)
			if ids {
				for range rnd.IntN(2*g.Layers*2 + 1) {
					g.LayerIDs = append(g.LayerIDs, uint32(rnd.IntN(4)))
				}
			}
			if rnd.IntN(4) == 0 {
				g.ItemLens = make([]uint64, g.Regions())
				for i := range g.ItemLens {
					g.ItemLens[i] = uint64(1 + rnd.IntN(64))
				}
			}
			return g
		}
		p, d := side(ptp, ppp), side(dtp, dpp)
		plan, err := NewPlan(p, d)
		if err != nil {
			if !errors.Is(err, ErrGeometry) && !errors.Is(err, ErrIncompatible) && !errors.Is(err, ErrNotPaired) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		checkBounds(t, plan, p, d, rnd)
	})
}

// checkBounds copies random distinct pages and refuses fragments out of a region and bytes written twice.
func checkBounds(t *testing.T, plan *Plan, p, d Geometry, rnd *rand.Rand) {
	n := rnd.IntN(min(p.Pages, d.Pages) + 1)
	var src, dst []int32
	for i := range n {
		src, dst = append(src, int32(rnd.Perm(p.Pages)[0])), append(dst, int32(i))
	}
	rnd.Shuffle(n, func(i, j int) { dst[i], dst[j] = dst[j], dst[i] })
	frags, err := plan.Fragments(nil, src, dst)
	if err != nil {
		t.Fatal(err)
	}
	sum := uint64(0)
	written := map[int][]bool{}
	for _, f := range frags {
		if f.SrcRegion >= p.Regions() || f.DstRegion >= d.Regions() || f.Len == 0 {
			t.Fatalf("%+v: prefill has %d regions, decode %d", f, p.Regions(), d.Regions())
		}
		srcSize, dstSize := uint64(p.Pages)*p.ItemLen(f.SrcRegion), uint64(d.Pages)*d.ItemLen(f.DstRegion)
		if f.SrcOff+f.Len > srcSize || f.DstOff+f.Len > dstSize {
			t.Fatalf("%+v is beyond a region of %d and %d bytes", f, srcSize, dstSize)
		}
		if written[f.DstRegion] == nil {
			written[f.DstRegion] = make([]bool, dstSize)
		}
		for i := f.DstOff; i < f.DstOff+f.Len; i++ {
			if written[f.DstRegion][i] {
				t.Fatalf("%+v writes byte %d again", f, i)
			}
			written[f.DstRegion][i] = true
		}
		sum += f.Len
	}
	if sum != plan.Bytes(n) {
		t.Fatalf("%d bytes, the plan says %d", sum, plan.Bytes(n))
	}
}

// TestRandomShapes carries prompts between random shapes far from the usual ones, every byte compared.
func TestRandomShapes(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	carried := 0
	for i := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, i))
		pick := func(n ...int) int { return n[rnd.IntN(len(n))] }
		w := &world{rnd: rnd, p: Topology{pick(1, 2, 3, 4, 6, 8), 1, pick(1, 2, 3, 4)}, d: Topology{pick(1, 2, 3, 4, 6, 8), 1, pick(1, 2, 3, 4)}}
		w.base = Geometry{Order: Order(pick(1, 2)), KVHeads: pick(1, 2, 3, 4, 6, 8, 12), HeadBytes: pick(1, 2, 5), PageSize: pick(1, 2, 5, 8), Layers: pick(4, 5, 6)}
		w.base.MLA = w.base.KVHeads == 1 && pick(0, 1) == 0
		w.prompt = 1 + rnd.IntN(20)
		w.prefix = rnd.IntN(w.prompt/w.base.PageSize+1) * w.base.PageSize
		fits := func(tp int) bool { return w.base.MLA || tp%w.base.KVHeads == 0 || w.base.KVHeads%tp == 0 }
		if w.p.TP%w.d.TP != 0 && w.d.TP%w.p.TP != 0 || !fits(w.p.TP) || !fits(w.d.TP) {
			continue
		}
		carried++
		w.carry(t, Pairing{MLA: w.base.MLA, Layers: w.base.Layers})
		if t.Failed() {
			t.Fatalf("case %d: %+v, prefill %v, decode %v, prompt %d, prefix %d", i, w.base, w.p, w.d, w.prompt, w.prefix)
		}
	}
	if carried < 50 {
		t.Errorf("only %d of 300 shapes were possible", carried)
	}
}
