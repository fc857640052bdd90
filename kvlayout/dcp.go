package kvlayout

import "fmt"

// TokenCopy copies one token of every layer: token numbers count from the start of a region, page × page size + place in the page.
type TokenCopy struct{ Src, Dst int64 }

// DCPChunk is a chunk on its way to a decode instance with context parallelism (DCP): its ranks share a page of Size × PageSize tokens, and
// rank r keeps every Size-th of them.
type DCPChunk struct {
	PageSize   int // tokens of a physical page, on both sides
	Size, Rank int // decode's context parallelism
	First      int // place of the chunk's first page in the room's positions, counted in prefill's pages after the prefix
	Prefix     int // tokens that decode holds already; whole pages of all ranks together
	Tokens     int // tokens of the chunk; below 0: all of Src
	Src        []int32
	Dst        []int32 // decode's pages, from the first after the prefix on
}

// DCPTokens returns which tokens rank c.Rank gets: of the model's regions its own share, and of a draft model's regions, which every rank
// holds whole, all of them.
func DCPTokens(c DCPChunk) (target, draft []TokenCopy, err error) {
	if c.PageSize < 1 || c.Size < 1 || c.Rank < 0 || c.Rank >= c.Size || c.First < 0 || c.Prefix < 0 {
		return nil, nil, fmt.Errorf("%w: DCP rank %d of %d, pages of %d tokens, first page %d, prefix %d", ErrGeometry, c.Rank, c.Size, c.PageSize, c.First, c.Prefix)
	}
	wide := c.PageSize * c.Size
	if c.Prefix%wide != 0 {
		return nil, nil, fmt.Errorf("%w: prefix of %d tokens, want a multiple of %d, a page of all %d DCP ranks", ErrPages, c.Prefix, wide, c.Size)
	}
	tokens := c.Tokens
	if tokens < 0 {
		tokens = len(c.Src) * c.PageSize
	}
	first := c.First * c.PageSize
	if tokens > len(c.Src)*c.PageSize {
		return nil, nil, fmt.Errorf("%w: %d tokens in %d pages of %d", ErrPages, tokens, len(c.Src), c.PageSize)
	}
	if tokens > 0 && (first+tokens-1)/wide >= len(c.Dst) {
		return nil, nil, fmt.Errorf("%w: token %d of the room is beyond decode's %d pages of %d", ErrPages, first+tokens-1, len(c.Dst), wide)
	}
	at := func(pages []int32, size, token int) int64 {
		return int64(pages[token/size])*int64(size) + int64(token%size)
	}
	for i := range tokens {
		src := at(c.Src, c.PageSize, i)
		draft = append(draft, TokenCopy{src, at(c.Dst, wide, first+i)})
		if (c.Prefix+first+i)%c.Size == c.Rank {
			target = append(target, TokenCopy{src, at(c.Dst, c.PageSize, (first+i)/c.Size)})
		}
	}
	return target, draft, nil
}
