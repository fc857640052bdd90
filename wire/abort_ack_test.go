package wire

import (
	"testing"

	"github.com/kvferry/kvferry/internal/vectors"
)

func TestAbortAck(t *testing.T) {
	checkGolden(t, AbortAck{Room: 7, Rank: 3}, ParseAbortAck, "ABORT_ACK", "7", "3")
	checkGolden(t, AbortAck{Room: 7, Rank: 3, Generation: 12, HasGeneration: true}, ParseAbortAck, "ABORT_ACK", "7", "3", "12")
	checkShortened(t, ParseAbortAck, 3, framesOf("ABORT_ACK", "7", "3"))
	checkRefusals(t, ParseAbortAck,
		refusal{[]string{"ABORT", "7", "3"}, ErrUnknownType},
		refusal{[]string{"ABORT_ACK", "7", "3", "9223372036854775808"}, ErrRange},
	)
}

// Refused although SGLang takes it: a negative rank.
func TestAbortAckVector(t *testing.T) {
	type parsed struct {
		Room       string `json:"room"`
		Rank       int    `json:"rank"`
		Generation *int64 `json:"generation"`
	}
	type row struct {
		Frames  hexFrames `json:"frames"`
		Parsed  *parsed   `json:"parsed"`
		Encoded hexFrames `json:"encoded"`
	}
	vectors.Each(t, "abort_ack", func(t testing.TB, line int, v row) {
		got, err := ParseAbortAck(v.Frames)
		if v.Parsed == nil {
			if !isRefusal(err) || v.Encoded != nil {
				t.Errorf("line %d: SGLang drops %q, we read %+v, %v", line, v.Frames, got, err)
			}
			return
		}
		id, ok := roomOf(t, v.Parsed.Room)
		want := AbortAck{id, v.Parsed.Rank, deref(v.Parsed.Generation), v.Parsed.Generation != nil}
		if !sameFrames(want.AppendFrames(nil), v.Encoded) && want.Rank >= 0 {
			t.Errorf("line %d: written %q, want %q", line, want.AppendFrames(nil), v.Encoded)
		}
		if !ok || want.Rank < 0 {
			if !isRefusal(err) || !sameFrames(v.Encoded, v.Frames) || string(v.Frames[1]) != v.Parsed.Room || string(v.Frames[3]) != "-2" || want.Generation != -2 {
				t.Errorf("line %d: %q should be refused, we read %+v, %v", line, v.Frames, got, err)
			}
			return
		}
		if err != nil || got != want {
			t.Errorf("line %d: %q\n got %+v, %v\nwant %+v", line, v.Frames, got, err, want)
		}
	})
}

func FuzzAbortAck(f *testing.F) {
	seed(f, framesOf("ABORT_ACK", "7", "3", "12"))
	f.Fuzz(func(t *testing.T, in []byte) { checkFuzzed(t, ParseAbortAck, in) })
}
