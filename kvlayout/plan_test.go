package kvlayout

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// world is the KV of one prompt on all ranks of both sides, by brute force: memories have a cell for each byte, and a cell holds the number
// of the byte of the model's KV that lies there. Nothing in it uses the package's own arithmetic.
type world struct {
	base          Geometry // what is the same for all ranks
	p, d          Topology
	prompt        int // tokens
	prefix        int // tokens that decode holds
	rnd           *rand.Rand
	physicalPages int // per region, on every rank
}

// memory is one rank's regions.
type memory struct {
	geometry Geometry
	regions  [][]uint32 // stamps
	written  [][]uint8  // how often each cell was written
	pages    []int32    // page of each stretch of PageSize tokens
	layers   []int
	heads    []int
}

// stamp numbers the bytes of the model's KV from 1; 0 is no stamp.
func (w *world) stamp(layer, kv, token, head, b int) uint32 {
	g := w.base
	tokens := (w.prompt + g.PageSize - 1) / g.PageSize * g.PageSize
	return uint32((((layer*2+kv)*tokens+token)*g.KVHeads+head)*g.HeadBytes + b + 1)
}

// holdsHead reports whether TP rank of size holds a head: each rank and each head is a share of the same whole.
func holdsHead(heads, head, size, rank int) bool {
	return rank*heads < (head+1)*size && head*size < (rank+1)*heads
}

func (w *world) rank(t Topology, r Rank, layers []int) *memory {
	m := &memory{geometry: w.base, layers: layers}
	g := &m.geometry
	g.TP, g.TPRank, g.PP, g.PPRank, g.Start, g.End, g.Pages = t.TP, r.TP, t.PP, r.PP, layers[0], layers[len(layers)-1]+1, w.physicalPages
	for h := range g.KVHeads {
		if g.MLA || holdsHead(g.KVHeads, h, t.TP, r.TP) {
			m.heads = append(m.heads, h)
		}
	}
	item := g.PageSize * len(m.heads) * g.HeadBytes
	for range len(layers) * w.kinds() {
		m.regions = append(m.regions, make([]uint32, w.physicalPages*item))
		m.written = append(m.written, make([]uint8, w.physicalPages*item))
	}
	// A page table with some runs in it.
	free := w.rnd.Perm(w.physicalPages)
	if w.rnd.IntN(3) > 0 {
		from := w.rnd.IntN(w.physicalPages)
		for i := range free {
			free[i] = (from + i) % w.physicalPages
		}
	}
	for i := range (w.prompt + g.PageSize - 1) / g.PageSize {
		m.pages = append(m.pages, int32(free[i]))
	}
	return m
}

// kinds is the number of regions of a layer.
func (w *world) kinds() int {
	if w.base.MLA {
		return 1
	}
	return 2
}

// each visits the cells of the rank's memory that hold tokens from the given one on, to the end of the last page.
func (w *world) each(m *memory, from int, visit func(region, cell int, stamp uint32)) {
	g := m.geometry
	n := len(m.heads)
	for i, layer := range m.layers {
		for kv := range w.kinds() {
			for token := from; token < len(m.pages)*g.PageSize; token++ {
				for j, head := range m.heads {
					page, in := int(m.pages[token/g.PageSize]), token%g.PageSize
					cell := (page*g.PageSize+in)*n + j
					if g.Order == HeadMajor {
						cell = (page*n+j)*g.PageSize + in
					}
					for b := range g.HeadBytes {
						visit(kv*len(m.layers)+i, cell*g.HeadBytes+b, w.stamp(layer, kv, token, head, b))
					}
				}
			}
		}
	}
}

// stages cuts the layers by the rule that the last stages get what is left over.
func stages(layers, size int) [][]int {
	out := make([][]int, size)
	next := 0
	for i := range size {
		n := layers / size
		if i >= size-layers%size {
			n++
		}
		for range n {
			out[i] = append(out[i], next)
			next++
		}
	}
	return out
}

