// Package transfertest is the suite that every engine passes. An engine's test declares what the engine can do and how to break it:
//
//	func TestEngine(t *testing.T) {
//		transfertest.Run(t, transfertest.Config{Capabilities: …, New: newFabric})
//	}
//
// What an engine declares not to do is expected to fail with transfer.ErrUnsupported; nothing is skipped. Registered memory stands between
// pages that can't be touched, so that a byte outside of it ends the test. The suite starts no goroutine that outlives a test.
package transfertest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvferry/kvferry/transfer"
)

// Fabric is where the engines of one test live, and the faults between them. Peers are named by Engine.Name.
type Fabric interface {
	// New makes an engine and closes it when the test ends. native false: one that others take for an engine that is not kvferry's.
	New(t *testing.T, native bool) transfer.Engine
	// Stall stops what flows to the named engine, as if the network or its process stood still, once about so many more bytes have passed,
	// until resume is called. What is already on its way may still arrive.
	Stall(name string, after int) (resume func())
	// Cut ends the named engine as if its process had been killed: all that flows to and from it breaks, and nobody reaches it again.
	Cut(name string)
	// Junk sends bytes to where the named engine takes writes. ErrUnsupported: there is no such place.
	Junk(name string, b []byte) error
}

// Config describes an engine.
type Config struct {
	Capabilities transfer.Capabilities
	Wire         bool // there is a place that takes junk
	New          func(t *testing.T) Fabric
}

// hang is a generous bound on everything that must happen; nothing waits for it in a passing run.
const hang = 2 * time.Minute

// Run runs the suite, with native and with foreign engines.
func Run(t *testing.T, cfg Config) {
	for _, mode := range []struct {
		name   string
		native bool
	}{{"native", true}, {"foreign", false}} {
		t.Run(mode.name, func(t *testing.T) {
			for _, c := range cases {
				t.Run(c.name, func(t *testing.T) {
					c.run(&suite{T: t, cfg: cfg, native: mode.native, fabric: cfg.New(t), rng: rand.New(rand.NewPCG(7, 11))})
				})
			}
		})
	}
}

var cases = []struct {
	name string
	run  func(*suite)
}{
	{"Declared", (*suite).declared},
	{"WholePages", (*suite).wholePages},
	{"AnySizeAnywhere", (*suite).anySizeAnywhere},
	{"ZeroLength", (*suite).zeroLength},
	{"Overlapping", (*suite).overlapping},
	{"HeadSlices", (*suite).headSlices},
	{"ThousandsOfFragments", (*suite).thousandsOfFragments},
	{"NoAllocationPerFragment", (*suite).noAllocation},
	{"NotAdmitted", (*suite).notAdmitted},
	{"Sealed", (*suite).sealed},
	{"SealedInMidTransfer", (*suite).sealedInMidTransfer},
	{"Generations", (*suite).generations},
	{"InvalidArguments", (*suite).invalidArguments},
	{"Restrict", (*suite).restrict},
	{"Unregister", (*suite).unregister},
	{"ConcurrentBatches", (*suite).concurrentBatches},
	{"CancelInMidTransfer", (*suite).cancelInMidTransfer},
	{"CancelBeforeAndAfter", (*suite).cancelBeforeAndAfter},
	{"SlowPeerHoldsNobodyElse", (*suite).slowPeer},
	{"PeerVanishes", (*suite).peerVanishes},
	{"WriterVanishes", (*suite).writerVanishes},
	{"PeerCloses", (*suite).peerCloses},
	{"CloseInMidTransfer", (*suite).closeInMidTransfer},
	{"DoubleClose", (*suite).doubleClose},
	{"Probe", (*suite).probe},
	{"Junk", (*suite).junk},
}

// suite is one case under way.
type suite struct {
	*testing.T
	cfg    Config
	native bool
	fabric Fabric
	rng    *rand.Rand
}

func (s *suite) engine() transfer.Engine {
	s.Helper()
	return s.fabric.New(s.T, s.native)
}

func (s *suite) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	s.Cleanup(cancel)
	return ctx
}

// guarded is memory between pages that can't be touched. It ends at the second of them; the bytes before it are watched.
type guarded struct {
	all, mem []byte
	slack    []byte
}

func (s *suite) memory(n int) *guarded {
	s.Helper()
	page := unix.Getpagesize()
	inner := (n + page - 1) / page * page
	all, err := unix.Mmap(-1, 0, inner+2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		s.Fatalf("map %d bytes: %v", inner+2*page, err)
	}
	for _, b := range [][]byte{all[:page], all[page+inner:]} {
		if err := unix.Mprotect(b, unix.PROT_NONE); err != nil {
			s.Fatalf("protect: %v", err)
		}
	}
	g := &guarded{all: all, mem: all[page+inner-n : page+inner : page+inner], slack: all[page : page+inner-n]}
	for i := range g.slack {
		g.slack[i] = 0xa5
	}
	return g
}

