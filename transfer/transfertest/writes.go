package transfertest

import (
	"runtime"
	"sync"
	"testing"

	"github.com/kvferry/kvferry/transfer"
)

func (s *suite) wholePages() {
	from, to := s.engine(), s.engine()
	for _, item := range []int{64, 4096, 16 << 10, 64 << 10, 100_000, 1 << 20} {
		const items = 24
		x := s.target(to, item, items)
		pages := s.rng.Perm(items)[:items/2]
		var list []int32
		for _, p := range pages {
			list = append(list, int32(p))
		}
		l := x.open(3, list...)
		var batch []transfer.Fragment
		for _, p := range pages {
			batch = append(batch, x.frag(3, p, 0, s.source(item)))
		}
		s.must(from, to.Name(), batch[:5]...)
		s.covered(l, uint64(5*item))
		s.must(from, to.Name(), batch[5:]...)
		x.check()
		s.whole(l)
		s.released(l)
	}
}

func (s *suite) anySizeAnywhere() {
	from, to := s.engine(), s.engine()
	const item, items = 10_007, 400
	x := s.target(to, item, items)
	l := x.openAll(0)
	var batch []transfer.Fragment
	at := 0
	for _, n := range []int{1, 2, 3, 7, 23, 24, 25, 511, 4095, 16383, 16384, 16385, 65535, 65536, 65537, 262143, 262145, 1<<20 + 1, 2_000_003} {
		at += 1 + s.rng.IntN(50) // leaves a hole
		batch = append(batch, x.frag(0, at/item, at%item, s.source(n)))
		at += n
	}
	s.must(from, to.Name(), batch...)
	x.check()
	total := 0
	for _, f := range batch {
		total += len(f.Src)
	}
	s.covered(l, uint64(total))
	all := s.source(item * items)
	s.must(from, to.Name(), x.frag(0, 0, 0, all))
	x.check()
	s.whole(l)
}

func (s *suite) zeroLength() {
	from, to := s.engine(), s.engine()
	x := s.target(to, 512, 4)
	l := x.openAll(0)
	s.must(from, to.Name())
	s.must(from, to.Name(), transfer.Fragment{})
	s.must(from, to.Name(), transfer.Fragment{Dst: 12345}, x.frag(0, 1, 0, s.source(512)), transfer.Fragment{Dst: x.addr(0, 2, 0)})
	x.check()
	s.covered(l, 512)
	if !s.cfg.Capabilities.ReceiverApplied {
		return
	}
	s.whole(x.open(1)) // a lease of nothing is covered at once
}

func (s *suite) overlapping() {
	from, to := s.engine(), s.engine()
	x := s.target(to, 1000, 10)
	l := x.openAll(0)
	src := s.source(10_000)
	part := func(lo, hi int) transfer.Fragment { return x.frag(0, lo/1000, lo%1000, src[lo:hi]) }
	s.must(from, to.Name(), part(500, 2500), part(500, 2500), part(600, 700), part(2400, 3100), part(0, 501))
	x.check()
	s.covered(l, 3100)
	s.must(from, to.Name(), part(0, 10_000), part(0, 10_000), part(9_999, 10_000))
	x.check()
	s.whole(l)
	if _, err := to.Register(x.mem[1000:2000], 100); err == nil {
		s.Error("memory is registered twice")
	} else {
		s.fails(err, transfer.ErrInvalid)
	}
}

// headSlices writes token-major pages as several ranks with some of the heads each do, in every order and some twice.
func (s *suite) headSlices() {
	from, to := s.engine(), s.engine()
	for _, head := range []int{32, 96, 512} {
		const tokens, ranks, items = 16, 4, 6
		item := tokens * ranks * head
		x := s.target(to, item, items)
		l := x.openAll(2)
		var all []transfer.Fragment
		for p := range items {
			for i := range tokens * ranks {
				all = append(all, x.frag(2, p, i*head, s.source(head)))
			}
		}
		s.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		n := len(all) / 3
		s.must(from, to.Name(), all[:n]...)
		s.covered(l, uint64(n*head))
		s.must(from, to.Name(), all[:n+1]...)
		s.covered(l, uint64((n+1)*head))
		s.must(from, to.Name(), all[n+1:]...)
		x.check()
		s.whole(l)
	}
}

func (s *suite) thousandsOfFragments() {
	from, to := s.engine(), s.engine()
	const item, items, head = 12 << 10, 500, 48
	x := s.target(to, item, items)
	l := x.openAll(0)
	src := s.source(item * items)
	var batch []transfer.Fragment
	for at := 0; at < len(src); at += head {
		batch = append(batch, x.frag(0, at/item, at%item, src[at:at+head]))
	}
	s.rng.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
	s.must(from, to.Name(), batch...)
	x.check()
	s.whole(l)
}

// noAllocation compares batches of different lengths: what one batch costs does not matter, what a fragment costs does.
func (s *suite) noAllocation() {
	from, to := s.engine(), s.engine()
	for _, n := range []int{512, 32 << 10} {
		const items = 64
		x := s.target(to, n, items)
		x.openAll(0)
		src := s.source(n)
		batch := make([]transfer.Fragment, 20*items)
		for i := range batch {
			batch[i] = transfer.Fragment{Src: src, Dst: x.addr(0, i%items, 0)}
		}
		cost := func(k int) float64 {
			return testing.AllocsPerRun(5, func() { s.must(from, to.Name(), batch[:k]...) })
		}
		runtime.GC()
		short, long := cost(items), cost(len(batch))
		if per := (long - short) / float64(len(batch)-items); per > 0.05 {
			s.Errorf("fragments of %d bytes: %.2f allocations each (%.0f for %d, %.0f for %d)", n, per, short, items, long, len(batch))
		}
	}
}

func (s *suite) concurrentBatches() {
	from := []transfer.Engine{s.engine(), s.engine()}
	to := []transfer.Engine{s.engine(), s.engine()}
	const item, items, rooms = 24 << 10, 8, 6
	var wg sync.WaitGroup
	var checks []func()
	for _, e := range to {
		for room := range rooms {
			x := s.target(e, item, items)
			l := x.openAll(uint32(room))
			src := s.source(item * items)
			var whole []transfer.Fragment
			for p := range items {
				whole = append(whole, x.frag(uint32(room), p, 0, src[p*item:(p+1)*item]))
			}
			checks = append(checks, func() {
				x.check()
				s.whole(l)
			})
			for i := range 4 { // each carries a half, in batches of two fragments, from one of two engines: everything comes twice
				wg.Go(func() {
					half := i % 2 * items / 2
					for k := half; k < half+items/2; k += 2 {
						h, err := from[i/2].Write(e.Name(), whole[k:k+2])
						if err != nil {
							s.Errorf("write: %v", err)
							return
						}
						<-h.Settled()
						if h.Err() != nil {
							s.Errorf("write: %v", h.Err())
						}
					}
				})
			}
		}
	}
	wg.Wait()
	for _, check := range checks {
		check()
	}
}
