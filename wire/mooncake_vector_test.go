package wire

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/kvferry/kvferry/internal/vectors"
)

// mooncakeReading is what SGLang makes of a registration or of metadata; the fields of the other kind are missing.
type mooncakeReading struct {
	Room     string `json:"room"` // "None" in a registration
	Endpoint string `json:"endpoint"`
	Port     uint16 `json:"dst_port"`
	Session  string `json:"mooncake_session_id"`
	// metadata
	Pages        *[]inum   `json:"dst_kv_indices,omitempty"`
	Aux          *int32    `json:"dst_aux_index,omitempty"`
	StateIndices *[][]inum `json:"dst_state_indices,omitempty"`
	Required     *int      `json:"required_dst_info_num,omitempty"`
	Prefix       *int      `json:"decode_prefix_len,omitempty"`
	SecondPages  *[]inum   `json:"dst_device_kv_indices,omitempty"`
	Dummy        *bool     `json:"is_dummy,omitempty"`
	// registration
	KVPointers    []num            `json:"dst_kv_ptrs,omitempty"`
	AuxPointers   []num            `json:"dst_aux_ptrs,omitempty"`
	StatePointers [][]num          `json:"dst_state_data_ptrs,omitempty"`
	Rank          *int             `json:"dst_tp_rank,omitempty"`
	TPSize        *int             `json:"dst_attn_tp_size,omitempty"`
	KVItemLen     *uint64          `json:"dst_kv_item_len,omitempty"`
	StateItemLens [][]num          `json:"dst_state_item_lens,omitempty"`
	StateDims     [][]num          `json:"dst_state_dim_per_tensor,omitempty"`
	KVLayerIDs    []num            `json:"dst_kv_layer_ids,omitempty"`
	StateLayerIDs [][]num          `json:"dst_state_layer_ids,omitempty"`
	StagingBase   *uint64          `json:"staging_base_ptr,omitempty"`
	StagingSize   *uint64          `json:"staging_total_size,omitempty"`
	DCPSize       *int             `json:"dst_dcp_size,omitempty"`
	DCPRank       *int             `json:"dst_dcp_rank,omitempty"`
	KVItemLens    []num            `json:"dst_kv_item_lens,omitempty"`
	Relayout      *bool            `json:"requires_dcp_relayout,omitempty"` // decided by prefill's geometry, not by the message
	TokenLens     *json.RawMessage `json:"dcp_token_item_lens,omitempty"`   // likewise
	// in metadata nothing but null, in a registration the three frames of staging
	Staging *mooncakeStaging `json:"staging"`
}

type mooncakeStaging struct {
	Base         uint64 `json:"base_ptr"`
	Size         uint64 `json:"total_size"`
	SlotLayerIDs []num  `json:"slot_layer_ids"`
}

