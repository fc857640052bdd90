package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/room"
)

// worker is a decode instance whose incarnation is n, started at second n.
func worker(id byte, n int, url string) Instance {
	return Instance{ID: room.InstanceID{id}, Started: time.Unix(int64(n), 0).UTC(), Side: room.Decode, URL: url, Model: "m", Context: 2048, Ranks: 1, Load: Load{FreePages: 8, TotalPages: 8}}
}

func newStore(t *testing.T) *Store {
	t.Helper()
	s, err := NewStore(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func register(t *testing.T, s *Store, i Instance) Lease {
	t.Helper()
	l, err := s.Register(i)
	if err != nil {
		t.Fatalf("register %s: %v", i.ID, err)
	}
	return l
}

// show is a snapshot in one line: URL=first byte of the ID[ranks present], with an exclamation mark if usable.
func show(s Snapshot) string {
	var b strings.Builder
	for _, i := range s.Instances {
		fmt.Fprintf(&b, "%s=%d%v", strings.TrimPrefix(i.URL, "http://"), i.ID[0], i.Present)
		if i.Usable() {
			b.WriteByte('!')
		}
		b.WriteByte(' ')
	}
	return strings.TrimSpace(b.String())
}

func wantShow(t *testing.T, s Snapshot, want string) {
	t.Helper()
	if got := show(s); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestLeaseExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		register(t, s, worker(1, 1, "http://a:1"))
		time.Sleep(2 * time.Second)
		if l := register(t, s, worker(2, 1, "http://b:1")); l.TTL != DefaultTTL || l.Revision != 3 {
			t.Errorf("%+v", l)
		}
		time.Sleep(DefaultTTL - 2*time.Second - 1)
		wantShow(t, s.Snapshot(), "a:1=1[0]! b:1=2[0]!")
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		wantShow(t, s.Snapshot(), "b:1=2[0]!")
		register(t, s, worker(2, 1, "http://b:1"))
		time.Sleep(DefaultTTL - 1)
		wantShow(t, s.Snapshot(), "b:1=2[0]!")
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		wantShow(t, s.Snapshot(), "")
		if s.timer != nil || len(s.byID)+len(s.byURL) != 0 {
			t.Errorf("timer %v, %d and %d entries", s.timer, len(s.byID), len(s.byURL))
		}
		register(t, s, worker(3, 1, "http://c:1")) // the timer starts again
		time.Sleep(DefaultTTL)
		synctest.Wait()
		wantShow(t, s.Snapshot(), "")
	})
}

// A pause of the registry itself ends no lease.
func TestPauseEndsNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		register(t, s, worker(1, 1, "http://a:1"))
		time.Sleep(DefaultTTL - time.Millisecond)
		s.mu.Lock()
		s.due = s.due.Add(-DefaultTTL) // as if the timer had come a whole lease too late
		s.mu.Unlock()
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if v := s.Snapshot(); show(v) != "a:1=1[0]!" || v.Settled {
			t.Errorf("%s, settled %t", show(v), v.Settled)
		}
		time.Sleep(DefaultTTL)
		synctest.Wait()
		if v := s.Snapshot(); show(v) != "" || !v.Settled {
			t.Errorf("%s, settled %t", show(v), v.Settled)
		}
	})
}

