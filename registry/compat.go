package registry

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/kvferry/kvferry/kvlayout"
)

// Kinds of per-request state that restrict with whom a decode may be paired; SGLang's names.
const (
	StateMiniMaxIndex = "minimax_index_k"
	StateBlockScale   = "block_scale"
)

// Own is what a decode says of itself when it looks at a foreign prefill.
type Own struct {
	PageSize   int // tokens
	DType      string
	Layout     *string         // nil: not told, fits every one
	SpecLayout json.RawMessage // nil: none
	TP, PP     int
	DCP        int      // decode context parallelism; 0 and 1: none
	MLA        bool     // the KV pool is MLA or hybrid MLA
	States     []string // kinds of state
	Policy     string   // "": PolicyEarly
}

// CheckCompatible asks what SGLang's decode asks before it pairs with the prefill of a topology, and what it forgets to ask: TP sizes of
// which neither divides the other and a differing allocation policy leave rooms that never end. A refusal is a
// *kvlayout.IncompatibleError, which names both values.
func CheckCompatible(t Topology, own Own) error {
	refuse := func(what string, p, d any) error {
		return &kvlayout.IncompatibleError{What: what, Prefill: fmt.Sprint(p), Decode: fmt.Sprint(d)}
	}
	specTP := t.TPSize
	if own.MLA {
		specTP *= t.CPSize
	}
	equalTP := t.TPSize == own.TP
	policy := own.Policy
	if policy == "" {
		policy = PolicyEarly
	}
	switch {
	case t.PageSize != own.PageSize:
		return refuse("page size", t.PageSize, own.PageSize)
	case t.DType != own.DType:
		return refuse("KV dtype", t.DType, own.DType)
	case t.Layout != nil && own.Layout != nil && *t.Layout != *own.Layout:
		return refuse("kv_layout", *t.Layout, *own.Layout)
	case !sameJSON(t.SpecLayout, own.SpecLayout):
		return refuse("dsv41_spec_layout", orNone(t.SpecLayout), orNone(own.SpecLayout))
	case len(t.SpecLayout) > 0 && specTP != own.TP:
		return refuse("TP with a speculative layout (must be equal, CP included for MLA)", specTP, own.TP)
	case !equalTP && slices.Contains(own.States, StateMiniMaxIndex):
		return refuse("TP with MiniMax index state (must be equal)", t.TPSize, own.TP)
	case !equalTP && !own.MLA && slices.Contains(own.States, StateBlockScale):
		return refuse("TP with block-scaled KV (must be equal)", t.TPSize, own.TP)
	case own.DCP > 1 && !own.MLA:
		return refuse("decode context parallelism (needs MLA)", "none", own.DCP)
	case own.DCP > 1 && t.CPSize != 1:
		return refuse("context parallelism (decode's needs prefill's to be 1)", t.CPSize, own.DCP)
	case own.DCP > 1 && t.KVSharding:
		return refuse("sharded KV cache (not with decode context parallelism)", t.KVSharding, own.DCP)
	case own.PP != 1 && t.PPSize != own.PP:
		return refuse("PP (decode's must be prefill's, or 1)", t.PPSize, own.PP)
	case t.TPSize%own.TP != 0 && own.TP%t.TPSize != 0:
		return refuse("TP (one must divide the other)", t.TPSize, own.TP)
	case t.Policy != policy:
		return refuse("decode allocation policy", t.Policy, policy)
	}
	return nil
}

func orNone(b json.RawMessage) string {
	if len(b) == 0 {
		return "none"
	}
	return string(b[:min(len(b), maxText)])
}
