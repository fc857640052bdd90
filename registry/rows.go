package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// Errors of this package.
var (
	ErrInvalid     = errors.New("invalid")       // fix the request
	ErrNotReady    = errors.New("not ready yet") // ask again
	ErrNotFound    = errors.New("not found")
	ErrUnavailable = errors.New("not reachable")
)

// integer is an int of JSON that SGLang's Python also takes as text.
type integer int

func (n *integer) UnmarshalJSON(b []byte) error {
	if len(b) > 1 && b[0] == '"' {
		b = b[1 : len(b)-1]
	}
	v, err := strconv.ParseInt(string(b), 10, 32)
	if err != nil {
		return fmt.Errorf("%w: %.40s is no whole number", ErrInvalid, b)
	}
	*n = integer(v)
	return nil
}

// Values of RankRow.LoadBalance and RankRow.Policy that matter.
const (
	FollowRoom  = "follow_bootstrap_room" // the DP rank of a room is room mod DP size
	PolicyEarly = "early"                 // decode allocates and publishes its pages before prefill has finished
)

// RankRow is what a prefill rank tells its bootstrap server: PUT /route. The names are SGLang's.
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
	IP          string          `json:"rank_ip"`
	Port        int             `json:"rank_port"`
	PageSize    int             `json:"page_size"` // tokens
	DType       string          `json:"kv_cache_dtype"`
	Layout      *string         `json:"kv_layout"`
	SpecLayout  json.RawMessage `json:"dsv41_spec_layout"`
	LoadBalance string          `json:"load_balance_method"`
	LayerSplit  bool            `json:"enable_dsa_cache_layer_split"`
	KVSharding  bool            `json:"enable_kv_cache_sharding"`
	HTTPPort    *int            `json:"prefill_http_port"`
	Policy      string          `json:"decode_allocation_policy"`
}

// dp is the size and rank that key the table.
func (r RankRow) dp() (size, rank int) {
	if r.SystemDP == 1 {
		return r.DPSize, r.DPRank
	}
	return r.SystemDP, r.SystemRank
}

// maxAxis bounds each axis of a topology.
const maxAxis = 1 << 12

// parseRow reads a row strictly enough to say what is wrong with it. Unknown fields are ignored, as upstream's reader does not look at them.
func parseRow(b []byte) (RankRow, error) {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil || raw == nil {
		return RankRow{}, fmt.Errorf("%w: the body is no JSON object", ErrInvalid)
	}
	r := RankRow{LoadBalance: FollowRoom, Policy: PolicyEarly}
	ints := []struct {
		name string
		dst  *int
		low  int
		high int
	}{
		{"attn_tp_size", &r.TPSize, 1, maxAxis}, {"attn_tp_rank", &r.TPRank, 0, maxAxis}, {"attn_cp_size", &r.CPSize, 1, maxAxis},
		{"attn_cp_rank", &r.CPRank, 0, maxAxis}, {"attn_dp_size", &r.DPSize, 1, maxAxis}, {"attn_dp_rank", &r.DPRank, 0, maxAxis},
		{"pp_size", &r.PPSize, 1, maxAxis}, {"pp_rank", &r.PPRank, 0, maxAxis}, {"system_dp_size", &r.SystemDP, 1, maxAxis},
		{"system_dp_rank", &r.SystemRank, 0, maxAxis}, {"rank_port", &r.Port, 1, 65535}, {"page_size", &r.PageSize, 1, 1 << 20},
	}
	for _, f := range ints {
		v, ok := raw[f.name]
		if !ok {
			return r, fmt.Errorf("%w: field %q is missing", ErrInvalid, f.name)
		}
		var n integer
		if err := json.Unmarshal(v, &n); err != nil || string(v) == "null" || int(n) < f.low || int(n) > f.high {
			return r, fmt.Errorf("%w: field %q is %.40s, want a whole number from %d to %d", ErrInvalid, f.name, v, f.low, f.high)
		}
		*f.dst = int(n)
	}
	for _, f := range []struct {
		name     string
		dst      any
		required bool
	}{
		{"rank_ip", &r.IP, true}, {"kv_cache_dtype", &r.DType, true}, {"kv_layout", &r.Layout, false}, {"load_balance_method", &r.LoadBalance, false},
		{"enable_dsa_cache_layer_split", &r.LayerSplit, false}, {"enable_kv_cache_sharding", &r.KVSharding, false}, {"prefill_http_port", &r.HTTPPort, false},
		{"decode_allocation_policy", &r.Policy, false}, {"dsv41_spec_layout", &r.SpecLayout, false},
	} {
		v, ok := raw[f.name]
		switch {
		case !ok && f.required:
			return r, fmt.Errorf("%w: field %q is missing", ErrInvalid, f.name)
		case !ok:
			continue
		case f.required && string(v) == "null":
			return r, fmt.Errorf("%w: field %q is null", ErrInvalid, f.name)
		}
		if err := json.Unmarshal(v, f.dst); err != nil {
			return r, fmt.Errorf("%w: field %q is %.40s", ErrInvalid, f.name, v)
		}
	}
	if string(r.SpecLayout) == "null" {
		r.SpecLayout = nil
	}
	return r, nil
}

