package zmtp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(benchRole); role != "" {
		if err := benchPeer(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// hang bounds what must not take long; no test asserts less.
const hang = 30 * time.Second

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	t.Cleanup(cancel)
	return ctx
}

// events collects what a socket tells.
type events struct {
	mu   sync.Mutex
	all  []ConnEvent
	more chan struct{}
}

func (e *events) add(ev ConnEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, ev)
	if e.more != nil {
		close(e.more)
		e.more = nil
	}
}

// next waits for the first event from *from on that matches, and moves *from behind it.
func (e *events) next(t testing.TB, from *int, kind EventKind, cause error) ConnEvent {
	t.Helper()
	guard := time.NewTimer(hang)
	defer guard.Stop()
	for {
		e.mu.Lock()
		for i := *from; i < len(e.all); i++ {
			if ev := e.all[i]; ev.Kind == kind && (cause == nil || errors.Is(ev.Cause, cause)) {
				*from = i + 1
				e.mu.Unlock()
				return ev
			}
		}
		if e.more == nil {
			e.more = make(chan struct{})
		}
		more := e.more
		e.mu.Unlock()
		select {
		case <-more:
		case <-guard.C:
			e.mu.Lock()
			defer e.mu.Unlock()
			t.Fatalf("no event %v with cause %v from %d on: %+v", kind, cause, *from, e.all)
		}
	}
}

func listen(t testing.TB, cfg Config) *Pull {
	t.Helper()
	p, err := Listen(testContext(t), "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// dial makes a Push that is cut off at the end of the test, if the test did not close it.
func dial(t testing.TB, endpoint string, cfg Config) *Push {
	t.Helper()
	p, err := Dial(endpoint, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, _ = p.Close(ctx) // what is dropped here is the test's business
	})
	return p
}
