package wire

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/kvferry/kvferry/internal/vectors"
)

func TestChunkReady(t *testing.T) {
	checkGolden(t, ChunkReady{Room: 7, Chunk: 1, FirstPage: 4, Pages: 2, Session: "W", Rank: 3}, ParseChunkReady,
		"CHUNK_READY", "7", "1", "4", "2", "W", "3")
	checkGolden(t, ChunkReady{Room: 7, Session: "W", Rank: -1}, ParseChunkReady, "CHUNK_READY", "7", "0", "0", "0", "W")
	checkShortened(t, ParseChunkReady, 6, framesOf("CHUNK_READY", "7", "1", "4", "2", "W", "3"))
	checkRefusals(t, ParseChunkReady, refusal{[]string{"CHUNK", "7", "1", "4", "2", "W", "3"}, ErrUnknownType})
}

// Refused although SGLang takes it: negative numbers, an empty session, and a rank that is no number, which SGLang does not look at.
func TestStagingChunkReadyVector(t *testing.T) {
	type sent struct {
		Frames hexFrames `json:"frames"`
		To     string    `json:"to"`
	}
	type row struct {
		// as read
		Frames    hexFrames             `json:"frames,omitempty"`
		KnownRoom *uint64               `json:"known_room"`
		Arrived   *[][5]json.RawMessage `json:"arrived"`
		Taken     *bool                 `json:"taken"`
		// as written
		Room      *string `json:"room"`
		Chunk     *int    `json:"chunk"`
		PageStart *int    `json:"page_start"`
		Pages     *int    `json:"pages"`
		Writer    *string `json:"writer"`
		TPRank    *int    `json:"tp_rank"`
		TPSize    *int    `json:"tp_size"`
		Sent      *[]sent `json:"sent"`
	}
	writtenRows := 0
	vectors.Each(t, "staging_chunk_ready", func(t testing.TB, line int, v row) {
		if v.Sent != nil {
			writtenRows++
			id, ok := roomOf(t, *v.Room)
			if !ok || *v.TPRank >= *v.TPSize || len(*v.Sent) != 2 {
				t.Fatalf("line %d: room %s, rank %d of %d, sent %d", line, *v.Room, *v.TPRank, *v.TPSize, len(*v.Sent))
			}
			m := ChunkReady{id, *v.Chunk, *v.PageStart, *v.Pages, *v.Writer, *v.TPRank}
			for i, addr := range []Addr{{"10.0.0.2", 7002}, {"2001:db8::7", 7003}} {
				if s := (*v.Sent)[i]; s.To != addr.Endpoint() || !sameFrames(m.AppendFrames(nil), s.Frames) {
					t.Errorf("line %d: written %q to %s, want %q to %s", line, m.AppendFrames(nil), addr.Endpoint(), s.Frames, s.To)
				}
			}
			return
		}
		got, err := ParseChunkReady(v.Frames)
		if taken := ClassifyD(Mooncake, v.Frames) == KindChunkReady; taken != *v.Taken {
			t.Errorf("line %d: taken %v, want %v", line, taken, *v.Taken)
		}
		texts := textsOf(v.Frames)
		if *v.KnownRoom != 7 {
			t.Errorf("line %d: known room %d", line, *v.KnownRoom)
		}
		strict := err == nil && uint64(got.Room) == *v.KnownRoom
		if len(*v.Arrived) == 0 {
			if strict || (!isRefusal(err) && texts[1] != "8") {
				t.Errorf("line %d: SGLang drops %q, we read %+v, %v", line, texts, got, err)
			}
			return
		}
		arrived := fmt.Sprintf("%s", (*v.Arrived)[0])
		wantArrived := fmt.Sprintf("[%s %s %s %s %q]", texts[1], texts[2], texts[3], texts[4], texts[5])
		if len(*v.Arrived) != 1 || arrived != wantArrived {
			t.Errorf("line %d: arrived %s, want %s", line, arrived, wantArrived)
		}
		if strings.HasPrefix(texts[2], "-") || strings.HasPrefix(texts[3], "-") || strings.HasPrefix(texts[4], "-") || texts[5] == "" ||
			(len(texts) > 6 && !onlyDigits.MatchString(texts[6])) {
			if !isRefusal(err) {
				t.Errorf("line %d: %q should be refused, we read %+v, %v", line, texts, got, err)
			}
			return
		}
		if have := fmt.Sprintf("[%d %d %d %d %q]", got.Room, got.Chunk, got.FirstPage, got.Pages, got.Session); !strict || have != arrived {
			t.Errorf("line %d: %q reads as %s, %v, want %s", line, texts, have, err, arrived)
		}
	})
	if writtenRows == 0 {
		t.Error("no written message in the table")
	}
}

func FuzzChunkReady(f *testing.F) {
	seed(f, framesOf("CHUNK_READY", "7", "1", "4", "2", "W", "3"))
	f.Fuzz(func(t *testing.T, in []byte) { checkFuzzed(t, ParseChunkReady, in) })
}
