package kvlayout

import (
	"errors"
	"slices"
	"testing"

	"github.com/kvferry/kvferry/internal/vectors"
)

func TestUniqueRankVectors(t *testing.T) {
	type row struct {
		CPRank int `json:"cp_rank"`
		CPSize int `json:"cp_size"`
		PPRank int `json:"pp_rank"`
		PPSize int `json:"pp_size"`
		TPRank int `json:"tp_rank"`
		TPSize int `json:"tp_size"`
		Unique int `json:"unique_rank"`
	}
	vectors.Each(t, "unique_rank", func(t testing.TB, line int, v row) {
		top, r := Topology{TP: v.TPSize, CP: v.CPSize, PP: v.PPSize}, Rank{TP: v.TPRank, CP: v.CPRank, PP: v.PPRank}
		if got := top.Unique(r); got != v.Unique {
			t.Errorf("line %d: %v of %v is %d, want %d", line, r, top, got, v.Unique)
		}
		if got, ok := top.Rank(v.Unique); !ok || got != r {
			t.Errorf("line %d: %d of %v is %v, %t, want %v", line, v.Unique, top, got, ok, r)
		}
	})
}

type mappingAnswer struct {
	DstInfos     int   `json:"required_dst_info_num,omitempty"`
	Responses    int   `json:"required_prefill_response_num,omitempty"`
	TargetCP     []int `json:"target_cp_ranks,omitempty"`
	TargetPP     []int `json:"target_pp_ranks,omitempty"`
	TargetTPRank *int  `json:"target_tp_rank"`
	TargetTP     []int `json:"target_tp_ranks,omitempty"`
	Refused      bool  `json:"refused,omitempty"`
}

type mappingDecode struct {
	EngineRank int `json:"engine_rank"`
	PP         int `json:"pp"`
	PPRank     int `json:"pp_rank"`
	TP         int `json:"tp"`
}

func checkMapping(t testing.TB, line int, p Topology, dec mappingDecode, pairing Pairing, want mappingAnswer) {
	t.Helper()
	d := Topology{TP: dec.TP, CP: 1, PP: dec.PP}
	m, err := Ranks(p, d, Rank{TP: dec.EngineRank, PP: dec.PPRank}, pairing)
	uneven := p.TP%d.TP != 0 && d.TP%p.TP != 0
	if (want.Refused || uneven) && !errors.Is(err, ErrIncompatible) {
		t.Errorf("line %d: prefill %v, decode %v: %+v, error %v, want ErrIncompatible", line, p, d, m, err)
	}
	if uneven {
		// SGLang pairs such TP sizes and leaves some ranks unserved; kvferry refuses them. The rule beneath is still the same.
		m, err = mapRanks(p, d, Rank{TP: dec.EngineRank, PP: dec.PPRank}, pairing)
	}
	if want.Refused {
		if err == nil || want.DstInfos != 0 || want.Responses != 0 || want.TargetTPRank != nil || want.TargetTP != nil || want.TargetCP != nil || want.TargetPP != nil {
			t.Errorf("line %d: refused with an answer %+v, ours %+v", line, want, m)
		}
		return
	}
	if err != nil {
		t.Errorf("line %d: %v", line, err)
		return
	}
	if !slices.Equal(m.TP, want.TargetTP) || !slices.Equal(m.CP, want.TargetCP) || !slices.Equal(m.PP, want.TargetPP) || m.Responses != want.Responses {
		t.Errorf("line %d: prefill %v, decode %v: %+v, want %+v", line, p, d, m, want)
	}
	if want.TargetTPRank != nil && *want.TargetTPRank != m.TP[0] {
		t.Errorf("line %d: first target TP rank %d, want %d", line, m.TP[0], *want.TargetTPRank)
	}
	answers := 0
	for _, target := range m.Targets {
		if target.DstInfos != want.DstInfos {
			t.Errorf("line %d: target %+v waits for %d, want %d", line, target.Rank, target.DstInfos, want.DstInfos)
		}
		// SGLang's receiver: with MLA the target TP rank alone is real, unless there is none, which makes all of them real.
		if dummy := pairing.MLA && want.TargetTPRank != nil && target.TP != *want.TargetTPRank; target.Dummy != dummy {
			t.Errorf("line %d: target %+v is dummy %t, want %t", line, target.Rank, target.Dummy, dummy)
		}
		if !target.Dummy {
			answers++
		}
	}
	if answers != want.Responses || len(m.Targets) != len(m.TP)*len(m.CP)*len(m.PP) {
		t.Errorf("line %d: %d targets with %d answers, want %d answers", line, len(m.Targets), answers, want.Responses)
	}
}

