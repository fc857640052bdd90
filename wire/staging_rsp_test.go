package wire

import (
	"reflect"
	"testing"

	"github.com/kvferry/kvferry/internal/vectors"
)

func TestStagingRsp(t *testing.T) {
	checkGolden(t, StagingRsp{Room: 7, Chunk: 2, Offset: 64, Round: 1, End: 128, Session: "A"}, ParseStagingRsp,
		"STAGING_RSP", "7", "2", "64", "1", "128", "A")
	checkGolden(t, StagingRsp{Room: 7, Offset: StagingTooLarge, End: -1, Session: "A"}, ParseStagingRsp,
		"STAGING_RSP", "7", "0", "-2", "0", "-1", "A")
	checkShortened(t, ParseStagingRsp, 7, framesOf("STAGING_RSP", "7", "2", "64", "1", "128", "A"))
	checkRefusals(t, ParseStagingRsp,
		refusal{[]string{"STAGING_REQ", "7", "2", "64", "1", "128", "A"}, ErrUnknownType},
		refusal{[]string{"STAGING_RSP", "7", "2", "64", "1", "63", "A"}, ErrRange},
		refusal{[]string{"STAGING_RSP", "7", "2", "-1", "0", "63", "A"}, ErrRange},
		refusal{[]string{"STAGING_RSP", "7", "2", "-2", "0", "63", "A"}, ErrRange},
		refusal{[]string{"STAGING_RSP", "7", "2", "-2", "1", "-1", "A"}, ErrRange},
	)
}

// The table holds what SGLang keeps after one answer, for room 7 and session A: lists by chunk, filled up with -1 and round 0. Refused
// although SGLang takes it: chunk -1, which it writes into the last entry.
func TestStagingRspVector(t *testing.T) {
	type staging struct {
		Offsets []int64 `json:"offsets"`
		Rounds  []int64 `json:"rounds"`
		Ends    []int64 `json:"ends"`
	}
	type row struct {
		Frames  hexFrames `json:"frames"`
		Staging *staging  `json:"staging"`
		Raised  *string   `json:"raised"`
	}
	raises := map[string]bool{"ValueError": true, "IndexError": true, "UnicodeDecodeError": true}
	vectors.Each(t, "staging_rsp", func(t testing.TB, line int, v row) {
		got, err := ParseStagingRsp(v.Frames)
		if v.Raised != nil {
			if !raises[*v.Raised] || !isRefusal(err) || v.Staging != nil || (*v.Raised == "IndexError") != (len(v.Frames) < 7) {
				t.Errorf("line %d: SGLang raises %s on %q, we read %+v, %v", line, *v.Raised, v.Frames, got, err)
			}
			return
		}
		if string(v.Frames[2]) == "-1" {
			want := staging{Offsets: []int64{5}, Rounds: []int64{0}, Ends: []int64{9}}
			if !isRefusal(err) || !reflect.DeepEqual(v.Staging, &want) {
				t.Errorf("line %d: %q should be refused, we read %+v, %v", line, v.Frames, got, err)
			}
			return
		}
		if err != nil {
			t.Errorf("line %d: %q: %v", line, v.Frames, err)
			return
		}
		var want *staging
		if got.Room == 7 && got.Session == "A" {
			want = &staging{}
			for range got.Chunk {
				want.Offsets, want.Rounds, want.Ends = append(want.Offsets, -1), append(want.Rounds, 0), append(want.Ends, -1)
			}
			want.Offsets, want.Rounds, want.Ends = append(want.Offsets, got.Offset), append(want.Rounds, got.Round), append(want.Ends, got.End)
		}
		if !reflect.DeepEqual(v.Staging, want) {
			t.Errorf("line %d: %q reads as %+v, want %+v", line, v.Frames, want, v.Staging)
		}
		if !sameFrames(got.AppendFrames(nil), v.Frames) {
			t.Errorf("line %d: written %q, want %q", line, got.AppendFrames(nil), v.Frames)
		}
	})
}

func FuzzStagingRsp(f *testing.F) {
	seed(f, framesOf("STAGING_RSP", "7", "2", "64", "1", "128", "A"))
	f.Fuzz(func(t *testing.T, in []byte) { checkFuzzed(t, ParseStagingRsp, in) })
}