// Topology is what a bootstrap server says of its instance: GET /route with −1 everywhere. The names are SGLang's.
type Topology struct {
	TPSize     int             `json:"attn_tp_size"`
	CPSize     int             `json:"attn_cp_size"`
	DPSize     int             `json:"dp_size"`
	PPSize     int             `json:"pp_size"`
	PageSize   int             `json:"page_size"`
	DType      string          `json:"kv_cache_dtype"`
	FollowRoom bool            `json:"follow_bootstrap_room"`
	LayerSplit bool            `json:"enable_dsa_cache_layer_split"`
	Layout     *string         `json:"kv_layout,omitempty"`
	SpecLayout json.RawMessage `json:"dsv41_spec_layout,omitempty"`
	Policy     string          `json:"decode_allocation_policy"`
	KVSharding bool            `json:"enable_kv_cache_sharding"`
	HTTPPort   *int            `json:"prefill_http_port"`
}

// topologyAnswer has the fields that upstream's answer always carries as null besides; its reader takes exactly these keys.
type topologyAnswer struct {
	Topology
	TargetTP     any `json:"target_tp_rank"`
	TargetTPs    any `json:"target_tp_ranks"`
	TargetCPs    any `json:"target_cp_ranks"`
	TargetPPs    any `json:"target_pp_ranks"`
	RequiredDst  any `json:"required_dst_info_num"`
	RequiredResp any `json:"required_prefill_response_num"`
}

// RankAddr is where one prefill rank listens.
type RankAddr struct {
	IP   string `json:"rank_ip"`
	Port int    `json:"rank_port"`
}

// parseTopology reads an answer, of which the first seven fields must be there.
func parseTopology(b []byte) (t Topology, err error) {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		return t, fmt.Errorf("%w: topology: %w", ErrInvalid, err)
	}
	for _, name := range []string{"attn_tp_size", "attn_cp_size", "dp_size", "pp_size", "page_size", "kv_cache_dtype", "follow_bootstrap_room"} {
		if _, ok := raw[name]; !ok {
			return t, fmt.Errorf("%w: topology without %q", ErrInvalid, name)
		}
	}
	if err := json.Unmarshal(b, &t); err != nil {
		return t, fmt.Errorf("%w: topology: %w", ErrInvalid, err)
	}
	for name, n := range map[string]int{"attn_tp_size": t.TPSize, "attn_cp_size": t.CPSize, "dp_size": t.DPSize, "pp_size": t.PPSize} {
		if n < 1 || n > maxAxis {
			return t, fmt.Errorf("%w: topology: %s is %d, want 1 to %d", ErrInvalid, name, n, maxAxis)
		}
	}
	return t, nil
}

// readBody reads a bounded body.
func readBody(r io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%w: the body is longer than %d bytes", ErrInvalid, limit)
	}
	return bytes.TrimSpace(b), nil
}