// A registration replaces by identity and is never counted twice; an instance is ready when all ranks of one incarnation are there.
func TestRanksOfOneIncarnation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		part := func(id byte, n int, free int, present ...int) Instance {
			i := worker(id, n, "http://a:1")
			i.Ranks, i.Present, i.Load.FreePages = 3, present, free
			return i
		}
		for _, v := range []struct {
			i    Instance
			want string
			err  error
		}{
			{part(1, 1, 9, 0), "a:1=1[0]", nil},
			{part(1, 1, 9, 0), "a:1=1[0]", nil},
			{part(1, 1, 9, 2), "a:1=1[0 2]", nil},
			{part(1, 1, 9, 1, 2), "a:1=1[0 1 2]!", nil},
			{part(2, 2, 9, 0), "a:1=2[0]", nil},           // restarted: nothing of the old one counts
			{part(1, 1, 9, 1), "a:1=2[0]", ErrSuperseded}, // a late word of the old one
			{part(9, 1, 9, 1), "a:1=2[0]", ErrSuperseded}, // whoever started earlier
			{part(1, 2, 9, 1), "a:1=2[0]", ErrSuperseded}, // at the same time: the ID decides
			{part(2, 2, 4, 1), "a:1=2[0 1]", nil},
			{part(2, 2, 7, 2), "a:1=2[0 1 2]!", nil},
			{part(3, 2, 5), "a:1=3[0 1 2]!", nil},
			{part(3, 2, 5, 3), "a:1=3[0 1 2]!", ErrInvalid},
			{part(3, 2, 5, 1, 1), "a:1=3[0 1 2]!", ErrInvalid},
		} {
			if _, err := s.Register(v.i); !errors.Is(err, v.err) {
				t.Errorf("%d %v: %v, want %v", v.i.ID[0], v.i.Present, err, v.err)
			}
			wantShow(t, s.Snapshot(), v.want)
		}
		for _, change := range []func(*Instance){
			func(i *Instance) { i.URL = "http://b:1" }, func(i *Instance) { i.Side = room.Prefill }, func(i *Instance) { i.Ranks = 4 },
			func(i *Instance) { i.Started = i.Started.Add(1) }, func(i *Instance) { i.Model = "other" },
		} {
			i := part(3, 2, 5)
			change(&i)
			if _, err := s.Register(i); !errors.Is(err, ErrInvalid) {
				t.Errorf("%+v: %v", i, err)
			}
		}
		register(t, s, part(3, 2, 2, 1))
		drains := part(3, 2, 4, 2)
		drains.Draining = true
		register(t, s, drains)
		v := s.Snapshot().Instances[0]
		if v.Load.FreePages != 2 || !v.Draining || v.Usable() || !v.Ready() {
			t.Errorf("%+v", v)
		}
		time.Sleep(2 * time.Second)
		register(t, s, part(3, 2, 2, 0, 1))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		wantShow(t, s.Snapshot(), "a:1=3[0 1]") // a rank whose lease ended is missing
		if err := s.Leave(room.InstanceID{3}); err != nil {
			t.Error(err)
		}
		if err := s.Leave(room.InstanceID{3}); !errors.Is(err, ErrNotFound) {
			t.Error(err)
		}
		wantShow(t, s.Snapshot(), "")
		if len(s.byID)+len(s.byURL) != 0 {
			t.Errorf("%d and %d entries", len(s.byID), len(s.byURL))
		}
	})
}

// Watchers see every change of substance and nothing else.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		ctx, cancel := context.WithCancel(t.Context())
		var seen []string
		var last Snapshot
		done := make(chan error)
		go func() {
			done <- s.Watch(ctx, func(v Snapshot) {
				if v.Revision <= last.Revision {
					t.Errorf("revision %d after %d", v.Revision, last.Revision)
				}
				last = v
				seen = append(seen, show(v))
			})
		}()
		synctest.Wait()
		i := worker(1, 1, "http://a:1")
		for range 3 { // keep-alives with nothing new
			register(t, s, i)
			synctest.Wait()
		}
		i.Draining = true
		register(t, s, i)
		synctest.Wait()
		time.Sleep(DefaultTTL) // expires, and the registry has settled
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if want := []string{"", "a:1=1[0]!", "a:1=1[0]", ""}; !reflect.DeepEqual(seen, want) || !last.Settled {
			t.Errorf("%q, want %q; settled %t", seen, want, last.Settled)
		}
		go func() { done <- s.Watch(t.Context(), func(Snapshot) {}) }()
		synctest.Wait()
		s.Close()
		s.Close()
		if err := <-done; !errors.Is(err, ErrUnavailable) {
			t.Error(err)
		}
		if _, err := s.Register(i); !errors.Is(err, ErrUnavailable) {
			t.Error(err)
		}
		if err := s.Leave(i.ID); !errors.Is(err, ErrUnavailable) {
			t.Error(err)
		}
	})
}

