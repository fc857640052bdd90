package zmtp

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strconv"
	"testing"
	"time"
)

// attack connects and writes until the connection ends; it returns what a client sees.
func attack(t testing.TB, pull *Pull, in io.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", pull.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }() // the Pull has closed it
	if err := c.SetDeadline(time.Now().Add(hang)); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(c, in) }() // fails when the Pull closes
	_, err = io.Copy(io.Discard, c)
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		t.Error("the Pull keeps the connection")
	}
}

// serves checks that a Push gets through.
func serves(t testing.TB, pull *Pull) {
	t.Helper()
	ctx := testContext(t)
	push := dial(t, pull.Endpoint(), Config{})
	for i := range 10 {
		want := []byte(strconv.Itoa(i))
		if err := push.Send(ctx, want); err != nil {
			t.Fatal(err)
		}
		if m, err := pull.Recv(ctx); err != nil || !bytes.Equal(m.Frames[0], want) {
			t.Fatalf("message %d: %q, %v", i, m.Frames, err)
		}
	}
	if dropped, err := push.Close(ctx); dropped != 0 || err != nil {
		t.Errorf("Close: %d, %v", dropped, err)
	}
}

// endless repeats its bytes.
type endless struct {
	b  []byte
	at int
}

func (e *endless) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		m := copy(p[n:], e.b[e.at:])
		n += m
		e.at = (e.at + m) % len(e.b)
	}
	return n, nil
}

