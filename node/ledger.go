package node

import (
	"errors"
	"fmt"
)

// ErrPages reports a page number outside the pool, or a release of a page that nobody holds.
var ErrPages = errors.New("invalid page")

// Ledger knows of every physical page of a rank who holds it: its owner (a request of the engine), rooms that publish or read it, or
// quarantine. A page is free when nobody holds it, so whoever lets go last frees it. The caller serialises all calls.
type Ledger struct {
	holds       []int32 // by page
	stacked     []bool  // page is in free; it may be held all the same, then it is dropped when it comes up
	free        []int32
	nfree       int
	quarantined int
}

// NewLedger makes a pool of n free pages; low numbers are given out first.
func NewLedger(n int) *Ledger {
	l := &Ledger{holds: make([]int32, n), stacked: make([]bool, n), free: make([]int32, n), nfree: n}
	for i := range l.free {
		l.free[i] = int32(n - 1 - i)
		l.stacked[i] = true
	}
	return l
}

// Total is the number of pages. Every page is free or held.
func (l *Ledger) Total() int { return len(l.holds) }

// Free is the number of pages that nobody holds.
func (l *Ledger) Free() int { return l.nfree }

// Quarantined is the number of pages that are held because no proof has come that nothing writes to them.
func (l *Ledger) Quarantined() int { return l.quarantined }

// Alloc appends n free pages to dst and holds them once each, or does nothing and reports false when there are not so many.
func (l *Ledger) Alloc(dst []int32, n int) ([]int32, bool) {
	if n > l.nfree {
		return dst, false
	}
	for n > 0 {
		p := l.free[len(l.free)-1]
		l.free = l.free[:len(l.free)-1]
		l.stacked[p] = false
		if l.holds[p] == 0 {
			l.holds[p] = 1
			l.nfree--
			dst = append(dst, p)
			n--
		}
	}
	return dst, true
}

// Check reports the first page that is not of the pool.
func (l *Ledger) Check(pages []int32) error {
	for _, p := range pages {
		if p < 0 || int(p) >= len(l.holds) {
			return fmt.Errorf("%w: page %d, want 0 to %d", ErrPages, p, len(l.holds)-1)
		}
	}
	return nil
}

// Hold adds a holder to each page, free or not. All pages must have passed Check.
func (l *Ledger) Hold(pages []int32) {
	for _, p := range pages {
		if l.holds[p] == 0 {
			l.nfree--
		}
		l.holds[p]++
	}
}

// Release takes one holder from each page; the last one frees it. It stops at the first page that is not of the pool or has no holder.
func (l *Ledger) Release(pages []int32) error {
	if err := l.Check(pages); err != nil {
		return err
	}
	for _, p := range pages {
		if l.holds[p] == 0 {
			return fmt.Errorf("%w: page %d is released but nobody holds it", ErrPages, p)
		}
		l.holds[p]--
		if l.holds[p] > 0 {
			continue
		}
		l.nfree++
		if !l.stacked[p] {
			l.stacked[p] = true
			l.free = append(l.free, p)
		}
	}
	return nil
}
