package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a worker whose legs a test answers.
type fake struct {
	*httptest.Server
	mu   sync.Mutex
	seen []string // bodies
	gone chan struct{}
}

func newFake(t *testing.T, h func(f *fake, w http.ResponseWriter, r *http.Request)) *fake {
	f := &fake{gone: make(chan struct{}, 16)}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		f.mu.Lock()
		f.seen = append(f.seen, string(b))
		f.mu.Unlock()
		h(f, w, r)
	}))
	t.Cleanup(f.Close)
	return f
}

// bodies are the legs' bodies so far.
func (f *fake) bodies() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.seen...)
}

// hang waits until the leg is cancelled.
func hang(f *fake, _ http.ResponseWriter, r *http.Request) {
	<-r.Context().Done()
	f.gone <- struct{}{}
}

func ok(body string) func(*fake, http.ResponseWriter, *http.Request) {
	return func(_ *fake, w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }
}

func status(code int, body string) func(*fake, http.ResponseWriter, *http.Request) {
	return func(_ *fake, w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

func serve(t *testing.T, cfg Config, p, d []*fake) *httptest.Server {
	for _, x := range p {
		cfg.Prefill = append(cfg.Prefill, Worker{URL: x.URL, Bootstrap: "127.0.0.1:8998"})
	}
	for _, x := range d {
		cfg.Decode = append(cfg.Decode, Worker{URL: x.URL})
	}
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(g)
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		s.Close()
		g.Close()
	})
	return s
}

func post(t *testing.T, ctx context.Context, url, body string) (int, http.Header, string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return resp.StatusCode, resp.Header, err.Error()
	}
	return resp.StatusCode, resp.Header, string(b)
}

func await(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s does not come", what)
	}
}

func TestBothLegsGetTheSameExactRoomAndBytes(t *testing.T) {
	p, d := newFake(t, ok(`{}`)), newFake(t, ok(`{"answer":1}`))
	s := serve(t, Config{}, []*fake{p}, []*fake{d})
	body := "{\n \"big\": 123456789012345678901234567890, \"prompt\":\"\\u00e9\" }"
	code, h, got := post(t, t.Context(), s.URL+"/v1/completions", body)
	for len(p.bodies()) == 0 { // decode's answer may overtake prefill's leg
		time.Sleep(time.Millisecond)
	}
	if code != 200 || got != `{"answer":1}` || p.bodies()[0] != d.bodies()[0] || !strings.HasPrefix(p.bodies()[0], body[:len(body)-1]) {
		t.Errorf("%d %s\nprefill %s\ndecode %s", code, got, p.bodies()[0], d.bodies()[0])
	}
	if !strings.Contains(p.bodies()[0], `"bootstrap_room":`+h.Get(RoomHeader)) {
		t.Errorf("room %s is not in %s", h.Get(RoomHeader), p.bodies()[0])
	}
}

func TestFirstFailedLegCancelsTheOther(t *testing.T) {
	for _, failing := range []string{"prefill", "decode"} {
		t.Run(failing, func(t *testing.T) {
			other := newFake(t, hang)
			bad := newFake(t, func(f *fake, w http.ResponseWriter, r *http.Request) {
				for len(other.bodies()) == 0 { // a leg that is cancelled on its way may never reach its worker
					time.Sleep(time.Millisecond)
				}
				status(503, `{"error":"no"}`)(f, w, r)
			})
			p, d := bad, other
			if failing == "decode" {
				p, d = other, bad
			}
			s := serve(t, Config{Retries: -1}, []*fake{p}, []*fake{d})
			code, _, got := post(t, t.Context(), s.URL+"/generate", `{"text":"x"}`)
			if code != 503 || got != `{"error":"no"}` {
				t.Errorf("%d %s, want the worker's own answer", code, got)
			}
			await(t, "cancelling the other leg", other.gone)
		})
	}
}

