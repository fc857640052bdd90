package llm

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// parallel runs f over [0, n) in pieces of size (the last may be shorter) on all processors, and waits. Pieces are handed out as processors
// become free, so that one that is busy elsewhere holds up only its piece. Which processor runs a piece decides nothing about the numbers.
func parallel(n, size int, f func(from, to int)) {
	pieces := (n + size - 1) / size
	var next atomic.Int64
	work := func() {
		for {
			i := int(next.Add(1)) - 1
			if i >= pieces {
				return
			}
			f(i*size, min((i+1)*size, n))
		}
	}
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), pieces) - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
}

// mul is out[t] = w · in[t] for every token t; in and out have rows of their own lengths.
type mul struct {
	w       *tensor
	in, out []float32
	ldIn    int
	ldOut   int
}

// Rows of a piece of a multiplication: few enough to stay in a near cache while all tokens pass, and enough work to be worth handing out.
const (
	pieceRows = 16
	pieceMACs = 1 << 16
)

// multiply runs independent multiplications of n tokens side by side.
func multiply(n int, ms []mul) {
	if n == 0 {
		return
	}
	// Pieces are counted over all multiplications: the first of ms[i] is starts[i].
	size := make([]int, len(ms))
	starts := make([]int, len(ms)+1)
	for i, m := range ms {
		size[i] = max(pieceRows, pieceMACs/(m.w.cols*n))
		if m.w.f == nil {
			size[i] = pieceRows // its numbers take memory
		}
		starts[i+1] = starts[i] + (m.w.rows+size[i]-1)/size[i]
	}
	parallel(starts[len(ms)], 1, func(p, _ int) {
		i := 0
		for p >= starts[i+1] {
			i++
		}
		from := (p - starts[i]) * size[i]
		ms[i].rows(from, min(from+size[i], ms[i].w.rows), n)
	})
}

// rows computes rows [from, to) of the product.
func (m *mul) rows(from, to, n int) {
	w := m.w.part(from, to, 0, m.w.cols).dense()
	for t := range n {
		x, out := m.in[t*m.ldIn:][:w.cols], m.out[t*m.ldOut+from:]
		for r := range w.rows {
			out[r] = dot(w.view(nil, r), x)
		}
	}
}
