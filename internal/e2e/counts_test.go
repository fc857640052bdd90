package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Goroutines and descriptors of every worker return exactly to what they were after warm-up, and tables and pages to the very start, when
// many requests at once are over. What engines keep for the next request is counted by them, taken off, and bounded. Each round has a gateway
// of its own, so that no idle connection of a gateway is counted.
func TestCountsReturnExactly(t *testing.T) {
	for _, s := range []struct {
		name            string
		prefill, decode [][]string
		requests        int
	}{
		{"64 requests, decode has pages for 8", [][]string{nil}, [][]string{{"--pages", "16"}}, 64},
		{"mixed TP and PP", [][]string{{"--tp", "2"}, {"--pp", "2"}}, [][]string{{"--tp", "2", "--pp", "2"}, {"--tp", "4"}}, 32},
	} {
		t.Run(s.name, func(t *testing.T) {
			c := startWith(t, s.prefill, s.decode)
			before := map[*process]own{}
			const warm, rounds = 2, 4 // connections between ranks are made in the first rounds
			for round := range rounds {
				c.burst(t, s.requests)
				if t.Failed() {
					return
				}
				for i, x := range c.workers() {
					var now own
					until(t, "tables return", func() bool { v := x.tables(t); now = v.own(); return v.sameAs(c.base[x]) })
					if round < warm {
						before[x] = now
						continue
					}
					for end := time.Now().Add(5 * time.Second); now != before[x] && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
						now = x.tables(t).own()
					}
					if now != before[x] {
						t.Errorf("round %d, worker %d: %+v, was %+v", round, i, now, before[x])
					}
				}
			}
			for i, x := range c.workers() {
				if v, peers := x.tables(t), 4*len(c.workers()); v.DataOut > 8*peers || v.DataIn > 9*peers || v.Spare > 16*4 {
					t.Errorf("worker %d: engines keep %d and %d connections and %d goroutines", i, v.DataOut, v.DataIn, v.Spare)
				}
			}
		})
	}
}

// own is what a process has beside what its engines keep.
type own struct{ goroutines, descriptors int }

func (v tables) own() own {
	return own{v.Goroutines - v.DataIn - v.Spare, v.Descriptors - v.DataIn - v.DataOut}
}

// burst sends requests at once over a gateway that leaves afterwards. Each takes two pages of 16 tokens.
func (c *cluster) burst(t *testing.T, requests int) {
	t.Helper()
	g := front(t, "-1", c.p, c.d)
	var wg sync.WaitGroup
	for i := range requests {
		wg.Go(func() {
			body := fmt.Sprintf(`{"prompt":[%d%s],"max_tokens":4,"ignore_eos":true,"temperature":0}`, i+3, strings.Repeat(",7", 23))
			if a := g.post(t.Context(), body); a.err != nil || a.status != 200 {
				t.Errorf("%d %v %.200s", a.status, a.err, a.body)
			}
		})
	}
	wg.Wait()
	http.DefaultClient.CloseIdleConnections()
	g.signal(t, syscall.SIGTERM)
	<-g.done
}
