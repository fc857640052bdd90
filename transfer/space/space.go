// Package space is the receiving side of engines that put bytes in place themselves: an address space of the receiver's own invention, with
// leases, sink and coverage, as package transfer describes them.
//
// A [Cursor] takes one write, a whole fragment, through memory in pieces: Begin resolves its addresses, Next lends the memory for the next
// piece or says that the bytes go to the sink, Place gives it back. Between the two the lease is not idle, and the cursor's Kick is called
// when the lease is sealed, so that a reader that waits for its peer lets go.
//
// The package has no goroutine but the one that calls OnCovered of a lease without bytes. Locks: Space.mu (regions and leases by generation),
// then lease.mu. Neither is held while bytes move, except for those of [Cursor.Copy], nor when OnCovered is called.
package space

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"unsafe"

	"github.com/kvferry/kvferry/transfer"
)

// Bounds of the address space. Addresses stay below 2^62, since peers add and compare them as signed numbers. They begin above anything
// that a program maps, and somewhere else in each incarnation, so that an address from another life finds nothing registered.
const (
	firstBase = 1 << 48
	endBase   = 1 << 62
	randomEnd = 1 << 60   // the first region begins below it: three quarters remain for all of them
	maxItems  = 1 << 31   // virtual item numbers are int32 on the wire
	maxPiece  = 256 << 10 // bytes lent at a time: how long a sealed lease's reader may go on
	maxSpan   = 1 << 59   // address range of one region: items of up to 256 MiB
)

// Space is the registered memory of one engine.
type Space struct {
	mu      sync.RWMutex
	regions []*region // by base
	shapes  []*shape
	leases  map[uint32]*lease // by generation, linked by also where they are of different regions
	next    uint64
	closed  bool
	wg      sync.WaitGroup
}

type region struct {
	space *Space
	base  uint64
	span  uint64 // length of the address range, a power of two
	item  uint64
	items uint64
	mem   []byte
	ever  generations // that were open once
	gone  bool        // under Space.mu
}

func (r *region) Base() uint64 { return r.base }
func (r *region) Item() int    { return int(r.item) }
func (r *region) Items() int   { return int(r.items) }

// New makes an empty space.
func New() *Space {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return &Space{leases: map[uint32]*lease{}, next: firstBase + binary.LittleEndian.Uint64(b[:])%(randomEnd-firstBase)}
}

// Register implements Engine.Register.
func (s *Space) Register(mem []byte, item int) (transfer.Region, error) {
	if item < 1 || len(mem) == 0 || len(mem)%item != 0 || len(mem)/item > maxItems {
		return nil, fmt.Errorf("%w: region of %d bytes in items of %d, want a positive multiple", transfer.ErrInvalid, len(mem), item)
	}
	if uint64(item) > maxSpan/maxItems {
		return nil, fmt.Errorf("%w: items of %d bytes, want at most %d", transfer.ErrNoSpace, item, maxSpan/maxItems)
	}
	span := uint64(1) << bits.Len64(uint64(item)*maxItems-1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, transfer.ErrClosed
	}
	at := uintptr(unsafe.Pointer(&mem[0]))
	for _, r := range s.regions {
		if o := uintptr(unsafe.Pointer(&r.mem[0])); at < o+uintptr(len(r.mem)) && o < at+uintptr(len(mem)) {
			return nil, fmt.Errorf("%w: region of %d bytes overlaps one of %d bytes", transfer.ErrInvalid, len(mem), len(r.mem))
		}
	}
	base := (s.next + span - 1) / span * span
	if base+span > endBase {
		return nil, fmt.Errorf("%w: %d regions are registered, another needs %d addresses", transfer.ErrNoSpace, len(s.regions), span)
	}
	s.next = base + span
	r := &region{space: s, base: base, span: span, item: uint64(item), items: uint64(len(mem) / item), mem: mem}
	s.regions = append(s.regions, r)
	return r, nil
}

