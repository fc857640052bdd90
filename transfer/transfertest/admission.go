package transfertest

import (
	"context"
	"slices"

	"github.com/kvferry/kvferry/transfer"
)

// refusals are the errors that a writer may get for a range that is not admitted: foreign engines know no reasons, and the connection may
// break before the word arrives.
func (s *suite) refusals(native error) []error {
	if s.native {
		return []error{native}
	}
	return []error{transfer.ErrNotRegistered, transfer.ErrOutOfRange, transfer.ErrPeerGone}
}

func (s *suite) notAdmitted() {
	from, to := s.engine(), s.engine()
	const item, items = 1000, 10
	x := s.target(to, item, items)
	other := s.target(to, item, items)
	l := x.open(5, 2, 3, 4, 7)
	if l == nil {
		return
	}
	good := x.frag(5, 2, 0, s.source(item))
	for _, c := range []struct {
		name string
		dst  uint64
		n    int
		want error
	}{
		{"below everything", 4096, 100, transfer.ErrNotRegistered},
		{"the end of the number space", 1<<64 - 50, 100, transfer.ErrNotRegistered},
		{"a byte before the region", x.region.Base() - 1, 2, transfer.ErrNotRegistered},
		{"another generation", x.addr(4, 2, 0), 100, transfer.ErrOutOfRange},
		{"the generation after", x.addr(6, 2, 0), 100, transfer.ErrOutOfRange},
		{"an item of nobody", x.addr(5, 5, 0), 100, transfer.ErrOutOfRange},
		{"a byte too many at the end", x.addr(5, 4, 0), item + 1, transfer.ErrOutOfRange},
		{"a byte too many at the beginning", x.addr(5, 1, item-1), 2, transfer.ErrOutOfRange},
		{"over a hole", x.addr(5, 4, 0), 4 * item, transfer.ErrOutOfRange},
		{"large, over a hole", x.addr(5, 2, 0), 600 * item, transfer.ErrOutOfRange},
		{"into the next generation", x.addr(5, 7, 0), 4 * item, transfer.ErrOutOfRange},
		{"a region without a lease", other.addr(5, 2, 0), 100, transfer.ErrOutOfRange},
		{"the last address of the range", x.region.Base() + 1<<31*item - 1, 1, transfer.ErrOutOfRange},
		{"the end of the range", x.region.Base() + 1<<31*item - 1, 1 << 20, transfer.ErrOutOfRange},
	} {
		err := s.end(s.start(from, to.Name(), transfer.Fragment{Src: s.source(c.n), Dst: c.dst}))
		if want := s.refusals(c.want); err == nil || !slices.ContainsFunc(want, func(w error) bool { return isError(err, w) }) {
			s.Errorf("%s: %v, want one of %v", c.name, err, want)
		}
		s.must(from, to.Name(), good)
	}
	x.check()
	other.check()
	s.covered(l, item)
	// One bad fragment fails its batch, wherever it stands.
	for at := range 3 {
		batch := []transfer.Fragment{good, good, good}
		batch[at] = transfer.Fragment{Src: s.source(100), Dst: x.addr(5, 5, 0)}
		s.fails(s.end(s.start(from, to.Name(), batch...)), s.refusals(transfer.ErrOutOfRange)...)
	}
	x.check()
}

func (s *suite) sealed() {
	from, to := s.engine(), s.engine()
	const item, items = 40_000, 10
	x := s.target(to, item, items)
	l, living := x.open(5, 2, 3, 4), x.open(6, 5, 6)
	if l == nil {
		return
	}
	s.must(from, to.Name(), x.frag(5, 2, 0, s.source(item)))
	s.covered(l, item)
	s.released(l)
	l.Seal()
	s.covered(l, item)
	for range 2 { // sealed, then forgotten
		for _, n := range []int{1, 100, item, 3 * item} {
			late := transfer.Fragment{Src: s.source(n), Dst: x.addr(5, 2, 0)}
			err := s.end(s.start(from, to.Name(), late))
			if s.native {
				s.fails(err, transfer.ErrSealed)
			} else if err != nil {
				s.Errorf("%d late bytes of a foreign engine: %v", n, err)
			}
			s.must(from, to.Name(), x.frag(6, 5, 0, s.source(item)))
		}
		// Part of the range was never the lease's.
		s.fails(s.end(s.start(from, to.Name(), transfer.Fragment{Src: s.source(10), Dst: x.addr(7, 0, 0)})), s.refusals(transfer.ErrOutOfRange)...)
		x.check()
		l.Retire()
		l.Retire()
	}
	s.covered(l, item)
	s.must(from, to.Name(), x.frag(6, 6, 0, s.source(item)))
	x.check()
	s.whole(living)
}

