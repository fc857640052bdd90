package kvlayout

import (
	"fmt"
	"slices"
)

// Fragment is bytes that are contiguous on both sides. Regions are indices into the registered lists, offsets count from the region's start.
// A decode that publishes virtual page numbers has offsets far beyond any real region: up to 2^31 pages.
type Fragment struct {
	SrcRegion int
	SrcOff    uint64 // bytes
	DstRegion int
	DstOff    uint64 // bytes
	Len       uint64 // bytes, at least 1
}

// Plan is what one prefill rank copies to one decode rank. It is made once per pair and never changes.
type Plan struct {
	spans              []span
	replica            bool
	whole              bool // every span is a whole page on both sides, so runs of pages merge
	perPage            int  // fragments of one page that merges with none
	bytes              uint64
	srcPages, dstPages int64 // page numbers are below
}

// span is what is copied of each page of one region: steps pieces of n bytes.
type span struct {
	srcRegion, dstRegion int
	srcItem, dstItem     uint64 // bytes of a page
	srcOff, dstOff       uint64 // of the first piece within the page
	srcStep, dstStep     uint64 // from piece to piece
	n                    uint64
	steps                int
}

// NewPlan makes the plan of prefill rank p and decode rank d. It refuses a geometry that is none (ErrGeometry), an incompatible pair
// (ErrIncompatible) and ranks that have nothing to say to each other (ErrNotPaired). A prefill rank whose KV the decode rank gets from a
// replica has an empty plan: it sends no bytes, but unless it is a dummy it reports like the others.
func NewPlan(p, d Geometry) (*Plan, error) {
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("prefill: %w", err)
	}
	if err := d.Validate(); err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	if err := Compatible(p, d); err != nil {
		return nil, err
	}
	if !talk(p, d) {
		return nil, fmt.Errorf("%w: prefill TP rank %d of %d, decode TP rank %d of %d", ErrNotPaired, p.TPRank, p.TP, d.TPRank, d.TP)
	}
	pairs, err := regionPairs(p, d)
	if err != nil {
		return nil, err
	}
	pl := &Plan{replica: isReplica(p, d), srcPages: pageLimit(p), dstPages: pageLimit(d)}
	if pl.replica {
		return pl, nil
	}
	pl.whole = true
	pl.spans = make([]span, len(pairs))
	for i, pair := range pairs {
		s, err := newSpan(p, d, pair)
		if err != nil {
			return nil, err
		}
		pl.spans[i] = s
		pl.whole = pl.whole && s.n == s.srcItem && s.n == s.dstItem
		pl.perPage += s.steps
		pl.bytes += s.n * uint64(s.steps)
	}
	return pl, nil
}

func pageLimit(g Geometry) int64 {
	if g.Pages == 0 {
		return 1 << 31
	}
	return int64(g.Pages)
}

// talk is the TP rule of Ranks, seen from both sides.
func talk(p, d Geometry) bool {
	if d.TP >= p.TP {
		return d.TPRank/(d.TP/p.TP) == p.TPRank
	}
	return p.TPRank/(p.TP/d.TP) == d.TPRank
}

// isReplica reports whether d gets what p holds from a lower rank: the source of a head is the first of the ranks that d talks to which
// hold it.
func isReplica(p, d Geometry) bool {
	if p.TP <= d.TP || p.TPRank%(p.TP/d.TP) == 0 {
		return false
	}
	return p.MLA || p.TPRank%max(1, p.TP/p.KVHeads) != 0
}

func regionPairs(p, d Geometry) ([]RegionPair, error) {
	if len(p.LayerIDs) > 0 || len(d.LayerIDs) > 0 {
		return PairRegions(p.LayerIDs, d.LayerIDs, p.Regions(), d.Regions(), p.PP == 1)
	}
	from, to := max(p.Start, d.Start), min(p.End, d.End)
	if from >= to {
		return nil, fmt.Errorf("%w: prefill layers [%d, %d), decode layers [%d, %d)", ErrNotPaired, p.Start, p.End, d.Start, d.End)
	}
	var pairs []RegionPair
	for layer := from; layer < to; layer++ {
		pairs = append(pairs, RegionPair{layer - p.Start, layer - d.Start})
	}
	if p.MLA {
		return pairs, nil
	}
	for layer := from; layer < to; layer++ {
		pairs = append(pairs, RegionPair{p.End - p.Start + layer - p.Start, d.End - d.Start + layer - d.Start})
	}
	return pairs, nil
}

