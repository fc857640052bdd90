package wire

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"reflect"
	"strconv"
	"testing"

	"github.com/kvferry/kvferry/internal/vectors"
)

// nixlReading is what SGLang makes of a registration or of metadata; the fields of the other kind are missing.
type nixlReading struct {
	Room     string `json:"room"` // "None" in a registration
	Endpoint string `json:"endpoint"`
	Port     uint16 `json:"dst_port"`
	Agent    string `json:"agent_name"`
	// metadata
	Pages        *[]inum          `json:"dst_kv_indices,omitempty"`
	Aux          *int32           `json:"dst_aux_index,omitempty"`
	StateIndices *[][]inum        `json:"dst_state_indices,omitempty"`
	Required     *int             `json:"required_dst_info_num,omitempty"`
	Prefix       *int             `json:"decode_prefix_len,omitempty"`
	Dummy        *bool            `json:"is_dummy,omitempty"`
	Staging      *json.RawMessage `json:"staging,omitempty"` // always null
	// registration
	AgentMetadata   string   `json:"agent_metadata,omitempty"`
	KVPointers      []num    `json:"dst_kv_ptrs,omitempty"`
	AuxPointers     []num    `json:"dst_aux_ptrs,omitempty"`
	StatePointers   [][]num  `json:"dst_state_data_ptrs,omitempty"`
	GPU             *int     `json:"gpu_id,omitempty"`
	TPSize          *int     `json:"decode_tp_size,omitempty"`
	Rank            *int     `json:"decode_tp_rank,omitempty"`
	KVItemLen       *uint64  `json:"dst_kv_item_len,omitempty"`
	StateItemLens   [][]num  `json:"dst_state_item_lens,omitempty"`
	StateDims       [][]num  `json:"dst_state_dim_per_tensor,omitempty"`
	StagingBase     *uint64  `json:"staging_base_ptr,omitempty"`
	StagingSize     *uint64  `json:"staging_total_size,omitempty"`
	Slots           *int     `json:"dst_num_slots,omitempty"`
	MemKinds        []string `json:"dst_kv_mem_kinds,omitempty"`
	KVItemLens      []num    `json:"dst_kv_item_lens,omitempty"`
	StateLayerIDs   [][]num  `json:"dst_state_layer_ids,omitempty"`
	KVLayerIDs      []num    `json:"dst_kv_layer_ids,omitempty"`
	DCPSize         *int     `json:"dst_dcp_size,omitempty"`
	DCPRank         *int     `json:"dst_dcp_rank,omitempty"`
	StateRegionLens [][]num  `json:"dst_state_data_lens,omitempty"`
	// decided by prefill's geometry, not by the message: null or false
	Relayout      *bool            `json:"requires_dcp_relayout,omitempty"`
	TokenLens     *json.RawMessage `json:"dcp_token_item_lens,omitempty"`
	RegionIndices *json.RawMessage `json:"dcp_dst_region_indices,omitempty"`
	OneMemKind    *json.RawMessage `json:"dst_homogeneous_mem_kind,omitempty"`
	Segments      *json.RawMessage `json:"kv_xfer_segments,omitempty"`
}

