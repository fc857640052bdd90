package zmtp

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

type received struct {
	m   Message
	err error
}

// recv starts a Recv, which waits when it returns.
func recv(ctx context.Context, pull *Pull) <-chan received {
	got := make(chan received, 1)
	go func() {
		m, err := pull.Recv(ctx)
		got <- received{m, err}
	}()
	synctest.Wait()
	return got
}

func (q *inbox) isLent() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.hot != nil
}

// lentPull makes a Pull whose only connection is lent to its receiver.
func lentPull(t *testing.T, n *memNet, cfg Config) (*Pull, *raw) {
	t.Helper()
	pull, r := rawPull(t, n, cfg, 1, nil)
	for i := 0; !pull.inbox.isLent(); i++ {
		if i > 2*lendAfter {
			t.Fatal("the reading is not lent")
		}
		got := recv(t.Context(), pull)
		r.send(appendMessage(nil, frames(strconv.Itoa(i))))
		if g := <-got; g.err != nil || string(g.m.Frames[0]) != strconv.Itoa(i) {
			t.Fatalf("%q, %v", g.m.Frames, g.err)
		}
		synctest.Wait()
	}
	return pull, r
}

func TestLentReading(t *testing.T) {
	message := func(s ...string) []byte { return appendMessage(nil, frames(s...)) }
	expect := func(t *testing.T, got <-chan received, want ...string) {
		t.Helper()
		if g := <-got; g.err != nil || !equalFrames(g.m.Frames, frames(want...)) {
			t.Errorf("%q, %v, want %q", g.m.Frames, g.err, want)
		}
	}
	for name, play := range map[string]func(*testing.T, *memNet, *Pull, *raw, *events){
		"the receiver reads, and stays": func(t *testing.T, _ *memNet, pull *Pull, r *raw, _ *events) {
			for range 3 {
				got := recv(t.Context(), pull)
				r.send(message("a", "", "b"))
				expect(t, got, "a", "", "b")
				if !pull.inbox.isLent() {
					t.Error("given back after a whole small message")
				}
			}
		},
		"several in one read": func(t *testing.T, _ *memNet, pull *Pull, r *raw, _ *events) {
			got := recv(t.Context(), pull)
			r.send(append(message("a"), append(appendCommand(nil, cmdPong, nil), message("b")...)...))
			expect(t, got, "a")
			expect(t, recv(t.Context(), pull), "b")
		},
		"PING is answered by the receiver": func(t *testing.T, _ *memNet, pull *Pull, r *raw, _ *events) {
			got := recv(t.Context(), pull)
			r.send(appendCommand(nil, cmdPing, []byte{0, 0, 'r'}))
			if name, data := r.command(); name != cmdPong || string(data) != "r" {
				t.Errorf("%s %q", name, data)
			}
			r.send(message("a"))
			expect(t, got, "a")
		},
		"PING is answered without a receiver": func(t *testing.T, _ *memNet, pull *Pull, r *raw, _ *events) {
			start := time.Now()
			r.send(appendCommand(nil, cmdPing, []byte{0, 0}))
			if name, _ := r.command(); name != cmdPong {
				t.Errorf("%s", name)
			}
			if d := time.Since(start); d > 2*lendCheck || pull.inbox.isLent() {
				t.Errorf("after %v, lent %v", d, pull.inbox.isLent())
			}
		},
		"a message in pieces": func(t *testing.T, _ *memNet, pull *Pull, r *raw, _ *events) {
			for cut := 1; cut < 9; cut++ {
				got := recv(t.Context(), pull)
				m := message("abc", "def")
				r.send(m[:cut])
				synctest.Wait()
				r.send(m[cut:])
				expect(t, got, "abc", "def")
			}
		},
		"a large message": func(t *testing.T, _ *memNet, pull *Pull, r *raw, _ *events) {
			got := recv(t.Context(), pull)
			want := string(pattern(100_000))
			r.send(message("a", want))
			expect(t, got, "a", want)
		},
		"another connection delivers": func(t *testing.T, n *memNet, pull *Pull, r *raw, _ *events) {
			c, err := n.dial(t.Context(), "", "")
			if err != nil {
				t.Fatal(err)
			}
			other := newRaw(t, c)
			other.handshake(1, typePush, nil)
			got := recv(t.Context(), pull)
			other.send(message("other"))
			expect(t, got, "other")
			got = recv(t.Context(), pull)
			r.send(message("first"))
			expect(t, got, "first")
		},
		"the receiver gives up": func(t *testing.T, _ *memNet, pull *Pull, r *raw, _ *events) {
			ctx, cancel := context.WithCancel(t.Context())
			got := recv(ctx, pull)
			cancel()
			if g := <-got; !errors.Is(g.err, context.Canceled) {
				t.Errorf("%v", g.err)
			}
			got = recv(t.Context(), pull)
			r.send(message("a"))
			expect(t, got, "a")
		},
		"two receivers": func(t *testing.T, _ *memNet, pull *Pull, r *raw, _ *events) {
			one, two := recv(t.Context(), pull), recv(t.Context(), pull)
			r.send(message("a"))
			r.send(message("b"))
			if a, b := <-one, <-two; a.err != nil || b.err != nil || string(a.m.Frames[0])+string(b.m.Frames[0]) == "aa" {
				t.Errorf("%v, %v", a, b)
			}
		},
		"the peer goes": func(t *testing.T, _ *memNet, pull *Pull, r *raw, ev *events) {
			got := recv(t.Context(), pull)
			var from int
			_ = r.Close() // a pipe's close does not fail
			ev.next(t, &from, Down, ErrPeerClosed)
			if _, err := pull.Close(); err != nil {
				t.Error(err)
			}
			if g := <-got; !errors.Is(g.err, ErrClosed) {
				t.Errorf("%v", g.err)
			}
		},
		"nonsense comes": func(t *testing.T, _ *memNet, pull *Pull, r *raw, ev *events) {
			recv(t.Context(), pull)
			var from int
			r.send(append(message("a"), 0x88))
			ev.next(t, &from, Down, ErrProtocol)
		},
		"a bad command comes": func(t *testing.T, _ *memNet, pull *Pull, r *raw, ev *events) {
			recv(t.Context(), pull)
			var from int
			r.send(appendCommand(nil, cmdPing, nil))
			ev.next(t, &from, Down, ErrTruncated)
			_, err := pull.Close()
			if err != nil {
				t.Error(err)
			}
		},
		"closed while reading": func(t *testing.T, _ *memNet, pull *Pull, _ *raw, _ *events) {
			got := recv(t.Context(), pull)
			if _, err := pull.Close(); err != nil {
				t.Error(err)
			}
			if g := <-got; !errors.Is(g.err, ErrClosed) {
				t.Errorf("%v", g.err)
			}
		},
		"closed while nobody reads": func(t *testing.T, _ *memNet, pull *Pull, _ *raw, _ *events) {
			if _, err := pull.Close(); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n memNet
				var ev events
				pull, r := lentPull(t, &n, Config{Events: ev.add, PingInterval: -1})
				play(t, &n, pull, r, &ev)
			})
		})
	}
}

