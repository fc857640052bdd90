package wire

import (
	"errors"
	"slices"
	"testing"

	"github.com/kvferry/kvferry/internal/vectors"
)

// SGLang's own writer raises on mooncake when a component has no list (None); kvferry writes an empty list there, as the other two do.
func TestMetadataEncodeVector(t *testing.T) {
	type row struct {
		Backend      string    `json:"backend"`
		Room         string    `json:"room"`
		IP           string    `json:"ip"`
		Port         uint16    `json:"port"`
		Session      string    `json:"session"`
		Agent        string    `json:"agent"`
		EngineKey    string    `json:"engine_key"`
		Pages        []inum    `json:"pages"`
		AuxIndex     int32     `json:"aux_index"`
		StateIndices [][]inum  `json:"state_indices"`
		Required     int       `json:"required_dst_info_num"`
		Prefix       *int      `json:"decode_prefix_len"`
		Dummy        bool      `json:"dummy"`
		Frames       hexFrames `json:"frames,omitempty"`
		Raised       *string   `json:"raised"`
	}
	names := map[string]bool{}
	vectors.Each(t, "metadata_encode", func(t testing.TB, line int, v row) {
		id, ok := roomOf(t, v.Room)
		if !ok {
			t.Fatalf("line %d: room %s", line, v.Room)
		}
		addr, pages, state, prefix := Addr{v.IP, v.Port}, nums[int32](v.Pages), numLists[int32](v.StateIndices), deref(v.Prefix)
		frames := [][]byte(v.Frames)
		var got [][]byte
		switch v.Backend {
		case "mooncake":
			got = MooncakeMetadata{
				Room: id, Addr: addr, Session: v.Session, Pages: pages, Aux: v.AuxIndex, StateIndices: state,
				Required: v.Required, Prefix: prefix, Dummy: v.Dummy,
			}.AppendFrames(nil)
		case "nixl":
			got = NixlMetadata{
				Room: id, Addr: addr, Agent: v.Agent, Pages: pages, Aux: v.AuxIndex, StateIndices: state,
				Required: v.Required, Prefix: prefix, Dummy: v.Dummy,
			}.AppendFrames(nil)
		case "mori":
			got = MoriMetadata{
				Room: id, Addr: addr, EngineKey: v.EngineKey, Pages: pages, Aux: v.AuxIndex, StateIndices: state,
				Required: v.Required, Prefix: prefix, Dummy: v.Dummy,
			}.AppendFrames(nil)
		default:
			t.Fatalf("line %d: unknown backend %q", line, v.Backend)
		}
		none := slices.ContainsFunc(v.StateIndices, func(l []inum) bool { return l == nil })
		if raises := v.Backend == "mooncake" && none && !v.Dummy; raises != (v.Raised != nil) || raises != (v.Frames == nil) {
			t.Errorf("line %d: raised %v, frames %q", line, v.Raised, v.Frames)
		} else if raises {
			if lists := string(appendLists(nil, state)); *v.Raised != "TypeError" || string(got[6]) != lists {
				t.Errorf("line %d: raised %s; state written as %x, want %x", line, *v.Raised, got[6], lists)
			}
			return
		}
		if !sameFrames(got, frames) {
			t.Errorf("line %d: %s\n got %q\nwant %q", line, v.Backend, got, frames)
		}
		// Each wire carries one of the three names; the two that it does not carry are the same in all rows.
		names[v.Session+" "+v.Agent+" "+v.EngineKey] = true
	})
	if len(names) != 1 {
		t.Errorf("names vary: %v", names)
	}
}

// A message of the tables with the reading of SGLang, or what its reader raises. T is the reading of either kind of message.
type receivedRow[T any] struct {
	Backend string    `json:"backend"`
	Kind    string    `json:"kind"`
	Frames  hexFrames `json:"frames"`
	Parsed  *T        `json:"parsed"`
	Raised  *string   `json:"raised"`
}

// sound checks the row and the error of our reader: refused where SGLang raises. It reports whether there is a reading to compare.
func (v receivedRow[T]) sound(t testing.TB, line int, backend string, err error) bool {
	if v.Backend != backend || (v.Parsed == nil) == (v.Raised == nil) {
		t.Errorf("line %d: backend %q, parsed %v, raised %v", line, v.Backend, v.Parsed != nil, v.Raised)
		return false
	}
	if v.Raised == nil {
		return true
	}
	var e *Error
	if !errors.As(err, &e) || !isRefusal(err) {
		t.Errorf("line %d: SGLang raises %s on %q, we return %v", line, *v.Raised, v.Frames, err)
		return false
	}
	switch *v.Raised {
	case "IndexError": // too few frames
		if e.Index >= 0 || !errors.Is(err, ErrTruncated) {
			t.Errorf("line %d: SGLang misses a frame of %q, we return %v", line, v.Frames, err)
		}
	case "ValueError": // what is in a frame
		if e.Index < 0 {
			t.Errorf("line %d: SGLang refuses a frame of %q, we return %v", line, v.Frames, err)
		}
	default:
		t.Errorf("line %d: SGLang raises %s", line, *v.Raised)
	}
	return false
}

func (v receivedRow[T]) guarded(guard string) [][]byte {
	return append([][]byte{[]byte(guard)}, v.Frames...)
}
