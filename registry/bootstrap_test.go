package registry

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/internal/vectors"
	"github.com/kvferry/kvferry/room"
)

type exchange struct {
	Fresh       bool            `json:"fresh,omitempty"`
	Method      string          `json:"method,omitempty"`
	Path        string          `json:"path,omitempty"`
	Body        json.RawMessage `json:"body,omitempty"`
	Raw         *string         `json:"raw,omitempty"`
	Status      int             `json:"status,omitempty"`
	ContentType string          `json:"content_type,omitempty"`
	Answer      *string         `json:"answer,omitempty"`
}

func (v exchange) request() (body string) {
	switch {
	case v.Raw != nil:
		return *v.Raw
	case string(v.Body) == "null":
		return ""
	}
	return string(v.Body)
}

func call(h http.Handler, method, path, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
	return w
}

// TestRegistryVector compares status, type and body of every exchange, but for the deliberate differences: what SGLang does not handle (500)
// is 400 with a sentence that says what is wrong, and so is a room number with a fraction, which SGLang cuts; a rank that registers twice
// does not make the instance ready.
func TestRegistryVector(t *testing.T) {
	var h http.Handler
	var last exchange
	twice, refused, differ := false, 0, 0
	vectors.Each(t, "registry", func(t testing.TB, line int, v exchange) {
		if v.Fresh {
			h, twice, last = NewBootstrap(nil, nil).Handler(), false, v
			return
		}
		w := call(h, v.Method, v.Path, v.request())
		twice = twice || last.Method == http.MethodPut && v.Method == http.MethodPut && v.Raw == nil && string(last.Body) == string(v.Body)
		last = v
		want := exchange{Status: v.Status, ContentType: v.ContentType, Answer: v.Answer}
		switch {
		case v.Status == http.StatusInternalServerError, strings.Contains(v.request(), `"bootstrap_room":1.5`):
			refused++
			want.Status = http.StatusBadRequest
			if w.Body.Len() < len("invalid: x") {
				t.Errorf("line %d: %s %s %s: no reason", line, v.Method, v.Path, v.request())
			}
			want.Answer = nil // the sentence is ours
		case twice && v.Method == http.MethodGet:
			differ++
			text := "Prefill server not fully registered yet (1 workers registered)."
			want = exchange{Status: http.StatusServiceUnavailable, ContentType: textType, Answer: &text}
		}
		if w.Code != want.Status || w.Header().Get("Content-Type") != want.ContentType {
			t.Errorf("line %d: %s %s %s: %d %s, want %d %s", line, v.Method, v.Path, v.request(), w.Code, w.Header().Get("Content-Type"), want.Status, want.ContentType)
		}
		if want.Answer != nil && w.Body.String() != *want.Answer {
			t.Errorf("line %d: %s %s: %s, want %s", line, v.Method, v.Path, w.Body, *want.Answer)
		}
	})
	if refused == 0 || differ == 0 {
		t.Errorf("%d refusals and %d answers to a rank that registered twice: the table has lost what it was for", refused, differ)
	}
}

func row(change func(*RankRow)) RankRow {
	port := 30000
	r := RankRow{TPSize: 2, CPSize: 1, DPSize: 1, PPSize: 1, SystemDP: 1, IP: "10.0.0.1", Port: 7000, PageSize: 16, DType: "auto", LoadBalance: FollowRoom, HTTPPort: &port, Policy: PolicyEarly}
	if change != nil {
		change(&r)
	}
	return r
}

func TestPutRefusesWhatCannotBe(t *testing.T) {
	b := NewBootstrap(nil, nil)
	if err := b.Put(row(nil)); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*RankRow){
		"attn_tp_rank":  func(r *RankRow) { r.TPRank = 2 },
		"pp_rank":       func(r *RankRow) { r.PPRank = -1 },
		"attn_cp_size":  func(r *RankRow) { r.CPSize = 0 },
		"attn_dp_size":  func(r *RankRow) { r.DPSize = maxAxis + 1 },
		"rank_ip":       func(r *RankRow) { r.IP = "[::1]" },
		"rank_port":     func(r *RankRow) { r.Port = 65536 },
		"page_size":     func(r *RankRow) { r.PageSize = 0 },
		"[1 1 4 1]":     func(r *RankRow) { r.TPSize = 4 },
		"16384 ranks":   func(r *RankRow) { r.TPSize, r.PPSize = 4096, 5 },
		"allocation":    func(r *RankRow) { r.Policy = "prefill_complete" },
		"DSpark":        func(r *RankRow) { r.SpecLayout = json.RawMessage(`{"a":1}`) },
		"system_dp_ran": func(r *RankRow) { r.SystemRank = 1 },
	} {
		err := b.Put(row(change))
		if statusOf(err) != http.StatusBadRequest || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := b.Topology(); err == nil || !strings.Contains(err.Error(), "1 ranks") {
		t.Errorf("%v, want one rank", err)
	}
}