func TestRankMappingVectors(t *testing.T) {
	type row struct {
		AllCP   bool          `json:"all_cp_ranks"`
		Decode  mappingDecode `json:"decode"`
		MLA     bool          `json:"mla"`
		Prefill struct {
			CP int `json:"cp"`
			PP int `json:"pp"`
			TP int `json:"tp"`
		} `json:"prefill"`
		mappingAnswer
	}
	vectors.Each(t, "rank_mapping", func(t testing.TB, line int, v row) {
		p := Topology{TP: v.Prefill.TP, CP: v.Prefill.CP, PP: v.Prefill.PP}
		checkMapping(t, line, p, v.Decode, Pairing{MLA: v.MLA, AllCP: v.AllCP}, v.mappingAnswer)
	})
}

func TestRankMappingFlagsVectors(t *testing.T) {
	type row struct {
		AllCP   bool          `json:"all_cp_ranks"`
		Decode  mappingDecode `json:"decode"`
		Hybrid  bool          `json:"hybrid_mla"` // decides nothing: Pairing has no place for it
		MLA     bool          `json:"mla"`
		Prefill struct {
			CP       int  `json:"cp"`
			DP       int  `json:"dp"` // decides nothing
			Split    bool `json:"dsa_cache_layer_split"`
			Sharding bool `json:"kv_cache_sharding"`
			PP       int  `json:"pp"`
			TP       int  `json:"tp"`
		} `json:"prefill"`
		mappingAnswer
	}
	vectors.Each(t, "rank_mapping_flags", func(t testing.TB, line int, v row) {
		p := Topology{TP: v.Prefill.TP, CP: v.Prefill.CP, PP: v.Prefill.PP}
		pairing := Pairing{MLA: v.MLA, AllCP: v.AllCP, KVSharding: v.Prefill.Sharding, LayerSplit: v.Prefill.Split}
		checkMapping(t, line, p, v.Decode, pairing, v.mappingAnswer)
		if v.Prefill.DP < 1 {
			t.Errorf("line %d: DP %d", line, v.Prefill.DP)
		}
	})
}

func TestPageRunsVectors(t *testing.T) {
	type row struct {
		Dst       []int32    `json:"dst"`
		DstGroups [][2]int32 `json:"dst_groups,omitempty"`
		Src       []int32    `json:"src"`
		SrcGroups [][2]int32 `json:"src_groups,omitempty"`
		Refused   bool       `json:"refused,omitempty"`
	}
	vectors.Each(t, "page_runs", func(t testing.TB, line int, v row) {
		runs, err := AppendRuns(nil, v.Src, v.Dst)
		if v.Refused {
			if !errors.Is(err, ErrPages) || runs != nil {
				t.Errorf("line %d: %v, error %v, want ErrPages", line, runs, err)
			}
			return
		}
		var src, dst [][2]int32
		for _, r := range runs {
			src, dst = append(src, [2]int32{r.Src, int32(r.Len)}), append(dst, [2]int32{r.Dst, int32(r.Len)})
		}
		if err != nil || !slices.Equal(src, v.SrcGroups) || !slices.Equal(dst, v.DstGroups) || Pages(runs) != min(len(v.Src), len(v.Dst)) {
			t.Errorf("line %d: %v, error %v, want %v → %v", line, runs, err, v.SrcGroups, v.DstGroups)
		}
	})
}

func TestHeadSlicesVectors(t *testing.T) {
	type row struct {
		DstHead int `json:"dst_head"`
		DstRank int `json:"dst_rank"`
		DstTP   int `json:"dst_tp"`
		Heads   int `json:"heads"`
		SrcHead int `json:"src_head"`
		SrcRank int `json:"src_rank"`
		SrcTP   int `json:"src_tp"`
		Total   int `json:"total_kv_heads"`
	}
	vectors.Each(t, "head_slices", func(t testing.TB, line int, v row) {
		src, dst, n := HeadSlice(v.SrcTP, v.DstTP, v.SrcRank, v.DstRank, v.Total)
		if src != v.SrcHead || dst != v.DstHead || n != v.Heads {
			t.Errorf("line %d: %+v: heads %d → %d, %d of them", line, v, src, dst, n)
		}
	})
}