// Refused although SGLang takes it: a dummy with pages, a dummy flag other than 0 and 1, an aux slot below 0, a room beyond 2^63-1, a DCP
// rank outside of the DCP size. A dummy's state indices are not read.
func TestReceiverMessagesNixlVector(t *testing.T) {
	vectors.Each(t, "receiver_messages_nixl", func(t testing.TB, line int, v receivedRow[nixlReading]) {
		frames := v.guarded(nixlGuard)
		switch v.Kind {
		case "metadata":
			got, err := ParseNixlMetadata(frames)
			if !v.sound(t, line, "nixl", err) {
				return
			}
			want, ok := v.Parsed.metadata(t)
			flagged := len(v.Frames) > 9 && len(v.Frames[9]) > 0
			if !ok || want.Aux < 0 || (want.Dummy && len(want.Pages) > 0) || (flagged && string(v.Frames[9]) > "1") {
				if !errors.Is(err, ErrRange) {
					t.Errorf("line %d: %q should be refused, got %+v, %v", line, v.Frames, got, err)
				}
				repaired := frames
				switch {
				case !ok:
					if p := pythonInts(frames[1:2]); p != v.Parsed.Room {
						t.Errorf("line %d: room %s, want %s", line, v.Parsed.Room, p)
					}
					want.Room, repaired = 7, with(frames, 1, "7")
				case want.Aux < 0:
					if string(v.Frames[5]) != strconv.Itoa(int(want.Aux)) {
						t.Errorf("line %d: aux slot %d", line, want.Aux)
					}
					want.Aux, repaired = 7, with(frames, 6, "7")
				default: // the flag says dummy, everything else is of a message that is none
					if !want.Dummy {
						t.Errorf("line %d: flag %q, but no dummy", line, v.Frames[9])
					}
					want.Dummy, repaired = false, with(frames, 10, "0")
				}
				if got, err = ParseNixlMetadata(repaired); err != nil || !reflect.DeepEqual(got, want) {
					t.Errorf("line %d: repaired: got %+v, %v\nwant %+v", line, got, err, want)
				}
				return
			}
			if want.Dummy {
				if state := stateOf(t, v.Frames, 7); !reflect.DeepEqual(want.StateIndices, state) {
					t.Errorf("line %d: state indices %v, want %v", line, want.StateIndices, state)
				}
				want.StateIndices = nil
			}
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("line %d: %q\n got %+v, %v\nwant %+v", line, v.Frames, got, err, want)
			}
			if d := ClassifyP(Nixl, frames); d != KindMetadata {
				t.Errorf("line %d: classified as %v", line, d)
			}
		case "registration":
			got, err := ParseNixlRegistration(frames)
			if !v.sound(t, line, "nixl", err) {
				return
			}
			want := v.Parsed.registration(t)
			if want.DCPRank >= want.DCPSize {
				if !errors.Is(err, ErrRange) {
					t.Errorf("line %d: %+v should be refused, got %+v, %v", line, want, got, err)
				}
				want.DCPSize += 2
				if got, err = ParseNixlRegistration(with(frames, 22, "3")); err != nil || !reflect.DeepEqual(got, want) {
					t.Errorf("line %d: repaired: got %+v, %v\nwant %+v", line, got, err, want)
				}
				return
			}
			asRead := got
			for range got.KVPointers { // SGLang fills in the defaults
				if len(got.MemKinds) == 0 {
					asRead.MemKinds = append(asRead.MemKinds, VRAM)
				}
				if len(got.KVItemLens) == 0 {
					asRead.KVItemLens = append(asRead.KVItemLens, got.KVItemLen)
				}
			}
			if err != nil || !reflect.DeepEqual(asRead, want) {
				t.Errorf("line %d: %q\n got %+v, %v\nwant %+v", line, v.Frames, asRead, err, want)
			}
			if len(v.Frames) == 24 && !hasEmpty(v.Frames) && !sameFrames(got.AppendFrames(nil), frames) {
				t.Errorf("line %d: written %q, want %q", line, got.AppendFrames(nil), frames)
			}
			if d := ClassifyP(Nixl, frames); d != KindRegistration {
				t.Errorf("line %d: classified as %v", line, d)
			}
		default:
			t.Errorf("line %d: kind %q", line, v.Kind)
		}
	})
}

func hasEmpty(frames [][]byte) bool {
	for _, f := range frames {
		if len(f) == 0 {
			return true
		}
	}
	return false
}

func (p nixlReading) metadata(t testing.TB) (NixlMetadata, bool) {
	id, ok := roomOf(t, p.Room)
	if p.Staging != nil {
		t.Errorf("staging %s", *p.Staging)
	}
	return NixlMetadata{
		Room: id, Addr: Addr{p.Endpoint, p.Port}, Agent: p.Agent, Pages: nums[int32](*p.Pages), Aux: *p.Aux, Required: *p.Required,
		StateIndices: numLists[int32](*p.StateIndices), Prefix: deref(p.Prefix), Dummy: *p.Dummy,
	}, ok
}

func (p nixlReading) registration(t testing.TB) NixlRegistration {
	if p.Room != registrationTag || *p.Relayout || p.TokenLens != nil || p.RegionIndices != nil || p.OneMemKind != nil || p.Segments != nil {
		t.Errorf("fields that the message doesn't decide are set: %+v", p)
	}
	blob, err := hex.DecodeString(p.AgentMetadata)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []MemKind
	for _, k := range p.MemKinds {
		switch k {
		case "VRAM":
			kinds = append(kinds, VRAM)
		case "DRAM":
			kinds = append(kinds, DRAM)
		default:
			t.Fatalf("memory kind %q", k)
		}
	}
	return NixlRegistration{
		Addr: Addr{p.Endpoint, p.Port}, Agent: p.Agent, AgentMetadata: blob, KVPointers: nums[uint64](p.KVPointers),
		AuxPointers: nums[uint64](p.AuxPointers), StatePointers: numLists[uint64](p.StatePointers), GPU: *p.GPU, TPSize: *p.TPSize,
		Rank: *p.Rank, KVItemLen: *p.KVItemLen, StateItemLens: numLists[uint32](p.StateItemLens), StateDims: numLists[uint32](p.StateDims),
		StagingBase: *p.StagingBase, StagingSize: *p.StagingSize, Slots: deref(p.Slots), MemKinds: kinds,
		KVItemLens: nums[uint64](p.KVItemLens), StateLayerIDs: numLists[uint32](p.StateLayerIDs), KVLayerIDs: nums[uint32](p.KVLayerIDs),
		DCPSize: *p.DCPSize, DCPRank: *p.DCPRank, StateRegionLens: numLists[uint64](p.StateRegionLens),
	}
}
