package wire

import (
	"strings"
	"testing"

	"github.com/kvferry/kvferry/room"
)

func TestMooncakeStatus(t *testing.T) {
	checkGolden(t, MooncakeStatus{Room: room.MaxID, Status: room.Success, Rank: 3}, ParseMooncakeStatus, "9223372036854775807", "4", "3")
	checkGolden(t, MooncakeStatus{}, ParseMooncakeStatus, "0", "0", "0")
	checkShortened(t, ParseMooncakeStatus, 3, framesOf("7", "4", "0"))
	checkRefusals(t, ParseMooncakeStatus,
		refusal{[]string{"9223372036854775808", "4", "0"}, ErrRange},
		refusal{[]string{"7", "5", "0"}, ErrRange},
		refusal{[]string{"7", "-1", "0"}, ErrRange},
		refusal{[]string{"7", "4", "1048576"}, ErrRange},
		refusal{[]string{"7", "4", strings.Repeat("9", 1<<20)}, ErrRange},
		refusal{[]string{"7", "", "0"}, ErrRange},
	)
}

func TestMooncakeStatusReasonIsCutNotRefused(t *testing.T) {
	m, err := ParseMooncakeStatus(framesOf("7", "0", "1", strings.Repeat("é", 1<<20)))
	if err != nil || len(m.Reason) == 0 || len(m.Reason) > MaxText {
		t.Fatalf("reason of %d bytes, %v", len(m.Reason), err)
	}
}

func FuzzMooncakeStatus(f *testing.F) {
	seed(f, framesOf("7", "0", "1", "why"))
	f.Fuzz(func(t *testing.T, in []byte) {
		checkFuzzed(t, func(b [][]byte) (MooncakeStatus, error) {
			m, err := ParseMooncakeStatus(b)
			m.Reason = "" // read, but not written
			return m, err
		}, in)
	})
}

func BenchmarkMooncakeStatusParse(b *testing.B) {
	frames := framesOf("9223372036854775793", "4", "3")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseMooncakeStatus(frames); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMooncakeStatusAppend(b *testing.B) {
	m := MooncakeStatus{Room: 9223372036854775793, Status: room.Success, Rank: 3}
	var w Writer
	b.ReportAllocs()
	for b.Loop() {
		w.Reset()
		m.AppendTo(&w)
	}
}

func BenchmarkMooncakeStatusAppendFrames(b *testing.B) {
	m := MooncakeStatus{Room: 9223372036854775793, Status: room.Success, Rank: 3}
	b.ReportAllocs()
	for b.Loop() {
		m.AppendFrames(nil)
	}
}
