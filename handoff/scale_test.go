package handoff

import (
	"runtime"
	"testing"
	"time"

	"github.com/kvferry/kvferry/kvlayout"
	"github.com/kvferry/kvferry/room"
)

// heap is what is alive.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkRoomsAlive opens 100,000 rooms on a prefill and a decode rank, whose pages are published and whose KV has not been computed, and
// reports the memory of one, both sides together, and what one more hand-off costs beside them: cost-ratio is to the same on empty tables.
func BenchmarkRoomsAlive(b *testing.B) {
	const rooms, probes = 100_000, 2000
	for b.Loop() {
		b.StopTimer()
		x := newPair(b, 1, 1, 1, 1, kvlayout.HeadMajor)
		probe := func(first room.ID) float64 {
			var best time.Duration
			for round := range 5 {
				begin := time.Now()
				for i := range probes / 5 {
					x.one(first + room.ID(round*probes+i))
				}
				if d := time.Since(begin); best == 0 || d < best {
					best = d
				}
			}
			return float64(best.Microseconds()) / (probes / 5)
		}
		x.one(1)
		empty := probe(1 << 30)
		before := heap()
		b.StartTimer()
		var all []Half
		for i := range rooms {
			tx, rx := x.open(room.ID(100 + i))
			if err := rx[0].Post(Destination{Pages: []int32{1}, Aux: 0}); err != nil {
				b.Fatal(err)
			}
			all = append(all, tx[0], rx[0])
		}
		for i := 0; i < len(all); i += 2 {
			wait(b, "metadata", all[i].(*Sender).Ready())
		}
		b.StopTimer()
		after := heap()
		full := probe(1 << 40)
		b.ReportMetric(float64(after-before)/rooms, "B/room")
		b.ReportMetric(empty, "µs/hand-off")
		b.ReportMetric(full/empty, "cost-ratio")
		b.ReportMetric(float64(x.p[0].Counts().Rooms), "rooms")
		for _, h := range all {
			h.Clear()
		}
		for _, h := range all {
			wait(b, "cleared", h.(interface{ Cleared() <-chan struct{} }).Cleared())
		}
		b.StartTimer()
	}
}

// one carries a room of one page.
func (x *pair) one(id room.ID) {
	if err := x.carry(id); err != nil {
		x.t.Errorf("room %d: %v", id, err)
	}
}

func (x *pair) carry(id room.ID) error {
	tx, err := x.p[0].Send(id)
	if err != nil {
		return err
	}
	defer tx.Clear()
	rx, err := x.d[0].Open(id, Peer{Bootstrap: "test", DPRank: -1})
	if err != nil {
		return err
	}
	defer rx.Clear()
	if err := rx.Post(Destination{Pages: []int32{2}, Aux: 0}); err != nil {
		return err
	}
	if err := tx.Chunk(Chunk{Pages: []int32{3}, Aux: 0, Last: true}); err != nil {
		return err
	}
	for _, h := range []Half{tx, rx} {
		select {
		case <-h.Done():
		case <-x.t.Context().Done():
			return x.t.Context().Err()
		}
		if v := h.Verdict(); !v.OK() {
			return v.Err()
		}
	}
	return nil
}
