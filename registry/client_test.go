package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/kvlayout"
	"github.com/kvferry/kvferry/room"
)

// A client and a server of this package over real HTTP.
func TestClientAndServer(t *testing.T) {
	ctx := t.Context()
	healthy := atomic.Bool{}
	info := nativeInfo()
	b := NewBootstrap(healthy.Load, func() any { return info })
	s := httptest.NewServer(b.Handler())
	defer s.Close()
	defer plain.CloseIdleConnections()
	addr := s.Listener.Addr().String()
	var c Client

	if _, err := c.Topology(ctx, addr); !errors.Is(err, ErrNotReady) {
		t.Errorf("topology without ranks: %v", err)
	}
	layout := "nhd"
	for tp := range 2 {
		r := row(func(r *RankRow) {
			r.TPRank, r.Port, r.Layout, r.SpecLayout, r.KVSharding = tp, 7000+tp, &layout, json.RawMessage(`{"block":4}`), true
		})
		if err := c.Announce(ctx, addr, r); err != nil {
			t.Fatal(err)
		}
	}
	port := 30000
	want := Topology{TPSize: 2, CPSize: 1, DPSize: 1, PPSize: 1, PageSize: 16, DType: "auto", FollowRoom: true, Layout: &layout, Policy: PolicyEarly, KVSharding: true, HTTPPort: &port}
	got, err := c.Topology(ctx, addr)
	if err != nil || !sameJSON(got.SpecLayout, json.RawMessage(`{"block":4}`)) {
		t.Errorf("%s, %v", got.SpecLayout, err)
	}
	if got.SpecLayout = nil; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if a, err := c.Rank(ctx, addr, 0, kvlayout.Rank{TP: 1}); err != nil || a != (RankAddr{"10.0.0.1", 7001}) {
		t.Errorf("%v, %v", a, err)
	}
	if _, err := c.Rank(ctx, addr, 0, kvlayout.Rank{TP: 2}); !errors.Is(err, ErrNotFound) {
		t.Errorf("rank that is not there: %v", err)
	}
	if _, err := c.DPRank(ctx, addr, 7); !errors.Is(err, ErrNotFound) {
		t.Errorf("DP rank that nobody named: %v", err)
	}
	if err := c.RegisterDPRank(ctx, addr, room.MaxID, 3); err != nil {
		t.Error(err)
	}
	if r, err := c.DPRank(ctx, addr, room.MaxID); err != nil || r != 3 {
		t.Errorf("%d, %v", r, err)
	}
	for _, ok := range []bool{false, true} {
		healthy.Store(ok)
		if err := c.Health(ctx, addr); (err == nil) != ok {
			t.Errorf("healthy %t: %v", ok, err)
		}
	}
	if i, err := c.Info(ctx, addr); err != nil || !reflect.DeepEqual(i, info) {
		t.Errorf("%+v, %v", i, err)
	}
	info.Ranks = info.Ranks[:1]
	if _, err := c.Info(ctx, addr); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "1 ranks, want 2") {
		t.Errorf("%v", err)
	}
}

