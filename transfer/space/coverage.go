package space

import "slices"

// coverage is which bytes of one item are in place: sorted intervals that neither touch nor overlap.
type coverage struct {
	whole bool
	list  []interval
}

type interval struct{ from, to uint64 }

// add puts [from, to) in place and returns how many of its bytes were not. item is the length of the item.
func (c *coverage) add(from, to, item uint64) uint64 {
	if c.whole {
		return 0
	}
	if from == 0 && to == item && len(c.list) == 0 {
		c.whole = true
		return item
	}
	i, _ := slices.BinarySearchFunc(c.list, from, func(v interval, at uint64) int { // the first interval that ends at or after from
		if v.to < at {
			return -1
		}
		return 1
	})
	fresh := to - from
	j := i
	merged := interval{from, to}
	for ; j < len(c.list) && c.list[j].from <= to; j++ {
		v := c.list[j]
		if lo, hi := max(v.from, from), min(v.to, to); lo < hi {
			fresh -= hi - lo
		}
		merged.from, merged.to = min(merged.from, v.from), max(merged.to, v.to)
	}
	if j == i+1 {
		c.list[i] = merged
	} else {
		c.list = slices.Replace(c.list, i, j, merged)
	}
	if len(c.list) == 1 && c.list[0] == (interval{0, item}) {
		c.whole, c.list = true, nil
	}
	return fresh
}