// carry moves the prompt from all prefill ranks to all decode ranks, chunk by chunk, as the package says, and compares every cell.
func (w *world) carry(t *testing.T, pairing Pairing) {
	t.Helper()
	w.physicalPages = (w.prompt+w.base.PageSize-1)/w.base.PageSize + 3
	prefill := map[Rank]*memory{}
	for pp, layers := range stages(w.base.Layers, w.p.PP) {
		for tp := range w.p.TP {
			m := w.rank(w.p, Rank{TP: tp, PP: pp}, layers)
			w.each(m, 0, func(region, cell int, stamp uint32) { m.regions[region][cell] = stamp })
			prefill[Rank{TP: tp, PP: pp}] = m
		}
	}
	cuts := []int{w.prefix}
	for at := w.prefix; at < w.prompt; {
		at = min(w.prompt, at+w.rnd.IntN(3*w.base.PageSize))
		cuts = append(cuts, at)
	}
	told := map[Rank]int{}    // prefill rank → decode ranks that named it
	waits := map[Rank][]int{} // prefill rank → how many it was told to wait for
	for pp, layers := range stages(w.base.Layers, w.d.PP) {
		for tp := range w.d.TP {
			d := w.rank(w.d, Rank{TP: tp, PP: pp}, layers)
			m, err := Ranks(w.p, w.d, Rank{TP: tp, PP: pp}, pairing)
			if err != nil {
				t.Fatal(err)
			}
			sent := uint64(0)
			for _, target := range m.Targets {
				told[target.Rank]++
				waits[target.Rank] = append(waits[target.Rank], target.DstInfos)
				sent += w.send(t, prefill[target.Rank], d, target.Dummy, cuts)
			}
			pages := len(d.pages) - w.prefix/w.base.PageSize
			if want := d.geometry.PageBytes() * uint64(pages); sent != want {
				t.Errorf("decode rank %d of stage %d got %d bytes, expects %d", tp, pp, sent, want)
			}
			w.check(t, d)
		}
	}
	for r := range prefill {
		if told[r] == 0 {
			t.Errorf("no decode rank talks to prefill rank %+v", r)
		}
		for _, n := range waits[r] {
			if n != told[r] {
				t.Errorf("prefill rank %+v waits for %d decode ranks, %d come", r, n, told[r])
			}
		}
	}
}

// send carries out one pair's plan and returns the bytes written.
func (w *world) send(t *testing.T, p, d *memory, dummy bool, cuts []int) uint64 {
	t.Helper()
	plan, err := NewPlan(p.geometry, d.geometry)
	if err != nil {
		t.Fatal(err)
	}
	if dummy && !plan.Replica() {
		t.Fatalf("dummy rank %+v has a plan", p.geometry)
	}
	size := w.base.PageSize
	skip, done, total := w.prefix/size, 0, uint64(0)
	for i, from := range cuts {
		to, last := from, i == len(cuts)-1
		if !last {
			to = cuts[i+1]
		}
		win, err := ChunkWindow(w.prefix, from, to, last, size)
		if err != nil || win.From != done {
			t.Fatalf("chunk [%d, %d): window %v, error %v, want from %d", from, to, win, err, done)
		}
		done = win.To
		frags, err := plan.Fragments(nil, p.pages[skip+win.From:skip+win.To], d.pages[skip+win.From:skip+win.To])
		if err != nil {
			t.Fatal(err)
		}
		if n := len(frags); n > plan.MaxFragments(win.Len()) {
			t.Errorf("%d fragments of %d pages, at most %d announced", n, win.Len(), plan.MaxFragments(win.Len()))
		}
		sum := uint64(0)
		for _, f := range frags {
			if f.Len == 0 {
				t.Fatalf("empty fragment %+v", f)
			}
			copy(d.regions[f.DstRegion][f.DstOff:f.DstOff+f.Len], p.regions[f.SrcRegion][f.SrcOff:f.SrcOff+f.Len])
			for j := f.DstOff; j < f.DstOff+f.Len; j++ {
				d.written[f.DstRegion][j]++
			}
			sum += f.Len
		}
		if sum != plan.Bytes(win.Len()) {
			t.Errorf("%d bytes for %d pages, the plan says %d", sum, win.Len(), plan.Bytes(win.Len()))
		}
		total += sum
	}
	if want, err := RoomPages(w.prompt, w.prefix, size); err != nil || done != want {
		t.Errorf("%d pages sent, want %d, error %v", done, want, err)
	}
	return total
}