func TestHostileBytes(t *testing.T) {
	hello := appendReady(appendGreeting(nil), ready{typePush, nil})
	after := func(b ...byte) io.Reader { return io.MultiReader(bytes.NewReader(hello), bytes.NewReader(b)) }
	noise := make([]byte, 1<<16)
	rnd := rand.NewChaCha8([32]byte{1})
	_, _ = rnd.Read(noise) // it does not fail
	noise[0] = 0
	likely := append([]byte{0xff}, noise...)
	likely[9] = 0
	for _, c := range []struct {
		name string
		in   io.Reader
		kind EventKind
		want error
	}{
		{"HTTP", bytes.NewReader([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")), Rejected, ErrProtocol},
		{"TLS hello", bytes.NewReader([]byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}), Rejected, ErrProtocol},
		{"random bytes", bytes.NewReader(noise), Rejected, ErrProtocol},
		{"random bytes after 0xff", bytes.NewReader(likely), Rejected, ErrProtocol},
		{"1 TiB READY", bytes.NewReader(append(appendGreeting(nil), longHeader(flagCommand, 1<<40)...)), Rejected, ErrLimit},
		{"message before READY", bytes.NewReader(append(appendGreeting(nil), 0, 0)), Rejected, ErrProtocol},
		{"PULL to PULL", bytes.NewReader(appendReady(appendGreeting(nil), ready{typePull, nil})), Rejected, ErrSocketType},
		{"no socket type", bytes.NewReader(appendReady(appendGreeting(nil), ready{"", nil})), Rejected, ErrSocketType},
		{"2^63-1 bytes", after(longHeader(0, 1<<63-1)...), Down, ErrLimit},
		{"2^64-1 bytes", after(longHeader(flagMore, 1<<64-1)...), Down, ErrLimit},
		{"endless empty frames", io.MultiReader(bytes.NewReader(hello), &endless{b: []byte{flagMore, 0}}), Down, ErrLimit},
		{"endless frames", io.MultiReader(bytes.NewReader(hello), &endless{b: append([]byte{flagMore, 255}, make([]byte, 255)...)}), Down, ErrLimit},
		{"random bytes after READY", after(0xf8, 1, 2, 3), Down, ErrProtocol},
		{"READY twice", io.MultiReader(bytes.NewReader(hello), bytes.NewReader(hello[greetingLen:])), Down, ErrProtocol},
	} {
		t.Run(c.name, func(t *testing.T) {
			var ev events
			var from int
			pull := listen(t, Config{Events: ev.add})
			attack(t, pull, c.in)
			ev.next(t, &from, c.kind, c.want)
			serves(t, pull)
			if n, used := pull.Queued(); n != 0 || used != 0 {
				t.Errorf("%d messages, %d bytes left behind", n, used)
			}
		})
	}
}

// connectRaw connects and writes once.
func connectRaw(t testing.TB, pull *Pull, b []byte) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", pull.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // it may be closed already
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestSilentConnections(t *testing.T) {
	var ev events
	var from int
	pull := listen(t, Config{Events: ev.add, HandshakeTimeout: time.Second})
	for range 200 {
		connectRaw(t, pull, nil)
	}
	serves(t, pull)
	for range 200 - 128 {
		ev.next(t, &from, Rejected, ErrEvicted)
	}
	from = 0
	for range 100 { // some more made room for the Push
		ev.next(t, &from, Rejected, ErrHandshakeTimeout)
	}
	serves(t, pull)
}

func TestConnectionsAreBounded(t *testing.T) {
	var ev events
	var from int
	pull := listen(t, Config{Events: ev.add, Limits: Limits{MaxConns: 3}})
	hello := appendReady(appendGreeting(nil), ready{typePush, nil})
	var up []net.Conn
	for range 3 {
		up = append(up, connectRaw(t, pull, hello))
		ev.next(t, &from, Up, nil)
	}
	connectRaw(t, pull, nil)
	ev.next(t, &from, Rejected, ErrTooManyConns)
	if err := up[0].Close(); err != nil {
		t.Fatal(err)
	}
	ev.next(t, &from, Down, nil)
	connectRaw(t, pull, nil) // silent: gives way
	serves(t, pull)
}

// Peers that announce much and send little hold little.
func TestMemoryFollowsTheBytesSent(t *testing.T) {
	var ev events
	var from int
	pull := listen(t, Config{Events: ev.add})
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	const conns = 100
	for range conns {
		hello := appendReady(appendGreeting(nil), ready{typePush, nil})
		hello = appendMessage(hello, frames("up"))
		connectRaw(t, pull, append(hello, longHeader(flagMore, 60<<20)...))
		ev.next(t, &from, Up, nil)
		if _, err := pull.Recv(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all frames begun", func() bool { _, used := pull.Queued(); return used == conns*firstGrow })
	// 64 KiB for each frame, and buffers and stacks.
	if grown := int64(heap()) - int64(before); grown > conns*160<<10 {
		t.Errorf("%d connections that announced %d MiB hold %d KiB", conns, 60*conns, grown>>10)
	}
	serves(t, pull)
}

// A flood that nobody receives stops at the limits, and the rest of the port goes on.
func TestFloodIsBounded(t *testing.T) {
	const total = 4 << 20
	limits := Limits{MaxFrame: 1 << 20, MaxMessage: 2 << 20, QueueMessages: 100, QueueBytes: 2 << 20, ReadAhead: 64 << 10, TotalBytes: total}
	var ev events
	pull := listen(t, Config{Events: ev.add, Limits: limits, PingInterval: 20 * time.Millisecond})
	for range 8 {
		push := dial(t, pull.Endpoint(), Config{Limits: Limits{QueueMessages: 100}})
		go func() {
			for push.Send(t.Context(), make([]byte, 10_000)) == nil {
			}
		}()
	}
	eventually(t, "everyone paused", func() bool {
		peers := pull.Peers()
		for _, p := range peers {
			if !p.Stats().Paused {
				return false
			}
		}
		return len(peers) == 8
	})
	// Each connection may overshoot by what one read buffer held.
	if _, used := pull.Queued(); used > total+8*2*readBufMax {
		t.Errorf("%d bytes queued, limit %d", used, total)
	}
	ctx := testContext(t)
	seen := map[*Peer]int{}
	for range 20_000 {
		m, err := pull.Recv(ctx)
		if err != nil {
			t.Fatal(err)
		}
		seen[m.Peer]++
	}
	ev.mu.Lock()
	for _, e := range ev.all {
		if e.Kind != Up {
			t.Errorf("%v: %v", e.Kind, e.Cause)
		}
	}
	ev.mu.Unlock()
	if len(seen) != 8 {
		t.Errorf("%d of 8 connections got through", len(seen))
	}
	dropped, err := pull.Close()
	if err != nil || dropped == 0 {
		t.Errorf("Close: dropped %d, %v", dropped, err)
	}
}
