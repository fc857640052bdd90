package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kvferry/kvferry/internal/vectors"
	"github.com/kvferry/kvferry/kvlayout"
)

// TestCompatibilityVector asks what SGLang's decode asks a topology. Where it accepts nonsense, ours refuses:
//   - null for a page size or dtype that every server has, sizes below 1, a size with a fraction: ErrInvalid;
//   - TP sizes of which neither divides the other, another allocation policy: incompatible.
//
// Where it raises an exception, ours is an IncompatibleError that names both values, but for TP 0, which is ErrInvalid.
func TestCompatibilityVector(t *testing.T) {
	type decode struct {
		PageSize   int             `json:"page_size"`
		DType      string          `json:"kv_cache_dtype"`
		TP         int             `json:"tp"`
		TPRank     int             `json:"tp_rank"`
		PP         int             `json:"pp,omitempty"`
		DCP        int             `json:"dcp,omitempty"`
		MLA        bool            `json:"mla,omitempty"`
		States     []string        `json:"states,omitempty"`
		Layout     *string         `json:"kv_layout,omitempty"`
		SpecLayout json.RawMessage `json:"dsv41_spec_layout,omitempty"`
	}
	type entry struct {
		Answer   json.RawMessage `json:"answer"`
		Decode   decode          `json:"decode"`
		Accepted *bool           `json:"accepted,omitempty"`
		Raised   string          `json:"raised,omitempty"`
		Text     string          `json:"text,omitempty"`
	}
	stricter := map[string]error{ // accepted by SGLang
		`"page_size":null`:                   ErrInvalid,
		`"kv_cache_dtype":null`:              ErrInvalid,
		`"attn_tp_size":-2`:                  ErrInvalid,
		`"attn_tp_size":2.9`:                 ErrInvalid,
		`"attn_tp_size":3`:                   kvlayout.ErrIncompatible,
		`"decode_allocation_policy":"someti`: kvlayout.ErrIncompatible,
		`"decode_allocation_policy":"prefil`: kvlayout.ErrIncompatible,
	}
	used := map[string]bool{}
	vectors.Each(t, "compatibility", func(t testing.TB, line int, v entry) {
		d := v.Decode
		if d.TPRank < 0 || d.TPRank >= d.TP {
			t.Errorf("line %d: TP rank %d of %d", line, d.TPRank, d.TP)
		}
		top, err := ParseTopology(v.Answer)
		if err == nil {
			err = CheckCompatible(top, Own{PageSize: d.PageSize, DType: d.DType, Layout: d.Layout, SpecLayout: d.SpecLayout, TP: d.TP, PP: max(1, d.PP), DCP: d.DCP, MLA: d.MLA, States: d.States})
		}
		var want error
		switch {
		case v.Raised == "ZeroDivisionError":
			want = ErrInvalid
		case v.Raised != "":
			want = kvlayout.ErrIncompatible
			if v.Text == "" || v.Accepted != nil {
				t.Errorf("line %d: raised %s without a text, or accepted", line, v.Raised)
			}
		case !*v.Accepted:
			want = ErrInvalid
		}
		for part, e := range stricter {
			if want == nil && strings.Contains(string(v.Answer), part) {
				want, used[part] = e, true
			}
		}
		if !errors.Is(err, want) {
			t.Errorf("line %d: %s with %+v: %v, want %v", line, v.Answer, d, err, want)
		}
		var pair *kvlayout.IncompatibleError
		if errors.As(err, &pair) && (pair.What == "" || pair.Prefill == "" || pair.Decode == "" || pair.Prefill == pair.Decode && d.DCP < 2) {
			t.Errorf("line %d: %v does not name both values", line, err)
		}
	})
	if len(used) != len(stricter) {
		t.Errorf("differences found %v, listed %v", used, stricter)
	}
}

