package space

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvferry/kvferry/transfer"
)

// lease is one life of a room.
type lease struct {
	space      *Space
	generation uint32
	also       *lease // of the same generation; under Space.mu
	shape      *shape
	lists      [][]int32 // items, sorted, each list once
	onCovered  func()
	want       uint64
	sealed     atomic.Bool // set under mu

	mu     sync.Mutex
	idle   chan struct{} // made for who waits
	empty  bool          // sealed, and nobody is inside
	inside []*Cursor     // between Next and Place
	places []*place      // by window; made with the first byte
	got    uint64
	told   bool
}

// shape is what leases of the same regions share, so that a room's costs do not grow with the layers of a model.
type shape struct {
	regions []*region // by base
	list    []int     // of each region's items: index into lease.lists
}

// maxShapes bounds the shapes that are remembered. A process has one or two.
const maxShapes = 16

// shape finds or remembers one. The space is locked.
func (s *Space) shape(regions []*region, list []int) *shape {
	for _, x := range s.shapes {
		if slices.Equal(x.regions, regions) && slices.Equal(x.list, list) {
			return x
		}
	}
	x := &shape{slices.Clone(regions), slices.Clone(list)}
	if len(s.shapes) >= maxShapes {
		s.shapes = slices.Delete(s.shapes, 0, 1)
	}
	s.shapes = append(s.shapes, x)
	return x
}

// window is a lease's items of one region.
type window struct {
	lease  *lease
	region *region
	items  []int32
	at     int // index into lease.places
}

// place is what of a window is in place.
type place struct {
	whole []uint64   // a bit per item
	parts []*partial // by index into items, where some bytes are; made with the first of them
}

// of is the lease's window of a region.
func (l *lease) of(r *region) (w window, ok bool) {
	i, ok := slices.BinarySearchFunc(l.shape.regions, r.base, func(x *region, base uint64) int { return cmp.Compare(x.base, base) })
	if !ok {
		return w, false
	}
	return window{l, r, l.lists[l.shape.list[i]], i}, true
}

// window is the open or sealed window of a region and a generation. The space is locked.
func (s *Space) window(r *region, generation uint32) (w window, ok bool) {
	for l := s.leases[generation]; l != nil; l = l.also {
		if w, ok = l.of(r); ok {
			return w, true
		}
	}
	return w, false
}

// index is where an item is in the window, -1: it is not.
func (w *window) index(item uint64) int {
	i, ok := slices.BinarySearch(w.items, int32(item))
	if !ok {
		return -1
	}
	return i
}

// Open implements Engine.Open.
func (s *Space) Open(g transfer.Grant) (transfer.Lease, error) {
	l := &lease{space: s, generation: g.Generation, onCovered: g.OnCovered}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, transfer.ErrClosed
	}
	windows := slices.Clone(g.Windows)
	for _, w := range windows {
		if r, ok := w.Region.(*region); !ok || r.space != s || r.gone {
			return nil, fmt.Errorf("%w: a region of another engine, or one that is unregistered", transfer.ErrInvalid)
		}
	}
	slices.SortFunc(windows, func(a, b transfer.Window) int { return cmp.Compare(a.Region.Base(), b.Region.Base()) })
	var regions []*region
	var list []int
	for _, w := range windows {
		r := w.Region.(*region)
		if len(regions) > 0 && regions[len(regions)-1] == r {
			return nil, fmt.Errorf("%w: two windows of one region", transfer.ErrInvalid)
		}
		i, err := l.admit(r, w.Items)
		if err != nil {
			return nil, err
		}
		l.want += uint64(len(w.Items)) * r.item
		regions, list = append(regions, r), append(list, i)
	}
	for _, r := range regions {
		r.ever.add(g.Generation)
	}
	l.shape = s.shape(regions, list)
	l.also = s.leases[g.Generation]
	s.leases[g.Generation] = l
	if l.want == 0 && l.onCovered != nil {
		l.told = true
		s.wg.Go(l.onCovered)
	}
	return l, nil
}

