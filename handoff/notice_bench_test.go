package handoff

import (
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/kvferry/kvferry/kvlayout"
	"github.com/kvferry/kvferry/room"
)

// BenchmarkNotice measures from prefill's failure to decode's verdict, and from decode's abort to its pages being free, beside a ping-pong of 64
// bytes over a plain loopback connection in the same process. Each takes turns with the others, room by room.
func BenchmarkNotice(b *testing.B) {
	x := newPair(b, 1, 1, 1, 1, kvlayout.HeadMajor)
	ping := pingPong(b)
	x.one(1)
	const rooms = 2000
	var notice, abort, raw []float64
	next := room.ID(10)
	for b.Loop() {
		for range rooms {
			notice = append(notice, x.timed(next, func(tx *Sender, rx *Receiver) <-chan struct{} {
				tx.Abort(room.NewCause(room.Aborted, room.Prefill, "", "measured"))
				return rx.Done()
			}))
			abort = append(abort, x.timed(next+1, func(_ *Sender, rx *Receiver) <-chan struct{} {
				rx.Abort(room.NewCause(room.Aborted, room.Decode, "", "measured"))
				return rx.Quiescent()
			}))
			begin := time.Now()
			ping()
			raw = append(raw, float64(time.Since(begin))/1e3)
			next += 2
		}
	}
	for _, v := range [][]float64{notice, abort, raw} {
		slices.Sort(v)
	}
	at := func(v []float64, percent int) float64 { return v[len(v)*percent/100] }
	b.ReportMetric(at(notice, 50), "notice-p50-µs")
	b.ReportMetric(at(notice, 99), "notice-p99-µs")
	b.ReportMetric(at(abort, 99), "abort-to-free-p99-µs")
	b.ReportMetric(at(raw, 99), "ping-pong-p99-µs")
	b.ReportMetric(at(notice, 99)/at(raw, 99), "notice/ping-pong-p99")
}

// timed opens a room whose pages are published and a part of which is on its way, and measures until what strike returns is closed.
func (x *pair) timed(id room.ID, strike func(*Sender, *Receiver) <-chan struct{}) float64 {
	txs, rxs := x.open(id)
	tx, rx := txs[0], rxs[0]
	if err := rx.Post(Destination{Pages: []int32{1, 2}, Aux: 0}); err != nil {
		x.t.Fatal(err)
	}
	wait(x.t, "metadata", tx.Ready())
	if err := tx.Chunk(Chunk{Pages: []int32{3}, Aux: 0}); err != nil {
		x.t.Fatal(err)
	}
	begin := time.Now()
	wait(x.t, "the end", strike(tx, rx))
	took := float64(time.Since(begin)) / 1e3
	tx.Clear()
	rx.Clear()
	wait(x.t, "cleared", tx.Cleared())
	wait(x.t, "cleared", rx.Cleared())
	return took
}

func pingPong(b *testing.B) (once func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		buf := make([]byte, 64)
		for {
			if _, err := io.ReadFull(c, buf); err != nil {
				return
			}
			if _, err := c.Write(buf); err != nil {
				return
			}
		}
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = c.Close()
		_ = l.Close()
		<-done
	})
	buf := make([]byte, 64)
	return func() {
		if _, err := c.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, buf); err != nil {
			b.Fatal(err)
		}
	}
}