func (s *suite) checkGuard(g *guarded) {
	s.Helper()
	for i, b := range g.slack {
		if b != 0xa5 {
			s.Fatalf("byte %d before the region is written", len(g.slack)-i)
		}
	}
}

func (s *suite) free(g *guarded) {
	s.Helper()
	if g.all == nil {
		return
	}
	s.checkGuard(g)
	if err := unix.Munmap(g.all); err != nil {
		s.Errorf("unmap: %v", err)
	}
	g.all, g.mem, g.slack = nil, nil, nil
}

// source makes readable memory with random bytes that the test frees when its engines are closed.
func (s *suite) source(n int) []byte {
	s.Helper()
	b := make([]byte, n)
	s.fill(b)
	return b
}

// fill writes random bytes with a period of a prime length, so that no two pages are alike.
func (s *suite) fill(b []byte) {
	const period = 65521
	for i := range min(len(b), period) {
		b[i] = byte(s.rng.Uint32())
	}
	for n := period; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// target is registered memory of a receiving engine.
type target struct {
	s      *suite
	engine transfer.Engine
	region transfer.Region
	memory *guarded
	item   int
	mem    []byte
	shadow []byte // what mem must hold
}

// target registers items of memory with an engine and watches what happens around it.
func (s *suite) target(e transfer.Engine, item, items int) *target {
	s.Helper()
	g := s.memory(item * items)
	s.Cleanup(func() {
		if err := e.Close(s.closing()); err != nil {
			s.Errorf("close: %v", err)
			return // the memory must stay
		}
		s.free(g)
	})
	r, err := e.Register(g.mem, item)
	if err != nil {
		s.Fatalf("register: %v", err)
	}
	return &target{s: s, engine: e, region: r, memory: g, item: item, mem: g.mem, shadow: make([]byte, item*items)}
}

func (s *suite) closing() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	s.Cleanup(cancel)
	return ctx
}

// lease is an open lease, or nil for an engine that has none.
type lease struct {
	transfer.Lease
	covered chan struct{} // has one element for each call of OnCovered
}

// open admits items. An engine that does not put bytes in place itself can't, and takes writes at once.
func (x *target) open(gen uint32, items ...int32) *lease {
	x.s.Helper()
	l := &lease{covered: make(chan struct{}, 16)}
	got, err := x.engine.Open(transfer.Grant{
		Generation: gen,
		Windows:    []transfer.Window{{Region: x.region, Items: items}},
		OnCovered:  func() { l.covered <- struct{}{} },
	})
	if !x.s.cfg.Capabilities.ReceiverApplied {
		if !errors.Is(err, transfer.ErrUnsupported) {
			x.s.Fatalf("open: %v, want ErrUnsupported", err)
		}
		return nil
	}
	if err != nil {
		x.s.Fatalf("open generation %d: %v", gen, err)
	}
	l.Lease = got
	return l
}

func (x *target) openAll(gen uint32) *lease {
	x.s.Helper()
	items := make([]int32, x.region.Items())
	for i := range items {
		items[i] = int32(i)
	}
	return x.open(gen, items...)
}

// addr is where peers find byte at of an item in a generation.
func (x *target) addr(gen uint32, item, at int) uint64 {
	v := uint64(gen)*uint64(x.region.Items()) + uint64(item)
	return x.region.Base() + v*uint64(x.item) + uint64(at)
}

// frag is a fragment to a place of the target, which is noted as written.
func (x *target) frag(gen uint32, item, at int, src []byte) transfer.Fragment {
	copy(x.shadow[item*x.item+at:], src)
	return transfer.Fragment{Src: src, Dst: x.addr(gen, item, at)}
}

// check compares memory with what it must hold.
func (x *target) check() {
	x.s.Helper()
	x.s.checkGuard(x.memory)
	if bytes.Equal(x.mem, x.shadow) {
		return
	}
	for i := range x.mem {
		if x.mem[i] != x.shadow[i] {
			x.s.Fatalf("item %d, byte %d is %#x, want %#x", i/x.item, i%x.item, x.mem[i], x.shadow[i])
		}
	}
}

func (s *suite) wait(what string, c <-chan struct{}) {
	s.Helper()
	select {
	case <-c:
	case <-time.After(hang):
		s.Fatalf("%s does not come", what)
	}
}

