package zmtp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
)

func frames(s ...string) [][]byte {
	f := make([][]byte, len(s))
	for i := range s {
		f[i] = []byte(s[i])
	}
	return f
}

func equalFrames(a, b [][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

func TestMessagesArriveWholeAndInOrder(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "[::1]"} {
		t.Run(host, func(t *testing.T) {
			ctx := testContext(t)
			pull, err := Listen(ctx, host+":0", Config{})
			if err != nil {
				t.Fatal(err)
			}
			push := dial(t, pull.Endpoint(), Config{})
			var want [][][]byte
			for _, n := range []int{0, 1, 255, 256, 257, slabFrame, slabFrame + 1, copyFrame, copyFrame + 1, packMax, directFrame, 1 << 20, 12 << 20} {
				want = append(want, [][]byte{pattern(n)}, [][]byte{pattern(n), nil, pattern(n / 2)}, [][]byte{nil, pattern(n), pattern(3)})
			}
			go func() {
				for _, f := range want {
					if err := push.Send(ctx, f...); err != nil {
						t.Error(err)
					}
				}
			}()
			for i, f := range want {
				m, err := pull.Recv(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if !equalFrames(m.Frames, f) {
					t.Fatalf("message %d differs", i)
				}
			}
			if dropped, err := push.Close(ctx); dropped != 0 || err != nil {
				t.Errorf("Push.Close: dropped %d, %v", dropped, err)
			}
			if dropped, err := pull.Close(); dropped != 0 || err != nil {
				t.Errorf("Pull.Close: dropped %d, %v", dropped, err)
			}
			if _, err := pull.Recv(ctx); !errors.Is(err, ErrClosed) {
				t.Errorf("Recv after Close: %v", err)
			}
			if err := push.TrySend(nil); !errors.Is(err, ErrClosed) {
				t.Errorf("TrySend after Close: %v", err)
			}
		})
	}
}

// pattern returns n bytes that no other offset or length repeats closely.
func pattern(n int) []byte {
	b := make([]byte, n)
	x := uint32(n)*2654435761 + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

func TestManySendersOneConnection(t *testing.T) {
	ctx := testContext(t)
	pull := listen(t, Config{})
	push := dial(t, pull.Endpoint(), Config{Limits: Limits{QueueMessages: 64}})
	const senders, each = 8, 500
	var wg sync.WaitGroup
	for s := range senders {
		wg.Go(func() {
			for i := range each {
				if err := push.Send(ctx, frames(strconv.Itoa(s), strconv.Itoa(i))...); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	var next [senders]int
	for range senders * each {
		m, err := pull.Recv(ctx)
		if err != nil {
			t.Fatal(err)
		}
		s, err := strconv.Atoi(string(m.Frames[0]))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(m.Frames[1]); got != strconv.Itoa(next[s]) {
			t.Fatalf("sender %d: got message %s, want %d", s, got, next[s])
		}
		next[s]++
	}
	wg.Wait()
}

func TestPeersKnowEachOtherBeforeAnyMessage(t *testing.T) {
	var pullEvents, pushEvents events
	pull := listen(t, Config{Events: pullEvents.add, Properties: Properties{"X-Kvferry-Instance": "P1", "X-Kvferry-Capabilities": "a,b"}})
	push := dial(t, pull.Endpoint(), Config{Events: pushEvents.add, Properties: Properties{"x-kvferry-instance": "D1"}})
	var i, j int
	up := pushEvents.next(t, &i, Up, nil)
	if v, ok := up.Peer.Properties().Get("x-kvferry-INSTANCE"); !ok || v != "P1" {
		t.Errorf("the PUSH sees properties %v", up.Peer.Properties())
	}
	if peer, connected := push.Peer(); peer != up.Peer || !connected {
		t.Errorf("Push.Peer: %v, %v", peer, connected)
	}
	in := pullEvents.next(t, &j, Up, nil)
	if v, ok := in.Peer.Properties().Get("X-Kvferry-Instance"); !ok || v != "D1" || len(in.Peer.Properties()) != 1 {
		t.Errorf("the PULL sees properties %v", in.Peer.Properties())
	}
	if up.Peer.Version() != "3.1" || up.Peer.ID() == in.Peer.ID() {
		t.Errorf("version %s, ids %d and %d", up.Peer.Version(), up.Peer.ID(), in.Peer.ID())
	}
	in.Peer.Disconnect()
	if down := pullEvents.next(t, &j, Down, ErrDisconnected); down.Peer != in.Peer || down.Peer.Connected() {
		t.Errorf("down: %+v", down)
	}
	if down := pushEvents.next(t, &i, Down, nil); down.Peer != up.Peer {
		t.Errorf("down: %+v", down)
	}
	if again := pushEvents.next(t, &i, Up, nil); again.Peer.ID() == up.Peer.ID() {
		t.Error("a new connection has the old id")
	}
}

func TestQueueIsBoundedAndDropsAreCounted(t *testing.T) {
	// Nobody listens: the port was free a moment ago.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	endpoint := "tcp://" + ln.Addr().String()
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	var ev events
	push := dial(t, endpoint, Config{Events: ev.add, Limits: Limits{QueueMessages: 3, MaxMessage: 1 << 10, QueueBytes: 1 << 12}})
	var from int
	if first := ev.next(t, &from, DialFailed, ErrRefused); first.Attempt != 1 {
		t.Errorf("attempt %d", first.Attempt)
	}
	if second := ev.next(t, &from, DialFailed, ErrRefused); second.Attempt != 2 {
		t.Errorf("attempt %d", second.Attempt)
	}
	for range 3 {
		if err := push.TrySend([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := push.TrySend([]byte("x")); !errors.Is(err, ErrQueueFull) {
		t.Errorf("TrySend on a full queue: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := push.Send(ctx, []byte("x")); !errors.Is(err, ErrQueueFull) || !errors.Is(err, context.Canceled) {
		t.Errorf("Send on a full queue: %v", err)
	}
	if err := push.TrySend(make([]byte, 1<<10)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("TrySend of a large message: %v", err)
	}
	if err := push.TrySend(); !errors.Is(err, ErrTooLarge) {
		t.Errorf("TrySend of no frame: %v", err)
	}
	waiting := make(chan error)
	go func() { waiting <- push.Send(t.Context(), []byte("x")) }()
	if dropped, err := push.Close(ctx); dropped != 3 || !errors.Is(err, context.Canceled) {
		t.Errorf("Close: dropped %d, %v", dropped, err)
	}
	if err := <-waiting; !errors.Is(err, ErrClosed) {
		t.Errorf("Send while closing: %v", err)
	}
}

func TestKeptUntilThePeerComes(t *testing.T) {
	ctx := testContext(t)
	first := listen(t, Config{})
	addr := first.Addr().String()
	if _, err := first.Close(); err != nil {
		t.Fatal(err)
	}
	push := dial(t, "tcp://"+addr, Config{})
	for i := range 100 {
		if err := push.TrySend(frames(strconv.Itoa(i))...); err != nil {
			t.Fatal(err)
		}
	}
	pull, err := Listen(ctx, addr, Config{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		m, err := pull.Recv(ctx)
		if err != nil || string(m.Frames[0]) != strconv.Itoa(i) {
			t.Fatalf("message %d: %q, %v", i, m.Frames, err)
		}
	}
	if dropped, err := push.Close(ctx); dropped != 0 || err != nil {
		t.Errorf("Close: %d, %v", dropped, err)
	}
	if _, err := pull.Close(); err != nil {
		t.Error(err)
	}
}

func TestBadSettingsAreNamed(t *testing.T) {
	for name, want := range map[string]string{
		"udp://1.2.3.4:5": "tcp://host:port", "tcp://1.2.3.4": "missing port", "tcp://1.2.3.4:0": "1 to 65535", "tcp://1.2.3.4:65536": "1 to 65535",
		"tcp://:5": "tcp://host:port", "tcp://*:5": "tcp://host:port", "tcp://[::zz]:5": "::zz", "tcp://::1:5": "too many colons",
	} {
		if _, err := Dial(name, Config{}); !errors.Is(err, ErrConfig) || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("Dial(%q): %v, want %q in it", name, err, want)
		}
	}
	for want, cfg := range map[string]Config{
		"QueueBytes":                  {Limits: Limits{QueueBytes: 1}},
		"TotalBytes":                  {Limits: Limits{TotalBytes: 1}},
		"MaxFrames":                   {Limits: Limits{MaxFrames: -1}},
		"ReconnectMax":                {ReconnectMax: 1},
		`"a b"`:                       {Properties: Properties{"a b": ""}},
		"Socket-type":                 {Properties: Properties{"Socket-type": ""}},
		`"X-a" and "X-A" are`:         {Properties: Properties{"X-a": "", "X-A": ""}},
		"1 properties of 20008 bytes": {Properties: Properties{"X-a": strings.Repeat("x", 20000)}},
		`Advertise ":1"`:              {Advertise: ":1"},
		`Advertise "h:x"`:             {Advertise: "h:x"},
	} {
		p, err := Listen(t.Context(), "127.0.0.1:0", cfg)
		if err == nil {
			_, _ = p.Close() // the error is that it opened
		}
		if !errors.Is(err, ErrConfig) || !strings.Contains(fmt.Sprint(err), want) && !strings.Contains(fmt.Sprint(err), `"X-A" and "X-a" are`) {
			t.Errorf("Listen: %v, want %q in it", err, want)
		}
	}
	taken := listen(t, Config{})
	if _, err := Listen(t.Context(), taken.Addr().String(), Config{}); err == nil || !strings.Contains(err.Error(), taken.Addr().String()) {
		t.Errorf("a taken port: %v", err)
	}
}

func TestAdvertisedAddress(t *testing.T) {
	for setting, want := range map[string]string{
		"": "127.0.0.1:%d", "p0.example": "p0.example:%d", "10.1.2.3:77": "10.1.2.3:77",
		"fd00::1": "[fd00::1]:%d", "[fd00::1]": "[fd00::1]:%d", "[fd00::1]:9": "[fd00::1]:9",
	} {
		p := listen(t, Config{Advertise: setting})
		if strings.Contains(want, "%d") {
			want = fmt.Sprintf(want, p.Addr().Port())
		}
		if p.Endpoint() != "tcp://"+want {
			t.Errorf("Advertise %q: %s, want tcp://%s", setting, p.Endpoint(), want)
		}
	}
}

// The first message goes out behind READY, also when its sender is there the moment the connection comes up.
func TestFirstMessageComesAfterReady(t *testing.T) {
	ctx := testContext(t)
	var ev events
	pull := listen(t, Config{Events: ev.add})
	for i := range 200 {
		want := []byte(strconv.Itoa(i))
		var push *Push
		sent := make(chan error, 1)
		made := make(chan struct{})
		var once sync.Once
		var err error
		push, err = Dial(pull.Endpoint(), Config{Events: func(e ConnEvent) {
			if e.Kind == Up {
				once.Do(func() {
					go func() {
						<-made
						for range i % 50 {
							runtime.Gosched() // a little later each time
						}
						sent <- push.TrySend(want)
					}()
				})
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		close(made)
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		if m, err := pull.Recv(ctx); err != nil || !bytes.Equal(m.Frames[0], want) {
			t.Fatalf("%q, %v, want %s", m.Frames, err, want)
		}
		if dropped, err := push.Close(ctx); dropped != 0 || err != nil {
			t.Fatalf("Close: %d, %v", dropped, err)
		}
	}
	ev.mu.Lock()
	defer ev.mu.Unlock()
	for _, e := range ev.all {
		if e.Kind == Rejected {
			t.Errorf("%+v", e)
		}
	}
}

// Several messages at a time keep their order and stay within what was asked for; one that can't be sent ends a batch, and what was before it
// arrives.
func TestSeveralAtATime(t *testing.T) {
	ctx := testContext(t)
	pull := listen(t, Config{})
	push := dial(t, pull.Endpoint(), Config{})
	const total = 1000
	for i := 0; i < total; {
		var batch [][][]byte
		for k := i; k < min(total, i+i%7+1); k++ {
			batch = append(batch, frames("message", strconv.Itoa(k)))
		}
		good := len(batch)
		if i%3 == 0 {
			batch = append(batch, nil, frames("never sent"))
		}
		n, err := push.TrySendAll(batch...)
		if n != good || errors.Is(err, ErrTooLarge) != (i%3 == 0) {
			t.Fatalf("%d of %d messages queued, %v", n, good, err)
		}
		i += n
	}
	into := make([]Message, 10)
	for i := 0; i < total; {
		n, err := pull.RecvMany(ctx, into[:1+i%len(into)])
		if err != nil || n < 1 || n > 1+i%len(into) {
			t.Fatalf("%d messages, %v", n, err)
		}
		for _, m := range into[:n] {
			if !equalFrames(m.Frames, frames("message", strconv.Itoa(i))) {
				t.Fatalf("message %d is %q", i, m.Frames)
			}
			i++
		}
	}
	if n, err := push.TrySendAll(); n != 0 || err != nil {
		t.Errorf("no messages: %d, %v", n, err)
	}
}
