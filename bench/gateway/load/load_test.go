package load

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/kvferry/kvferry/bench/gateway/fakeworker"
)

func worker(t *testing.T, timing fakeworker.Timing) *fakeworker.Worker {
	t.Helper()
	p, err := fakeworker.Start(fakeworker.Config{Plain: 1, Timing: timing})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p.Workers(fakeworker.Plain)[0]
}

func TestClosedLoop(t *testing.T) {
	w := worker(t, fakeworker.Timing{Tokens: 4, Token: fakeworker.Duration(time.Millisecond)})
	r, err := Run(t.Context(), Config{
		URL: "http://" + w.Addr() + Paths["chat"], Bodies: [][]byte{Body("chat", 100, true, 4, 0)},
		Conns: 3, Count: 30, Stream: true, Tokens: 4,
	})
	if err != nil || r.OK != 30 || r.Reconnects != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if r.Total.P50 < 3 || r.TTFT.P50 > r.Total.P50 || r.Gap.P50 < 0.5 {
		t.Errorf("%+v", r)
	}
}

func TestOpenLoopCountsTheQueue(t *testing.T) {
	w := worker(t, fakeworker.Timing{Prefill: fakeworker.Duration(20 * time.Millisecond)})
	r, err := Run(t.Context(), Config{
		URL: "http://" + w.Addr() + Paths["generate"], Bodies: [][]byte{Body("generate", 100, false, 1, 0)},
		Conns: 1, Count: 20, Rate: 1000,
	})
	if err != nil || r.OK != 20 {
		t.Fatalf("%+v, %v", r, err)
	}
	if r.Total.Max < 300 { // the last one was due at 19 ms and served after 400
		t.Errorf("the queue is hidden: %+v", r.Total)
	}
}

func TestErrorsAreCounted(t *testing.T) {
	n := 0
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch n++; n {
		case 1:
			rw.WriteHeader(503)
		case 2:
			_, _ = rw.Write([]byte("data: {}\n\n"))
		case 3:
			panic(http.ErrAbortHandler)
		default:
			_, _ = rw.Write([]byte("data: {}\n\ndata: [DONE]\n\n"))
		}
	}))
	defer s.Close()
	r, err := Run(t.Context(), Config{URL: s.URL + "/x", Bodies: [][]byte{{'{', '}'}}, Conns: 1, Count: 5, Stream: true})
	if err != nil {
		t.Fatal(err)
	}
	if r.OK != 2 || r.Errors["status 503"] != 1 || r.Errors["short answer"] != 1 || r.Errors["read"] != 1 {
		t.Errorf("%+v", r)
	}
}

func TestBody(t *testing.T) {
	for api := range Paths {
		for _, size := range []int{10, 200, 8 << 10} {
			b := Body(api, size, true, 1, 7)
			if !json.Valid(b) || len(b) < size {
				t.Errorf("%s %d: %s", api, size, b)
			}
		}
	}
}