// Refused although SGLang takes it: a registration whose DCP rank is outside of its DCP size, or whose item lengths are not as many as its
// pointers.
func TestReceiverMessagesMooncakeVector(t *testing.T) {
	whole := 0
	vectors.Each(t, "receiver_messages_mooncake", func(t testing.TB, line int, v receivedRow[mooncakeReading]) {
		switch v.Kind {
		case "metadata":
			got, err := ParseMooncakeMetadata(v.Frames)
			if !v.sound(t, line, "mooncake", err) {
				return
			}
			if want := v.Parsed.metadata(t); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("line %d: %q\n got %+v, %v\nwant %+v", line, v.Frames, got, err, want)
			}
			if d := ClassifyP(Mooncake, v.Frames); d != KindMetadata {
				t.Errorf("line %d: classified as %v", line, d)
			}
		case "registration":
			got, err := ParseMooncakeRegistration(v.Frames)
			if !v.sound(t, line, "mooncake", err) {
				return
			}
			want := v.Parsed.registration(t)
			if want.DCPRank >= want.DCPSize || (len(want.KVItemLens) > 0 && len(want.KVItemLens) != len(want.KVPointers)) {
				if !errors.Is(err, ErrRange) {
					t.Errorf("line %d: %+v should be refused, got %+v, %v", line, want, got, err)
				}
				if want.DCPRank >= want.DCPSize {
					want.DCPSize += 2
					got, err = ParseMooncakeRegistration(with(v.Frames, 16, "3"))
				} else if len(want.KVPointers) > 0 {
					t.Errorf("line %d: %d pointers", line, len(want.KVPointers))
				} else {
					want.KVPointers = []uint64{0, 0, 0}
					got, err = ParseMooncakeRegistration(with(v.Frames, 4, strings.Repeat("\x00", 24)))
				}
				if err != nil || !reflect.DeepEqual(got, want) {
					t.Errorf("line %d: repaired: got %+v, %v\nwant %+v", line, got, err, want)
				}
			} else if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("line %d: %q\n got %+v, %v\nwant %+v", line, v.Frames, got, err, want)
			} else if len(v.Frames) == 20 && len(v.Frames[16]) > 0 && len(v.Frames[17]) > 0 && (want.StagingBase == 0) == (want.StagingSize == 0) {
				if whole++; !sameFrames(got.AppendFrames(nil), v.Frames) {
					t.Errorf("line %d: written %q, want %q", line, got.AppendFrames(nil), v.Frames)
				}
			}
			if d := ClassifyP(Mooncake, v.Frames); d != KindRegistration {
				t.Errorf("line %d: classified as %v", line, d)
			}
		default:
			t.Errorf("line %d: kind %q", line, v.Kind)
		}
	})
	if whole == 0 {
		t.Error("no whole registration was written back")
	}
}

func (p mooncakeReading) metadata(t testing.TB) MooncakeMetadata {
	id, ok := roomOf(t, p.Room)
	if !ok || p.Staging != nil {
		t.Fatalf("room %s, staging %v", p.Room, p.Staging)
	}
	m := MooncakeMetadata{
		Room: id, Addr: Addr{p.Endpoint, p.Port}, Session: p.Session, Pages: nums[int32](*p.Pages), Aux: -1,
		StateIndices: numLists[int32](*p.StateIndices), Required: *p.Required, Prefix: deref(p.Prefix),
		SecondPages: nums[int32](deref(p.SecondPages)), Dummy: *p.Dummy,
	}
	if p.Aux != nil {
		m.Aux = *p.Aux
	}
	return m
}

func (p mooncakeReading) registration(t testing.TB) MooncakeRegistration {
	if p.Room != registrationTag || *p.Relayout || p.TokenLens != nil {
		t.Errorf("room %q, relayout %v, token lengths %v", p.Room, *p.Relayout, p.TokenLens)
	}
	staging := mooncakeStaging{}
	if (*p.StagingBase != 0 || *p.StagingSize != 0) != (p.Staging != nil) {
		t.Errorf("staging %v, base %d, size %d", p.Staging, *p.StagingBase, *p.StagingSize)
	} else if p.Staging != nil {
		staging = *p.Staging
	}
	if staging.Base != *p.StagingBase || staging.Size != *p.StagingSize {
		t.Errorf("staging %v, base %d, size %d", p.Staging, *p.StagingBase, *p.StagingSize)
	}
	return MooncakeRegistration{
		Addr: Addr{p.Endpoint, p.Port}, Session: p.Session, KVPointers: nums[uint64](p.KVPointers),
		AuxPointers: nums[uint64](p.AuxPointers), StatePointers: numLists[uint64](p.StatePointers), Rank: *p.Rank, TPSize: *p.TPSize,
		KVItemLen: *p.KVItemLen, StateItemLens: numLists[uint32](p.StateItemLens), StateDims: numLists[uint32](p.StateDims),
		KVLayerIDs: nums[uint32](p.KVLayerIDs), StateLayerIDs: numLists[uint32](p.StateLayerIDs), StagingBase: staging.Base,
		StagingSize: staging.Size, DCPSize: *p.DCPSize, DCPRank: *p.DCPRank, SlotLayerIDs: nums[uint64](staging.SlotLayerIDs),
		KVItemLens: nums[uint64](p.KVItemLens),
	}
}
