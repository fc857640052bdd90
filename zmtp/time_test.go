package zmtp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestReconnectBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var at []time.Time
		push := dial(t, "tcp://10.0.0.1:1", Config{DialConn: func(context.Context, string, string) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			at = append(at, time.Now())
			return nil, syscall.ECONNREFUSED
		}})
		time.Sleep(3 * time.Second)
		_, _ = push.Close(t.Context()) // nothing was queued
		mu.Lock()
		defer mu.Unlock()
		if len(at) < 12 {
			t.Fatalf("%d attempts in 3 s", len(at))
		}
		exact := 0
		for i, want := range []int{20, 40, 80, 160, 250, 250, 250, 250, 250, 250} {
			d, limit := at[i+1].Sub(at[i]), time.Duration(want)*time.Millisecond
			if d > limit || d < limit/2-1 {
				t.Errorf("pause %d is %v, want %v to %v", i, d, limit/2, limit)
			}
			if d == limit {
				exact++
			}
		}
		if exact == 10 {
			t.Error("no jitter")
		}
	})
}

func TestDialTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ev events
		var from int
		start := time.Now()
		dial(t, "tcp://10.0.0.1:1", Config{Events: ev.add, DialConn: func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, &net.OpError{Op: "dial", Err: ctx.Err()}
		}})
		ev.next(t, &from, DialFailed, ErrDialTimeout)
		if d := time.Since(start); d != time.Second {
			t.Errorf("after %v, want 1 s", d)
		}
	})
}

func TestReconnectAtOnceAfterALastingConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n memNet
		var ev events
		var from int
		pull := listen(t, n.config(Config{}))
		dial(t, "tcp://10.0.0.1:1", n.config(Config{Events: ev.add}))
		for _, lasts := range []time.Duration{10 * time.Second, time.Millisecond} {
			up := ev.next(t, &from, Up, nil)
			time.Sleep(lasts)
			pull.Peers()[0].Disconnect()
			ev.next(t, &from, Down, ErrPeerClosed)
			down := time.Now()
			from0 := from
			if next := ev.next(t, &from0, Up, nil); next.Peer == up.Peer {
				t.Fatal("the same peer")
			}
			if d := time.Since(down); lasts == 10*time.Second && d != 0 || lasts < time.Second && d == 0 {
				t.Errorf("a connection that lasted %v: again after %v", lasts, d)
			}
		}
	})
}

// rawPull makes a Pull and a raw PUSH that is up.
func rawPull(t *testing.T, n *memNet, cfg Config, minor byte, props Properties) (*Pull, *raw) {
	t.Helper()
	pull := listen(t, n.config(cfg))
	c, err := n.dial(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	r := newRaw(t, c)
	r.handshake(minor, typePush, props)
	return pull, r
}

func TestPingOnSilence(t *testing.T) {
	for _, c := range []struct {
		minor byte
		talks bool
		want  int
	}{{minor: 1, want: 10}, {minor: 0, want: 0}, {minor: 1, talks: true, want: 0}} {
		t.Run(fmt.Sprintf("3.%d talks %v", c.minor, c.talks), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n memNet
				_, r := rawPull(t, &n, Config{}, c.minor, nil)
				pings := make(chan int)
				go func() {
					count := 0
					for {
						name, data := r.command()
						if name == "" {
							pings <- count
							return
						}
						if name != cmdPing || len(data) != 2 || data[0] != 0 || data[1] != 0 {
							t.Errorf("%s %x", name, data)
						}
						count++
					}
				}()
				for range 31 {
					time.Sleep(100 * time.Millisecond)
					if c.talks {
						r.send(appendCommand(nil, cmdPong, nil))
					}
				}
				_ = r.Close() // ends the reader above
				if got := <-pings; got != c.want {
					t.Errorf("%d PINGs in 3.1 s, want %d", got, c.want)
				}
			})
		})
	}
}

func TestPingIsAnsweredWithFullQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n memNet
		pull, r := rawPull(t, &n, Config{PingInterval: -1, Limits: Limits{QueueMessages: 10}}, 1, nil)
		for i := range 100 {
			r.send(appendMessage(nil, frames(strconv.Itoa(i))))
		}
		go r.send(appendCommand(nil, cmdPing, []byte{0, 9, 'c', 't', 'x'}))
		if name, data := r.command(); name != cmdPong || string(data) != "ctx" {
			t.Errorf("%s %q", name, data)
		}
		for i := range 100 {
			if m, err := pull.Recv(t.Context()); err != nil || string(m.Frames[0]) != strconv.Itoa(i) {
				t.Fatalf("message %d: %q, %v", i, m.Frames, err)
			}
		}
	})
	t.Run("send queue", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var n memNet
			ln, err := n.listen(t.Context(), "", "")
			if err != nil {
				t.Fatal(err)
			}
			push := dial(t, "tcp://10.0.0.1:1", n.config(Config{PingInterval: -1, Limits: Limits{QueueMessages: 10}}))
			for push.TrySend([]byte("x")) == nil {
			}
			c, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			r := newRaw(t, c)
			r.handshake(1, typePull, nil)
			go r.send(appendCommand(nil, cmdPing, []byte{0, 9}))
			if name, _ := r.command(); name != cmdPong {
				t.Errorf("%s", name)
			}
		})
	})
}

