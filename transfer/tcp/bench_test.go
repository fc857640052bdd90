package tcp

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvferry/kvferry/transfer"
)

// bench is one transfer of pages that are scattered at both ends.
type bench struct {
	from, to *Engine
	src, dst []byte
	page     int
	frags    []transfer.Fragment
	order    []int // of pages at the destination
}

const benchBytes = 128 << 20

func newBench(b *testing.B, page int) *bench {
	x := &bench{from: start(b, Config{}), to: start(b, Config{}), page: page}
	mem := func() []byte {
		m, err := transfer.NewMemory(benchBytes)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = x.to.Close(b.Context()); _ = x.from.Close(b.Context()); _ = m.Close() })
		for i := range m.Bytes() {
			m.Bytes()[i] = byte(i >> 8)
		}
		return m.Bytes()
	}
	x.src, x.dst = mem(), mem()
	n := benchBytes / page
	r, err := x.to.Register(x.dst, page)
	if err != nil {
		b.Fatal(err)
	}
	items := make([]int32, n)
	for i := range items {
		items[i] = int32(i)
	}
	if _, err := x.to.Open(transfer.Grant{Windows: []transfer.Window{{Region: r, Items: items}}}); err != nil {
		b.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	x.order = rng.Perm(n)
	for i, at := range rng.Perm(n) {
		x.frags = append(x.frags, transfer.Fragment{Src: x.src[at*page : (at+1)*page], Dst: r.Base() + uint64(x.order[i]*page)})
	}
	return x
}

func (x *bench) engine(b *testing.B, from *Engine) {
	h, err := from.Write(x.to.Name(), x.frags)
	if err != nil {
		b.Fatal(err)
	}
	if <-h.Settled(); h.Err() != nil {
		b.Fatal(h.Err())
	}
}

func (x *bench) copy() {
	for i, at := range x.order {
		copy(x.dst[at*x.page:(at+1)*x.page], x.frags[i].Src)
	}
}

// raw is the baseline: the same pages over two connections with vectored writes and vectored reads of 64 pages, without headers, statuses or
// anything else that an engine needs. It ends when the receiver has everything.
type raw struct {
	x     *bench
	pairs [2][2]*net.TCPConn
}

func newRaw(b *testing.B, x *bench) *raw {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	r := &raw{x: x}
	for i := range r.pairs {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		d, err := l.Accept()
		if err != nil {
			b.Fatal(err)
		}
		r.pairs[i] = [2]*net.TCPConn{c.(*net.TCPConn), d.(*net.TCPConn)}
		b.Cleanup(func() { _ = c.Close(); _ = d.Close() })
	}
	return r
}

func (r *raw) run(b *testing.B) {
	var wg sync.WaitGroup
	n := len(r.x.frags) / 2
	for i, pair := range r.pairs {
		frags, order := r.x.frags[i*n:(i+1)*n], r.x.order[i*n:(i+1)*n]
		wg.Go(func() {
			for k := 0; k < len(frags); k += 64 {
				var v net.Buffers
				for _, f := range frags[k:min(k+64, len(frags))] {
					v = append(v, f.Src)
				}
				if _, err := v.WriteTo(pair[0]); err != nil {
					b.Error(err)
					return
				}
			}
		})
		wg.Go(func() {
			rc, err := pair[1].SyscallConn()
			if err != nil {
				b.Error(err)
				return
			}
			for k := 0; k < len(order); k += 64 {
				var v [][]byte
				for _, at := range order[k:min(k+64, len(order))] {
					v = append(v, r.x.dst[at*r.x.page:(at+1)*r.x.page])
				}
				for len(v) > 0 {
					var n int
					err := rc.Read(func(fd uintptr) bool {
						n, err = unix.Readv(int(fd), v)
						return !errors.Is(err, unix.EAGAIN)
					})
					if err == nil && n <= 0 {
						err = io.ErrUnexpectedEOF
					}
					if err != nil {
						b.Error(err)
						return
					}
					for n > 0 && n >= len(v[0]) {
						n -= len(v[0])
						v = v[1:]
					}
					if n > 0 {
						v[0] = v[0][n:]
					}
				}
			}
		})
	}
	wg.Wait()
}

// BenchmarkLoopback moves 128 MiB of pages between two engines of this process, and by a raw vectored copy over two loopback connections, and
// by memcpy, in turns, so that all see the same machine. It reports throughput and the engine's share of the others.
func BenchmarkLoopback(b *testing.B) {
	for _, page := range []int{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("page=%dKiB", page>>10), func(b *testing.B) {
			x := newBench(b, page)
			r := newRaw(b, x)
			unchecked := start(b, Config{NoChecksums: true})
			x.engine(b, x.from) // connects
			x.engine(b, unchecked)
			var engine, without, plain, memcpy time.Duration
			timed := func(d *time.Duration, f func()) {
				begin := time.Now()
				f()
				*d += time.Since(begin)
			}
			b.ReportAllocs()
			for b.Loop() {
				timed(&engine, func() { x.engine(b, x.from) })
				b.StopTimer()
				timed(&without, func() { x.engine(b, unchecked) })
				timed(&plain, func() { r.run(b) })
				timed(&memcpy, x.copy)
				b.StartTimer()
			}
			rate := func(d time.Duration) float64 { return float64(b.N) * benchBytes / d.Seconds() / 1e6 }
			b.ReportMetric(rate(engine), "MB/s")
			b.ReportMetric(rate(plain), "raw-MB/s")
			b.ReportMetric(rate(engine)/rate(plain), "of-raw")
			b.ReportMetric(rate(engine)/rate(without), "of-unchecked")
			b.ReportMetric(rate(engine)/rate(memcpy), "of-memcpy")
		})
	}
}

// BenchmarkFragments moves 1,000,000 small fragments: head slices of token-major pages.
func BenchmarkFragments(b *testing.B) {
	for _, size := range []int{32, 128, 512, 2048} {
		b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
			const n = 1_000_000
			from, to := start(b, Config{}), start(b, Config{})
			item := 128 * size
			mem := make([]byte, n*size/item*item)
			r, err := to.Register(mem, item)
			if err != nil {
				b.Fatal(err)
			}
			items := make([]int32, len(mem)/item)
			for i := range items {
				items[i] = int32(i)
			}
			frags := make([]transfer.Fragment, 0, n)
			src := make([]byte, size)
			for k := range 4 { // as four ranks would
				for at := k * size; at < len(mem); at += 4 * size {
					frags = append(frags, transfer.Fragment{Src: src, Dst: r.Base() + uint64(at)})
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				l, err := to.Open(transfer.Grant{Windows: []transfer.Window{{Region: r, Items: items}}})
				if err != nil {
					b.Fatal(err)
				}
				h, err := from.Write(to.Name(), frags)
				if err != nil {
					b.Fatal(err)
				}
				if <-h.Settled(); h.Err() != nil {
					b.Fatal(h.Err())
				}
				if got, want := l.Covered(); got != want {
					b.Fatalf("%d of %d bytes are covered", got, want)
				}
				l.Retire()
			}
			b.ReportMetric(float64(b.N)*float64(len(frags))/b.Elapsed().Seconds(), "fragments/s")
		})
	}
}
