package kvlayout

import "fmt"

// RegionPair is a region of prefill and the region of decode that it is copied to, as indices into the registered lists.
type RegionPair struct{ Src, Dst int }

// PairRegions pairs the regions of both sides by layer id: the n-th occurrence of an id with the n-th; decode may have more, all of prefill's
// must be there. Without ids on either side, or with ids on one side only and positional true (SGLang: when prefill's PP is 1), regions pair
// by position; then positional also permits decode to have more than prefill. Everything else is ErrIncompatible.
func PairRegions(srcIDs, dstIDs []uint32, src, dst int, positional bool) ([]RegionPair, error) {
	if src == 0 {
		return nil, nil
	}
	if len(srcIDs) == 0 || len(dstIDs) == 0 {
		switch {
		case len(srcIDs) != len(dstIDs) && !positional:
			return nil, incompatible("layer ids, which both sides or neither must have", len(srcIDs), len(dstIDs))
		case dst < src, dst != src && !positional:
			return nil, incompatible("regions", src, dst)
		}
		pairs := make([]RegionPair, src)
		for i := range pairs {
			pairs[i] = RegionPair{i, i}
		}
		return pairs, nil
	}
	if len(srcIDs) != src {
		return nil, fmt.Errorf("%w: prefill has %d layer ids for %d regions", ErrGeometry, len(srcIDs), src)
	}
	if len(dstIDs) != dst {
		return nil, fmt.Errorf("%w: decode has %d layer ids for %d regions", ErrGeometry, len(dstIDs), dst)
	}
	places := make(map[uint32][]int, dst)
	for i, id := range dstIDs {
		places[id] = append(places[id], i)
	}
	pairs := make([]RegionPair, src)
	for i, id := range srcIDs {
		at := places[id]
		if len(at) == 0 {
			return nil, incompatible(fmt.Sprintf("regions of layer id %d", id), "one more", "none left")
		}
		pairs[i], places[id] = RegionPair{i, at[0]}, at[1:]
	}
	return pairs, nil
}