// admit checks one window of a lease, and returns which of its lists has the items. The space is locked.
func (l *lease) admit(r *region, items []int32) (list int, err error) {
	if limit := maxItems/r.items - 1; uint64(l.generation) > limit {
		return 0, fmt.Errorf("%w: generation %d of a region of %d items, want at most %d", transfer.ErrInvalid, l.generation, r.items, limit)
	}
	if _, used := l.space.window(r, l.generation); used {
		return 0, fmt.Errorf("%w: generation %d is in use", transfer.ErrInvalid, l.generation)
	}
	sorted := items
	if !slices.IsSorted(items) {
		sorted = slices.Clone(items)
		slices.Sort(sorted)
	}
	for i := 1; i < len(sorted); i++ {
		if sorted[i] == sorted[i-1] {
			return 0, fmt.Errorf("%w: item %d is listed twice", transfer.ErrInvalid, sorted[i])
		}
	}
	if n := len(sorted); n > 0 && (sorted[0] < 0 || uint64(sorted[n-1]) >= r.items) {
		return 0, fmt.Errorf("%w: items %d to %d of a region of %d", transfer.ErrInvalid, sorted[0], sorted[n-1], r.items)
	}
	if i := slices.IndexFunc(l.lists, func(x []int32) bool { return slices.Equal(x, sorted) }); i >= 0 {
		return i, nil
	}
	l.lists = append(l.lists, slices.Clip(sorted))
	return len(l.lists) - 1, nil
}

func (l *lease) Covered() (got, want uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.got, l.want
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (l *lease) Idle() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.empty:
		return closed
	case l.idle == nil:
		l.idle = make(chan struct{})
	}
	return l.idle
}

func (l *lease) Seal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sealed.Load() {
		return
	}
	l.sealed.Store(true)
	for _, c := range l.inside {
		c.Kick()
	}
	if len(l.inside) == 0 {
		l.rest()
	}
}

// rest makes the lease idle. It is locked, sealed, and nobody is inside.
func (l *lease) rest() {
	for _, x := range l.places {
		if x == nil {
			continue
		}
		for _, p := range x.parts {
			if p != nil {
				partials.Put(p)
			}
		}
	}
	l.places, l.empty = nil, true
	if l.idle != nil {
		close(l.idle)
	}
}

func (l *lease) Retire() {
	l.Seal()
	l.space.mu.Lock()
	defer l.space.mu.Unlock()
	first := l.space.leases[l.generation]
	if first == l && l.also == nil {
		delete(l.space.leases, l.generation)
		return
	}
	if first == l {
		l.space.leases[l.generation] = l.also
	}
	for x := first; x != nil; x = x.also {
		if x.also == l {
			x.also = l.also
		}
	}
	l.also = nil
}

// cover counts [from, to) of the region's memory, which begins in item index i of the window. The lease is locked and not sealed.
func (w *window) cover(i int, from, to uint64) {
	l, x := w.lease, w.place()
	item := w.region.item
	for at := from % item; from < to; i++ {
		n := min(to-from, item-at)
		switch bit := uint64(1) << (i % 64); {
		case x.whole[i/64]&bit != 0:
		case n == item:
			x.whole[i/64] |= bit
			l.got += item
			if x.parts != nil && x.parts[i] != nil {
				fresh, _ := x.parts[i].add(0, item, item)
				l.got -= item - fresh
				x.drop(i)
			}
		default:
			if x.parts == nil {
				x.parts = make([]*partial, len(w.items))
			}
			p := x.parts[i]
			if p == nil {
				p = partials.Get().(*partial)
				p.begin(at, at+n, item)
				x.parts[i] = p
			}
			fresh, whole := p.add(at, at+n, item)
			l.got += fresh
			if whole {
				x.whole[i/64] |= bit
				x.drop(i)
			}
		}
		from, at = from+n, 0
	}
}

// place is what of the window is in place. The lease is locked.
func (w *window) place() *place {
	l := w.lease
	if l.places == nil {
		l.places = make([]*place, len(l.shape.regions))
	}
	if l.places[w.at] == nil {
		l.places[w.at] = &place{whole: make([]uint64, (len(w.items)+63)/64)}
	}
	return l.places[w.at]
}

func (x *place) drop(i int) {
	partials.Put(x.parts[i])
	x.parts[i] = nil
}

// covered reports, once, that every byte is in place. The lease is locked.
func (l *lease) covered() bool {
	if l.got < l.want || l.told || l.sealed.Load() || l.onCovered == nil {
		return false
	}
	l.told = true
	return true
}