// check compares a decode rank's memory with the model's KV: each cell behind the prefix written once, with its own byte, and no other.
func (w *world) check(t *testing.T, d *memory) {
	t.Helper()
	wrong := 0
	w.each(d, w.prefix, func(region, cell int, stamp uint32) {
		if d.written[region][cell] != 1 || d.regions[region][cell] != stamp {
			if wrong++; wrong == 1 {
				t.Errorf("TP rank %d stage %d region %d byte %d: stamp %d written %d times, want %d once",
					d.geometry.TPRank, d.geometry.PPRank, region, cell, d.regions[region][cell], d.written[region][cell], stamp)
			}
		}
		d.written[region][cell] = 0
	})
	for region := range d.written {
		if i := slices.IndexFunc(d.written[region], func(n uint8) bool { return n != 0 }); i >= 0 {
			t.Errorf("TP rank %d stage %d: region %d byte %d written, but belongs to no token", d.geometry.TPRank, d.geometry.PPRank, region, i)
		}
	}
	if wrong > 1 {
		t.Errorf("%d wrong bytes", wrong)
	}
}

var sizes = []struct{ tp, pp int }{{1, 1}, {1, 2}, {1, 3}, {2, 1}, {2, 2}, {2, 3}, {4, 1}, {4, 2}, {4, 3}}

// TestEveryPair carries a prompt between all 81 pairs of TP {1,2,4} × PP {1,2,3}, in both page orders, with as many heads as the largest TP,
// with fewer (replicated heads), and with latent attention.
func TestEveryPair(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, model := range []struct {
		name string
		base Geometry
	}{
		{"token-major", Geometry{Order: TokenMajor, KVHeads: 4}},
		{"head-major", Geometry{Order: HeadMajor, KVHeads: 4}},
		{"token-major, 8 heads", Geometry{Order: TokenMajor, KVHeads: 8}},
		{"head-major, 8 heads", Geometry{Order: HeadMajor, KVHeads: 8}},
		{"token-major, 2 heads", Geometry{Order: TokenMajor, KVHeads: 2}},
		{"head-major, 2 heads", Geometry{Order: HeadMajor, KVHeads: 2}},
		{"token-major, 1 head", Geometry{Order: TokenMajor, KVHeads: 1}},
		{"MLA", Geometry{Order: TokenMajor, MLA: true, KVHeads: 1}},
	} {
		t.Run(model.name, func(t *testing.T) {
			pairs := 0
			for _, p := range sizes {
				for _, d := range sizes {
					pairs++
					w := &world{base: model.base, p: Topology{TP: p.tp, CP: 1, PP: p.pp}, d: Topology{TP: d.tp, CP: 1, PP: d.pp}, rnd: rand.New(rand.NewPCG(seed, uint64(pairs)))}
					w.base.Layers, w.base.HeadBytes, w.base.PageSize = 7, 3, 4
					w.prompt = 1 + w.rnd.IntN(23)
					w.prefix = w.rnd.IntN(w.prompt/w.base.PageSize+1) * w.base.PageSize
					w.carry(t, Pairing{MLA: w.base.MLA, Layers: w.base.Layers})
					if t.Failed() {
						t.Fatalf("prefill %v, decode %v, prompt %d, prefix %d", w.p, w.d, w.prompt, w.prefix)
					}
				}
			}
			if pairs != 81 {
				t.Errorf("%d pairs, want 81", pairs)
			}
		})
	}
}

// TestMixedOrders pairs all 81 shapes with unlike page orders: refused, with both named.
func TestMixedOrders(t *testing.T) {
	base := Geometry{KVHeads: 4, HeadBytes: 8, PageSize: 4, Layers: 7}
	for _, p := range sizes {
		for _, d := range sizes {
			g, h := base, base
			g.Order, h.Order = TokenMajor, HeadMajor
			_, err := NewPlan(g.At(Topology{p.tp, 1, p.pp}, Rank{}), h.At(Topology{d.tp, 1, d.pp}, Rank{}))
			var e *IncompatibleError
			if !errors.As(err, &e) || *e != (IncompatibleError{"page order", "token-major", "head-major"}) {
				t.Fatalf("error %v", err)
			}
		}
	}
}

