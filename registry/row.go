package registry

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Values of RankRow.LoadBalance and RankRow.Policy that matter.
const (
	FollowRoom  = "follow_bootstrap_room" // the DP rank of a room is room mod DP size
	PolicyEarly = "early"                 // decode allocates and publishes its pages before prefill has finished
)

// Limits of what a rank may say of itself.
const (
	maxAxis     = 1 << 12 // ranks along one axis; upstream has no limit, and no cluster comes near
	maxRanks    = 1 << 14 // ranks of one instance
	maxPageSize = 1 << 20 // tokens
	maxPort     = 1<<16 - 1
)

// RankRow is what a prefill rank tells its bootstrap server: PUT /route. The names are SGLang's, and so are the attention sizes: TP and CP
// are those of the attention, DP is that of the attention unless SystemDP is more than 1.
type RankRow struct {
	TPSize      int             `json:"attn_tp_size"`
	TPRank      int             `json:"attn_tp_rank"`
	CPSize      int             `json:"attn_cp_size"`
	CPRank      int             `json:"attn_cp_rank"`
	DPSize      int             `json:"attn_dp_size"`
	DPRank      int             `json:"attn_dp_rank"`
	PPSize      int             `json:"pp_size"`
	PPRank      int             `json:"pp_rank"`
	SystemDP    int             `json:"system_dp_size"`
	SystemRank  int             `json:"system_dp_rank"`
	IP          string          `json:"rank_ip"`   // of the control socket, IPv6 without brackets
	Port        int             `json:"rank_port"` // of the control socket
	PageSize    int             `json:"page_size"` // tokens
	DType       string          `json:"kv_cache_dtype"`
	Layout      *string         `json:"kv_layout"`         // nil: not told
	SpecLayout  json.RawMessage `json:"dsv41_spec_layout"` // nil: none
	LoadBalance string          `json:"load_balance_method"`
	LayerSplit  bool            `json:"enable_dsa_cache_layer_split"`
	KVSharding  bool            `json:"enable_kv_cache_sharding"`
	HTTPPort    *int            `json:"prefill_http_port"` // nil: not told
	Policy      string          `json:"decode_allocation_policy"`
}

// dp is the size and rank that key the table.
func (r RankRow) dp() (size, rank int) {
	if r.SystemDP == 1 {
		return r.DPSize, r.DPRank
	}
	return r.SystemDP, r.SystemRank
}

func (r RankRow) sizes() [4]int {
	dp, _ := r.dp()
	return [4]int{dp, r.CPSize, r.TPSize, r.PPSize}
}

// Validate reports the first field that can't be, as ErrInvalid.
func (r RankRow) Validate() error {
	for _, f := range []struct {
		name       string
		size, rank int
	}{
		{"attn_tp", r.TPSize, r.TPRank}, {"attn_cp", r.CPSize, r.CPRank}, {"attn_dp", r.DPSize, r.DPRank}, {"pp", r.PPSize, r.PPRank}, {"system_dp", r.SystemDP, r.SystemRank},
	} {
		if f.size < 1 || f.size > maxAxis {
			return fmt.Errorf("%w: field %q is %d, want 1 to %d", ErrInvalid, f.name+"_size", f.size, maxAxis)
		}
		if f.rank < 0 || f.rank >= f.size {
			return fmt.Errorf("%w: field %q is %d, want 0 to %d", ErrInvalid, f.name+"_rank", f.rank, f.size-1)
		}
	}
	n := 1
	for _, size := range r.sizes() { // each is at most maxAxis, so the product of two stays far below the limit of an int
		if n *= size; n > maxRanks {
			return fmt.Errorf("%w: dp, cp, tp, pp %v make more than %d ranks", ErrInvalid, r.sizes(), maxRanks)
		}
	}
	if r.IP == "" || len(r.IP) > maxText || strings.ContainsAny(r.IP, " \t\r\n/[]") {
		return fmt.Errorf("%w: field %q is %q, want an address without brackets", ErrInvalid, "rank_ip", r.IP)
	}
	if r.Port < 1 || r.Port > maxPort {
		return fmt.Errorf("%w: field %q is %d, want 1 to %d", ErrInvalid, "rank_port", r.Port, maxPort)
	}
	if r.PageSize < 1 || r.PageSize > maxPageSize {
		return fmt.Errorf("%w: field %q is %d, want 1 to %d", ErrInvalid, "page_size", r.PageSize, maxPageSize)
	}
	return nil
}