// TestNodeFailureVector forgets a dead address. Deliberate difference: addresses are compared whole, while SGLang drops the routes of every
// address that begins with the dead one. Which rooms fail is node's business; the table's
// rooms, records and trackers follow here from which address was forgotten.
func TestNodeFailureVector(t *testing.T) {
	type entry struct {
		Dead           string            `json:"dead"`
		FailureRecords map[string]string `json:"failure_records"`
		KnownLeft      []string          `json:"known_left"`
		Rooms          map[string]string `json:"rooms"`
		RoutesLeft     []string          `json:"routes_left"`
		TrackedLeft    map[string][]int  `json:"tracked_left"`
	}
	// The state before: as upstream's key of a route, ADDRESS_dp_tp_pp.
	routes := []struct {
		addr string
		dp   int
	}{{"10.0.0.1:300", 0}, {"10.0.0.1:3000", 0}, {"10.0.0.1:3000", 1}, {"10.0.0.2:300", 0}}
	tracked := map[string][]int{"10.0.0.1:300": {1, 2, 3, 4}, "10.0.0.1:3000": {5}}
	differ := 0
	vectors.Each(t, "node_failure", func(t testing.TB, line int, v entry) {
		net := newMemnet(t)
		boot := NewBootstrap(nil, nil)
		for dp := range 2 {
			if err := boot.Put(row(func(r *RankRow) { r.TPSize, r.DPSize, r.DPRank, r.Port = 1, 2, dp, 7000+dp })); err != nil {
				t.Fatal(err)
			}
		}
		c := Cache{Client: Client{HTTP: net.http}}
		for _, r := range routes {
			if net.hosts[r.addr] == nil {
				net.up(r.addr, boot.Handler())
			}
			if _, err := c.Topology(t.Context(), r.addr); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Rank(t.Context(), r.addr, r.dp, kvlayout.Rank{}); err != nil {
				t.Fatal(err)
			}
		}
		c.Forget(v.Dead)

		known := map[string]bool{}
		for _, addr := range c.Known() {
			known[addr] = true
		}
		var left []string
		for _, r := range routes {
			if known[r.addr] {
				left = append(left, fmt.Sprintf("%s_%d_0_0", r.addr, r.dp))
			}
		}
		equal(t, line, "known_left", sorted(c.Known()), v.KnownLeft)
		var theirs []string // what SGLang keeps, and what its prefix takes too
		for _, r := range routes {
			key := fmt.Sprintf("%s_%d_0_0", r.addr, r.dp)
			if !strings.HasPrefix(key, v.Dead) {
				theirs = append(theirs, key)
			}
		}
		equal(t, line, "routes_left of SGLang", sorted(theirs), v.RoutesLeft)
		if len(left) != len(theirs) {
			differ++
		}
		for _, key := range left {
			if strings.HasPrefix(key, v.Dead+"_") {
				t.Errorf("line %d: %s is left", line, key)
			}
		}

		statuses := map[string]string{"1": "Bootstrapping", "2": "WaitingForInput", "3": "Success", "5": "WaitingForInput"}
		records, trackedLeft := map[string]string{}, map[string][]int{}
		for addr, ids := range tracked {
			if known[addr] {
				trackedLeft[addr] = ids
				continue
			}
			for _, id := range ids {
				if key := fmt.Sprint(id); statuses[key] != "" && statuses[key] != "Success" {
					statuses[key], records[key] = "Failed", "Lost connection with prefill instance (bootstrap_addr: "+addr+")"
				}
			}
		}
		equal(t, line, "rooms", statuses, v.Rooms)
		equal(t, line, "failure_records", records, v.FailureRecords)
		equal(t, line, "tracked_left", trackedLeft, v.TrackedLeft)
	})
	if differ == 0 {
		t.Error("no line shows the prefix")
	}
}

func sorted(list []string) []string {
	slices.Sort(list)
	return list
}

func equal[T any](t testing.TB, line int, field string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("line %d: %s: %v, want %v", line, field, got, want)
	}
}