// TestVirtualPages has decode page numbers up to the largest that fit the wire.
func TestVirtualPages(t *testing.T) {
	base := Geometry{Order: TokenMajor, KVHeads: 8, HeadBytes: 1 << 15, PageSize: 64, Layers: 2}
	p, d := base.At(Topology{1, 1, 1}, Rank{}), base.At(Topology{2, 1, 1}, Rank{TP: 1})
	p.Pages = 4
	plan, err := NewPlan(p, d)
	if err != nil {
		t.Fatal(err)
	}
	frags, err := plan.Fragments(nil, []int32{3}, []int32{1<<31 - 1})
	if err != nil {
		t.Fatal(err)
	}
	item := uint64(64 * 4 << 15)
	want := uint64(1<<31-1)*item + 63*(4<<15)
	if last := frags[63]; last.DstOff != want || last.DstOff < 1<<48 || last.SrcOff != 3*2*item+63*(8<<15)+4<<15 {
		t.Errorf("last token of the page: %+v, want at %d", last, want)
	}
	whole, err := NewPlan(p, base.At(Topology{1, 1, 1}, Rank{}))
	if err != nil {
		t.Fatal(err)
	}
	frags, err = whole.Fragments(nil, []int32{0, 1, 2}, []int32{1<<31 - 3, 1<<31 - 2, 1<<31 - 1})
	if err != nil || len(frags) != 4 || frags[0].Len != 6*item || frags[0].DstOff != (1<<31-3)*2*item {
		t.Errorf("a run of virtual pages: %+v, error %v", frags, err)
	}
	for _, pages := range [][2][]int32{{{4}, {0}}, {{-1}, {0}}, {{0}, {-1}}, {{0, 1}, {0}}, {{}, {0}}, {{0}, nil}} {
		if frags, err := plan.Fragments(nil, pages[0], pages[1]); !errors.Is(err, ErrPages) || len(frags) != 0 {
			t.Errorf("pages %v: %v, error %v, want ErrPages", pages, frags, err)
		}
	}
	d.Pages = 7
	bounded, err := NewPlan(p, d)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bounded.Fragments(nil, []int32{0}, []int32{6}); err != nil {
		t.Errorf("page 6 of 7: error %v", err)
	}
	if frags, err := bounded.Fragments(nil, []int32{0}, []int32{7}); !errors.Is(err, ErrPages) || len(frags) != 0 {
		t.Errorf("page 7 of 7: %v, error %v, want ErrPages", frags, err)
	}
	if frags, err := plan.Fragments(nil, nil, nil); err != nil || len(frags) != 0 {
		t.Errorf("an empty chunk gives %v, error %v", frags, err)
	}
}

// TestLayerIDs pairs hybrid layers that both sides name.
func TestLayerIDs(t *testing.T) {
	base := Geometry{Order: HeadMajor, KVHeads: 2, HeadBytes: 4, PageSize: 2, Layers: 8}
	p, d := base.At(Topology{1, 1, 2}, Rank{PP: 1}), base.At(Topology{2, 1, 1}, Rank{TP: 1})
	p.LayerIDs = []uint32{5, 7, 5, 7}
	d.LayerIDs = []uint32{1, 5, 7, 1, 5, 7, 100}
	plan, err := NewPlan(p, d)
	if err != nil {
		t.Fatal(err)
	}
	frags, err := plan.Fragments(nil, []int32{1}, []int32{3})
	want := []Fragment{{0, 24, 1, 24, 8}, {1, 24, 2, 24, 8}, {2, 24, 4, 24, 8}, {3, 24, 5, 24, 8}}
	if err != nil || !slices.Equal(frags, want) {
		t.Errorf("%+v, error %v, want %+v", frags, err, want)
	}
	d.LayerIDs = nil
	if _, err := NewPlan(p, d); !errors.Is(err, ErrIncompatible) {
		t.Errorf("ids on one side of PP 2: error %v", err)
	}
}

func TestNotPaired(t *testing.T) {
	base := Geometry{Order: TokenMajor, KVHeads: 4, HeadBytes: 4, PageSize: 2, Layers: 8}
	for _, c := range []struct {
		p, d   Topology
		pr, dr Rank
	}{
		{Topology{2, 1, 1}, Topology{2, 1, 1}, Rank{TP: 0}, Rank{TP: 1}},
		{Topology{4, 1, 1}, Topology{2, 1, 1}, Rank{TP: 1}, Rank{TP: 1}},
		{Topology{2, 1, 1}, Topology{4, 1, 1}, Rank{TP: 1}, Rank{TP: 1}},
		{Topology{1, 1, 2}, Topology{1, 1, 2}, Rank{PP: 0}, Rank{PP: 1}},
	} {
		if _, err := NewPlan(base.At(c.p, c.pr), base.At(c.d, c.dr)); !errors.Is(err, ErrNotPaired) {
			t.Errorf("%+v: error %v", c, err)
		}
	}
}