// sealedInMidTransfer seals while bytes stream in. Idle must not wait for the peer, and no byte may change after it.
func (s *suite) sealedInMidTransfer() {
	from, to := s.engine(), s.engine()
	x, l, batch := s.big(to)
	if l == nil {
		return
	}
	for _, one := range []bool{false, true} {
		if one { // one fragment over all items
			l.Retire()
			l = x.openAll(0)
			src := make([]byte, len(x.mem))
			s.fill(src)
			batch = []transfer.Fragment{{Src: src, Dst: x.addr(0, 0, 0)}}
		}
		h, resume := s.stalled(from, x, batch)
		s.notDone(h)
		l.Seal()
		s.wait("Idle", l.Idle())
		copy(x.shadow, x.mem)
		resume()
		err := s.end(h)
		if s.native {
			s.fails(err, transfer.ErrSealed)
		} else if err != nil {
			s.Errorf("a foreign engine that is sealed in mid-transfer: %v", err)
		}
		x.check()
		if got, want := l.Covered(); got == want {
			s.Errorf("all %d bytes are covered", want)
		}
	}
}

func (s *suite) generations() {
	from, to := s.engine(), s.engine()
	x := s.target(to, 4096, 8)
	if !s.cfg.Capabilities.ReceiverApplied {
		x.openAll(0)
		return
	}
	last := uint32(1<<31/8 - 1)
	for _, gen := range []uint32{0, 1, 1000, last, 1, last} {
		l := x.open(gen, 1, 2)
		s.must(from, to.Name(), x.frag(gen, 1, 0, s.source(8192)))
		x.check()
		s.whole(l)
		if _, err := to.Open(transfer.Grant{Generation: gen, Windows: []transfer.Window{{Region: x.region, Items: []int32{7}}}}); !isError(err, transfer.ErrInvalid) {
			s.Errorf("a generation that is open: %v", err)
		}
		s.released(l)
		if _, err := to.Open(transfer.Grant{Generation: gen, Windows: []transfer.Window{{Region: x.region, Items: []int32{7}}}}); !isError(err, transfer.ErrInvalid) {
			s.Errorf("a generation that is sealed and not retired: %v", err)
		}
		l.Retire()
	}
	// The same item in two generations: only the one that is open writes.
	a := x.open(7, 3)
	s.released(a)
	b := x.open(8, 3)
	_ = s.end(s.start(from, to.Name(), transfer.Fragment{Src: s.source(4096), Dst: x.addr(7, 3, 0)}))
	x.check()
	s.covered(b, 0)
	s.must(from, to.Name(), x.frag(8, 3, 0, s.source(4096)))
	x.check()
	s.whole(b)
}

func (s *suite) invalidArguments() {
	e, other := s.engine(), s.engine()
	mem := make([]byte, 1000)
	for _, c := range []struct{ n, item int }{{0, 1}, {1000, 0}, {1000, -1}, {1000, 7}, {1000, 1001}} {
		if _, err := e.Register(mem[:c.n], c.item); !isError(err, transfer.ErrInvalid) {
			s.Errorf("%d bytes in items of %d: %v", c.n, c.item, err)
		}
	}
	for _, name := range []string{"", "nobody", ":80", "a b:80", "host:", "host:http", "[::1:80"} {
		if _, err := e.Write(name, nil); !isError(err, transfer.ErrInvalid) {
			s.Errorf("a write to %q: %v", name, err)
		}
		if err := e.Probe(s.ctx(), name); !isError(err, transfer.ErrInvalid) {
			s.Errorf("a probe of %q: %v", name, err)
		}
	}
	x, y := s.target(e, 100, 10), s.target(other, 100, 10)
	if !s.cfg.Capabilities.ReceiverApplied {
		return
	}
	for name, g := range map[string]transfer.Grant{
		"an item too high":     {Windows: []transfer.Window{{Region: x.region, Items: []int32{1, 10}}}},
		"a negative item":      {Windows: []transfer.Window{{Region: x.region, Items: []int32{-1}}}},
		"an item twice":        {Windows: []transfer.Window{{Region: x.region, Items: []int32{4, 5, 4}}}},
		"a region twice":       {Windows: []transfer.Window{{Region: x.region, Items: []int32{4}}, {Region: x.region, Items: []int32{5}}}},
		"no region":            {Windows: []transfer.Window{{Items: []int32{4}}}},
		"another's region":     {Windows: []transfer.Window{{Region: y.region, Items: []int32{4}}}},
		"a generation too far": {Generation: 1 << 31 / 10, Windows: []transfer.Window{{Region: x.region, Items: []int32{4}}}},
	} {
		if _, err := e.Open(g); !isError(err, transfer.ErrInvalid) {
			s.Errorf("%s: %v", name, err)
		}
	}
	x.openAll(0) // nothing of the refused ones is left
}

