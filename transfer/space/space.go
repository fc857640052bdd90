// Package space is the receiving side of engines that put bytes in place themselves: an address space of the receiver's own invention, with
// leases, sink and coverage.
//
// Each region gets a range of addresses for 2^31 virtual items. Virtual item v stands for physical item v mod n of generation v / n. Bytes
// reach memory only inside a window of an open lease. A [Cursor] walks through the addresses of one write in pieces; for each it says whether
// the bytes go to memory or to the sink.
//
// Locks: Space.mu (regions and leases by generation), then lease.mu; neither is held while bytes move.
package space

import (
	"fmt"
	"math/bits"
	"slices"
	"sync"

	"github.com/kvferry/kvferry/transfer"
)

// Bounds of the address space. Addresses stay below 2^62, since peers add and compare them as signed numbers; they begin above anything that
// a plain program maps, so that a stray real address is not taken for one of ours.
const (
	firstBase = 1 << 48
	endBase   = 1 << 62
	maxItems  = 1 << 31 // virtual item numbers are int32 on the wire
	maxPiece  = 256 << 10
)

// Space is the registered memory of one engine.
type Space struct {
	mu      sync.RWMutex
	regions []*region
	next    uint64
}

type region struct {
	space  *Space
	base   uint64
	size   uint64 // of its address range, a power of two
	item   uint64
	items  uint64
	mem    []byte
	leases map[uint32]*window
	newest uint32 // highest generation that was ever open
	any    bool
}

func (r *region) Base() uint64 { return r.base }

// New makes an empty space.
func New() *Space { return &Space{next: firstBase} }

// Register adds memory in items. Its length is a multiple of item.
func (s *Space) Register(mem []byte, item int) (transfer.Region, error) {
	if item < 1 || len(mem) == 0 || len(mem)%item != 0 || len(mem)/item > maxItems {
		return nil, fmt.Errorf("%w: %d bytes in items of %d", transfer.ErrInvalid, len(mem), item)
	}
	span := uint64(item) * maxItems
	if span/maxItems != uint64(item) || span > endBase {
		return nil, fmt.Errorf("%w: items of %d bytes are too large for the address space", transfer.ErrInvalid, item)
	}
	span = 1 << bits.Len64(span-1)
	s.mu.Lock()
	defer s.mu.Unlock()
	base := (s.next + span - 1) / span * span
	if base < s.next || base+span > endBase {
		return nil, fmt.Errorf("%w: no address range of %d bytes is left after %d regions", transfer.ErrInvalid, span, len(s.regions))
	}
	s.next = base + span
	r := &region{space: s, base: base, size: span, item: uint64(item), items: uint64(len(mem) / item), mem: mem, leases: map[uint32]*window{}}
	s.regions = append(s.regions, r)
	return r, nil
}

// Regions calls f with base and length of every region's address range, in order of registration.
func (s *Space) Regions(f func(base, size uint64)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, r := range s.regions {
		f(r.base, r.size)
	}
}

func (s *Space) find(addr uint64) *region {
	i, ok := slices.BinarySearchFunc(s.regions, addr, func(r *region, a uint64) int {
		switch {
		case a < r.base:
			return 1
		case a >= r.base+r.size:
			return -1
		}
		return 0
	})
	if !ok {
		return nil
	}
	return s.regions[i]
}

// lease is one life of a room.
type lease struct {
	space      *Space
	generation uint32
	windows    []*window
	onCovered  func()

	mu      sync.Mutex
	sealed  bool
	inside  int
	kicks   map[*Cursor]struct{} // readers that may be blocked with their hands on memory
	got     uint64
	want    uint64
	idle    chan struct{}
	covered bool
}

// window is a lease's items of one region.
type window struct {
	lease  *lease
	region *region
	items  map[uint32]*coverage
}

