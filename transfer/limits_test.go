package transfer_test

import (
	"errors"
	"testing"

	"github.com/kvferry/kvferry/transfer"
)

func TestLimits(t *testing.T) {
	var l transfer.Limits
	frag := func(dst uint64, n int) []transfer.Fragment {
		return []transfer.Fragment{{Src: make([]byte, n), Dst: dst}}
	}
	if err := l.Check("p:1", frag(1, 1)); err != nil {
		t.Errorf("without a restriction: %v", err)
	}
	for _, bad := range [][]transfer.Range{{{Base: 5}}, {{Base: 1<<64 - 1, Len: 2}}, {{Base: 10, Len: 10}, {Base: 0, Len: 11}}, {{Base: 7, Len: 1}, {Base: 7, Len: 1}}} {
		if err := l.Set("p:1", bad); !errors.Is(err, transfer.ErrInvalid) {
			t.Errorf("%v: %v, want ErrInvalid", bad, err)
		}
	}
	if err := l.Set("p:1", []transfer.Range{{Base: 300, Len: 50}, {Base: 100, Len: 50}, {Base: 150, Len: 10}}); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		dst uint64
		n   int
		ok  bool
	}{
		{100, 50, true}, {100, 51, false}, {99, 1, false}, {149, 1, true}, {149, 2, false}, {150, 10, true}, {159, 2, false}, {200, 1, false},
		{300, 50, true}, {349, 1, true}, {350, 1, false}, {350, 0, true}, {1<<64 - 1, 2, false}, {0, 1, false},
	} {
		if err := l.Check("p:1", frag(x.dst, x.n)); x.ok != (err == nil) || !x.ok && !errors.Is(err, transfer.ErrOutOfRange) {
			t.Errorf("%d bytes at %d: %v", x.n, x.dst, err)
		}
		if err := l.Check("q:1", frag(x.dst, x.n)); err != nil {
			t.Errorf("another peer: %v", err)
		}
	}
	if err := l.Set("p:1", nil); err != nil {
		t.Fatal(err)
	}
	if err := l.Check("p:1", frag(1, 1)); err != nil {
		t.Errorf("after the restriction is lifted: %v", err)
	}
}
