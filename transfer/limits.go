package transfer

import (
	"fmt"
	"slices"
	"sync"
)

// Limits are the restrictions of an engine, by peer: what Engine.Restrict sets and Engine.Write checks. The zero value restricts nobody.
type Limits struct {
	mu    sync.RWMutex
	peers map[string][]Range // sorted; neighbours are not joined, since a fragment lies inside one range
}

// Set implements Engine.Restrict.
func (l *Limits) Set(peer string, ranges []Range) error {
	sorted := slices.Clone(ranges)
	slices.SortFunc(sorted, func(a, b Range) int {
		if a.Base < b.Base {
			return -1
		}
		return 1
	})
	for i, r := range sorted {
		if r.Len == 0 || r.Base+r.Len < r.Base {
			return fmt.Errorf("%w: range of %d bytes at %#x", ErrInvalid, r.Len, r.Base)
		}
		if i > 0 && sorted[i-1].Base+sorted[i-1].Len > r.Base {
			return fmt.Errorf("%w: ranges at %#x and %#x overlap", ErrInvalid, sorted[i-1].Base, r.Base)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(sorted) == 0 {
		delete(l.peers, peer)
		return nil
	}
	if l.peers == nil {
		l.peers = map[string][]Range{}
	}
	l.peers[peer] = sorted
	return nil
}

// Check reports the first fragment that a peer's restriction refuses.
func (l *Limits) Check(peer string, batch []Fragment) error {
	l.mu.RLock()
	ranges := l.peers[peer]
	l.mu.RUnlock()
	if ranges == nil {
		return nil
	}
	at := 0 // fragments often come in order
	for i, f := range batch {
		n := uint64(len(f.Src))
		if n == 0 {
			continue
		}
		if r := ranges[at]; f.Dst-r.Base >= r.Len || n > r.Len-(f.Dst-r.Base) {
			k, ok := slices.BinarySearchFunc(ranges, f.Dst, func(r Range, addr uint64) int {
				switch {
				case addr < r.Base:
					return 1
				case addr-r.Base >= r.Len:
					return -1
				}
				return 0
			})
			if !ok || n > ranges[k].Len-(f.Dst-ranges[k].Base) {
				return fmt.Errorf("%w: fragment %d of the batch, %d bytes at %#x, is not inside one of the %d ranges of %s", ErrOutOfRange, i, n, f.Dst, len(ranges), peer)
			}
			at = k
		}
	}
	return nil
}
