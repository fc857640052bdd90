package node

import "strconv"

// generations hands out the numbers under which pages are published: virtual page = generation × slots + page. A number that was given
// out is busy until its writers are proven silent; on an engine without virtual pages there is one generation, 0, which is never busy.
type generations struct {
	limit uint32 // numbers are below it
	next  uint32
	busy  map[uint32]bool
}

func (g *generations) take() (uint32, bool) {
	if g.limit <= 1 {
		return 0, true
	}
	for range g.limit {
		n := g.next
		g.next = (g.next + 1) % g.limit
		if !g.busy[n] {
			g.busy[n] = true
			return n, true
		}
	}
	return 0, false
}

func (g *generations) give(n uint32) { delete(g.busy, n) }

func rankName(rank int) string { return "rank " + strconv.Itoa(rank) }
