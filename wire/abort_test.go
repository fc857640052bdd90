package wire

import (
	"encoding/json"
	"slices"
	"strconv"
	"testing"

	"github.com/kvferry/kvferry/internal/vectors"
)

func TestAbort(t *testing.T) {
	checkGolden(t, Abort{Room: 7}, ParseAbort, "ABORT", "7")
	checkGolden(t, Abort{Room: 7, Addr: Addr{"2001:db8::7", 7001}}, ParseAbort, "ABORT", "7", "2001:db8::7", "7001")
	checkGolden(t, Abort{Room: 7, Addr: Addr{"10.0.0.1", 7001}, Generation: 0, HasGeneration: true}, ParseAbort,
		"ABORT", "7", "10.0.0.1", "7001", "0")
	checkShortened(t, ParseAbort, 2, framesOf("ABORT", "7"))
	checkRefusals(t, ParseAbort,
		refusal{[]string{"ABORT_ACK", "7"}, ErrUnknownType},
		refusal{[]string{"ABORT", "-1"}, ErrRange},
	)
}

// Refused although SGLang takes it: a negative room. An address that no socket can have (empty, port beyond 65535) counts as not told.
func TestAbortVector(t *testing.T) {
	type parsed struct {
		Room       string  `json:"room"`
		IP         *string `json:"ip"`
		Port       *int    `json:"port"`
		Generation *int64  `json:"generation"`
	}
	type row struct {
		Frames    hexFrames        `json:"frames"`
		Parsed    *parsed          `json:"parsed"`
		Encoded   hexFrames        `json:"encoded"`
		AckTarget *json.RawMessage `json:"ack_target"`
	}
	vectors.Each(t, "abort", func(t testing.TB, line int, v row) {
		got, err := ParseAbort(v.Frames)
		if v.Parsed == nil {
			if !isRefusal(err) || v.Encoded != nil || v.AckTarget != nil {
				t.Errorf("line %d: SGLang drops %q, we read %+v, %v", line, v.Frames, got, err)
			}
			return
		}
		if (v.Parsed.IP == nil) != (v.Parsed.Port == nil) || (v.Parsed.IP == nil && v.Parsed.Generation != nil) {
			t.Errorf("line %d: parsed %+v", line, *v.Parsed)
		}
		id, ok := roomOf(t, v.Parsed.Room)
		if !ok {
			if !isRefusal(err) {
				t.Errorf("line %d: %q should be refused, we read %+v, %v", line, v.Frames, got, err)
			}
			if want := textsOf(v.Encoded); !slices.Equal(want, []string{"ABORT", v.Parsed.Room}) || v.Parsed.IP != nil || v.AckTarget != nil {
				t.Errorf("line %d: room %s encoded as %q, acknowledged to %s", line, v.Parsed.Room, want, deref(v.AckTarget))
			}
			return
		}
		var target []any
		if v.Parsed.IP != nil && v.Parsed.Port != nil && v.Parsed.Generation != nil {
			target = []any{*v.Parsed.IP, *v.Parsed.Port, *v.Parsed.Generation}
		}
		wantTarget, err2 := json.Marshal(target)
		if err2 != nil {
			t.Fatal(err2)
		}
		if have := deref(v.AckTarget); (target == nil) != (have == nil) || (target != nil && string(wantTarget) != string(have)) {
			t.Errorf("line %d: ack target %s, want %s", line, have, wantTarget)
		}
		want := Abort{Room: id}
		sound := true
		if v.Parsed.IP != nil && v.Parsed.Port != nil {
			if sound = *v.Parsed.IP != "" && *v.Parsed.Port <= 65535; sound {
				want.Addr = Addr{*v.Parsed.IP, uint16(*v.Parsed.Port)}
				want.Generation, want.HasGeneration = deref(v.Parsed.Generation), v.Parsed.Generation != nil
			}
		}
		if err != nil || got != want {
			t.Errorf("line %d: %q\n got %+v, %v\nwant %+v", line, v.Frames, got, err, want)
		}
		wantFrames := [][]byte(v.Encoded)
		if !sound { // SGLang writes the useless address back, we do not
			told := framesOf("ABORT", v.Parsed.Room, *v.Parsed.IP, strconv.Itoa(*v.Parsed.Port), strconv.FormatInt(deref(v.Parsed.Generation), 10))
			if !sameFrames(wantFrames, v.Frames) || !sameFrames(told, v.Frames) {
				t.Errorf("line %d: %q, parsed as %q, encoded as %q", line, v.Frames, told, wantFrames)
			}
			wantFrames = wantFrames[:2]
		}
		if frames := got.AppendFrames(nil); !sameFrames(frames, wantFrames) {
			t.Errorf("line %d: written %q, want %q", line, frames, wantFrames)
		}
	})
}

func FuzzAbort(f *testing.F) {
	seed(f, framesOf("ABORT", "7", "10.0.0.1", "7001", "12"))
	f.Fuzz(func(t *testing.T, in []byte) { checkFuzzed(t, ParseAbort, in) })
}
