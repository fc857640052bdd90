package registry

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kvferry/kvferry/internal/vectors"
)

// Deliberate differences: a rank that registers twice does not make the instance ready, and what SGLang does not handle (500) is 400 with a
// sentence that says what is wrong; a room number with a fraction (which SGLang cuts) is refused too.
func TestRegistryVector(t *testing.T) {
	type row struct {
		Fresh       bool            `json:"fresh,omitempty"`
		Method      string          `json:"method,omitempty"`
		Path        string          `json:"path,omitempty"`
		Body        json.RawMessage `json:"body,omitempty"`
		Raw         *string         `json:"raw"`
		Status      int             `json:"status,omitempty"`
		ContentType string          `json:"content_type,omitempty"`
		Answer      json.RawMessage `json:"answer,omitempty"`
	}
	var h http.Handler
	var b *Bootstrap
	unready := false
	vectors.Each(t, "registry", func(t testing.TB, line int, v row) {
		if v.Fresh {
			b = NewBootstrap(nil, nil)
			h, unready = b.Handler(), false
			return
		}
		body := string(v.Body)
		if v.Raw != nil {
			body = *v.Raw
		} else if body == "null" {
			body = ""
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(v.Method, v.Path, strings.NewReader(body)))
		switch {
		case v.Status == http.StatusInternalServerError:
			if w.Code != http.StatusBadRequest || w.Body.Len() == 0 {
				t.Errorf("line %d: %s %s %s: %d %q, want 400 with a reason", line, v.Method, v.Path, body, w.Code, w.Body)
			}
			return
		case v.Path == "/register_dp_rank" && strings.Contains(body, "1.5"):
			if w.Code != http.StatusBadRequest {
				t.Errorf("line %d: a room that is no whole number is taken: %d", line, w.Code)
			}
			return
		case v.Method == http.MethodGet && strings.HasPrefix(v.Path, "/route") && v.Status == http.StatusOK && !readyNow(b):
			unready = true
		}
		if unready && strings.HasPrefix(v.Path, "/route") && v.Method == http.MethodGet {
			if w.Code != http.StatusServiceUnavailable {
				t.Errorf("line %d: %d, want 503: not every rank is there", line, w.Code)
			}
			return
		}
		if w.Code != v.Status || w.Header().Get("Content-Type") != v.ContentType {
			t.Errorf("line %d: %s %s: %d %s, want %d %s", line, v.Method, v.Path, w.Code, w.Header().Get("Content-Type"), v.Status, v.ContentType)
		}
		if v.Status == http.StatusBadRequest && v.Method == http.MethodPut {
			return // the sentence is ours
		}
		var want string
		if err := json.Unmarshal(v.Answer, &want); err != nil {
			t.Fatalf("line %d: %v", line, err)
		}
		if w.Body.String() != want {
			t.Errorf("line %d: %s %s: %s, want %s", line, v.Method, v.Path, w.Body, want)
		}
	})
}

func readyNow(b *Bootstrap) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ready()
}

func TestRoomEntriesExpire(t *testing.T) {
	b := NewBootstrap(nil, nil)
	now := time.Unix(0, 0)
	b.now = func() time.Time { return now }
	post := func(path, body string) string {
		w := httptest.NewRecorder()
		b.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
		return w.Body.String()
	}
	post("/register_dp_rank", `{"bootstrap_room": 9223372036854775807, "dp_rank": 3}`)
	now = now.Add(119 * time.Second)
	if got := post("/query_dp_ranks", `{"bootstrap_rooms": [9223372036854775807, 5]}`); got != `{"9223372036854775807": 3}` {
		t.Errorf("%s", got)
	}
	now = now.Add(2 * time.Second)
	if got := post("/query_dp_ranks", `{"bootstrap_rooms": [9223372036854775807]}`); got != `{}` {
		t.Errorf("%s", got)
	}
	if len(b.rooms)+len(b.order) != 0 {
		t.Errorf("%d rooms, %d in order", len(b.rooms), len(b.order))
	}
}

func TestHealthFollowsTheInstance(t *testing.T) {
	ok := true
	h := NewBootstrap(func() bool { return ok }, func() any { return map[string]int{"a": 1} }).Handler()
	for _, want := range []int{200, 503} {
		ok = want == 200
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/health", nil))
		if w.Code != want {
			t.Errorf("%d, want %d", w.Code, want)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, InstancePath, nil))
	if w.Code != 200 || w.Body.String() != `{"a": 1}` {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func FuzzParseRow(f *testing.F) {
	f.Add([]byte(`{"attn_tp_size":2,"attn_tp_rank":"1"}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseRow(b)
		if err == nil && (r.TPSize < 1 || r.Port < 1 || r.Port > 65535 || r.PageSize < 1) {
			t.Fatalf("%s: %+v", b, r)
		}
	})
}

func FuzzParseTopology(f *testing.F) {
	f.Add([]byte(`{"attn_tp_size":2,"attn_cp_size":1,"dp_size":1,"pp_size":1,"page_size":16,"kv_cache_dtype":"auto","follow_bootstrap_room":true}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if top, err := parseTopology(b); err == nil && (top.TPSize < 1 || top.DPSize < 1) {
			t.Fatalf("%s: %+v", b, top)
		}
	})
}
