package wire

import (
	"reflect"
	"strings"
	"testing"
)

func sampleRegistration() MooncakeRegistration {
	return MooncakeRegistration{
		Addr: Addr{"10.0.0.2", 7002}, Session: "10.0.0.2:15001", KVPointers: []uint64{1 << 40, 1<<64 - 1}, AuxPointers: []uint64{5},
		StatePointers: [][]uint64{{1}, nil}, Rank: 1, TPSize: 4, KVItemLen: 65536, StateItemLens: [][]uint32{{512}, nil},
		StateDims: [][]uint32{{128}, nil}, KVLayerIDs: []uint32{0, 1}, StateLayerIDs: [][]uint32{{3}, nil}, StagingBase: 2,
		StagingSize: 4096, DCPSize: 2, DCPRank: 1, SlotLayerIDs: []uint64{7}, KVItemLens: []uint64{65536, 32768},
	}
}

var sampleRegistrationFrames = []string{
	"None", "10.0.0.2", "7002", "10.0.0.2:15001",
	"\x00\x00\x00\x00\x00\x01\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff", "\x05\x00\x00\x00\x00\x00\x00\x00",
	"\x02\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00", "1", "4", "65536",
	"\x02\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00", "\x02\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x80\x00\x00\x00",
	"\x00\x00\x00\x00\x01\x00\x00\x00", "\x02\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00",
	"\x02\x00\x00\x00\x00\x00\x00\x00", "4096", "2", "1", "\x07\x00\x00\x00\x00\x00\x00\x00",
	"\x00\x00\x01\x00\x00\x00\x00\x00\x00\x80\x00\x00\x00\x00\x00\x00",
}

func TestMooncakeRegistration(t *testing.T) {
	m := sampleRegistration()
	checkGolden(t, m, ParseMooncakeRegistration, sampleRegistrationFrames...)
	checkGolden(t, m, ParseNativeMooncakeRegistration, sampleRegistrationFrames...)
	if !m.HasStaging() {
		t.Error("no staging")
	}
	m.Geometry = []byte(`{"layers":2}`)
	checkGolden(t, m, ParseNativeMooncakeRegistration, append(append([]string(nil), sampleRegistrationFrames...), `{"layers":2}`)...)
	if got, err := ParseMooncakeRegistration(m.AppendFrames(nil)); err != nil || got.Geometry != nil {
		t.Errorf("a foreign peer's frame 20 was read: %q, %v", got.Geometry, err)
	}

	// As SGLang writes it without states, layer ids, staging and DCP.
	plain := MooncakeRegistration{
		Addr: Addr{"127.0.0.1", 37637}, Session: "127.0.0.1:15537", KVPointers: []uint64{16}, TPSize: 1, KVItemLen: 1024, DCPSize: 1,
		KVItemLens: []uint64{1024},
	}
	checkGolden(t, plain, ParseMooncakeRegistration, "None", "127.0.0.1", "37637", "127.0.0.1:15537",
		"\x10\x00\x00\x00\x00\x00\x00\x00", "", "", "0", "1", "1024", "", "", "", "", "", "", "1", "0", "",
		"\x00\x04\x00\x00\x00\x00\x00\x00")
}

func TestMooncakeRegistrationRefusals(t *testing.T) {
	with := func(i int, s string) []string {
		frames := append([]string(nil), sampleRegistrationFrames...)
		frames[i] = s
		return frames
	}
	checkShortened(t, ParseMooncakeRegistration, 10, framesOf(sampleRegistrationFrames...))
	checkRefusals(t, ParseMooncakeRegistration,
		refusal{with(0, "none"), ErrUnknownType},
		refusal{with(4, "\x00"), ErrTruncated},
		refusal{with(4, strings.Repeat("\x00", 8*(MaxPointers+1))), ErrRange},
		refusal{with(6, "\x02\x00\x00\x00"), ErrTruncated},
		refusal{with(7, "-1"), ErrRange},
		refusal{with(8, "0"), ErrRange},
		refusal{with(9, "1099511627777"), ErrRange},
		refusal{with(14, "\x00\x00"), ErrTruncated},
		refusal{with(14, strings.Repeat("\x00", 16)), ErrRange},
		refusal{with(15, "x"), ErrRange},
		refusal{with(16, "0"), ErrRange},
		refusal{with(17, "2"), ErrRange},
		refusal{with(19, "\x00\x00\x01\x00\x00\x00\x00\x00"), ErrRange},
		refusal{with(19, strings.Repeat("\x00", 16)), ErrRange},
	)
	checkRefusals(t, ParseNativeMooncakeRegistration,
		refusal{append(with(0, "None"), strings.Repeat("x", MaxBlob+1)), ErrRange})
}

// What was read must survive the frames that it was read from.
func TestMooncakeRegistrationKeepsNoInput(t *testing.T) {
	m := sampleRegistration()
	m.Geometry = []byte("{}")
	frames := m.AppendFrames(nil)
	got, err := ParseNativeMooncakeRegistration(frames)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range frames {
		clear(f)
	}
	if !reflect.DeepEqual(got, m) {
		t.Errorf("got %+v, want %+v", got, m)
	}
}

func BenchmarkMooncakeRegistrationParse(b *testing.B) {
	frames := sampleRegistration().AppendFrames(nil)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseMooncakeRegistration(frames); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzMooncakeRegistration(f *testing.F) {
	seed(f, framesOf(append(append([]string(nil), sampleRegistrationFrames...), "{}")...))
	f.Fuzz(func(t *testing.T, in []byte) {
		checkFuzzed(t, ParseMooncakeRegistration, in)
		checkFuzzed(t, ParseNativeMooncakeRegistration, in)
	})
}