func TestRankPagesVectors(t *testing.T) {
	type row struct {
		CP struct {
			Pages []int32 `json:"pages"`
			Slice [2]int  `json:"slice"`
		} `json:"cp"`
		Pages   []int32 `json:"pages"`
		Rank    int     `json:"rank"`
		Sharded struct {
			Local     []int32 `json:"local_pages"`
			Positions []int   `json:"positions"`
		} `json:"sharded"`
		Size  int    `json:"size"`
		Slice [2]int `json:"slice"`
		Total int    `json:"total_pages"`
	}
	vectors.Each(t, "rank_pages", func(t testing.TB, line int, v row) {
		chunk := Window{v.Slice[0], v.Slice[1]}
		w := CPWindow(v.Total, chunk, v.Rank, v.Size)
		if w != (Window{v.CP.Slice[0], v.CP.Slice[1]}) || !slices.Equal(v.Pages[w.From-chunk.From:w.To-chunk.From], v.CP.Pages) {
			t.Errorf("line %d: CP rank %d of %d sends %v of %v, want %v", line, v.Rank, v.Size, w, chunk, v.CP.Slice)
		}
		local, at, err := AppendShard(nil, nil, v.Pages, chunk, v.Rank, v.Size)
		if err != nil || !slices.Equal(local, v.Sharded.Local) || !slices.Equal(at, v.Sharded.Positions) {
			t.Errorf("line %d: shard %d of %d sends %v at %v, error %v, want %+v", line, v.Rank, v.Size, local, at, err, v.Sharded)
		}
	})
}

func TestEntryPairsVectors(t *testing.T) {
	type row struct {
		Dst        int      `json:"dst_entries"`
		DstIDs     []uint32 `json:"dst_layer_ids"`
		Pairs      [][2]int `json:"pairs,omitempty"`
		Positional bool     `json:"positional_fallback"`
		Src        int      `json:"src_entries"`
		SrcIDs     []uint32 `json:"src_layer_ids"`
		Refused    bool     `json:"refused,omitempty"`
	}
	vectors.Each(t, "entry_pairs", func(t testing.TB, line int, v row) {
		pairs, err := PairRegions(v.SrcIDs, v.DstIDs, v.Src, v.Dst, v.Positional)
		if v.Refused {
			if !errors.Is(err, ErrIncompatible) && !errors.Is(err, ErrGeometry) {
				t.Errorf("line %d: %v, error %v, want a refusal", line, pairs, err)
			}
			return
		}
		var got [][2]int
		for _, p := range pairs {
			got = append(got, [2]int{p.Src, p.Dst})
		}
		if err != nil || !slices.Equal(got, v.Pairs) {
			t.Errorf("line %d: %v, error %v, want %v", line, got, err, v.Pairs)
		}
	})
}

func TestDCPPlanVectors(t *testing.T) {
	type row struct {
		Rank      int     `json:"dcp_rank"`
		Size      int     `json:"dcp_size"`
		Prefix    int     `json:"decode_prefix_len"`
		DraftDst  []int64 `json:"draft_dst,omitempty"`
		DraftSrc  []int64 `json:"draft_src,omitempty"`
		DstPages  []int32 `json:"dst_pages"`
		Tokens    *int    `json:"num_kv_tokens"`
		PageSize  int     `json:"page_size"`
		Offset    int     `json:"src_page_offset"`
		SrcPages  []int32 `json:"src_pages"`
		TargetDst []int64 `json:"target_dst,omitempty"`
		TargetSrc []int64 `json:"target_src,omitempty"`
		Refused   string  `json:"refused,omitempty"`
	}
	halves := func(copies []TokenCopy) (src, dst []int64) {
		for _, c := range copies {
			src, dst = append(src, c.Src), append(dst, c.Dst)
		}
		return src, dst
	}
	vectors.Each(t, "dcp_plan", func(t testing.TB, line int, v row) {
		tokens := -1
		if v.Tokens != nil {
			tokens = *v.Tokens
		}
		target, draft, err := DCPTokens(DCPChunk{PageSize: v.PageSize, Size: v.Size, Rank: v.Rank, First: v.Offset, Prefix: v.Prefix, Tokens: tokens, Src: v.SrcPages, Dst: v.DstPages})
		switch v.Refused {
		case "":
		case "ValueError", "IndexError":
			if !errors.Is(err, ErrPages) {
				t.Errorf("line %d: error %v, want ErrPages", line, err)
			}
			return
		default:
			t.Errorf("line %d: unknown refusal %q", line, v.Refused)
			return
		}
		targetSrc, targetDst := halves(target)
		draftSrc, draftDst := halves(draft)
		if err != nil || !slices.Equal(targetSrc, v.TargetSrc) || !slices.Equal(targetDst, v.TargetDst) || !slices.Equal(draftSrc, v.DraftSrc) || !slices.Equal(draftDst, v.DraftDst) {
			t.Errorf("line %d: target %v, draft %v, error %v, want %+v", line, target, draft, err, v)
		}
	})
}