// Regions calls f with the address range of every region, in order of registration.
func (s *Space) Regions(f func(transfer.Range)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, r := range s.regions {
		f(transfer.Range{Base: r.base, Len: r.items * (maxItems / r.items) * r.item})
	}
}

// Unregister implements transfer.Region.
func (r *region) Unregister(ctx context.Context) error {
	r.space.mu.Lock()
	r.gone = true
	if i := slices.Index(r.space.regions, r); i >= 0 {
		r.space.regions = slices.Delete(r.space.regions, i, i+1)
	}
	leases := r.space.all(func(l *lease) bool { _, ok := l.of(r); return ok })
	r.space.mu.Unlock()
	return sealAll(ctx, leases)
}

// all lists leases. The space is locked.
func (s *Space) all(which func(*lease) bool) (list []*lease) {
	for _, l := range s.leases {
		for ; l != nil; l = l.also {
			if which(l) {
				list = append(list, l)
			}
		}
	}
	return list
}

func sealAll(ctx context.Context, leases []*lease) error {
	for _, l := range leases {
		l.Seal()
	}
	for _, l := range leases {
		select {
		case <-l.Idle():
		case <-ctx.Done():
			return fmt.Errorf("memory is in use: %w", ctx.Err())
		}
	}
	return nil
}

// Close refuses registrations and leases from now on, seals all leases, and waits until they are idle.
func (s *Space) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	leases := s.all(func(*lease) bool { return true })
	s.mu.Unlock()
	err := sealAll(ctx, leases)
	s.wg.Wait() // callbacks, which do not block
	return err
}

// find is the region of an address. The space is locked.
func (s *Space) find(addr uint64) *region {
	lo, hi := 0, len(s.regions)
	for lo < hi {
		if m := (lo + hi) / 2; s.regions[m].base <= addr {
			lo = m + 1
		} else {
			hi = m
		}
	}
	if lo == 0 || addr-s.regions[lo-1].base >= s.regions[lo-1].span {
		return nil
	}
	return s.regions[lo-1]
}

// Cursor takes one write after another through memory. It serves one goroutine; Kick may be called from any.
type Cursor struct {
	// Kick makes a read into memory that Next lent return soon. It is called at most once per Next, with locks held, and must not block.
	Kick func()

	win     *window // &own; nil: everything goes to the sink
	own     window
	first   int    // index of the item in which start is
	start   uint64 // offset in the region's memory from which on bytes are not counted
	off     uint64 // offset of the next byte
	left    uint64
	sunk    bool
	reading bool
}

// errEmpty is a write of no bytes.
var errEmpty = errors.New("no bytes")

// Begin resolves the range of a write. ErrSealed says that the whole of it goes to the sink, which a foreign peer must not be told. After the
// other errors, ErrNotRegistered and ErrOutOfRange, the cursor is a sink too, for who wants to drain the bytes.
func (s *Space) Begin(c *Cursor, addr, size uint64) error {
	c.win, c.left, c.sunk, c.reading = nil, size, true, false
	s.mu.RLock()
	defer s.mu.RUnlock()
	r := s.find(addr)
	switch {
	case r == nil:
		return fmt.Errorf("%w: %d bytes at %#x", transfer.ErrNotRegistered, size, addr)
	case size == 0:
		return fmt.Errorf("%w: %w at %#x", transfer.ErrOutOfRange, errEmpty, addr)
	case size > r.span-(addr-r.base):
		return fmt.Errorf("%w: %d bytes at %#x end beyond the region", transfer.ErrOutOfRange, size, addr)
	}
	off := addr - r.base
	first, last := off/r.item, (off+size-1)/r.item
	gen := first / r.items
	if last/r.items != gen {
		return fmt.Errorf("%w: items %d to %d of a region of %d are of two generations", transfer.ErrOutOfRange, first, last, r.items)
	}
	w, ok := s.window(r, uint32(gen))
	if !ok {
		if !r.ever.has(uint32(gen)) { // gen is below 2^32, since a range is less than twice 2^31 items
			return fmt.Errorf("%w: generation %d was never open", transfer.ErrOutOfRange, gen)
		}
		return transfer.ErrSealed
	}
	low := first - gen*r.items
	i := w.index(low)
	n := last - first
	if i < 0 || uint64(len(w.items)-i) <= n || uint64(w.items[i+int(n)]) != low+n { // sorted and distinct: equal ends make a run
		return fmt.Errorf("%w: items %d to %d of generation %d are not all of the lease", transfer.ErrOutOfRange, low, low+n, gen)
	}
	if w.lease.sealed.Load() {
		return transfer.ErrSealed
	}
	c.own = w
	c.win, c.first, c.sunk = &c.own, i, false
	c.off = off - gen*r.items*r.item
	c.start = c.off
	return nil
}