func TestClientThatLeavesCancelsBoth(t *testing.T) {
	p, d := newFake(t, hang), newFake(t, hang)
	s := serve(t, Config{}, []*fake{p}, []*fake{d})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for {
			if len(p.bodies())*len(d.bodies()) > 0 {
				cancel()
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	post(t, ctx, s.URL+"/v1/completions", `{}`)
	await(t, "cancelling prefill", p.gone)
	await(t, "cancelling decode", d.gone)
}

func TestTheFirstCauseIsTold(t *testing.T) {
	cause := func(code string) string { return fmt.Sprintf(`{"error":{"cause":{"code":%q,"text":"t"}}}`, code) }
	// Decode was told by prefill; prefill's own word comes a moment later.
	p := newFake(t, func(f *fake, w http.ResponseWriter, r *http.Request) {
		time.Sleep(2 * time.Millisecond)
		status(429, cause("exhausted"))(f, w, r)
	})
	d := newFake(t, status(502, cause("peer_failed")))
	s := serve(t, Config{Retries: -1}, []*fake{p}, []*fake{d})
	if code, _, got := post(t, t.Context(), s.URL+"/v1/completions", `{}`); code != 429 || !strings.Contains(got, "exhausted") {
		t.Errorf("%d %s", code, got)
	}
}

func TestAnotherPairIsTriedBeforeTheFirstByte(t *testing.T) {
	bad := newFake(t, status(503, "no"))
	p, d := newFake(t, ok(`{}`)), newFake(t, ok("yes"))
	for range 8 {
		s := serve(t, Config{}, []*fake{bad, p}, []*fake{d})
		if code, _, got := post(t, t.Context(), s.URL+"/v1/completions", `{}`); code != 200 || got != "yes" {
			t.Fatalf("%d %s", code, got)
		}
	}
	rooms := map[string]bool{}
	for _, b := range append(bad.bodies(), p.bodies()...) {
		var v struct {
			Room json.Number `json:"bootstrap_room"`
		}
		if err := json.Unmarshal([]byte(b), &v); err != nil || rooms[v.Room.String()] {
			t.Errorf("room %s is used twice: %v", v.Room, err)
		}
		rooms[v.Room.String()] = true
	}
}

func TestAStreamThatBreaksOffEndsWithAnError(t *testing.T) {
	p := newFake(t, ok(`{}`))
	d := newFake(t, func(_ *fake, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"a\":1}\n\n")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	s := serve(t, Config{}, []*fake{p}, []*fake{d})
	code, _, got := post(t, t.Context(), s.URL+"/v1/completions", `{"stream":true}`)
	if code != 200 || !strings.HasPrefix(got, "data: {\"a\":1}\n\n") || !strings.Contains(got, `"peer_dead"`) || strings.Contains(got, "[DONE]") {
		t.Errorf("%d %s", code, got)
	}
}

func TestBadInput(t *testing.T) {
	p, d := newFake(t, ok(`{}`)), newFake(t, ok(`{}`))
	s := serve(t, Config{MaxBody: 1000}, []*fake{p}, []*fake{d})
	for body, want := range map[string]int{`{"a":}`: 400, `[]`: 400, `{"bootstrap_room":1,"bootstrap_room":2}`: 400, `{"a":"` + strings.Repeat("x", 1000) + `"}`: 413} {
		if code, _, got := post(t, t.Context(), s.URL+"/v1/completions", body); code != want || !strings.Contains(got, `"cause"`) {
			t.Errorf("%.40s: %d %s, want %d", body, code, got, want)
		}
	}
	none := serve(t, Config{}, nil, []*fake{d})
	if code, _, got := post(t, t.Context(), none.URL+"/v1/completions", `{}`); code != 503 || !strings.Contains(got, "0 prefill") {
		t.Errorf("%d %s", code, got)
	}
	if len(p.bodies())+len(d.bodies()) > 0 {
		t.Error("a leg of a bad request was sent")
	}
}

func TestUnreachableWorker(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	d := newFake(t, hang)
	g, err := New(Config{Prefill: []Worker{{URL: "http://" + addr, Bootstrap: "127.0.0.1:1"}}, Decode: []Worker{{URL: d.URL}}, Retries: -1})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(g)
	defer func() {
		http.DefaultClient.CloseIdleConnections()
		s.Close()
		g.Close()
	}()
	code, h, got := post(t, t.Context(), s.URL+"/v1/completions", `{}`)
	if code != 503 || h.Get(CauseHeader) != "unavailable" || !strings.Contains(got, addr) {
		t.Errorf("%d %s %s", code, h.Get(CauseHeader), got)
	}
	if code, _, _ := post(t, t.Context(), s.URL+"/health", ``); code != 405 {
		t.Errorf("POST /health: %d", code)
	}
}

func TestWorkersComeAndGo(t *testing.T) {
	p, d := newFake(t, ok(`{}`)), newFake(t, ok("one"))
	g, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(g)
	defer func() {
		http.DefaultClient.CloseIdleConnections()
		s.Close()
		g.Close()
	}()
	for range 3 {
		if code, _, _ := post(t, t.Context(), s.URL+"/v1/completions", `{}`); code != 503 {
			t.Errorf("no workers: %d", code)
		}
		g.Update([]Worker{{URL: p.URL, Bootstrap: "127.0.0.1:1"}}, []Worker{{URL: d.URL, FreePages: 5}})
		if code, _, got := post(t, t.Context(), s.URL+"/v1/completions", `{}`); code != 200 || got != "one" {
			t.Errorf("%d %s", code, got)
		}
		g.Update(nil, nil)
	}
}

// A decode worker that stops in the middle of a stream closes no connection: it is noticed because it does not answer /health either.
func TestAWorkerThatFallsSilentIsNoticed(t *testing.T) {
	for _, early := range []bool{true, false} {
		p := newFake(t, ok(`{}`))
		d := newFake(t, func(f *fake, w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/health" && !early {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, "data: {}\n\n")
				_ = http.NewResponseController(w).Flush()
			}
			<-r.Context().Done()
		})
		s := serve(t, Config{Quiet: 50 * time.Millisecond, Retries: -1}, []*fake{p}, []*fake{d})
		code, _, got := post(t, t.Context(), s.URL+"/v1/completions", `{}`)
		if want := map[bool]int{true: 504, false: 200}[early]; code != want || !strings.Contains(got, "peer_silent") {
			t.Errorf("early %v: %d %s", early, code, got)
		}
	}
}