func (s *suite) restrict() {
	from, to := s.engine(), s.engine()
	x := s.target(to, 1000, 10)
	x.openAll(0)
	if err := from.Restrict(to.Name(), []transfer.Range{{Base: x.addr(0, 2, 0), Len: 3000}}); err != nil {
		s.Fatalf("restrict: %v", err)
	}
	if err := from.Restrict(to.Name(), []transfer.Range{{Base: 1}}); !isError(err, transfer.ErrInvalid) {
		s.Errorf("an empty range: %v", err)
	}
	s.must(from, to.Name(), x.frag(0, 2, 0, s.source(3000)))
	for _, at := range []int{1999, 2001} {
		batch := []transfer.Fragment{x.frag(0, 3, 0, s.source(10)), {Src: s.source(3000), Dst: x.addr(0, 0, at)}}
		if _, err := from.Write(to.Name(), batch); !isError(err, transfer.ErrOutOfRange) {
			s.Errorf("a fragment that ends outside: %v", err)
		}
		copy(x.shadow[3000:], x.mem[3000:3010]) // nothing of the batch was sent
	}
	x.check()
	if err := from.Restrict(to.Name(), nil); err != nil {
		s.Errorf("restrict: %v", err)
	}
	s.must(from, to.Name(), x.frag(0, 1, 999, s.source(3000)))
	x.check()
}

func (s *suite) unregister() {
	from, to := s.engine(), s.engine()
	x, y := s.target(to, 5000, 10), s.target(to, 5000, 10)
	l, living := x.openAll(0), y.openAll(0)
	s.must(from, to.Name(), x.frag(0, 2, 0, s.source(5000)))
	x.check()
	for range 2 {
		if err := x.region.Unregister(s.ctx()); err != nil {
			s.Fatalf("unregister: %v", err)
		}
	}
	addr := x.addr(0, 3, 0)
	s.free(x.memory) // whoever touches it now ends the test
	s.fails(s.end(s.start(from, to.Name(), transfer.Fragment{Src: s.source(5000), Dst: addr})), s.refusals(transfer.ErrNotRegistered)...)
	if l != nil {
		s.wait("Idle", l.Idle())
		if _, err := to.Open(transfer.Grant{Windows: []transfer.Window{{Region: x.region}}}); !isError(err, transfer.ErrInvalid) {
			s.Errorf("a lease of an unregistered region: %v", err)
		}
	}
	s.must(from, to.Name(), y.frag(0, 0, 0, s.source(50_000)))
	y.check()
	s.whole(living)
	again := s.target(to, 5000, 10)
	if again.region.Base() == x.region.Base() {
		s.Error("addresses are used again")
	}

	// In mid-transfer, with a peer that stalls.
	big, bl, batch := s.big(to)
	if bl == nil {
		return
	}
	h, resume := s.stalled(from, big, batch)
	if err := big.region.Unregister(context.WithoutCancel(s.ctx())); err != nil {
		s.Fatalf("unregister: %v", err)
	}
	s.free(big.memory)
	resume()
	err := s.end(h)
	if s.native || err != nil { // a foreign engine may have had one fragment under way that was sunk, and no other
		s.fails(err, append(s.refusals(transfer.ErrNotRegistered), transfer.ErrSealed)...)
	}
}
