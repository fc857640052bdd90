package wire

import (
	"strings"
	"testing"
)

func sampleMetadata() MooncakeMetadata {
	return MooncakeMetadata{
		Room: 9223372036854775793, Addr: Addr{"10.0.0.2", 7002}, Session: "10.0.0.2:15001", Pages: []int32{3, 9}, Aux: 3,
		StateIndices: [][]int32{{1, -1}, nil}, Required: 2, Prefix: 48, SecondPages: []int32{1},
	}
}

var sampleMetadataFrames = []string{
	"9223372036854775793", "10.0.0.2", "7002", "10.0.0.2:15001", "\x03\x00\x00\x00\x09\x00\x00\x00", "3",
	"\x02\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\xff\xff\xff\xff", "2", "48", "\x01\x00\x00\x00",
}

func TestMooncakeMetadata(t *testing.T) {
	m := sampleMetadata()
	checkGolden(t, m, ParseMooncakeMetadata, sampleMetadataFrames...)
	checkGolden(t, m, ParseNativeMooncakeMetadata, sampleMetadataFrames...)
	m.Epoch = 1<<64 - 1
	checkGolden(t, m, ParseNativeMooncakeMetadata, append(append([]string(nil), sampleMetadataFrames...), "18446744073709551615")...)

	dummy := MooncakeMetadata{Room: 7, Addr: Addr{"2001:db8::7", 1}, Session: "s", Aux: -1, Required: 1, Dummy: true}
	checkGolden(t, dummy, ParseMooncakeMetadata, "7", "2001:db8::7", "1", "s", "", "", "", "1", "0", "")
	hit := MooncakeMetadata{Room: 7, Addr: Addr{"d-0.svc", 65535}, Session: "s", Aux: 0, Required: 1, Prefix: 64}
	checkGolden(t, hit, ParseMooncakeMetadata, "7", "d-0.svc", "65535", "s", "", "0", "", "1", "64", "")
}

// A foreign peer's frame 10 means nothing to us; a native peer's must be an epoch.
func TestMooncakeMetadataEpochIsNativeOnly(t *testing.T) {
	frames := framesOf(append(append([]string(nil), sampleMetadataFrames...), "x")...)
	if m, err := ParseMooncakeMetadata(frames); err != nil || m.Epoch != 0 {
		t.Errorf("foreign: %+v, %v", m, err)
	}
	checkRefusals(t, ParseNativeMooncakeMetadata, refusal{textsOf(frames), ErrRange})
}

func TestMooncakeMetadataRefusals(t *testing.T) {
	with := func(i int, s string) []string {
		frames := append([]string(nil), sampleMetadataFrames...)
		frames[i] = s
		return frames
	}
	checkShortened(t, ParseMooncakeMetadata, 8, framesOf(sampleMetadataFrames...))
	checkRefusals(t, ParseMooncakeMetadata,
		refusal{with(0, "-1"), ErrRange},
		refusal{with(0, "None"), ErrRange},
		refusal{with(1, ""), ErrRange},
		refusal{with(1, "10.0.0.2/x"), ErrRange},
		refusal{with(1, strings.Repeat("a", MaxName+1)), ErrRange},
		refusal{with(2, "0"), ErrRange},
		refusal{with(2, "65536"), ErrRange},
		refusal{with(3, ""), ErrRange},
		refusal{with(3, "a\nb"), ErrRange},
		refusal{with(3, "\xff"), ErrRange},
		refusal{with(4, "\x03\x00\x00"), ErrTruncated},
		refusal{with(4, "\x00\x00\x00\x80"), ErrRange},
		refusal{with(4, strings.Repeat("\x00", 4*(MaxPages+1))), ErrRange},
		refusal{with(5, ""), ErrRange}, // pages without an aux slot end SGLang's control thread
		refusal{with(5, "-1"), ErrRange},
		refusal{with(6, "\x02"), ErrTruncated},
		refusal{with(7, "0"), ErrRange},
		refusal{with(7, ""), ErrRange},
		refusal{with(8, "2147483648"), ErrRange},
		refusal{with(9, "\x00"), ErrTruncated},
	)
}

func FuzzMooncakeMetadata(f *testing.F) {
	seed(f, framesOf(sampleMetadataFrames...))
	seed(f, framesOf("7", "a", "1", "s", "", "", "", "1", "0", "", "77"))
	f.Fuzz(func(t *testing.T, in []byte) {
		checkFuzzed(t, ParseMooncakeMetadata, in)
		checkFuzzed(t, ParseNativeMooncakeMetadata, in)
	})
}

func benchmarkMetadata() MooncakeMetadata {
	m := sampleMetadata()
	m.StateIndices, m.SecondPages = nil, nil
	m.Pages = make([]int32, 512)
	for i := range m.Pages {
		m.Pages[i] = int32(i)
	}
	return m
}

func BenchmarkMooncakeMetadataParse(b *testing.B) {
	frames := benchmarkMetadata().AppendFrames(nil)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseMooncakeMetadata(frames); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMooncakeMetadataAppend(b *testing.B) {
	m := benchmarkMetadata()
	var w Writer
	b.ReportAllocs()
	for b.Loop() {
		w.Reset()
		m.AppendTo(&w)
	}
}

func BenchmarkMooncakeMetadataAppendFrames(b *testing.B) {
	m := benchmarkMetadata()
	b.ReportAllocs()
	for b.Loop() {
		m.AppendFrames(nil)
	}
}
