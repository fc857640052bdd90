package wire

import (
	"errors"
	"strings"
	"testing"
)

func TestReadListsRefusals(t *testing.T) {
	for in, want := range map[string]error{
		"\x01":                                            ErrTruncated,
		"\x01\x00\x00\x00":                                ErrTruncated,
		"\xff\xff\xff\xff":                                ErrRange, // more lists than MaxStateLists, before any length is believed
		"\x02\x00\x00\x00\xff\xff\xff\xff":                ErrTruncated,
		"\x01\x00\x00\x00\x04\x00\x00\x00":                ErrTruncated,
		"\x01\x00\x00\x00\x03\x00\x00\x00abc":             ErrTruncated,
		"\x01\x00\x00\x00\xfc\xff\xff\xff":                ErrRange, // 4 GiB
		"\x01\x00\x00\x00\x00\x00\x00\x00\x00":            ErrRange,
		"\x00\x00\x00\x00\x01":                            ErrRange,
		"\x41\x00\x00\x00" + strings.Repeat("\x00", 4*65): ErrRange,
	} {
		r := newReader("test", framesOf(in))
		if got := readLists[int32](&r, 0, "lists", MaxStateLists, 1000); !errors.Is(r.err, want) || got != nil {
			t.Errorf("%.40q: %v, %v, want %v", in, got, r.err, want)
		}
	}
	r := newReader("test", framesOf(string(appendLists(nil, [][]uint64{make([]uint64, 600), make([]uint64, 401)}))))
	if readLists[uint64](&r, 0, "lists", MaxStateLists, 1000); !errors.Is(r.err, ErrRange) {
		t.Errorf("1001 numbers: %v, want ErrRange", r.err)
	}
}

// Hostile lengths must not cost memory.
func TestReadListsAllocatesNoMoreThanThereIs(t *testing.T) {
	frames := framesOf("\x40\x00\x00\x00" + strings.Repeat("\xfc\xff\xff\x00", 64))
	if n := testing.AllocsPerRun(100, func() {
		r := newReader("test", frames)
		readLists[int32](&r, 0, "lists", MaxStateLists, 1<<30)
	}); n > 16 {
		t.Errorf("%v allocations for a refused list", n)
	}
}

func FuzzReadLists(f *testing.F) {
	f.Add(appendLists(nil, [][]int32{{1, -2}, nil, {7}}))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, in []byte) {
		checkListsOf[int32](t, in)
		checkListsOf[uint32](t, in)
		checkListsOf[uint64](t, in)
	})
}

func checkListsOf[T number](t *testing.T, in []byte) {
	r := newReader("test", [][]byte{in})
	lists := readLists[T](&r, 0, "lists", MaxStateLists, MaxPointers)
	if r.err != nil {
		if !isRefusal(r.err) || lists != nil {
			t.Fatalf("%x: %v, %v", in, lists, r.err)
		}
		return
	}
	if out := appendLists(nil, lists); string(out) != string(in) && string(in) != "\x00\x00\x00\x00" {
		t.Fatalf("%x reads as %v, written %x", in, lists, out)
	}
}
