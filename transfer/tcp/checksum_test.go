package tcp

import (
	"errors"
	"testing"

	"github.com/kvferry/kvferry/transfer"
)

// A bit that flips between two native engines fails the write it belongs to, and no other; without checksums nobody would know.
func TestDamageOnTheWayIsNoticed(t *testing.T) {
	const item = 1 << 20
	for _, c := range []struct {
		name  string
		sizes []int
	}{
		{"one small", []int{100}}, {"small ones", []int{100, 5000, 3, 16 << 10}}, {"a table", []int{20_000, 30_000, 16 << 10, 100_000}},
		{"one large", []int{item}}, {"both", []int{400, 300_000, 20_000, 20_000, 77, 64 << 10}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &fabric{stations: map[string]*station{}}
			mem := memory(t, item*len(c.sizes))
			to := f.station(t, Config{})
			x := admitted(t, to.Engine, mem, item)
			total := 0
			for _, n := range c.sizes {
				total += n
			}
			src := random(total)
			var batch []transfer.Fragment
			for i, n := range c.sizes {
				batch = append(batch, transfer.Fragment{Src: src[:n], Dst: x.region.Base() + uint64(i*item)})
				src = src[n:]
			}
			sums, plain := start(t, Config{}), start(t, Config{NoChecksums: true})
			for range 3 {
				for _, e := range []*Engine{sums, plain} {
					if err := carry(t, e, to.Name(), batch); err != nil { // the connection stands from here on
						t.Fatal(err)
					}
				}
				last := total - c.sizes[len(c.sizes)-1]/2 // headers come on top, so it is within the last payload
				to.data.damage(last)
				if err := carry(t, plain, to.Name(), batch); err != nil {
					t.Errorf("without checksums: %v", err)
				}
				before := to.Stats().Corrupt
				to.data.damage(last)
				if err := carry(t, sums, to.Name(), batch); !errors.Is(err, transfer.ErrCorrupt) {
					t.Errorf("bit flipped in byte %d: %v, want ErrCorrupt", last, err)
				}
				if n := to.Stats().Corrupt - before; n != 1 {
					t.Errorf("%d damaged writes are counted, want 1", n)
				}
			}
		})
	}
}

func carry(t *testing.T, e *Engine, to string, batch []transfer.Fragment) error {
	t.Helper()
	h, err := e.Write(to, batch)
	if err != nil {
		t.Fatal(err)
	}
	<-h.Settled()
	return h.Err()
}
