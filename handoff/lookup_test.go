package handoff

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvferry/kvferry/kvlayout"
	"github.com/kvferry/kvferry/registry"
)

// A bootstrap server that breaks connections, or stalls, is asked again; one that says no, or is not there, is not.
func TestLookupAsksAgainWhatMayPass(t *testing.T) {
	stall := make(chan struct{})
	for _, c := range []struct {
		name  string
		first func(http.ResponseWriter)
		again bool
	}{
		{"reset", func(w http.ResponseWriter) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}, true},
		{"stall", func(http.ResponseWriter) { <-stall }, true},
		{"not ready", func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) }, true},
		{"refused", func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadRequest) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var asked atomic.Int64
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if asked.Add(1) <= 2 {
					c.first(w)
					return
				}
				w.WriteHeader(http.StatusBadRequest) // an answer ends it
			}))
			t.Cleanup(s.Close)
			if c.name == "stall" {
				t.Cleanup(func() { close(stall) }) // before the server is closed, which waits for it
			}
			l := Lookup{Client: registry.Client{HTTP: s.Client(), Timeout: 50 * time.Millisecond}}
			_, err := l.Find(t.Context(), 1, Peer{Bootstrap: strings.TrimPrefix(s.URL, "http://")}, kvlayout.Geometry{})
			if !errors.Is(err, registry.ErrInvalid) || (asked.Load() > 2) != c.again {
				t.Errorf("asked %d times, %v", asked.Load(), err)
			}
		})
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close() // nobody listens there now
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := new(Lookup).Find(ctx, 1, Peer{Bootstrap: l.Addr().String()}, kvlayout.Geometry{}); !errors.Is(err, registry.ErrUnavailable) || ctx.Err() != nil {
		t.Errorf("nobody there: %v", err)
	}
}