func TestReplicas(t *testing.T) {
	base := Geometry{Order: TokenMajor, KVHeads: 2, HeadBytes: 4, PageSize: 2, Layers: 1}
	sources := func(p, d, dRank int) (s string) {
		m, err := Ranks(Topology{p, 1, 1}, Topology{d, 1, 1}, Rank{TP: dRank}, Pairing{})
		if err != nil {
			t.Fatal(err)
		}
		for _, target := range m.Targets {
			plan, err := NewPlan(base.At(Topology{p, 1, 1}, target.Rank), base.At(Topology{d, 1, 1}, Rank{TP: dRank}))
			if err != nil || target.Dummy || plan.Replica() != (plan.Bytes(1) == 0) {
				t.Fatalf("%+v: plan %+v, error %v", target, plan, err)
			}
			if !plan.Replica() {
				s += fmt.Sprint(target.TP, " ")
			}
		}
		return s
	}
	for _, c := range []struct {
		p, d, rank int
		want       string
	}{{8, 1, 0, "0 4 "}, {8, 2, 1, "4 "}, {8, 4, 3, "6 "}, {8, 8, 5, "5 "}, {4, 8, 5, "2 "}, {1, 8, 7, "0 "}} {
		if got := sources(c.p, c.d, c.rank); got != c.want {
			t.Errorf("TP %d → %d rank %d: sources %q, want %q", c.p, c.d, c.rank, got, c.want)
		}
	}
}

func TestFragmentsAllocateNothing(t *testing.T) {
	for name, b := range benches() {
		frags := make([]Fragment, 0, b.plan.MaxFragments(len(b.src)))
		if n := testing.AllocsPerRun(10, func() { frags, _ = b.plan.Fragments(frags[:0], b.src, b.dst) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

type bench struct {
	plan     *Plan
	src, dst []int32
}

// benches are 256 pages of 16 tokens of a model with 32 layers and 8 KV heads of 128 × bf16.
func benches() map[string]bench {
	run := make([]int32, 256)
	scattered := make([]int32, 256)
	for i := range run {
		run[i], scattered[i] = int32(i), int32(i*37%256)
	}
	mk := func(o Order, ptp, dtp int, dst []int32) bench {
		g := Geometry{Order: o, KVHeads: 8, HeadBytes: 256, PageSize: 16, Layers: 32}
		plan, err := NewPlan(g.At(Topology{ptp, 1, 1}, Rank{}), g.At(Topology{dtp, 1, 1}, Rank{}))
		if err != nil {
			panic(err)
		}
		return bench{plan, run, dst}
	}
	return map[string]bench{
		"equal TP, runs":         mk(TokenMajor, 4, 4, run),
		"equal TP, scattered":    mk(TokenMajor, 4, 4, scattered),
		"token-major, TP 4 to 2": mk(TokenMajor, 4, 2, scattered),
		"head-major, TP 4 to 2":  mk(HeadMajor, 4, 2, scattered),
		"head-major, TP 2 to 4":  mk(HeadMajor, 2, 4, run),
		"token-major, TP 2 to 4": mk(TokenMajor, 2, 4, run),
	}
}

func BenchmarkFragments(b *testing.B) {
	all := benches()
	for _, name := range []string{"equal TP, runs", "equal TP, scattered", "token-major, TP 4 to 2", "head-major, TP 4 to 2"} {
		b.Run(name, func(b *testing.B) {
			c := all[name]
			frags := make([]Fragment, 0, c.plan.MaxFragments(len(c.src)))
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				var err error
				if frags, err = c.plan.Fragments(frags[:0], c.src, c.dst); err != nil {
					b.Fatal(err)
				}
				n += len(frags)
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "fragments/s")
			b.ReportMetric(float64(c.plan.Bytes(len(c.src)))*float64(b.N)/b.Elapsed().Seconds()/(1<<30), "planned-GiB/s")
		})
	}
}
