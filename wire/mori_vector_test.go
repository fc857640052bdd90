package wire

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	"github.com/kvferry/kvferry/internal/vectors"
)

// moriReading is what SGLang makes of a registration or of metadata; the fields of the other kind are missing.
type moriReading struct {
	Endpoint string `json:"endpoint"`
	Port     uint16 `json:"dst_port"`
	// metadata
	Room         *string   `json:"room,omitempty"`
	EngineKey    *string   `json:"engine_key,omitempty"`
	Pages        *[]inum   `json:"dst_kv_indices,omitempty"`
	Aux          *int32    `json:"dst_aux_index,omitempty"`
	StateIndices *[][]inum `json:"dst_state_indices,omitempty"`
	Required     *int      `json:"required_dst_info_num,omitempty"`
	Prefix       *int      `json:"decode_prefix_len,omitempty"`
	Dummy        *bool     `json:"is_dummy,omitempty"`
	// registration
	Engine        string           `json:"engine_desc,omitempty"`
	KVDescs       []string         `json:"dst_kv_mem_descs,omitempty"`
	AuxDescs      []string         `json:"dst_aux_mem_descs,omitempty"`
	StateDescs    [][]*string      `json:"dst_state_mem_descs,omitempty"`
	GPU           *int             `json:"gpu_id,omitempty"`
	TPSize        *int             `json:"decode_tp_size,omitempty"`
	Rank          *int             `json:"decode_tp_rank,omitempty"`
	KVItemLen     *uint64          `json:"dst_kv_item_len,omitempty"`
	StateItemLens [][]num          `json:"dst_state_item_lens,omitempty"`
	StateDims     [][]num          `json:"dst_state_dim_per_tensor,omitempty"`
	DCPSize       *int             `json:"dst_dcp_size,omitempty"`
	DCPRank       *int             `json:"dst_dcp_rank,omitempty"`
	StateLayerIDs [][]num          `json:"dst_state_layer_ids,omitempty"`
	KVLayerIDs    []num            `json:"dst_kv_layer_ids,omitempty"`
	Relayout      *bool            `json:"requires_dcp_relayout,omitempty"` // decided by prefill's geometry, not by the message
	TokenLens     *json.RawMessage `json:"dcp_token_item_lens,omitempty"`   // likewise
}

// Refused although SGLang takes it: a room beyond 2^63-1, a DCP rank outside of the DCP size. A dummy's state indices are not read.
func TestReceiverMessagesMoriVector(t *testing.T) {
	vectors.Each(t, "receiver_messages_mori", func(t testing.TB, line int, v receivedRow[moriReading]) {
		frames := v.guarded(moriGuard)
		switch v.Kind {
		case "metadata":
			got, err := ParseMoriMetadata(frames)
			if !v.sound(t, line, "mori", err) {
				return
			}
			p := v.Parsed
			id, ok := roomOf(t, *p.Room)
			want := MoriMetadata{
				Room: id, Addr: Addr{p.Endpoint, p.Port}, EngineKey: *p.EngineKey, Pages: nums[int32](*p.Pages), Aux: *p.Aux,
				StateIndices: numLists[int32](*p.StateIndices), Required: *p.Required, Prefix: deref(p.Prefix), Dummy: *p.Dummy,
			}
			if want.Dummy {
				if state := stateOf(t, v.Frames, 6); !reflect.DeepEqual(want.StateIndices, state) {
					t.Errorf("line %d: state indices %v, want %v", line, want.StateIndices, state)
				}
				want.StateIndices = nil
			}
			if !ok {
				if !errors.Is(err, ErrRange) {
					t.Errorf("line %d: %q should be refused, got %+v, %v", line, v.Frames, got, err)
				}
				if p := pythonInts(frames[1:2]); p != *v.Parsed.Room {
					t.Errorf("line %d: room %s, want %s", line, *v.Parsed.Room, p)
				}
				want.Room = 7
				if got, err = ParseMoriMetadata(with(frames, 1, "7")); err != nil || !reflect.DeepEqual(got, want) {
					t.Errorf("line %d: repaired: got %+v, %v\nwant %+v", line, got, err, want)
				}
			} else if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("line %d: %q\n got %+v, %v\nwant %+v", line, v.Frames, got, err, want)
			}
			if d := ClassifyP(Mori, frames); ok && d != KindMetadata {
				t.Errorf("line %d: classified as %v", line, d)
			}
		case "registration":
			got, err := ParseMoriRegistration(frames)
			if !v.sound(t, line, "mori", err) {
				return
			}
			want := v.Parsed.registration(t)
			if want.DCPRank >= want.DCPSize {
				if !errors.Is(err, ErrRange) {
					t.Errorf("line %d: %+v should be refused, got %+v, %v", line, want, got, err)
				}
				want.DCPSize += 2
				if got, err = ParseMoriRegistration(with(frames, 14, "3")); err != nil || !reflect.DeepEqual(got, want) {
					t.Errorf("line %d: repaired: got %+v, %v\nwant %+v", line, got, err, want)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("line %d: %q\n got %+v, %v\nwant %+v", line, v.Frames, got, err, want)
			}
			if len(v.Frames) == 17 && !hasEmpty(v.Frames) && !sameFrames(got.AppendFrames(nil), frames) {
				t.Errorf("line %d: written %q, want %q", line, got.AppendFrames(nil), frames)
			}
			if d := ClassifyP(Mori, frames); d != KindRegistration {
				t.Errorf("line %d: classified as %v", line, d)
			}
		default:
			t.Errorf("line %d: kind %q", line, v.Kind)
		}
	})
}

func unhex(t testing.TB, texts []string) (list [][]byte) {
	for _, s := range texts {
		b, err := hex.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, b)
	}
	return list
}

func (p moriReading) registration(t testing.TB) MoriRegistration {
	if *p.Relayout || p.TokenLens != nil {
		t.Errorf("fields that the message doesn't decide are set: %+v", p)
	}
	var state [][][]byte
	for _, l := range p.StateDescs {
		var list [][]byte
		for _, s := range l {
			if s == nil {
				list = append(list, nil)
			} else {
				list = append(list, unhex(t, []string{*s})...)
			}
		}
		state = append(state, list)
	}
	return MoriRegistration{
		Addr: Addr{p.Endpoint, p.Port}, Engine: unhex(t, []string{p.Engine})[0], KVDescs: unhex(t, p.KVDescs),
		AuxDescs: unhex(t, p.AuxDescs), StateDescs: state, GPU: *p.GPU, TPSize: *p.TPSize, Rank: *p.Rank, KVItemLen: *p.KVItemLen,
		StateItemLens: numLists[uint32](p.StateItemLens), StateDims: numLists[uint32](p.StateDims), DCPSize: *p.DCPSize, DCPRank: *p.DCPRank,
		StateLayerIDs: numLists[uint32](p.StateLayerIDs), KVLayerIDs: nums[uint32](p.KVLayerIDs),
	}
}
