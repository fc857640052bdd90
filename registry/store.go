package registry

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/kvferry/kvferry/room"
)

// Numbers of a Store.
const (
	DefaultTTL   = 3 * time.Second // a worker registers three times as often
	minTTL       = 100 * time.Millisecond
	maxTTL       = 10 * time.Minute
	maxInstances = 2048
)

// Store is kvferry's registry of instances, in memory. Nothing is kept across restarts: the workers' own keep-alives, each of them a whole
// registration, fill a new one within a lease's time. Make it with NewStore and Close it. It is safe for concurrent use.
type Store struct {
	ttl  time.Duration
	life room.InstanceID

	mu      sync.Mutex
	rev     uint64
	settled bool
	closed  bool
	born    time.Time
	byURL   map[string]*entry
	byID    map[room.InstanceID]*entry
	changed chan struct{} // closed at the next change
	timer   *time.Timer   // nil: nothing can expire
	due     time.Time     // of timer
}

// entry is one URL's incarnation: what its registrations say together.
type entry struct {
	view Instance
	regs []registration // by their first rank; no rank is in two
}

type registration struct {
	Instance
	deadline time.Time
}

// NewStore makes an empty registry whose leases last ttl: 100 ms to 10 min; 0: 3 s.
func NewStore(ttl time.Duration) (*Store, error) {
	if ttl == 0 {
		ttl = DefaultTTL
	}
	if ttl < minTTL || ttl > maxTTL {
		return nil, fmt.Errorf("%w: lease of %v, want %v to %v", ErrInvalid, ttl, minTTL, maxTTL)
	}
	s := &Store{ttl: ttl, rev: 1, born: time.Now(), byURL: map[string]*entry{}, byID: map[room.InstanceID]*entry{}, changed: make(chan struct{})}
	_, _ = rand.Read(s.life[:]) // never fails
	s.mu.Lock()
	defer s.mu.Unlock()
	s.schedule(s.born.Add(ttl))
	return s, nil
}

// Close ends all waiting with ErrUnavailable, and every later call. Close it before the server that serves it shuts down.
func (s *Store) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
	close(s.changed)
}

var errClosed = fmt.Errorf("%w: the registry is closed", ErrUnavailable)

// Register takes an instance in for the time of a lease, or prolongs its lease: a registration replaces what the same incarnation said of
// the same ranks, and all that an earlier incarnation (by Started, then ID) said at the same URL.
//
// Errors: ErrInvalid; ErrSuperseded when a later incarnation has the URL; ErrFull; ErrUnavailable when closed.
func (s *Store) Register(i Instance) (Lease, error) {
	i, err := i.normal()
	if err != nil {
		return Lease{}, err
	}
	i.Started = i.Started.Round(0).UTC()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return Lease{}, errClosed
	}
	e, err := s.place(i)
	if err != nil {
		return Lease{}, err
	}
	before := e.view
	now := time.Now()
	e.put(registration{i, now.Add(s.ttl)})
	if s.timer == nil { // else it is due before this lease ends, all leases being of one length
		s.schedule(now.Add(s.ttl))
	}
	if !reflect.DeepEqual(before, e.view) {
		s.bump()
	}
	return Lease{Registry: s.life, Revision: s.rev, TTL: s.ttl}, nil
}

// place finds or makes the entry for a registration.
func (s *Store) place(i Instance) (*entry, error) {
	if e := s.byID[i.ID]; e != nil {
		v := e.view
		if v.URL != i.URL || v.Side != i.Side || v.Ranks != i.Ranks || !v.Started.Equal(i.Started) || v.Model != i.Model {
			return nil, fmt.Errorf("%w: instance %s is registered with url, side, ranks, started, model %s, %s, %d, %v, %q, now %s, %s, %d, %v, %q", ErrInvalid,
				i.ID, v.URL, v.Side, v.Ranks, v.Started, v.Model, i.URL, i.Side, i.Ranks, i.Started, i.Model)
		}
		return e, nil
	}
	old := s.byURL[i.URL]
	switch {
	case old == nil && len(s.byURL) >= maxInstances:
		return nil, fmt.Errorf("%w: %d instances", ErrFull, maxInstances)
	case old != nil && !later(i, old.view):
		return nil, fmt.Errorf("%w: %s is instance %s, started %v; this is %s, started %v", ErrSuperseded, i.URL, old.view.ID, old.view.Started, i.ID, i.Started)
	case old != nil:
		delete(s.byID, old.view.ID)
	}
	e := &entry{}
	s.byURL[i.URL], s.byID[i.ID] = e, e
	return e, nil
}

func later(a, b Instance) bool {
	if c := a.Started.Compare(b.Started); c != 0 {
		return c > 0
	}
	return bytes.Compare(a.ID[:], b.ID[:]) > 0
}