// A PULL that has stopped reading still lets a peer of ours hear from it, and does not mistake its own silence for the peer's.
func TestPausedPullPingsPeersOfOurs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n memNet
		pull, r := rawPull(t, &n, Config{Limits: Limits{QueueMessages: 10, ReadAhead: 1}}, 1, Properties{"X-Kvferry-Instance": "i"})
		go func() {
			for range 100 {
				r.send(appendMessage(nil, frames("x")))
			}
		}()
		for range 3 {
			if name, _ := r.command(); name != cmdPing {
				t.Errorf("%s", name)
			}
		}
		go r.drain() // as a kernel would take further PINGs
		synctest.Wait()
		if peers := pull.Peers(); len(peers) != 1 || !peers[0].Stats().Paused {
			t.Error("not paused")
		}
		for range 100 {
			if _, err := pull.Recv(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if pull.Peers()[0].Stats().Paused {
			t.Error("still paused")
		}
	})
}

func TestHandshakeTimeIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n memNet
		var ev events
		var from int
		listen(t, n.config(Config{Events: ev.add}))
		start := time.Now()
		c, err := n.dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		r := newRaw(t, c)
		go r.drain()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for _, b := range appendGreeting(nil) { // one byte per 100 ms: no single read is slow
				if _, err := r.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
		}()
		ev.next(t, &from, Rejected, ErrHandshakeTimeout)
		if d := time.Since(start); d != 5*time.Second {
			t.Errorf("after %v, want 5 s", d)
		}
		<-ended
	})
}

func TestDialerBoundsTheHandshakeToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n memNet
		var ev events
		var from int
		ln, err := n.listen(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		dial(t, "tcp://10.0.0.1:1", n.config(Config{Events: ev.add}))
		for _, c := range []struct {
			play func(*raw)
			want error
		}{
			{func(r *raw) { r.drain() }, ErrHandshakeTimeout},
			{func(r *raw) { _ = r.Close() }, ErrPeerClosed},
			{func(r *raw) { go r.drain(); r.send(appendReady(appendGreeting(nil), ready{typePush, nil})) }, ErrSocketType},
			{func(r *raw) { go r.drain(); r.send([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")) }, ErrProtocol},
			{func(r *raw) { go r.drain(); r.send(appendCommand(appendGreeting(nil), cmdError, []byte("\x02no"))) }, ErrPeerError},
			{func(r *raw) { go r.drain(); r.send(appendCommand(appendGreeting(nil), cmdPing, []byte{0, 0})) }, ErrProtocol},
			{func(r *raw) { go r.drain(); r.send(appendMessage(appendGreeting(nil), frames("x"))) }, ErrProtocol},
		} {
			conn, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			r := newRaw(t, conn)
			go c.play(r)
			if got := ev.next(t, &from, DialFailed, nil); !errors.Is(got.Cause, c.want) {
				t.Errorf("cause %v, want %v", got.Cause, c.want)
			}
			_ = r.Close() // by then the other side has
		}
	})
}

// A peer that stalls within a large message holds memory; when others need it, the one that has held it longest goes.
func TestStalledMessagesGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n memNet
		var ev events
		var from int
		limits := Limits{MaxFrame: 1 << 20, MaxMessage: 1<<20 + 1024, TotalBytes: 2 << 20}
		pull, first := rawPull(t, &n, Config{Events: ev.add, Limits: limits, PingInterval: -1}, 1, nil)
		firstUp := ev.next(t, &from, Up, nil)
		stall := func(r *raw) { r.send(append(longHeader(0, 1<<20), make([]byte, 1<<17)...)) }
		stall(first)
		var others []*raw
		for range 2 {
			time.Sleep(time.Second)
			c, err := n.dial(t.Context(), "", "")
			if err != nil {
				t.Fatal(err)
			}
			r := newRaw(t, c)
			r.handshake(1, typePush, nil)
			others = append(others, r)
		}
		stall(others[0])
		if _, used := pull.Queued(); used != 2<<20 {
			t.Fatalf("%d bytes reserved", used)
		}
		asked := time.Now()
		go func() {
			_, _ = others[1].Write(appendMessage(nil, [][]byte{make([]byte, 1<<20)})) // that it arrives is asserted below
		}()
		m, err := pull.Recv(t.Context())
		if err != nil || len(m.Frames[0]) != 1<<20 {
			t.Fatalf("%v", err)
		}
		if d := time.Since(asked); d != evictAfter {
			t.Errorf("after %v, want %v", d, evictAfter)
		}
		if down := ev.next(t, &from, Down, ErrEvicted); down.Peer != firstUp.Peer {
			t.Errorf("gave way: %d, want %d", down.Peer.ID(), firstUp.Peer.ID())
		}
		if _, used := pull.Queued(); used != 1<<20 {
			t.Errorf("%d bytes in use, want one stalled message's", used)
		}
	})
}

