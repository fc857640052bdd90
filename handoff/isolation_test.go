package handoff

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvferry/kvferry/kvlayout"
	"github.com/kvferry/kvferry/node"
	"github.com/kvferry/kvferry/room"
	"github.com/kvferry/kvferry/transfer"
)

// sticky is an engine whose next write never ends, if it is told so, until it is cancelled.
type sticky struct {
	transfer.Engine
	next atomic.Bool
}

// stuck is a handle of a write that nothing moves.
type stuck struct {
	once sync.Once
	end  chan struct{}
}

func (h *stuck) Done() <-chan struct{}    { return h.end }
func (h *stuck) Settled() <-chan struct{} { return h.end }
func (h *stuck) Answered() bool           { return true }
func (h *stuck) Cancel()                  { h.once.Do(func() { close(h.end) }) }
func (h *stuck) Err() error {
	select {
	case <-h.end:
		return transfer.ErrCanceled
	default:
		return nil
	}
}

func (e *sticky) Write(peer string, batch []transfer.Fragment) (transfer.Handle, error) {
	if e.next.CompareAndSwap(true, false) {
		return &stuck{end: make(chan struct{})}, nil
	}
	return e.Engine.Write(peer, batch)
}

// trouble is a directory that sends some rooms to a prefill rank that is stopped, and some to a registry that accepts and never answers.
type trouble struct {
	directory
	stopped string // endpoint
	silent  string // host:port
}

func (d trouble) Find(ctx context.Context, id room.ID, p Peer, own kvlayout.Geometry) (Route, error) {
	switch p.Bootstrap {
	case "stopped":
		return Route{Targets: []node.Target{{Endpoint: d.stopped, Rank: 0, Required: 1}}}, nil
	case "silent":
		return new(Lookup).Find(ctx, id, Peer{Bootstrap: d.silent, DPRank: -1}, own)
	default:
		return d.directory.Find(ctx, id, p, own)
	}
}

// besides is how many rooms are under way beside those in trouble.
const besides = 253

// BenchmarkIsolation carries rooms, 253 at a time, and reports how the 99th percentile of their hand-off changes when beside them one write is
// stuck, one room's prefill is stopped and one room's registry never answers: disturbed/undisturbed, and undisturbed/undisturbed as the measure
// of the machine. Rounds of the three kinds take turns.
func BenchmarkIsolation(b *testing.B) {
	x := newPair(b, 1, 1, 1, 1, kvlayout.HeadMajor)
	hole, err := net.Listen("tcp", "127.0.0.1:0") // accepts, in the kernel, and never says a word
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = hole.Close() }()
	forever := make(chan struct{})
	web := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-forever }))
	defer web.Close()
	defer close(forever)
	engine := &sticky{Engine: x.p[0].cfg.Engine}
	x.p[0].cfg.Engine = engine
	x.d[0].cfg.Directory = trouble{directory{x.p, kvlayout.Topology{TP: 1, CP: 1, PP: 1}}, "tcp://" + hole.Addr().String(), web.Listener.Addr().String()}
	next := room.ID(1)
	x.many(&next, 2000)
	var kinds [3][]float64
	for b.Loop() {
		for k := range kinds {
			var ailing []Half
			if k == 2 {
				ailing = x.ailing(b, &next, engine)
			}
			kinds[k] = append(kinds[k], x.many(&next, 4000))
			for _, h := range ailing {
				h.Abort(room.NewCause(room.Aborted, room.Decode, "", "end of the round"))
				h.Clear()
			}
			for _, h := range ailing {
				wait(b, "cleared", h.(interface{ Cleared() <-chan struct{} }).Cleared())
			}
		}
	}
	median := func(v []float64) float64 { return slices.Sorted(slices.Values(v))[len(v)/2] }
	b.ReportMetric(median(kinds[0]), "p99-µs")
	b.ReportMetric(median(kinds[2])/median(kinds[0]), "disturbed/undisturbed")
	b.ReportMetric(median(kinds[1])/median(kinds[0]), "undisturbed/undisturbed")
}

// ailing opens a room whose write is stuck, one whose prefill is stopped, and one whose registry never answers.
func (x *pair) ailing(b *testing.B, next *room.ID, engine *sticky) []Half {
	id := *next
	*next += 3
	tx, rx := x.open(id)
	engine.next.Store(true)
	err := errors.Join(rx[0].Post(Destination{Pages: []int32{2}, Aux: 0}), tx[0].Chunk(Chunk{Pages: []int32{3}, Aux: 0, Last: true}))
	all := []Half{tx[0], rx[0]}
	for i, where := range []string{"stopped", "silent"} {
		h, oerr := x.d[0].Open(id+1+room.ID(i), Peer{Bootstrap: where})
		err = errors.Join(err, oerr)
		if oerr == nil {
			err = errors.Join(err, h.Post(Destination{Pages: []int32{4}, Aux: 0}))
			all = append(all, h)
		}
	}
	for engine.next.Load() {
		time.Sleep(time.Millisecond) // until the write is stuck
	}
	if err != nil {
		b.Fatal(err)
	}
	return all
}

// many carries n rooms, besides of them at a time, and returns the 99th percentile of a hand-off in microseconds.
func (x *pair) many(next *room.ID, n int) float64 {
	first := *next
	*next += room.ID(n)
	took := make([]float64, n)
	var turn atomic.Int64
	var wg sync.WaitGroup
	for range besides {
		wg.Go(func() {
			for i := int(turn.Add(1)) - 1; i < n; i = int(turn.Add(1)) - 1 {
				begin := time.Now()
				x.one(first + room.ID(i))
				took[i] = float64(time.Since(begin)) / 1e3
			}
		})
	}
	wg.Wait()
	slices.Sort(took)
	return took[n*99/100]
}