// start begins a batch.
func (s *suite) start(from transfer.Engine, to string, batch ...transfer.Fragment) transfer.Handle {
	s.Helper()
	h, err := from.Write(to, batch)
	if err != nil {
		s.Fatalf("write: %v", err)
	}
	return h
}

// end waits for a batch and returns its outcome.
func (s *suite) end(h transfer.Handle) error {
	s.Helper()
	s.wait("Done", h.Done())
	told := make(chan struct{})
	transfer.WhenSettled(h, func() {
		select {
		case <-h.Settled():
		default:
			s.Error("WhenSettled calls before the batch has settled")
		}
		close(told)
	})
	s.wait("Settled", h.Settled())
	s.wait("WhenSettled", told)
	return h.Err()
}

// must carries a batch.
func (s *suite) must(from transfer.Engine, to string, batch ...transfer.Fragment) {
	s.Helper()
	if err := s.end(s.start(from, to, batch...)); err != nil {
		s.Fatalf("write: %v", err)
	}
}

// fails carries a batch that must fail with one of the errors.
func (s *suite) fails(err error, want ...error) {
	s.Helper()
	for _, w := range want {
		if errors.Is(err, w) {
			return
		}
	}
	s.Fatalf("error is %v, want one of %v", err, want)
}

// whole checks that a lease is covered, and that it was told once.
func (s *suite) whole(l *lease) {
	s.Helper()
	if l == nil {
		return
	}
	s.wait("OnCovered", l.covered)
	s.covered(l, 1<<64-1)
}

// covered checks how much of a lease is in place. n = 1<<64-1: all.
func (s *suite) covered(l *lease, n uint64) {
	s.Helper()
	if l == nil {
		return
	}
	got, want := l.Covered()
	if n == 1<<64-1 {
		n = want
	}
	if got != n {
		s.Errorf("%d bytes of %d are covered, want %d", got, want, n)
	}
	if len(l.covered) > 0 {
		s.Errorf("OnCovered is called, or called again")
	}
}

// released seals a lease and waits until its memory is free.
func (s *suite) released(l *lease) {
	s.Helper()
	if l == nil {
		return
	}
	l.Seal()
	s.wait("Idle", l.Idle())
}

func (s *suite) declared() {
	e, f := s.engine(), s.engine()
	if got := e.Capabilities(); got != s.cfg.Capabilities {
		s.Errorf("capabilities %+v, declared are %+v", got, s.cfg.Capabilities)
	}
	for _, e := range []transfer.Engine{e, f} {
		host, port, err := net.SplitHostPort(e.Name())
		n, perr := strconv.ParseUint(port, 10, 16)
		if err != nil || perr != nil || host == "" || strconv.FormatUint(n, 10) != port {
			s.Errorf("name %q does not end in a colon and a decimal port", e.Name())
		}
	}
	if e.Name() == f.Name() {
		s.Errorf("two engines are named %q", e.Name())
	}
}

// big is a transfer that no buffer on the way holds, and its target.
func (s *suite) big(e transfer.Engine) (*target, *lease, []transfer.Fragment) {
	const item, items = 256 << 10, 192
	x := s.target(e, item, items)
	l := x.openAll(0)
	src := s.source(item * items)
	var batch []transfer.Fragment
	for i := range items {
		batch = append(batch, transfer.Fragment{Src: src[i*item : (i+1)*item], Dst: x.addr(0, i, 0)})
	}
	return x, l, batch
}

// stalled begins a batch to a peer that stalls in the middle of it, and waits until bytes have begun to arrive.
func (s *suite) stalled(from transfer.Engine, x *target, batch []transfer.Fragment) (h transfer.Handle, resume func()) {
	s.Helper()
	const before = 4 << 20
	resume = s.fabric.Stall(x.engine.Name(), before)
	s.Cleanup(resume)
	h = s.start(from, x.engine.Name(), batch...)
	arrived := func(f transfer.Fragment) bool { // any of them, since they come in any order
		at := int((f.Dst - x.region.Base()) % uint64(len(x.mem)))
		return bytes.Equal(x.mem[at:at+4096], f.Src[:4096])
	}
	for deadline := time.Now().Add(hang); !slices.ContainsFunc(batch, arrived); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			s.Fatal("nothing arrives")
		}
	}
	return h, resume
}

func (s *suite) notDone(h transfer.Handle) {
	s.Helper()
	select {
	case <-h.Done():
		s.Fatalf("done while the peer is stalled: %v", h.Err())
	default:
	}
}
