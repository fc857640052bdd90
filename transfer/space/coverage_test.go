package space

import (
	"math/rand/v2"
	"testing"
)

// model counts bytes one by one.
type model []bool

func (m model) add(from, to uint64) (fresh uint64) {
	for i := from; i < to; i++ {
		if !m[i] {
			m[i] = true
			fresh++
		}
	}
	return fresh
}

func (m model) whole() bool {
	for _, b := range m {
		if !b {
			return false
		}
	}
	return true
}

func FuzzPartial(f *testing.F) {
	f.Add(uint16(4096), []byte{0, 0, 2, 0, 8, 0, 4, 0})
	f.Add(uint16(100), []byte{1, 0, 7, 0, 0, 0, 64, 0, 64, 0, 100, 0})
	f.Add(uint16(65535), []byte{0, 0, 0, 128, 0, 128, 255, 255})
	f.Fuzz(func(t *testing.T, length uint16, in []byte) {
		item := uint64(length)
		if item == 0 || len(in) > 400 {
			return
		}
		var p partial
		m := make(model, item)
		begun := false
		for ; len(in) >= 4; in = in[4:] {
			from := (uint64(in[0]) | uint64(in[1])<<8) % item
			to := from + 1 + (uint64(in[2])|uint64(in[3])<<8)%(item-from)
			if !begun {
				p.begin(from, to, item)
				begun = true
			}
			fresh, whole := p.add(from, to, item)
			if want := m.add(from, to); fresh != want {
				t.Fatalf("[%d, %d) of %d: %d bytes are new, want %d", from, to, item, fresh, want)
			}
			if want := m.whole(); whole != want {
				t.Fatalf("[%d, %d) of %d: whole is %v, want %v", from, to, item, whole, want)
			}
		}
	})
}

func TestPartialInEveryOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, x := range []struct{ item, slice, jitter uint64 }{{4096, 32, 0}, {65536, 512, 0}, {65536, 32, 0}, {1000, 8, 0}, {777, 7, 3}, {4099, 64, 0}, {64, 1, 0}, {1, 1, 0}} {
		var cuts []uint64
		for at := uint64(0); at < x.item; at += x.slice {
			cuts = append(cuts, at)
		}
		rng.Shuffle(len(cuts), func(i, j int) { cuts[i], cuts[j] = cuts[j], cuts[i] })
		var p partial
		m := make(model, x.item)
		got := uint64(0)
		for i, from := range cuts {
			from -= min(from, x.jitter) // overlaps its neighbour
			to := min(from+x.slice+x.jitter, x.item)
			if i == 0 {
				p.begin(from, to, x.item)
			}
			fresh, whole := p.add(from, to, x.item)
			if want := m.add(from, to); fresh != want {
				t.Fatalf("%+v: [%d, %d): %d bytes are new, want %d", x, from, to, fresh, want)
			}
			got += fresh
			if whole != (got == x.item) {
				t.Fatalf("%+v: whole is %v at %d bytes", x, whole, got)
			}
		}
		if got != x.item {
			t.Errorf("%+v: %d bytes in place", x, got)
		}
		if x.jitter == 0 && uint64(len(p.words)) > (x.item/x.slice+64)/64+1 {
			t.Errorf("%+v: a map of %d words", x, len(p.words))
		}
	}
}

func TestGenerations(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var g generations
	in := map[uint32]bool{}
	for range 2000 {
		v := uint32(rng.IntN(1500))
		g.add(v)
		in[v] = true
	}
	g.add(1<<32 - 1)
	for v := range uint32(1600) {
		if g.has(v) != in[v] {
			t.Fatalf("generation %d: %v, want %v", v, g.has(v), in[v])
		}
	}
	for i := 1; i < len(g); i++ {
		if g[i].lo <= g[i-1].hi+1 {
			t.Fatalf("spans %v and %v", g[i-1], g[i])
		}
	}
	var wide generations
	for v := range uint32(10 * maxSpans) {
		wide.add(v * 3)
	}
	if len(wide) > maxSpans {
		t.Errorf("%d spans, want at most %d", len(wide), maxSpans)
	}
	for v := range uint32(10 * maxSpans) {
		if !wide.has(v * 3) {
			t.Fatalf("generation %d is forgotten", v*3)
		}
	}
}

func BenchmarkCoverage(b *testing.B) {
	const item, slice = 64 << 10, 512
	var p partial
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		if n == 0 {
			p.begin(0, slice, item)
		}
		at := uint64(n*5%(item/slice)) * slice
		p.add(at, at+slice, item)
		n = (n + 1) % (item / slice)
	}
}