// Open admits writes.
func (s *Space) Open(g transfer.Grant) (transfer.Lease, error) {
	l := &lease{space: s, generation: g.Generation, onCovered: g.OnCovered, idle: make(chan struct{}), kicks: map[*Cursor]struct{}{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range g.Windows {
		r, ok := w.Region.(*region)
		if !ok || r.space != s {
			return nil, fmt.Errorf("%w: a region of another engine", transfer.ErrInvalid)
		}
		if limit := maxItems/r.items - 1; uint64(g.Generation) > limit {
			return nil, fmt.Errorf("%w: generation %d, want at most %d", transfer.ErrInvalid, g.Generation, limit)
		}
		if r.leases[g.Generation] != nil || slices.ContainsFunc(l.windows, func(x *window) bool { return x.region == r }) {
			return nil, fmt.Errorf("%w: generation %d is in use", transfer.ErrInvalid, g.Generation)
		}
		win := &window{lease: l, region: r, items: make(map[uint32]*coverage, len(w.Items))}
		all := make([]coverage, len(w.Items))
		for i, n := range w.Items {
			if n < 0 || uint64(n) >= r.items || win.items[uint32(n)] != nil {
				return nil, fmt.Errorf("%w: item %d of %d, want each once", transfer.ErrInvalid, n, r.items)
			}
			win.items[uint32(n)] = &all[i]
		}
		l.want += uint64(len(w.Items)) * r.item
		l.windows = append(l.windows, win)
	}
	for _, w := range l.windows {
		w.region.leases[g.Generation] = w
		w.region.newest, w.region.any = max(w.region.newest, g.Generation), true
	}
	return l, nil
}

func (l *lease) Covered() (got, want uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.got, l.want
}

func (l *lease) Idle() <-chan struct{} { return l.idle }

func (l *lease) Seal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sealed {
		return
	}
	l.sealed = true
	if l.inside == 0 {
		close(l.idle)
	}
	for c := range l.kicks {
		c.kick()
	}
}

func (l *lease) Retire() {
	l.Seal()
	l.space.mu.Lock()
	defer l.space.mu.Unlock()
	for _, w := range l.windows {
		if w.region.leases[l.generation] == w {
			delete(w.region.leases, l.generation)
		}
	}
}

// Cursor walks through one write.
type Cursor struct {
	kick    func()
	win     *window // nil: everything goes to the sink
	off     uint64  // within the region's memory
	left    uint64
	sunk    bool // a byte went to the sink, or will
	entered uint64
}

// Begin resolves the range of a write. kick is called, with locks held, when the lease is sealed while the writer is between Next and
// Place: it must make a blocked read return soon, and must not block. Errors: ErrNotRegistered, ErrOutOfRange; ErrSealed says that the
// whole write goes to the sink, which a foreign peer must not be told.
func (s *Space) Begin(addr, size uint64, kick func()) (*Cursor, error) {
	if size == 0 {
		return nil, fmt.Errorf("%w: write of no bytes", transfer.ErrOutOfRange)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	r := s.find(addr)
	if r == nil {
		return nil, fmt.Errorf("%w: %d bytes at %#x", transfer.ErrNotRegistered, size, addr)
	}
	off := addr - r.base
	if size > r.size-off {
		return nil, fmt.Errorf("%w: %d bytes at %#x go beyond the region", transfer.ErrOutOfRange, size, addr)
	}
	first, last := off/r.item, (off+size-1)/r.item
	gen := first / r.items
	if last/r.items != gen {
		return nil, fmt.Errorf("%w: items %d to %d are of two generations", transfer.ErrOutOfRange, first, last)
	}
	c := &Cursor{kick: kick, left: size, off: off - gen*r.items*r.item}
	w := r.leases[uint32(gen)]
	if w == nil {
		if !r.any || gen > uint64(r.newest) {
			return nil, fmt.Errorf("%w: generation %d of item %d was never open", transfer.ErrOutOfRange, gen, first%r.items)
		}
		c.sunk = true
		return c, transfer.ErrSealed
	}
	for i := first; i <= last; i++ {
		if w.items[uint32(i%r.items)] == nil {
			return nil, fmt.Errorf("%w: item %d is not of the lease", transfer.ErrOutOfRange, i%r.items)
		}
	}
	w.lease.mu.Lock()
	sealed := w.lease.sealed
	w.lease.mu.Unlock()
	c.win, c.sunk = w, sealed
	if sealed {
		return c, transfer.ErrSealed
	}
	return c, nil
}

// Left is how many bytes of the write have not been placed.
func (c *Cursor) Left() uint64 { return c.left }

// Sunk reports whether bytes of the write went to the sink.
func (c *Cursor) Sunk() bool { return c.sunk }

// Next returns the memory for the next bytes, at most limit and never none; nil: they go to the sink. After each Next that returned memory
// Place must follow. limit 0: 256 KiB.
func (c *Cursor) Next(limit int) []byte {
	if limit <= 0 || limit > maxPiece {
		limit = maxPiece
	}
	if c.win == nil {
		return nil
	}
	l := c.win.lease
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sealed {
		c.sunk = true
		return nil
	}
	l.inside++
	if c.kick != nil {
		l.kicks[c] = struct{}{}
	}
	n := min(c.left, uint64(limit))
	return c.win.region.mem[c.off : c.off+n]
}

// Place says that n bytes of the memory that Next returned have been put in place.
func (c *Cursor) Place(n int) {
	l := c.win.lease
	l.mu.Lock()
	l.inside--
	delete(l.kicks, c)
	if n > 0 && !l.sealed {
		c.cover(uint64(n))
	}
	if l.sealed && l.inside == 0 {
		close(l.idle)
	}
	tell := l.got == l.want && !l.covered && !l.sealed
	l.covered = l.covered || tell
	l.mu.Unlock()
	c.skip(uint64(n))
	if tell && l.onCovered != nil {
		l.onCovered()
	}
}

// Discard says that n bytes went to the sink.
func (c *Cursor) Discard(n int) { c.skip(uint64(n)) }

func (c *Cursor) skip(n uint64) {
	c.off += n
	c.left -= n
}

// cover counts n bytes at the cursor. The lease is locked.
func (c *Cursor) cover(n uint64) {
	r := c.win.region
	off := c.off
	for n > 0 {
		item, at := off/r.item, off%r.item
		k := min(n, r.item-at)
		c.win.lease.got += c.win.items[uint32(item)].add(at, at+k, r.item)
		off += k
		n -= k
	}
}

// Pass is Place for bytes that were read from the memory, not written to it.
func (c *Cursor) Pass(n int) {
	l := c.win.lease
	l.mu.Lock()
	l.inside--
	delete(l.kicks, c)
	if l.sealed && l.inside == 0 {
		close(l.idle)
	}
	l.mu.Unlock()
	c.skip(uint64(n))
}
