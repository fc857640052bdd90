package space

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvferry/kvferry/transfer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, s *Space, gen uint32, ws ...transfer.Window) transfer.Lease {
	t.Helper()
	l, err := s.Open(transfer.Grant{Generation: gen, Windows: ws})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestAddresses(t *testing.T) {
	s := New()
	var last uint64
	for _, item := range []int{1, 3, 512, 65536, 65537, 1 << 20, 16 << 20} {
		r, err := s.Register(make([]byte, 4*item), item)
		if err != nil {
			t.Fatal(err)
		}
		if r.Base() < 1<<40 || r.Base() < last {
			t.Errorf("items of %d: base %#x, the range before ends at %#x", item, r.Base(), last)
		}
		last = r.Base() + 1<<31*uint64(item)
		if last > 1<<62 {
			t.Errorf("items of %d: addresses end at %#x", item, last)
		}
		if r.Item() != item || r.Items() != 4 {
			t.Errorf("%d items of %d", r.Items(), r.Item())
		}
	}
	if a, b := New(), New(); a.next == b.next {
		t.Error("two spaces begin at the same address")
	}
	if _, err := s.Register(make([]byte, maxSpan/maxItems+1), maxSpan/maxItems+1); !errors.Is(err, transfer.ErrNoSpace) {
		t.Errorf("an item too large: %v", err)
	}
	var err error
	for range 16 {
		if _, err = s.Register(make([]byte, maxSpan/maxItems), maxSpan/maxItems); err != nil {
			break
		}
	}
	if !errors.Is(err, transfer.ErrNoSpace) {
		t.Errorf("a full space: %v", err)
	}
}

func TestASealedReaderIsKickedAndTheLeaseBecomesIdle(t *testing.T) {
	s := New()
	mem := make([]byte, 8192)
	r, err := s.Register(mem, 4096)
	if err != nil {
		t.Fatal(err)
	}
	l := open(t, s, 0, transfer.Window{Region: r, Items: []int32{0, 1}})
	kicks := 0
	c := Cursor{Kick: func() { kicks++ }}
	if err := s.Begin(&c, r.Base(), 8192); err != nil {
		t.Fatal(err)
	}
	p := c.Next(100)
	if len(p) != 100 || &p[0] != &mem[0] {
		t.Fatalf("lent %d bytes", len(p))
	}
	l.Seal()
	l.Seal()
	select {
	case <-l.Idle():
		t.Fatal("idle while memory is lent")
	default:
	}
	if kicks != 1 || !c.Sealed() {
		t.Errorf("%d kicks, sealed is %v", kicks, c.Sealed())
	}
	c.Place(40)
	select {
	case <-l.Idle():
	default:
		t.Fatal("not idle")
	}
	if c.Next(0) != nil || !c.Sunk() || c.Left() != 8152 {
		t.Errorf("after the seal: sunk is %v, %d bytes left", c.Sunk(), c.Left())
	}
	c.Discard(8152)
	if got, want := l.Covered(); got != 0 || want != 8192 {
		t.Errorf("covered %d of %d", got, want)
	}
	if err := s.Begin(&c, r.Base(), 1); !errors.Is(err, transfer.ErrSealed) {
		t.Errorf("a sealed range: %v", err)
	}
}

func TestCutWriteCountsWhatIsInPlace(t *testing.T) {
	s := New()
	r, err := s.Register(make([]byte, 3*1000), 1000)
	if err != nil {
		t.Fatal(err)
	}
	l := open(t, s, 1, transfer.Window{Region: r, Items: []int32{2, 0, 1}})
	var c Cursor
	if err := s.Begin(&c, r.Base()+3000+500, 2500); err != nil {
		t.Fatal(err)
	}
	copy(c.Next(700), bytes.Repeat([]byte{1}, 700))
	c.Place(700)
	c.End()
	if got, want := l.Covered(); got != 700 || want != 3000 {
		t.Errorf("covered %d of %d, want 700", got, want)
	}
	c.End()
	if err := s.Begin(&c, r.Base()+3000, 3000); err != nil {
		t.Fatal(err)
	}
	c.Next(0)
	c.Place(3000)
	if got, _ := l.Covered(); got != 3000 {
		t.Errorf("covered %d, want 3000", got)
	}
}

func TestCloseWaitsForTheMemory(t *testing.T) {
	s := New()
	r, err := s.Register(make([]byte, 100), 10)
	if err != nil {
		t.Fatal(err)
	}
	l := open(t, s, 0, transfer.Window{Region: r, Items: []int32{3}})
	c := Cursor{Kick: func() {}}
	if err := s.Begin(&c, r.Base()+30, 10); err != nil {
		t.Fatal(err)
	}
	c.Next(0)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close while memory is lent: %v", err)
	}
	if err := r.Unregister(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Unregister while memory is lent: %v", err)
	}
	c.Place(10)
	for _, f := range []func(context.Context) error{s.Close, r.Unregister, s.Close} {
		if err := f(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Open(transfer.Grant{}); !errors.Is(err, transfer.ErrClosed) {
		t.Errorf("Open after Close: %v", err)
	}
	if _, err := s.Register(make([]byte, 1), 1); !errors.Is(err, transfer.ErrClosed) {
		t.Errorf("Register after Close: %v", err)
	}
	<-l.Idle()
}

func TestAWriteAllocatesNothing(t *testing.T) {
	s := New()
	r, err := s.Register(make([]byte, 1<<20), 1<<12)
	if err != nil {
		t.Fatal(err)
	}
	items := make([]int32, 256)
	for i := range items {
		items[i] = int32(i)
	}
	open(t, s, 0, transfer.Window{Region: r, Items: items})
	src := make([]byte, 1<<12)
	c := Cursor{Kick: func() {}}
	at := uint64(0)
	n := testing.AllocsPerRun(200, func() {
		if err := s.Begin(&c, r.Base()+at, 1<<12); err != nil {
			t.Fatal(err)
		}
		c.Copy(src)
		at = (at + 1<<12) % (1 << 20)
		if err := s.Begin(&c, r.Base()+at, 1<<12); err != nil {
			t.Fatal(err)
		}
		copy(c.Next(0), src)
		c.Place(1 << 12)
	})
	if n > 0 {
		t.Errorf("%v allocations for two writes", n)
	}
}

func BenchmarkWrite(b *testing.B) {
	s := New()
	r, err := s.Register(make([]byte, 1<<20), 1<<12)
	if err != nil {
		b.Fatal(err)
	}
	items := make([]int32, 256)
	for i := range items {
		items[i] = int32(i)
	}
	if _, err := s.Open(transfer.Grant{Windows: []transfer.Window{{Region: r, Items: items}}}); err != nil {
		b.Fatal(err)
	}
	var src [512]byte
	c := Cursor{Kick: func() {}}
	at := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Begin(&c, r.Base()+at, 512); err != nil {
			b.Fatal(err)
		}
		c.Copy(src[:])
		at = (at + 512) % (1 << 20)
	}
}