func newSpan(p, d Geometry, pair RegionPair) (span, error) {
	s := span{srcRegion: pair.Src, dstRegion: pair.Dst, srcItem: p.ItemLen(pair.Src), dstItem: d.ItemLen(pair.Dst), steps: 1}
	src, dst, n := 0, 0, 1
	if !p.MLA {
		src, dst, n = HeadSlice(p.TP, d.TP, p.TPRank, d.TPRank, p.KVHeads)
	}
	what := fmt.Sprintf("bytes per page of region %d, decode's %d", pair.Src, pair.Dst)
	if n == p.Heads() && n == d.Heads() {
		if s.srcItem != s.dstItem {
			return span{}, incompatible(what, s.srcItem, s.dstItem)
		}
		s.n = s.srcItem
		return s, nil
	}
	// Heads are cut: the bytes of a head are the same on both sides, and a page is whole heads of whole tokens.
	size, srcHeads, dstHeads := uint64(p.PageSize), uint64(p.Heads()), uint64(d.Heads())
	head := s.srcItem / size / srcHeads
	if head == 0 || head*size*srcHeads != s.srcItem || head*size*dstHeads != s.dstItem {
		return span{}, incompatible(fmt.Sprintf("%s, %d and %d heads of %d tokens", what, srcHeads, dstHeads, size), s.srcItem, s.dstItem)
	}
	unit := head // bytes between neighbouring heads
	if p.Order == HeadMajor {
		unit *= size
	} else {
		s.steps, s.srcStep, s.dstStep = p.PageSize, head*srcHeads, head*dstHeads
	}
	s.srcOff, s.dstOff, s.n = uint64(src)*unit, uint64(dst)*unit, uint64(n)*unit
	return s, nil
}

// Replica reports that the decode rank gets this rank's KV from another one, so that the plan is empty. SGLang's prefill has no such rule
// for replicated heads: each replica writes the same bytes, and whoever counts bytes that such a peer sends must count each place once.
func (p *Plan) Replica() bool { return p.replica }

// Bytes is what the plan copies for a number of pages.
func (p *Plan) Bytes(pages int) uint64 { return uint64(pages) * p.bytes }

// MaxFragments is the most fragments that pages can give.
func (p *Plan) MaxFragments(pages int) int { return pages * p.perPage }

// Fragments appends to dst what is copied from prefill's pages src to decode's pages, which correspond one to one: the last page of a prompt
// is copied whole even if it is not full. Runs that are contiguous on both sides are merged where whole pages are copied. The fragments
// never overlap on the decode side if its page numbers are distinct. It allocates only to make dst larger.
//
// Lists of unequal length, and page numbers that are negative or beyond the geometry's Pages, are refused with ErrPages; dst is returned as
// it was.
func (p *Plan) Fragments(dst []Fragment, src, pages []int32) ([]Fragment, error) {
	if len(src) != len(pages) {
		return dst, fmt.Errorf("%w: %d of prefill for %d of decode", ErrPages, len(src), len(pages))
	}
	for i := range src {
		if src[i] < 0 || int64(src[i]) >= p.srcPages {
			return dst, fmt.Errorf("%w: page %d of prefill, want 0 to %d", ErrPages, src[i], p.srcPages-1)
		}
		if pages[i] < 0 || int64(pages[i]) >= p.dstPages {
			return dst, fmt.Errorf("%w: page %d of decode, want 0 to %d", ErrPages, pages[i], p.dstPages-1)
		}
	}
	if p.whole {
		return p.runs(dst, src, pages), nil
	}
	dst = slices.Grow(dst, p.MaxFragments(len(src)))
	for i := range src {
		for j := range p.spans {
			dst = p.spans[j].append(dst, uint64(src[i]), uint64(pages[i]))
		}
	}
	return dst, nil
}

func (p *Plan) runs(dst []Fragment, src, pages []int32) []Fragment {
	for len(src) > 0 {
		n := runLen(src, pages)
		for i := range p.spans {
			s := &p.spans[i]
			dst = append(dst, Fragment{
				SrcRegion: s.srcRegion, SrcOff: uint64(src[0]) * s.srcItem,
				DstRegion: s.dstRegion, DstOff: uint64(pages[0]) * s.dstItem,
				Len: uint64(n) * s.n,
			})
		}
		src, pages = src[n:], pages[n:]
	}
	return dst
}

func (s *span) append(dst []Fragment, src, page uint64) []Fragment {
	f := Fragment{SrcRegion: s.srcRegion, SrcOff: src*s.srcItem + s.srcOff, DstRegion: s.dstRegion, DstOff: page*s.dstItem + s.dstOff, Len: s.n}
	for range s.steps {
		dst = append(dst, f)
		f.SrcOff += s.srcStep
		f.DstOff += s.dstStep
	}
	return dst
}