// Ping-pong over real sockets, with receivers that give up, and senders in the way: nothing is lost, whoever reads and writes.
func TestPingPongUnderDisturbance(t *testing.T) {
	ctx := testContext(t)
	a, b := listen(t, Config{PingInterval: time.Millisecond}), listen(t, Config{PingInterval: time.Millisecond})
	toA, toB := dial(t, a.Endpoint(), Config{PingInterval: time.Millisecond}), dial(t, b.Endpoint(), Config{PingInterval: time.Millisecond})
	noise := dial(t, a.Endpoint(), Config{})
	const trips, extra = 3000, 300
	var wg sync.WaitGroup
	wg.Go(func() {
		for range trips {
			m, err := b.Recv(ctx)
			if err == nil {
				err = toA.Send(ctx, m.Frames...)
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	wg.Go(func() {
		for range extra {
			if err := noise.Send(ctx, []byte("noise")); err != nil {
				t.Error(err)
			}
			time.Sleep(200 * time.Microsecond)
		}
	})
	heard := 0
	next := func() string {
		for {
			short, cancel := context.WithTimeout(ctx, 100*time.Microsecond)
			m, err := a.Recv(short)
			cancel()
			switch {
			case err == nil && string(m.Frames[0]) == "noise":
				heard++
			case err == nil:
				return string(m.Frames[0])
			case ctx.Err() != nil:
				t.Fatal(ctx.Err())
			}
		}
	}
	for i := range trips {
		if err := toB.Send(ctx, []byte(strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
		if got := next(); got != strconv.Itoa(i) {
			t.Fatalf("trip %d: got %s", i, got)
		}
	}
	wg.Wait()
	for heard < extra {
		if m, err := a.Recv(ctx); err != nil || string(m.Frames[0]) != "noise" {
			t.Fatalf("%d of %d: %q, %v", heard, extra, m.Frames, err)
		}
		heard++
	}
}
