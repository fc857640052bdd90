package registry

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/kvferry/kvferry/room"
)

func TestPythonJSON(t *testing.T) {
	for _, c := range []struct {
		v    any
		want string
	}{
		{map[string]any{"a": 1, "b": []int{1, 2}}, `{"a": 1, "b": [1, 2]}`},
		{`a,b:"c"\`, `"a,b:\"c\"\\"`},
		{"<&>", `"<&>"`},
		{"ü\u2028\x7f😀\n\x01", `"\u00fc\u2028\u007f\ud83d\ude00\n\u0001"`},
		{json.RawMessage(` { "ü" : [ 1 ] } `), `{"\u00fc": [1]}`},
	} {
		got, err := pythonJSON(c.v)
		if err != nil || string(got) != c.want {
			t.Errorf("%v: %s, %v, want %s", c.v, got, err, c.want)
		}
	}
}

// Names are exact, and errors name the field, what it is and what it may be.
func TestRowErrorsName(t *testing.T) {
	good, err := row(nil).Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, want string }{
		{`"attn_tp_size"`, `"Attn_tp_size"`, `"attn_tp_size" is missing`},
		{`"attn_tp_size": 2`, `"attn_tp_size": 2.5`, `"2.5", want a whole number from 0 to 4096`},
		{`"rank_ip": "10.0.0.1"`, `"rank_ip": 5`, `"rank_ip" is "5", want text`},
		{`"enable_kv_cache_sharding": false`, `"enable_kv_cache_sharding": "yes"`, `want true or false`},
		{`"prefill_http_port": 30000`, `"prefill_http_port": 70000`, `want a whole number from 0 to 65535`},
		{`"dsv41_spec_layout": null`, `"dsv41_spec_layout": 7`, `want an object or null`},
		{`"kv_cache_dtype": "auto"`, `"kv_cache_dtype": "` + strings.Repeat("x", maxText+1) + `"`, `limit 256`},
		{`"page_size": 16`, `"page_size": null`, `"page_size" is "null"`},
	} {
		bad := strings.Replace(string(good), c.old, c.new, 1)
		if _, err := ParseRankRow([]byte(bad)); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.new, err, c.want)
		}
	}
}

func FuzzRankRow(f *testing.F) {
	good, _ := row(func(r *RankRow) { r.SpecLayout = json.RawMessage(`{"ü":1}`) }).Append(nil)
	f.Add(good)
	f.Add([]byte(`{"attn_tp_size":2,"attn_tp_rank":"1"}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseRankRow(b)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("%v is no ErrInvalid", err)
			}
			return
		}
		if err := r.Validate(); err != nil {
			t.Fatal(err)
		}
		again, err := r.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		back, err := ParseRankRow(again)
		if err != nil || !sameJSON(r.SpecLayout, back.SpecLayout) {
			t.Fatalf("%s: %v", again, err)
		}
		r.SpecLayout, back.SpecLayout = nil, nil
		if !reflect.DeepEqual(r, back) {
			t.Fatalf("%+v, then %+v", r, back)
		}
	})
}

func FuzzTopology(f *testing.F) {
	good, _ := Topology{TPSize: 2, CPSize: 1, DPSize: 1, PPSize: 1, PageSize: 16, DType: "auto", Policy: PolicyEarly}.Append(nil)
	f.Add(good)
	f.Add([]byte(`{"attn_tp_size":"2","attn_cp_size":1,"dp_size":1,"pp_size":1,"page_size":16,"kv_cache_dtype":"auto","follow_bootstrap_room":true}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := ParseTopology(b)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("%v is no ErrInvalid", err)
			}
			return
		}
		if min(v.TPSize, v.CPSize, v.DPSize, v.PPSize, v.PageSize) < 1 {
			t.Fatalf("%+v", v)
		}
		again, err := v.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		back, err := ParseTopology(again)
		if err != nil || !sameJSON(v.SpecLayout, back.SpecLayout) {
			t.Fatalf("%s: %v", again, err)
		}
		v.SpecLayout, back.SpecLayout = nil, nil
		if !reflect.DeepEqual(v, back) {
			t.Fatalf("%+v, then %+v", v, back)
		}
	})
}

func FuzzRankAddr(f *testing.F) {
	f.Add([]byte(`{"rank_ip": "::1", "rank_port": 7000}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := ParseRankAddr(b)
		if err != nil {
			return
		}
		again, err := a.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := ParseRankAddr(again); err != nil || back != a {
			t.Fatalf("%+v, then %+v, %v", a, back, err)
		}
	})
}