// Append appends the body of PUT /route. SpecLayout must be JSON.
func (r RankRow) Append(b []byte) ([]byte, error) { return appendJSON(b, r) }

func appendJSON(b []byte, v any) ([]byte, error) {
	body, err := pythonJSON(v)
	if err != nil {
		return b, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return append(b, body...), nil
}

// ParseRankRow reads the body of PUT /route, which must be valid. Upstream's optional fields may be missing; unknown ones are ignored, as
// upstream does not look at them. Errors are ErrInvalid and name the field, what it is and what it may be.
func ParseRankRow(b []byte) (RankRow, error) {
	o, err := parseObject(b)
	if err != nil {
		return RankRow{}, err
	}
	r := RankRow{LoadBalance: FollowRoom, Policy: PolicyEarly}
	for _, f := range []struct {
		name string
		dst  *int
		high int
	}{
		{"attn_tp_size", &r.TPSize, maxAxis}, {"attn_tp_rank", &r.TPRank, maxAxis}, {"attn_cp_size", &r.CPSize, maxAxis}, {"attn_cp_rank", &r.CPRank, maxAxis},
		{"attn_dp_size", &r.DPSize, maxAxis}, {"attn_dp_rank", &r.DPRank, maxAxis}, {"pp_size", &r.PPSize, maxAxis}, {"pp_rank", &r.PPRank, maxAxis},
		{"system_dp_size", &r.SystemDP, maxAxis}, {"system_dp_rank", &r.SystemRank, maxAxis}, {"rank_port", &r.Port, maxPort}, {"page_size", &r.PageSize, maxPageSize},
	} {
		if *f.dst, err = o.whole(f.name, 0, f.high); err != nil {
			return RankRow{}, err
		}
	}
	for _, f := range []struct {
		name     string
		dst      *string
		required bool
	}{
		{"rank_ip", &r.IP, true}, {"kv_cache_dtype", &r.DType, true}, {"load_balance_method", &r.LoadBalance, false}, {"decode_allocation_policy", &r.Policy, false},
	} {
		ok, err := o.text(f.name, f.dst)
		if err == nil && !ok && f.required {
			err = missing(f.name)
		}
		if err != nil {
			return RankRow{}, err
		}
	}
	if err := o.optional(&r.Layout, &r.SpecLayout, &r.LayerSplit, &r.KVSharding, &r.HTTPPort); err != nil {
		return RankRow{}, err
	}
	return r, r.Validate()
}

// optional reads the fields that rows and topologies share and that may be missing or null.
func (o object) optional(layout **string, spec *json.RawMessage, split, sharding *bool, port **int) error {
	var text string
	switch ok, err := o.text("kv_layout", &text); {
	case err != nil:
		return err
	case ok:
		*layout = &text
	}
	switch v := o["dsv41_spec_layout"]; {
	case len(v) == 0 || string(v) == "null":
	case v[0] != '{':
		return fmt.Errorf("%w: field %q is %s, want an object or null", ErrInvalid, "dsv41_spec_layout", shown(v))
	default:
		*spec = v
	}
	for _, f := range []struct {
		name string
		dst  *bool
	}{{"enable_dsa_cache_layer_split", split}, {"enable_kv_cache_sharding", sharding}} {
		if _, err := o.into(f.name, f.dst); err != nil {
			return err
		}
	}
	if v := o["prefill_http_port"]; len(v) > 0 && string(v) != "null" {
		n, err := o.whole("prefill_http_port", 0, maxPort)
		if err != nil {
			return err
		}
		*port = &n
	}
	return nil
}
