package registry

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// Topology is what a bootstrap server says of its instance: GET /route with −1 everywhere. The names are SGLang's.
type Topology struct {
	TPSize     int             `json:"attn_tp_size"`
	CPSize     int             `json:"attn_cp_size"`
	DPSize     int             `json:"dp_size"`
	PPSize     int             `json:"pp_size"`
	PageSize   int             `json:"page_size"` // tokens
	DType      string          `json:"kv_cache_dtype"`
	FollowRoom bool            `json:"follow_bootstrap_room"`
	LayerSplit bool            `json:"enable_dsa_cache_layer_split"`
	Layout     *string         `json:"kv_layout,omitempty"`         // nil: not told
	SpecLayout json.RawMessage `json:"dsv41_spec_layout,omitempty"` // nil: none
	Policy     string          `json:"decode_allocation_policy"`
	KVSharding bool            `json:"enable_kv_cache_sharding"`
	HTTPPort   *int            `json:"prefill_http_port"` // nil: not told
}

// always are the fields of upstream's answer that are null in it. Its reader takes exactly the keys of Topology and these.
type always struct {
	TargetTP     *int `json:"target_tp_rank"`
	TargetTPs    *int `json:"target_tp_ranks"`
	TargetCPs    *int `json:"target_cp_ranks"`
	TargetPPs    *int `json:"target_pp_ranks"`
	RequiredDst  *int `json:"required_dst_info_num"`
	RequiredResp *int `json:"required_prefill_response_num"`
}

// answerKeys are all keys of the answer: true must be there, false may be.
var answerKeys = map[string]bool{
	"attn_tp_size": true, "attn_cp_size": true, "dp_size": true, "pp_size": true, "page_size": true, "kv_cache_dtype": true, "follow_bootstrap_room": true,
	"enable_dsa_cache_layer_split": false, "kv_layout": false, "dsv41_spec_layout": false, "decode_allocation_policy": false, "enable_kv_cache_sharding": false,
	"prefill_http_port": false, "target_tp_rank": false, "target_tp_ranks": false, "target_cp_ranks": false, "target_pp_ranks": false, "required_dst_info_num": false,
	"required_prefill_response_num": false,
}

// Append appends the answer to GET /route, byte for byte as upstream writes it.
func (t Topology) Append(b []byte) ([]byte, error) {
	return appendJSON(b, struct {
		Topology
		always
	}{Topology: t})
}

// ParseTopology reads the answer to GET /route. An unknown field is refused, as upstream's reader refuses it: it belongs to another release,
// whose KV may be another's too. Errors are ErrInvalid and name the field, what it is and what it may be.
func ParseTopology(b []byte) (Topology, error) {
	o, err := parseObject(b)
	if err != nil {
		return Topology{}, err
	}
	for _, name := range slices.Sorted(maps.Keys(o)) {
		if _, known := answerKeys[name]; !known {
			return Topology{}, fmt.Errorf("%w: topology with the unknown field %s", ErrInvalid, shown([]byte(name)))
		}
	}
	t := Topology{Policy: PolicyEarly}
	for _, f := range []struct {
		name string
		dst  *int
		high int
	}{{"attn_tp_size", &t.TPSize, maxAxis}, {"attn_cp_size", &t.CPSize, maxAxis}, {"dp_size", &t.DPSize, maxAxis}, {"pp_size", &t.PPSize, maxAxis}, {"page_size", &t.PageSize, maxPageSize}} {
		if *f.dst, err = o.whole(f.name, 1, f.high); err != nil {
			return Topology{}, err
		}
	}
	ok, err := o.text("kv_cache_dtype", &t.DType)
	if err == nil && !ok {
		err = missing("kv_cache_dtype")
	}
	if err != nil {
		return Topology{}, err
	}
	ok, err = o.into("follow_bootstrap_room", &t.FollowRoom)
	if err == nil && !ok {
		err = missing("follow_bootstrap_room")
	}
	if err != nil {
		return Topology{}, err
	}
	if _, err := o.text("decode_allocation_policy", &t.Policy); err != nil {
		return Topology{}, err
	}
	if err := o.optional(&t.Layout, &t.SpecLayout, &t.LayerSplit, &t.KVSharding, &t.HTTPPort); err != nil {
		return Topology{}, err
	}
	return t, nil
}

// RankAddr is where one prefill rank listens.
type RankAddr struct {
	IP   string `json:"rank_ip"` // IPv6 without brackets
	Port int    `json:"rank_port"`
}

// Append appends the answer to GET /route for one rank.
func (a RankAddr) Append(b []byte) ([]byte, error) { return appendJSON(b, a) }

// ParseRankAddr reads the answer to GET /route for one rank. Errors are ErrInvalid.
func ParseRankAddr(b []byte) (RankAddr, error) {
	o, err := parseObject(b)
	if err != nil {
		return RankAddr{}, err
	}
	var a RankAddr
	ok, err := o.text("rank_ip", &a.IP)
	if err == nil && (!ok || a.IP == "") {
		err = missing("rank_ip")
	}
	if err != nil {
		return RankAddr{}, err
	}
	if a.Port, err = o.whole("rank_port", 1, maxPort); err != nil {
		return RankAddr{}, err
	}
	return a, nil
}