// FuzzRooms reads the three bodies about rooms and holds the two answers against each other.
func FuzzRooms(f *testing.F) {
	f.Add([]byte(`{"bootstrap_room": "9223372036854775807", "dp_rank": "3"}`))
	f.Add([]byte(`{"bootstrap_rooms": [5, "7", 9223372036854775807]}`))
	f.Add([]byte(`{"5": 1, "9223372036854775807": 3}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if id, rank, err := parseRoomRank(b); err == nil && (id > room.MaxID || rank < 0 || rank >= maxAxis) {
			t.Fatalf("room %d, rank %d", id, rank)
		}
		_, _ = parseRanks(b)
		ids, err := parseQuery(b)
		if err != nil {
			return
		}
		rank := func(id room.ID) (int, bool) { return int(id % maxAxis), id%3 != 0 }
		known, err := parseRanks(appendRanks(nil, ids, rank))
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range ids {
			want, ok := rank(room.ID(n))
			if got, found := known[room.ID(n)]; found != ok || ok && got != want {
				t.Fatalf("room %d: %d %v, want %d %v", n, got, found, want, ok)
			}
		}
	})
}

func FuzzInfo(f *testing.F) {
	f.Add([]byte(`{"instance":"00000000000000000000000000000001","geometry":{},"ranks":[{"rank_ip":"::1","rank_port":1}],"dp_size":1,"context":2048}`))
	good, _ := json.Marshal(nativeInfo())
	f.Add(good)
	f.Fuzz(func(t *testing.T, b []byte) {
		i, err := ParseInfo(b)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("%v is no ErrInvalid", err)
			}
			return
		}
		if len(i.Ranks) != i.Geometry.TP*i.Geometry.PP || i.Geometry.Validate() != nil {
			t.Fatalf("%+v", i)
		}
	})
}

func FuzzInstance(f *testing.F) {
	good, _ := json.Marshal(worker(1, 0, "http://a:1"))
	f.Add(good)
	f.Add([]byte(`{"id":"00000000000000000000000000000001","side":"decode","url":"http://h:1","ranks":3,"present":[0,2]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		i, err := ParseInstance(b)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("%v is no ErrInvalid", err)
			}
			return
		}
		if i.ID.IsZero() || len(i.Present) < 1 || len(i.Present) > i.Ranks || i.Present[len(i.Present)-1] >= i.Ranks {
			t.Fatalf("%+v", i)
		}
		again, err := json.Marshal(i)
		if err != nil {
			t.Skip(err) // a time that JSON can't write
		}
		back, err := ParseInstance(again)
		if err != nil || !back.Started.Equal(i.Started) {
			t.Fatalf("%s: %v", again, err)
		}
		back.Started = i.Started
		if !reflect.DeepEqual(back, i) {
			t.Fatalf("%+v, then %+v", i, back)
		}
	})
}

// FuzzAnswers reads what a registry answers.
func FuzzAnswers(f *testing.F) {
	good, _ := json.Marshal(Snapshot{Registry: room.InstanceID{1}, Revision: 1 << 63, Instances: []Instance{worker(1, 0, "http://a:1")}})
	f.Add(good)
	f.Add([]byte(`{"registry":"00000000000000000000000000000001","revision":7,"ttl_ns":3000000000}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if l, err := parseLease(b); err == nil && (l.TTL < minTTL || l.TTL > maxTTL) {
			t.Fatalf("%+v", l)
		}
		s, err := ParseSnapshot(b)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("%v is no ErrInvalid", err)
			}
			return
		}
		for _, i := range s.Instances {
			if _, err := i.normal(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