// Answers that a broken or hostile server may give become typed errors.
func TestClientBadAnswers(t *testing.T) {
	defer plain.CloseIdleConnections()
	var status int
	var body string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status == http.StatusFound {
			w.Header().Set("Location", "/health")
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	defer s.Close()
	addr := s.Listener.Addr().String()
	var c Client
	for _, v := range []struct {
		status int
		body   string
		want   error
	}{
		{200, ``, ErrInvalid},
		{200, `{"rank_ip": "h"}`, ErrInvalid},
		{200, `{"rank_ip": "", "rank_port": 1}`, ErrInvalid},
		{200, `{"rank_ip": "h", "rank_port": 65536}`, ErrInvalid},
		{200, strings.Repeat(" ", maxAnswer+1), ErrTooLarge},
		{302, ``, ErrInvalid},
		{400, "no\x00 \xff" + strings.Repeat("x", 1000), ErrInvalid},
		{404, ``, ErrNotFound},
		{500, ``, ErrUnavailable},
		{503, ``, ErrNotReady},
	} {
		status, body = v.status, v.body
		_, err := c.Rank(t.Context(), addr, 0, kvlayout.Rank{})
		if !errors.Is(err, v.want) || len(err.Error()) > 500 || !strings.Contains(err.Error(), addr) {
			t.Errorf("%d %.40q: %v, want %v", v.status, v.body, err, v.want)
		}
	}
	for _, bad := range []string{"", "host", "host:", "host:0", "host:65536", "::1:80", "u@host:80", "host:80/x", "host:80?x", strings.Repeat("h", 300) + ":80"} {
		if err := c.Health(t.Context(), bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("address %.40q: %v", bad, err)
		}
	}
	if !ValidAddr("[::1]:80") || !ValidAddr("h:1") {
		t.Error("sound addresses are refused")
	}
}

// A server that never answers costs one time limit, by fake time.
func TestClientTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		release := make(chan struct{})
		net.up("h:1", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
		c := Client{HTTP: net.http}
		start := time.Now()
		err := c.Health(t.Context(), "h:1")
		if d := time.Since(start); !errors.Is(err, ErrUnavailable) || d != 5*time.Second {
			t.Errorf("%v after %v", err, d)
		}
		close(release)
	})
}

// Five tries with upstream's pauses; a refusal ends them; so does the context.
func TestAnnounce(t *testing.T) {
	for _, v := range []struct {
		name      string
		status    []int // of each try; the last one repeats
		tries     int
		low, high time.Duration
		want      error
		stop      time.Duration
	}{
		{name: "at once", status: []int{200}, tries: 1},
		{name: "third", status: []int{503, 500, 200}, tries: 3, low: 2250 * time.Millisecond, high: 3 * time.Second},
		{name: "never", status: []int{500}, tries: 5, low: 11250 * time.Millisecond, high: 15 * time.Second, want: ErrUnavailable},
		{name: "refused", status: []int{400}, tries: 1, want: ErrInvalid},
		{name: "given up", status: []int{503}, tries: 2, low: 2 * time.Second, high: 2 * time.Second, want: context.DeadlineExceeded, stop: 2 * time.Second},
	} {
		t.Run(v.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tries := 0
				net := newMemnet(t)
				net.up("h:1", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.WriteHeader(v.status[min(tries, len(v.status)-1)])
					tries++
				}))
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				if v.stop > 0 {
					ctx, cancel = context.WithTimeout(t.Context(), v.stop)
				}
				defer cancel()
				start := time.Now()
				err := (&Client{HTTP: net.http}).Announce(ctx, "h:1", row(nil))
				if d := time.Since(start); !errors.Is(err, v.want) || tries != v.tries || d < v.low || d > v.high {
					t.Errorf("%v after %d tries and %v, want %v after %d and %v to %v", err, tries, d, v.want, v.tries, v.low, v.high)
				}
			})
		})
	}
}

func TestCacheAsksOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := map[string]int{}
		b := NewBootstrap(nil, nil)
		net := newMemnet(t)
		net.up("h:300", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked[r.URL.RawQuery]++ // the cache lets one question through at a time
			time.Sleep(time.Second)
			b.Handler().ServeHTTP(w, r)
		}))
		c := Cache{Client: Client{HTTP: net.http}}
		if _, err := c.Topology(t.Context(), "h:300"); !errors.Is(err, ErrNotReady) {
			t.Errorf("%v; an error is not kept", err)
		}
		for tp := range 2 {
			if err := b.Put(row(func(r *RankRow) { r.TPRank, r.Port = tp, 7000+tp })); err != nil {
				t.Fatal(err)
			}
		}
		done := make(chan error)
		for range 8 {
			go func() {
				top, err := c.Topology(t.Context(), "h:300")
				if err == nil && top.TPSize != 2 {
					err = fmt.Errorf("TP %d", top.TPSize)
				}
				for tp := range 2 {
					if a, e := c.Rank(t.Context(), "h:300", 0, kvlayout.Rank{TP: tp}); e != nil || a.Port != 7000+tp {
						err = fmt.Errorf("rank %d: %v, %w", tp, a, e)
					}
				}
				done <- err
			}()
		}
		for range 8 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if len(asked) != 3 || asked["prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"] != 2 {
			t.Errorf("%v", asked)
		}
		if err := b.Put(row(func(r *RankRow) { r.TPRank, r.Port = 1, 9000 })); err != nil { // restarted
			t.Fatal(err)
		}
		if a, _ := c.Rank(t.Context(), "h:300", 0, kvlayout.Rank{TP: 1}); a.Port != 7001 {
			t.Errorf("%v, want the remembered one", a)
		}
		c.Forget("h:30")
		if len(c.Known()) != 1 {
			t.Error("h:30 took h:300 with it")
		}
		go func() { // an answer that arrives after Forget is not kept
			time.Sleep(time.Second / 2)
			c.Forget("h:300")
		}()
		c.Forget("h:300")
		if a, err := c.Rank(t.Context(), "h:300", 0, kvlayout.Rank{TP: 1}); err != nil || a.Port != 9000 {
			t.Errorf("%v, %v", a, err)
		}
		if len(c.Known()) != 0 {
			t.Errorf("known %v", c.Known())
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, leave, err := c.enter(t.Context(), "h:300")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Topology(ctx, "h:300"); !errors.Is(err, ErrUnavailable) || !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		leave()
	})
}