func TestStoreBounds(t *testing.T) {
	if _, err := NewStore(time.Millisecond); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	s := newStore(t)
	for n := range maxInstances {
		i := worker(1, 1, fmt.Sprintf("http://a:%d", n+1))
		i.ID = room.InstanceID{1, byte(n), byte(n >> 8)}
		register(t, s, i)
	}
	_, err := s.Register(worker(2, 1, "http://b:1"))
	if !errors.Is(err, ErrFull) || statusOf(err) != http.StatusTooManyRequests {
		t.Error(err)
	}
	register(t, s, worker(2, 2, "http://a:7")) // one that takes another's place needs none
	body, err := json.Marshal(s.Snapshot())
	if err != nil || len(body) > maxAnswer {
		t.Errorf("%d bytes, %v", len(body), err)
	}
	for name, change := range map[string]func(*Instance){
		"id":          func(i *Instance) { i.ID = room.InstanceID{} },
		"side":        func(i *Instance) { i.Side = room.Gateway },
		"url":         func(i *Instance) { i.URL = "ftp://a" },
		"slash":       func(i *Instance) { i.URL += "/" },
		"bootstrap":   func(i *Instance) { i.Bootstrap = "here" },
		"model":       func(i *Instance) { i.Model = strings.Repeat("m", 257) },
		"unhealthy":   func(i *Instance) { i.Unhealthy = strings.Repeat("m", 257) },
		"ranks":       func(i *Instance) { i.Ranks = maxRanks + 1 },
		"no negative": func(i *Instance) { i.Load.FreePages = -1 },
	} {
		i := worker(3, 1, "http://c:1")
		change(&i)
		if _, err := s.Register(i); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Every refusal of the served store, with its status.
func TestStoreHTTPRefusals(t *testing.T) {
	s := newStore(t)
	register(t, s, worker(5, 5, "http://a:1"))
	h := s.Handler("secret")
	body := func(i Instance) string {
		b, err := json.Marshal(i)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	id := func(n byte) string { return InstancesPath + "/" + room.InstanceID{n}.String() }
	for _, v := range []struct {
		method, path, body, token string
		status                    int
		text                      string
	}{
		{"PUT", id(1), body(worker(1, 1, "http://b:1")), "Bearer secret", 200, `"ttl_ns":3000000000`},
		{"PUT", id(1), body(worker(1, 1, "http://b:1")), "bearer secret", 200, ``},
		{"PUT", id(1), body(worker(1, 1, "http://b:1")), "", 401, `token`},
		{"PUT", id(1), body(worker(1, 1, "http://b:1")), "Bearer secre", 401, ``},
		{"PUT", id(1), body(worker(1, 1, "http://b:1")), "Basic secret", 401, ``},
		{"DELETE", id(1), "", "Bearer ", 401, ``},
		{"PUT", id(2), body(worker(1, 1, "http://b:1")), "Bearer secret", 400, `path names`},
		{"PUT", InstancesPath + "/xyz", "{}", "Bearer secret", 400, `32 hexadecimal digits`},
		{"PUT", id(1), "{", "Bearer secret", 400, `unexpected end`},
		{"PUT", id(1), strings.Repeat(" ", maxInstanceBody+1), "Bearer secret", 413, `65536 bytes`},
		{"PUT", id(1), body(worker(1, 1, "http://a:1")), "Bearer secret", 400, `registered with`},
		{"PUT", id(4), body(worker(4, 4, "http://a:1")), "Bearer secret", 409, `another incarnation`},
		{"DELETE", id(7), "", "Bearer secret", 404, ``},
		{"DELETE", id(1), "", "Bearer secret", 200, ``},
		{"GET", InstancesPath, "", "", 200, `"side":"decode"`},
		{"GET", InstancesPath + "?after=x", "", "", 400, `"x", want a revision`},
		{"GET", InstancesPath + "?wait_ms=-1", "", "", 400, `milliseconds`},
		{"GET", InstancesPath + "?registry=5", "", "", 400, `32 hexadecimal digits`},
		{"POST", InstancesPath, "", "", 405, ``},
	} {
		w := serve(h, v.method, v.path, v.body, v.token)
		if w.Code != v.status || !strings.Contains(w.Body.String(), v.text) {
			t.Errorf("%s %s %.60s %q: %d %s, want %d %s", v.method, v.path, v.body, v.token, w.Code, w.Body, v.status, v.text)
		}
	}
	if w := serve(s.Handler(""), "DELETE", id(5), "", ""); w.Code != 200 {
		t.Errorf("without a token to ask for: %d %s", w.Code, w.Body)
	}
	s.Close()
	if w := serve(h, "GET", InstancesPath, "", ""); w.Code != 503 {
		t.Errorf("closed: %d %s", w.Code, w.Body)
	}
}

func TestWatchersBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		h := s.Handler("")
		path := InstancesPath + "?after=99&wait_ms=60000&registry=" + s.life.String()
		codes := make(chan int)
		start := time.Now()
		for range maxWatchers {
			go func() { codes <- serve(h, "GET", path, "", "").Code }()
		}
		synctest.Wait()
		if w := serve(h, "GET", path, "", ""); w.Code != http.StatusTooManyRequests {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		for range maxWatchers {
			if c := <-codes; c != 200 {
				t.Errorf("%d", c)
			}
		}
		if d := time.Since(start); d != maxWait {
			t.Errorf("waited %v", d)
		}
	})
}

func TestPresentInJSON(t *testing.T) {
	i, err := worker(1, 1, "http://a:1").normal()
	if err != nil {
		t.Fatal(err)
	}
	i.Ranks = 3
	for _, present := range [][]int{{0, 1, 2}, {0, 2}} {
		i.Present = present
		b, err := json.Marshal(i)
		if err != nil || strings.Contains(string(b), "present") == (len(present) == 3) {
			t.Errorf("%s, %v", b, err)
		}
		back, err := ParseInstance(b)
		if err != nil || !slices.Equal(back.Present, present) || back.Side != i.Side {
			t.Errorf("%+v, %v", back, err)
		}
	}
}