// Read makes the cursor one whose memory is read, not written: nothing is counted.
func (c *Cursor) Read() { c.reading = true }

// Left is how many bytes of the write have not been placed or discarded.
func (c *Cursor) Left() uint64 { return c.left }

// Sunk reports whether bytes of the write went to the sink.
func (c *Cursor) Sunk() bool { return c.sunk }

// Sealed reports whether the memory that Next lent should be given back at once.
func (c *Cursor) Sealed() bool { return c.win == nil || c.win.lease.sealed.Load() }

// Next lends the memory for the next bytes, at most limit; nil: they go to the sink, from now on. After each Next that lent memory Place
// must follow. limit 0: 256 KiB, the most.
func (c *Cursor) Next(limit int) []byte {
	if c.win == nil {
		return nil
	}
	if limit <= 0 || limit > maxPiece {
		limit = maxPiece
	}
	l := c.win.lease
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sealed.Load() {
		c.win, c.sunk = nil, true
		return nil
	}
	l.inside = append(l.inside, c)
	return c.win.region.mem[c.off : c.off+min(c.left, uint64(limit))]
}

// Place gives the memory back, n bytes of it filled.
func (c *Cursor) Place(n int) {
	l := c.win.lease
	l.mu.Lock()
	for i, x := range l.inside {
		if x == c {
			last := len(l.inside) - 1
			l.inside[i], l.inside[last] = l.inside[last], nil
			l.inside = l.inside[:last]
			break
		}
	}
	c.off += uint64(n)
	c.left -= uint64(n)
	if c.left == 0 {
		c.count()
	}
	if l.sealed.Load() && len(l.inside) == 0 {
		l.rest()
	}
	tell := l.covered()
	l.mu.Unlock()
	if tell {
		l.onCovered()
	}
}

// Copy puts the next bytes in place, at most as many as are left, and returns how many: fewer only when they go to the sink.
func (c *Cursor) Copy(b []byte) int {
	if c.win == nil {
		return 0
	}
	l := c.win.lease
	l.mu.Lock()
	if l.sealed.Load() {
		l.mu.Unlock()
		c.win, c.sunk = nil, true
		return 0
	}
	n := copy(c.win.region.mem[c.off:c.off+c.left], b)
	c.off += uint64(n)
	c.left -= uint64(n)
	if c.left == 0 {
		c.count()
	}
	tell := l.covered()
	l.mu.Unlock()
	if tell {
		l.onCovered()
	}
	return n
}

// Discard says that n bytes went to the sink.
func (c *Cursor) Discard(n int) { c.left -= uint64(n) }

// End counts what is in place of a write that does not go on.
func (c *Cursor) End() {
	if c.win == nil || c.left == 0 {
		return
	}
	l := c.win.lease
	l.mu.Lock()
	c.count()
	tell := l.covered()
	l.mu.Unlock()
	c.win, c.left = nil, 0
	if tell {
		l.onCovered()
	}
}

// count adds [start, off) to the coverage. The lease is locked.
func (c *Cursor) count() {
	if c.off > c.start && !c.reading && !c.win.lease.sealed.Load() {
		c.win.cover(c.first, c.start, c.off)
	}
	c.start = c.off
}