// A connection that fails within a message: what the kernel had not wholly taken comes again on the next one, and nothing twice.
func TestPartlyWrittenMessageIsSentAgainWhole(t *testing.T) {
	for _, cut := range []int{0, 1, 5, 6, 7, 11, 12, 100, 40_000, 40_021} {
		t.Run(strconv.Itoa(cut), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n memNet
				var ev events
				var from int
				hello := len(appendReady(appendGreeting(nil), ready{typePush, nil}))
				first := true
				cfg := n.config(Config{Events: ev.add, PingInterval: -1})
				cfg.DialConn = func(ctx context.Context, network, addr string) (net.Conn, error) {
					c, err := n.dial(ctx, network, addr)
					if err == nil && first {
						first = false
						c = &cutConn{Conn: c, left: hello + cut}
					}
					return c, err
				}
				push := dial(t, "tcp://10.0.0.1:1", cfg)
				sent := [][][]byte{frames("aaaa"), frames("bbbb"), {pattern(40_000)}, frames("cccc"), frames("dddd")}
				wire := 0
				whole := 0
				for _, f := range sent {
					if err := push.TrySend(f...); err != nil {
						t.Fatal(err)
					}
					if wire += len(appendMessage(nil, f)); wire <= cut {
						whole++
					}
				}
				pull := listen(t, n.config(Config{}))
				down := ev.next(t, &from, Down, nil)
				if got := int(down.Stats.MessagesOut); got != whole || int(down.Stats.BytesOut) != hello+cut {
					t.Errorf("%d messages and %d bytes out, want %d and %d", got, down.Stats.BytesOut, whole, hello+cut)
				}
				ev.next(t, &from, Up, nil)
				var got []Message
				for range sent {
					m, err := pull.Recv(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, m)
				}
				// Both connections have messages by now, and take turns.
				slices.SortStableFunc(got, func(a, b Message) int { return cmp.Compare(a.Peer.ID(), b.Peer.ID()) })
				if !slices.EqualFunc(got, sent, func(m Message, f [][]byte) bool { return equalFrames(m.Frames, f) }) {
					t.Error("the messages differ")
				}
				synctest.Wait()
				if m, b := push.Queued(); m != 0 || b != 0 {
					t.Errorf("%d messages, %d bytes still queued", m, b)
				}
			})
		})
	}
}

// cutConn takes so many bytes, and then fails.
type cutConn struct {
	net.Conn
	left int
}

func (c *cutConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b[:min(len(b), c.left)])
	c.left -= n
	if err == nil && n < len(b) {
		err = syscall.EPIPE
	}
	return n, err
}

func TestCloseIsBoundedAndCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n memNet
		ln, err := n.listen(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		push := dial(t, "tcp://10.0.0.1:1", n.config(Config{PingInterval: -1}))
		c, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		r := newRaw(t, c)
		r.handshake(1, typePull, nil) // and reads nothing more
		for range 7 {
			if err := push.TrySend([]byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		start := time.Now()
		if dropped, err := push.Close(ctx); dropped != 7 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("dropped %d, %v", dropped, err)
		}
		if d := time.Since(start); d != 2*time.Second {
			t.Errorf("after %v, want 2 s", d)
		}
	})
}

func TestConnectionsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n memNet
		pull, flood := rawPull(t, &n, Config{PingInterval: -1}, 1, nil)
		for range 100 {
			flood.send(appendMessage(nil, frames("flood")))
		}
		c, err := n.dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		quiet := newRaw(t, c)
		quiet.handshake(1, typePush, nil)
		quiet.send(appendMessage(nil, frames("quiet")))
		synctest.Wait()
		for i := range 2 {
			m, err := pull.Recv(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if string(m.Frames[0]) == "quiet" {
				return
			}
			if i == 1 {
				t.Error("the quiet connection waits for the whole flood")
			}
		}
	})
}