// put adds a registration in the place of what was said of its ranks.
func (e *entry) put(r registration) {
	for k := range e.regs {
		e.regs[k].Present = slices.DeleteFunc(slices.Clone(e.regs[k].Present), func(n int) bool {
			_, found := slices.BinarySearch(r.Present, n)
			return found
		})
	}
	e.regs = append(e.regs, r)
	e.merge()
}

// merge drops registrations without ranks and makes the view of the others.
func (e *entry) merge() {
	e.regs = slices.DeleteFunc(e.regs, func(r registration) bool { return len(r.Present) == 0 })
	if len(e.regs) == 0 {
		return
	}
	slices.SortFunc(e.regs, func(a, b registration) int { return cmp.Compare(a.Present[0], b.Present[0]) })
	v := e.regs[0].Instance
	v.Present = slices.Clone(v.Present)
	for _, r := range e.regs[1:] {
		v.Present = append(v.Present, r.Present...)
		v.Draining = v.Draining || r.Draining
		v.Unhealthy = cmp.Or(v.Unhealthy, r.Unhealthy)
		v.Load.FreePages = min(v.Load.FreePages, r.Load.FreePages)
	}
	slices.Sort(v.Present)
	e.view = v
}

// Leave takes an instance out with all its ranks: one that lacks a rank is of no use. Errors: ErrNotFound.
func (s *Store) Leave(id room.InstanceID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byID[id]
	switch {
	case s.closed:
		return errClosed
	case e == nil:
		return fmt.Errorf("%w: instance %s", ErrNotFound, id)
	}
	s.drop(e)
	s.bump()
	return nil
}

func (s *Store) drop(e *entry) {
	delete(s.byURL, e.view.URL)
	delete(s.byID, e.view.ID)
}

func (s *Store) bump() {
	s.rev++
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Store) schedule(due time.Time) {
	s.due = due
	s.timer = time.AfterFunc(time.Until(due), s.expire)
}

// expire ends the leases that are over. After a pause of the whole process (it was stopped, or its machine was) it ends none: nobody could
// keep alive meanwhile, so all leases start again.
func (s *Store) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	now := time.Now()
	paused := now.Sub(s.due) > s.ttl/2
	change := false
	if !s.settled && !paused && now.Sub(s.born) >= s.ttl {
		s.settled, change = true, true
	}
	var next time.Time
	for _, e := range s.byURL {
		for k := range e.regs {
			r := &e.regs[k]
			switch {
			case paused:
				r.deadline = now.Add(s.ttl)
			case !r.deadline.After(now):
				r.Present, change = nil, true
				continue
			}
			if next.IsZero() || r.deadline.Before(next) {
				next = r.deadline
			}
		}
		if e.merge(); len(e.regs) == 0 {
			s.drop(e)
		}
	}
	if !s.settled {
		next = now.Add(s.ttl)
		if !paused {
			next = s.born.Add(s.ttl)
		}
	}
	s.timer = nil
	if !next.IsZero() {
		s.schedule(next)
	}
	if change {
		s.bump()
	}
}

// Snapshot is what the registry knows now.
func (s *Store) Snapshot() Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.snapshot()
}

func (s *Store) snapshot() Snapshot {
	v := Snapshot{Registry: s.life, Revision: s.rev, Settled: s.settled, Instances: make([]Instance, 0, len(s.byURL))}
	for _, e := range s.byURL {
		v.Instances = append(v.Instances, e.view)
	}
	sortInstances(v.Instances)
	return v
}

func sortInstances(list []Instance) {
	slices.SortFunc(list, func(a, b Instance) int {
		return cmp.Or(cmp.Compare(a.Side, b.Side), cmp.Compare(a.URL, b.URL))
	})
}

// Wait returns the snapshot as soon as its revision is above after, or at once when life is not this registry's: then after is another's.
// Errors: ctx's own, ErrUnavailable when closed.
func (s *Store) Wait(ctx context.Context, life room.InstanceID, after uint64) (Snapshot, error) {
	for {
		s.mu.Lock()
		closed, fresh, changed := s.closed, life != s.life || s.rev > after, s.changed
		var v Snapshot
		if fresh && !closed {
			v = s.snapshot()
		}
		s.mu.Unlock()
		switch {
		case closed:
			return Snapshot{}, errClosed
		case fresh:
			return v, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Snapshot{}, fmt.Errorf("wait for revision %d: %w", after+1, ctx.Err())
		}
	}
}

// Watch calls fn with every revision that it can keep up with, the present one first, until ctx ends (nil) or the store is closed. fn is
// called by the caller's goroutine.
func (s *Store) Watch(ctx context.Context, fn func(Snapshot)) error {
	var v Snapshot
	for {
		var err error
		if v, err = s.Wait(ctx, v.Registry, v.Revision); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		fn(v)
	}
}