// A speculative layout is compared by value: key order and blanks say nothing.
func TestSpecLayoutByValue(t *testing.T) {
	b := NewBootstrap(nil, nil)
	for n, layout := range []string{`{"a":1,"b":[2]}`, `{ "b": [2], "a": 1 }`} {
		if err := b.Put(row(func(r *RankRow) { r.TPRank, r.SpecLayout = n, json.RawMessage(layout) })); err != nil {
			t.Error(err)
		}
	}
	w := call(b.Handler(), http.MethodGet, rankPath(-1, -1, -1, -1), "")
	if w.Code != 200 || !strings.Contains(w.Body.String(), `"dsv41_spec_layout": {"a": 1, "b": [2]}, "decode_allocation_policy"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestRoomEntriesExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBootstrap(nil, nil)
		h := b.Handler()
		query := func(want string) {
			t.Helper()
			if got := call(h, http.MethodPost, queryPath, `{"bootstrap_rooms": [9223372036854775807, 5, 5]}`).Body.String(); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		}
		call(h, http.MethodPost, registerPath, `{"bootstrap_room": 9223372036854775807, "dp_rank": 3}`)
		b.SetDPRank(5, 1)
		query(`{"9223372036854775807": 3, "5": 1}`)
		time.Sleep(119 * time.Second)
		b.SetDPRank(5, 2) // lives on from here
		time.Sleep(2 * time.Second)
		query(`{"5": 2}`)
		time.Sleep(120 * time.Second)
		query(`{}`)
		if len(b.rooms.ranks)+len(b.rooms.order) != 0 {
			t.Errorf("%d rooms, %d in order", len(b.rooms.ranks), len(b.rooms.order))
		}
	})
}

func TestRoomEntriesBounded(t *testing.T) {
	var rooms roomRanks
	now := time.Unix(0, 0)
	for id := range room.ID(maxRooms + 10) {
		rooms.set(id, 1, now)
	}
	for range 10 {
		rooms.set(maxRooms, 2, now) // the same room again takes no place for long
	}
	if n := len(rooms.order); n != maxRooms {
		t.Errorf("%d entries, want %d", n, maxRooms)
	}
	if _, ok := rooms.get(0); ok {
		t.Error("the oldest room is still there")
	}
	if r, ok := rooms.get(maxRooms); !ok || r != 2 {
		t.Errorf("%d %v", r, ok)
	}
}

func TestHealthAndInstanceAreTheOwners(t *testing.T) {
	ok := true
	h := NewBootstrap(func() bool { return ok }, func() any { return map[string]string{"a": "ü<"} }).Handler()
	for _, want := range []int{200, 503} {
		ok = want == 200
		if w := call(h, http.MethodGet, healthPath, ""); w.Code != want {
			t.Errorf("%d, want %d", w.Code, want)
		}
	}
	w := call(h, http.MethodGet, InstancePath, "")
	var v map[string]string
	if err := json.Unmarshal(w.Body.Bytes(), &v); w.Code != 200 || err != nil || v["a"] != "ü<" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := call(NewBootstrap(nil, nil).Handler(), http.MethodGet, InstancePath, ""); w.Code != 404 {
		t.Errorf("a foreign server answers %d", w.Code)
	}
}

func TestBodiesAreBounded(t *testing.T) {
	h := NewBootstrap(nil, nil).Handler()
	for path, limit := range map[string]int{routePath: maxRowBody, registerPath: maxRowBody, queryPath: maxQueryBody} {
		method := http.MethodPost
		if path == routePath {
			method = http.MethodPut
		}
		if w := call(h, method, path, strings.Repeat(" ", limit+1)); w.Code != http.StatusRequestEntityTooLarge || !strings.Contains(w.Body.String(), fmt.Sprint(limit)) {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
		if w := call(h, method, path, strings.Repeat(" ", limit)); w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	if w := call(h, http.MethodPost, queryPath, `{"bootstrap_rooms":[`+strings.Repeat("1,", maxQueried)+`1]}`); w.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
