package e2e

import (
	"fmt"
	"sync"
	"testing"
)

// Goroutines and descriptors settle with the connections that are kept between requests; then no request leaves one behind.
func TestNothingGrowsWithRequests(t *testing.T) {
	c := start(t, "64")
	all := c.workers()
	const rounds, requests = 4, 32
	var counts [rounds]map[*process]tables
	for round := range rounds {
		var wg sync.WaitGroup
		for i := range requests {
			wg.Go(func() {
				if a := c.post(t.Context(), fmt.Sprintf(`{"prompt":"Reader %d is","max_tokens":3}`, i)); a.err != nil || a.status != 200 {
					t.Errorf("%d %v %.200s", a.status, a.err, a.body)
				}
			})
		}
		wg.Wait()
		counts[round] = map[*process]tables{}
		for _, x := range all {
			until(t, "tables return", func() bool {
				v := x.tables(t)
				counts[round][x] = v
				return v.sameAs(c.base[x])
			})
		}
	}
	for i, x := range all {
		before, after := counts[1][x], counts[rounds-1][x]
		if g, f := after.Goroutines-before.Goroutines, after.Descriptors-before.Descriptors; g > requests/2 || f > requests/2 {
			t.Errorf("worker %d: %d goroutines and %d descriptors more after %d more requests", i, g, f, (rounds-2)*requests)
		}
	}
}
