package drill

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"sync"
	"time"
)

// Options say what Run does.
type Options struct {
	Self   []string // the command that runs Serve over its standard input and output
	Binary string   // kvferry, whose gateway, prefill and decode commands some cells need
	Cells  []Cell   // those without meaning are passed over
	Repeat int      // runs of each cell
	Seed   uint64   // decides what is left to chance, such as how many bytes pass
	Jobs   int      // runs at a time
	// Progress is told of each cell when all its runs are over, in the order of Cells; it is never called twice at a time.
	Progress func(Result)
}

// Stats are of the runs of a cell in which the thing happened.
type Stats struct {
	N             int
	P50, P99, Max time.Duration
}

// StatsOf are those of all runs of several cells.
func StatsOf(list []Result) (detect, client, release Stats) {
	var d, c, r []time.Duration
	for _, x := range list {
		d, c, r = append(d, x.detect...), append(c, x.client...), append(r, x.release...)
	}
	return statsOf(d), statsOf(c), statsOf(r)
}

// statsOf ignores negative durations: there it did not happen.
func statsOf(list []time.Duration) (s Stats) {
	list = slices.DeleteFunc(slices.Clone(list), func(d time.Duration) bool { return d < 0 })
	if len(list) == 0 {
		return s
	}
	slices.Sort(list)
	rank := func(q float64) time.Duration { return list[max(0, int(math.Ceil(q*float64(len(list))))-1)] }
	return Stats{len(list), rank(0.5), rank(0.99), list[len(list)-1]}
}

// MarshalJSON writes milliseconds; null where it never happened.
func (s Stats) MarshalJSON() ([]byte, error) {
	if s.N == 0 {
		return []byte("null"), nil
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return json.Marshal(struct {
		P50 float64 `json:"p50"`
		P99 float64 `json:"p99"`
		Max float64 `json:"max"`
	}{ms(s.P50), ms(s.P99), ms(s.Max)})
}

// Result is all runs of a cell.
type Result struct {
	Cell
	OK       bool     `json:"ok"`
	Runs     int      `json:"runs"`
	Bad      int      `json:"bad"`
	Detect   Stats    `json:"detect_ms"`       // from the fault until the other side's room failed
	Client   Stats    `json:"client_ms"`       // until the client knew
	Release  Stats    `json:"release_ms"`      // until the pages were in the pool again
	Retries  int      `json:"retries"`         // how often rooms after the fault failed before they succeeded, in the worst run
	Again    string   `json:"again,omitempty"` // why
	Problems []string `json:"problems,omitempty"`
	Seed     uint64   `json:"seed"`
	Logs     string   `json:"-"` // last lines of the ranks of the first bad run

	detect, client, release []time.Duration
}

// Run drills the cells. Processes end with it, at the latest when ctx does.
func Run(ctx context.Context, o Options) []Result {
	cells := slices.DeleteFunc(slices.Clone(o.Cells), func(c Cell) bool { return c.NA != "" })
	outs := make([][]Outcome, len(cells))
	n := newNursery()
	defer n.close()
	var (
		mu      sync.Mutex
		results []Result
		wg      sync.WaitGroup
	)
	work := make(chan [2]int)
	for range max(1, o.Jobs) {
		wg.Go(func() {
			for w := range work {
				out := o.once(ctx, n, cells[w[0]], w[1])
				mu.Lock()
				outs[w[0]] = append(outs[w[0]], out)
				for i := len(results); i < len(cells) && len(outs[i]) == o.Repeat && ctx.Err() == nil; i++ {
					x := resultOf(cells[i], outs[i])
					x.Seed = o.Seed
					results = append(results, x)
					if o.Progress != nil {
						o.Progress(results[i])
					}
				}
				mu.Unlock()
			}
		})
	}
	for i := 0; i < len(cells)*o.Repeat && ctx.Err() == nil; i++ {
		select {
		case work <- [2]int{i / o.Repeat, i % o.Repeat}:
		case <-ctx.Done():
		}
	}
	close(work)
	wg.Wait()
	return results
}

func (o *Options) once(ctx context.Context, n *nursery, c Cell, again int) Outcome {
	seed := seedOf(o.Seed, c, again)
	if faultOf(c.Fault).gateway {
		return tryOverGateway(ctx, o.Binary, n, c, seed)
	}
	return try(ctx, o.Self, n, c, seed)
}

// seedOf makes a run's own seed, so that a cell does the same whatever else is drilled.
func seedOf(seed uint64, c Cell, again int) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, seed, c, again) // never fails
	return h.Sum64()
}

func resultOf(c Cell, outs []Outcome) Result {
	r := Result{Cell: c, OK: true, Runs: len(outs)}
	for _, o := range outs {
		if len(o.Problems) > 0 {
			if r.OK {
				r.Logs = o.Logs
			}
			r.OK = false
			r.Bad++
			for _, p := range o.Problems {
				if !slices.Contains(r.Problems, p) {
					r.Problems = append(r.Problems, p)
				}
			}
		}
		if o.Retries > r.Retries {
			r.Retries, r.Again = o.Retries, o.Again
		}
		r.detect, r.client, r.release = append(r.detect, o.Detect), append(r.client, o.Client), append(r.release, o.Release)
	}
	r.Detect, r.Client, r.Release = statsOf(r.detect), statsOf(r.client), statsOf(r.release)
	return r
}