// Two misses in a row forget an address, one does not, and a silent address delays no other.
func TestPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		ok := map[string]*atomic.Bool{}
		for _, addr := range []string{"good:1", "bad:1", "bad:10", "flaky:1"} {
			ok[addr] = &atomic.Bool{}
			ok[addr].Store(true)
			b := NewBootstrap(ok[addr].Load, nil)
			if err := b.Put(row(func(r *RankRow) { r.TPSize = 1 })); err != nil {
				t.Fatal(err)
			}
			net.up(addr, b.Handler())
		}
		c := Cache{Client: Client{HTTP: net.http}}
		for addr := range ok {
			if _, err := c.Topology(t.Context(), addr); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		lost := make(chan string, 8)
		polled := make(chan struct{})
		start := time.Now()
		go func() {
			defer close(polled)
			c.Poll(ctx, 0, func(addr string, err error) {
				if err == nil {
					t.Error("lost without a reason")
				}
				lost <- addr
			})
		}()
		ok["bad:1"].Store(false)
		ok["flaky:1"].Store(false)
		time.Sleep(7 * time.Second)
		ok["flaky:1"].Store(true)
		time.Sleep(5 * time.Second)
		ok["flaky:1"].Store(false)
		time.Sleep(5 * time.Second)
		ok["flaky:1"].Store(true)
		time.Sleep(20 * time.Second)
		cancel()
		<-polled
		close(lost)
		var list []string
		for addr := range lost {
			list = append(list, addr)
		}
		if !reflect.DeepEqual(list, []string{"bad:1"}) {
			t.Errorf("lost %v", list)
		}
		if got := sorted(c.Known()); !reflect.DeepEqual(got, []string{"bad:10", "flaky:1", "good:1"}) {
			t.Errorf("known %v after %v", got, time.Since(start))
		}
	})
}

// The server closes connections that send no header, too long a one, or no body, and serves others meanwhile.
func TestServerLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := newMemnet(t)
		mem.up("h:1", NewBootstrap(nil, nil).Handler())
		for name, text := range map[string]string{
			"silent":   "",
			"header":   "GET /health HTTP/1.1\r\nHost: h\r\n",
			"body":     "PUT /route HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n{",
			"too long": "GET /health HTTP/1.1\r\nHost: h\r\nX: " + strings.Repeat("x", 64<<10),
		} {
			c, err := mem.dial(t.Context(), "tcp", "h:1")
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			go func() { _, _ = c.Write([]byte(text)) }() // ends when the connection does
			var answer []byte
			buf := make([]byte, 4096)
			for err == nil {
				var n int
				n, err = c.Read(buf)
				answer = append(answer, buf[:n]...)
			}
			if d := time.Since(start); d > 16*time.Second || strings.Contains(string(answer), "200 OK") {
				t.Errorf("%s: %v after %v: %.100q", name, err, d, answer)
			}
			_ = c.Close()
			if err := (&Client{HTTP: mem.http}).Health(t.Context(), "h:1"); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}
