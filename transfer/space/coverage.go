package space

import (
	"math/bits"
	"sync"
)

// partial is which bytes of one item are in place while not all are: a bitmap in units of a power of two, as large as every fragment seen
// so far allows. Head slices of a page make a few words; only odd bytes make one bit a byte, at most an eighth of the item. The last unit
// of an item may be short.
type partial struct {
	words []uint64
	shift uint8 // unit = 1 << shift bytes
	units uint64
	set   uint64 // units in place
}

var partials = sync.Pool{New: func() any { return &partial{} }}

// begin makes p an empty map of an item, for a first fragment [from, to).
func (p *partial) begin(from, to, item uint64) {
	p.shape(grain(from, to, item), item)
}

func (p *partial) shape(shift uint8, item uint64) {
	p.shift, p.set = shift, 0
	p.units = (item-1)>>shift + 1
	n := int((p.units + 63) / 64)
	if cap(p.words) < n {
		p.words = make([]uint64, n)
		return
	}
	p.words = p.words[:n]
	clear(p.words)
}

// grain is the largest unit, as a shift, of which [from, to) is a multiple; the end of the item counts as one.
func grain(from, to, item uint64) uint8 {
	v := from
	if to != item {
		v |= to
	}
	return uint8(min(bits.TrailingZeros64(v), 62))
}

// add puts [from, to) in place and returns how many of its bytes were not, and whether the item is whole now.
func (p *partial) add(from, to, item uint64) (fresh uint64, whole bool) {
	if g := grain(from, to, item); g < p.shift {
		p.refine(g, item)
	}
	lo, hi := from>>p.shift, (to-1)>>p.shift+1
	last := p.units - 1
	short := hi == p.units && p.words[last/64]>>(last%64)&1 == 0 // the last unit is new
	n := p.mark(lo, hi)
	p.set += n
	fresh = n << p.shift
	if short {
		fresh -= p.units<<p.shift - item
	}
	return fresh, p.set == p.units
}

// mark sets the bits [lo, hi) and returns how many were not set.
func (p *partial) mark(lo, hi uint64) (n uint64) {
	for i := lo / 64; i <= (hi-1)/64; i++ {
		mask := ^uint64(0)
		if i == lo/64 {
			mask <<= lo % 64
		}
		if rest := hi - i*64; rest < 64 {
			mask &= 1<<rest - 1
		}
		n += uint64(bits.OnesCount64(mask &^ p.words[i]))
		p.words[i] |= mask
	}
	return n
}

// refine changes to a smaller unit.
func (p *partial) refine(shift uint8, item uint64) {
	old := partials.Get().(*partial)
	*old, *p = *p, *old
	p.shape(shift, item)
	k := old.shift - shift
	for i := uint64(0); i < old.units; {
		w := old.words[i/64] >> (i % 64)
		if w == 0 {
			i += 64 - i%64
			continue
		}
		i += uint64(bits.TrailingZeros64(w))
		run := uint64(bits.TrailingZeros64(^(old.words[i/64] >> (i % 64)))) // ends at the word's end at the latest: zeros are shifted in
		run = min(run, 64-i%64)
		p.set += p.mark(i<<k, min((i+run)<<k, p.units))
		i += run
	}
	partials.Put(old)
}

// generations is a set of generations, kept as sorted spans. It is bounded: past maxSpans the smallest gap is filled, which makes a
// generation that was never open a sink instead of an error.
type generations []struct{ lo, hi uint32 }

const maxSpans = 1024

func (g generations) search(v uint32) int { // the first span that ends at or after v
	lo, hi := 0, len(g)
	for lo < hi {
		if m := (lo + hi) / 2; g[m].hi < v {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return lo
}

func (g generations) has(v uint32) bool {
	i := g.search(v)
	return i < len(g) && g[i].lo <= v
}

func (g *generations) add(v uint32) {
	s := *g
	i := s.search(v)
	if i < len(s) && s[i].lo <= v {
		return
	}
	before, after := i > 0 && s[i-1].hi+1 == v, i < len(s) && s[i].lo == v+1
	switch {
	case before && after:
		s[i-1].hi = s[i].hi
		s = append(s[:i], s[i+1:]...)
	case before:
		s[i-1].hi = v
	case after:
		s[i].lo = v
	default:
		s = append(s, struct{ lo, hi uint32 }{})
		copy(s[i+1:], s[i:])
		s[i].lo, s[i].hi = v, v
	}
	if len(s) > maxSpans {
		k := 1
		for j := range s[1:] {
			if s[j+1].lo-s[j].hi < s[k].lo-s[k-1].hi {
				k = j + 1
			}
		}
		s[k-1].hi = s[k].hi
		s = append(s[:k], s[k+1:]...)
	}
	*g = s
}
