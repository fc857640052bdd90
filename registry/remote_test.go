package registry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/room"
)

func serve(h http.Handler, method, path, body, auth string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if auth != "" {
		r.Header.Set("Authorization", auth)
	}
	h.ServeHTTP(w, r)
	return w
}

// keeper runs Keep until it is stopped.
type keeper struct {
	stop context.CancelFunc
	done chan error
}

func keep(ctx context.Context, r *Remote, state func() Instance) *keeper {
	ctx, cancel := context.WithCancel(ctx)
	k := &keeper{stop: cancel, done: make(chan error, 1)}
	go func() { k.done <- r.Keep(ctx, state) }()
	return k
}

// seen collects what a watcher is told.
type seen struct {
	mu   sync.Mutex
	list []Snapshot
}

func (s *seen) add(v Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, v)
}

func (s *seen) last() Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list) == 0 {
		return Snapshot{}
	}
	return s.list[len(s.list)-1]
}

// Workers keep their leases, the registry restarts, a worker that died meanwhile goes, one that lives is never missed, all leave.
func TestKeepAndWatchOverARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		s := newStore(t)
		net.up("reg:1", s.Handler("secret"))
		var log bytes.Buffer
		r := &Remote{URL: "http://reg:1/", Token: "secret", HTTP: net.http, Log: slog.New(slog.NewTextHandler(&log, nil))}
		var a, b *keeper
		draining := atomic.Bool{}
		a = keep(t.Context(), r, func() Instance {
			i := worker(1, 1, "http://a:1")
			i.Draining = draining.Load()
			return i
		})
		b = keep(t.Context(), &Remote{URL: r.URL, Token: r.Token, HTTP: r.HTTP}, func() Instance { return worker(2, 1, "http://b:1") })
		ctx, cancel := context.WithCancel(t.Context())
		var got seen
		watched := make(chan error)
		go func() { watched <- r.Watch(ctx, got.add) }()

		time.Sleep(time.Minute)
		wantShow(t, got.last(), "a:1=1[0]! b:1=2[0]!")
		if n := len(got.list); n > 4 {
			t.Errorf("%d snapshots though nothing happened", n)
		}

		net.down("reg:1")
		s.Close()
		b.stop()
		if err := <-b.done; err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Second)
		wantShow(t, got.last(), "a:1=1[0]! b:1=2[0]!") // the last one stands
		before := len(got.list)
		s = newStore(t)
		net.up("reg:1", s.Handler("secret"))
		time.Sleep(2 * time.Second)
		wantShow(t, s.Snapshot(), "a:1=1[0]!")
		wantShow(t, got.last(), "a:1=1[0]! b:1=2[0]!") // not settled
		time.Sleep(2 * time.Second)
		wantShow(t, got.last(), "a:1=1[0]!")
		for _, v := range got.list[before:] {
			if !strings.Contains(show(v), "a:1=1[0]!") {
				t.Errorf("a was missed: %q", show(v))
			}
		}

		draining.Store(true)
		time.Sleep(2 * time.Second)
		wantShow(t, got.last(), "a:1=1[0]")
		a.stop()
		if err := <-a.done; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		wantShow(t, got.last(), "") // at once, not when the lease ends
		cancel()
		if err := <-watched; err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), "does not answer"); n != 2 || strings.Count(log.String(), "answers again") != 2 {
			t.Errorf("one line for each outage and user, and one for its end: %s", &log)
		}
	})
}

// What the registry refuses for good ends the loops with the reason.
func TestKeepEndsWhenRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		s := newStore(t)
		net.up("reg:1", s.Handler("secret"))
		good := &Remote{URL: "http://reg:1", Token: "secret", HTTP: net.http}
		if err := (&Remote{URL: good.URL, Token: "wrong", HTTP: net.http}).Keep(t.Context(), func() Instance { return worker(1, 1, "http://a:1") }); !errors.Is(err, ErrDenied) {
			t.Error(err)
		}
		if err := good.Keep(t.Context(), func() Instance { return Instance{} }); !errors.Is(err, ErrInvalid) {
			t.Error(err)
		}
		old := keep(t.Context(), good, func() Instance { return worker(1, 1, "http://a:1") })
		time.Sleep(5 * time.Second)
		next := keep(t.Context(), good, func() Instance { return worker(2, 2, "http://a:1") })
		if err := <-old.done; !errors.Is(err, ErrSuperseded) {
			t.Error(err)
		}
		time.Sleep(5 * time.Second)
		wantShow(t, s.Snapshot(), "a:1=2[0]!")
		next.stop()
		if err := <-next.done; err != nil {
			t.Error(err)
		}
		wantShow(t, s.Snapshot(), "")
		if _, err := good.Register(t.Context(), worker(1, 1, "http://a:1")); err != nil {
			t.Error(err)
		}
		if err := good.Leave(t.Context(), room.InstanceID{1}); err != nil {
			t.Error(err)
		}
		if err := good.Leave(t.Context(), room.InstanceID{1}); !errors.Is(err, ErrNotFound) {
			t.Error(err)
		}
		if err := (&Remote{URL: "http://reg:1/else", HTTP: net.http}).Leave(t.Context(), room.InstanceID{1}); !errors.Is(err, ErrNotFound) {
			t.Error(err)
		}
	})
}

// A registry that accepts and then says nothing costs the worker nothing but its lease, and is found again.
func TestKeepSurvivesASilentRegistry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newMemnet(t)
		s := newStore(t)
		h := s.Handler("")
		silent := atomic.Bool{}
		net.up("reg:1", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if silent.Load() {
				_, _ = io.Copy(io.Discard, r.Body) // only then the server notices that the client leaves
				<-r.Context().Done()
				return
			}
			h.ServeHTTP(w, r)
		}))
		r := &Remote{URL: "http://reg:1", HTTP: net.http}
		k := keep(t.Context(), r, func() Instance { return worker(1, 1, "http://a:1") })
		time.Sleep(10 * time.Second)
		wantShow(t, s.Snapshot(), "a:1=1[0]!")
		silent.Store(true)
		time.Sleep(10 * time.Second)
		wantShow(t, s.Snapshot(), "")
		silent.Store(false)
		time.Sleep(3 * time.Second)
		wantShow(t, s.Snapshot(), "a:1=1[0]!")
		silent.Store(true)
		k.stop()
		start := time.Now()
		if err := <-k.done; err != nil || time.Since(start) > leaveTimeout {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// The same over real sockets.
func TestRemoteOverSockets(t *testing.T) {
	defer plain.CloseIdleConnections()
	s := newStore(t)
	server := httptest.NewUnstartedServer(nil)
	server.Config = NewServer(s.Handler("secret"))
	server.Start()
	defer server.Close()
	r := &Remote{URL: server.URL, Token: "secret"}
	ctx, cancel := context.WithCancel(t.Context())
	k := keep(ctx, r, func() Instance { return worker(1, 1, "http://a:1") })
	there, gone := make(chan struct{}), make(chan struct{})
	watched := make(chan error)
	wctx, wcancel := context.WithCancel(t.Context())
	go func() {
		up := false
		watched <- r.Watch(wctx, func(v Snapshot) {
			switch {
			case !up && show(v) == "a:1=1[0]!":
				up = true
				close(there)
			case up && show(v) == "":
				close(gone)
				wcancel()
			}
		})
	}()
	<-there
	cancel()
	if err := <-k.done; err != nil {
		t.Error(err)
	}
	<-gone
	if err := <-watched; err != nil {
		t.Error(err)
	}
}
