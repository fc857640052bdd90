package zmtp

import (
	"bufio"
	"crypto/sha256"
	"crypto/sha3"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// python returns a Python that has pyzmq; without one the test is skipped, and says how to get it.
func python(t testing.TB) string {
	py := os.Getenv("KVFERRY_PYTHON")
	if py == "" {
		t.Skip("no Python with pyzmq: KVFERRY_PYTHON is unset; `make pyenv` makes one and says how to set it")
	}
	return py
}

// libzmq is a running testdata/peer.py.
type libzmq struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startLibzmq(t testing.TB, role, arg string) *libzmq {
	t.Helper()
	p := &libzmq{t: t, cmd: exec.Command(python(t), "testdata/peer.py", role, arg)}
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in, p.out = in, bufio.NewReaderSize(out, 1<<20)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	return p
}

func (p *libzmq) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	_ = p.cmd.Wait()         // killed is what it should report
}

func (p *libzmq) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

func (p *libzmq) tell(v any) {
	p.t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.in.Write(append(b, '\n')); err != nil {
		p.t.Fatal(err)
	}
}

type libzmqAnswer struct {
	Port    int
	Frames  [][2]any
	Ordered *int
	Got     []string
	Rest    []string
	Sent    *int
	Closed  bool
}

func (p *libzmq) answer() (a libzmqAnswer) {
	p.t.Helper()
	guard := time.AfterFunc(hang, p.kill)
	defer guard.Stop()
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		p.t.Fatalf("the libzmq peer ended: %v", err)
	}
	if err := json.Unmarshal(line, &a); err != nil {
		p.t.Fatalf("%s: %v", line, err)
	}
	return a
}

// startLibzmqPull returns the peer and its endpoint. Port 0 is a free one.
func startLibzmqPull(t testing.TB, port int) (*libzmq, string) {
	p := startLibzmq(t, "pull", strconv.Itoa(port))
	return p, fmt.Sprintf("tcp://127.0.0.1:%d", p.answer().Port)
}

// shapes are the messages that go through in both directions, as frame lengths.
func shapes() map[string][]int {
	s := map[string][]int{
		"255-256-257": {255, 256, 257}, "1MiB x 14": slices.Repeat([]int{1 << 20}, 14), "12MiB": {12 << 20},
		"large and small": {100_000, 1, 0, 5000, 4096, 4097},
		"all empty 1":     {0}, "all empty 5": make([]int, 5), "all empty 60": make([]int, 60),
		"alternating": {0, 7, 0, 9, 0}, "alternating too": {7, 0, 9, 0}, "alternating large": {0, 70_000, 0, 70_000},
	}
	for _, n := range []int{1, 2, 3, 4, 5, 14, 60} {
		sizes := make([]int, n)
		for i := range sizes {
			sizes[i] = 1 + 37*i
		}
		s[fmt.Sprintf("%d frames", n)] = sizes
	}
	return s
}

func seeded(size int, seed string) []byte {
	h := sha3.NewSHAKE128()
	_, _ = h.Write([]byte(seed)) // a hash does not fail
	b := make([]byte, size)
	_, _ = h.Read(b) // nor does this
	return b
}

func TestInteropToLibzmq(t *testing.T) {
	ctx := testContext(t)
	peer, endpoint := startLibzmqPull(t, 0)
	push := dial(t, endpoint, Config{Properties: Properties{"X-Kvferry-Instance": "i", "X-Kvferry-Capabilities": "c"}})
	for name, sizes := range shapes() {
		m := make([][]byte, len(sizes))
		for i, n := range sizes {
			m[i] = seeded(n, name+strconv.Itoa(i))
		}
		if err := push.Send(ctx, m...); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		peer.tell(map[string]int{"recv": 1})
		got := peer.answer().Frames
		if len(got) != len(m) {
			t.Fatalf("%s: libzmq got %d frames, want %d", name, len(got), len(m))
		}
		for i, f := range m {
			sum := sha256.Sum256(f)
			if got[i] != [2]any{float64(len(f)), hex.EncodeToString(sum[:])} {
				t.Errorf("%s: frame %d: libzmq got %v, want %d bytes", name, i, got[i], len(f))
			}
		}
	}
	if p, up := push.Peer(); !up || len(p.Properties()) != 0 {
		t.Errorf("libzmq's properties: %v", p.Properties())
	}
	if dropped, err := push.Close(ctx); dropped != 0 || err != nil {
		t.Errorf("Close: %d, %v", dropped, err)
	}
}

func TestInteropFromLibzmq(t *testing.T) {
	ctx := testContext(t)
	pull := listen(t, Config{Properties: Properties{"X-Kvferry-Instance": "i"}})
	peer := startLibzmq(t, "push", pull.Endpoint())
	for name, sizes := range shapes() {
		var spec [][2]any
		for i, n := range sizes {
			spec = append(spec, [2]any{n, name + strconv.Itoa(i)})
		}
		peer.tell(map[string]any{"send": [][][2]any{spec}})
		m, err := pull.Recv(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Frames) != len(sizes) {
			t.Fatalf("%s: got %d frames, want %d", name, len(m.Frames), len(sizes))
		}
		for i, n := range sizes {
			if string(m.Frames[i]) != string(seeded(n, name+strconv.Itoa(i))) {
				t.Errorf("%s: frame %d of %d bytes differs from the %d sent", name, i, len(m.Frames[i]), n)
			}
		}
		if peer.answer().Sent == nil {
			t.Fatal("libzmq did not send")
		}
	}
}

const manyMessages = 20_000

func TestInteropManyInOrder(t *testing.T) {
	t.Run("to libzmq", func(t *testing.T) {
		ctx := testContext(t)
		peer, endpoint := startLibzmqPull(t, 0)
		push := dial(t, endpoint, Config{})
		peer.tell(map[string]int{"count": manyMessages})
		for i := range manyMessages {
			if err := push.Send(ctx, strconv.AppendInt(nil, int64(i), 10)); err != nil {
				t.Fatal(err)
			}
		}
		if a := peer.answer(); a.Ordered == nil || *a.Ordered != manyMessages {
			t.Errorf("libzmq: %+v", a)
		}
	})
	t.Run("from libzmq", func(t *testing.T) {
		ctx := testContext(t)
		// A small queue, and a libzmq that closes while its kernel still holds most of it; our PING then must not make it throw that away.
		pull := listen(t, Config{Limits: Limits{QueueMessages: 16, ReadAhead: 1}, PingInterval: 5 * time.Millisecond})
		peer := startLibzmq(t, "push", pull.Endpoint())
		peer.tell(map[string]any{"numbers": [2]int{0, manyMessages}})
		peer.tell(map[string]any{"close": true})
		for i := range manyMessages {
			if i%5000 == 100 {
				time.Sleep(30 * time.Millisecond) // several times the PING interval
			}
			m, err := pull.Recv(ctx)
			if err != nil || string(m.Frames[0]) != strconv.Itoa(i) {
				t.Fatalf("message %d: %q, %v", i, m.Frames, err)
			}
		}
		if a := peer.answer(); a.Sent == nil || *a.Sent != manyMessages || !peer.answer().Closed {
			t.Errorf("libzmq: %+v", a)
		}
	})
}

func freePort(t *testing.T) int {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }() // nothing was exchanged
	return ln.Addr().(*net.TCPAddr).Port
}

func TestInteropLibzmqStartsLate(t *testing.T) {
	python(t)
	port := freePort(t)
	var ev events
	var from int
	push := dial(t, fmt.Sprintf("tcp://127.0.0.1:%d", port), Config{Events: ev.add})
	ev.next(t, &from, DialFailed, ErrRefused)
	for i := range 50 {
		if err := push.TrySend([]byte(strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	peer, _ := startLibzmqPull(t, port)
	ev.next(t, &from, Up, nil)
	peer.tell(map[string]int{"count": 50})
	if a := peer.answer(); a.Ordered == nil || *a.Ordered != 50 {
		t.Errorf("libzmq: %+v", a)
	}
}

func TestInteropWeStartLate(t *testing.T) {
	python(t)
	ctx := testContext(t)
	port := freePort(t)
	peer := startLibzmq(t, "push", fmt.Sprintf("tcp://127.0.0.1:%d", port))
	peer.tell(map[string]any{"numbers": [2]int{0, 50}})
	peer.answer()
	pull, err := Listen(ctx, fmt.Sprintf("127.0.0.1:%d", port), Config{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		if m, err := pull.Recv(ctx); err != nil || string(m.Frames[0]) != strconv.Itoa(i) {
			t.Fatalf("message %d: %q, %v", i, m.Frames, err)
		}
	}
	if _, err := pull.Close(); err != nil {
		t.Error(err)
	}
}

func TestInteropLibzmqPullIsKilledAndRestarted(t *testing.T) {
	ctx := testContext(t)
	peer, endpoint := startLibzmqPull(t, 0)
	var ev events
	var from int
	push := dial(t, endpoint, Config{Events: ev.add})
	ev.next(t, &from, Up, nil)
	send := func(a, b int) {
		for i := a; i < b; i++ {
			if err := push.Send(ctx, []byte(strconv.Itoa(i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	send(0, 100)
	peer.tell(map[string]int{"count": 100})
	peer.answer()
	peer.kill()
	down := ev.next(t, &from, Down, nil)
	if !errors.Is(down.Cause, ErrPeerClosed) && !errors.Is(down.Cause, ErrPeerReset) {
		t.Errorf("cause %v", down.Cause)
	}
	if down.Stats.MessagesOut != 100 || down.Stats.BytesIn < greetingLen {
		t.Errorf("down: %+v", down.Stats)
	}
	ev.next(t, &from, DialFailed, ErrRefused)
	send(100, 200)
	port, err := strconv.Atoi(endpoint[len("tcp://127.0.0.1:"):])
	if err != nil {
		t.Fatal(err)
	}
	again, _ := startLibzmqPull(t, port)
	ev.next(t, &from, Up, nil)
	again.tell(map[string]int{"rest": 500})
	rest := again.answer().Rest
	if len(rest) != 100 || rest[0] != "100" || rest[99] != "199" {
		t.Errorf("after the restart libzmq got %d messages: %v", len(rest), rest)
	}
}

func TestInteropLibzmqPushIsKilledAndRestarted(t *testing.T) {
	ctx := testContext(t)
	var ev events
	var from int
	pull := listen(t, Config{Events: ev.add})
	for range 2 {
		peer := startLibzmq(t, "push", pull.Endpoint())
		ev.next(t, &from, Up, nil)
		peer.tell(map[string]any{"numbers": [2]int{0, 10}})
		peer.answer()
		for i := range 10 {
			if m, err := pull.Recv(ctx); err != nil || string(m.Frames[0]) != strconv.Itoa(i) {
				t.Fatalf("message %d: %q, %v", i, m.Frames, err)
			}
		}
		peer.kill()
		if down := ev.next(t, &from, Down, nil); down.Stats.MessagesIn != 10 {
			t.Errorf("down: %+v", down)
		}
	}
}

// eventually polls a condition that nothing signals.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(hang); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", hang, what)
		}
	}
}

func TestInteropLibzmqIsStoppedAndGoesOn(t *testing.T) {
	ctx := testContext(t)
	peer, endpoint := startLibzmqPull(t, 0)
	var ev events
	var from int
	push := dial(t, endpoint, Config{Events: ev.add, PingInterval: 20 * time.Millisecond, Limits: Limits{QueueMessages: 100}})
	up := ev.next(t, &from, Up, nil)
	// A living libzmq answers PING: bytes keep coming on a silent connection.
	start := up.Peer.Stats().BytesIn
	eventually(t, "PONG from libzmq", func() bool { return up.Peer.Stats().BytesIn > start+3 })

	peer.signal(syscall.SIGSTOP)
	eventually(t, "silence", func() bool { return time.Since(up.Peer.Stats().LastReceived) > 500*time.Millisecond })
	sent := 0
	payload := make([]byte, 64<<10)
	for {
		err := push.TrySend([]byte(strconv.Itoa(sent)), payload)
		if errors.Is(err, ErrQueueFull) {
			if n, _ := push.Queued(); n == 100 && sent > 100+2 {
				break // the kernel takes no more either
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if sent++; sent > 10_000 {
			t.Fatal("a stopped peer takes everything")
		}
	}
	if !up.Peer.Connected() {
		t.Error("a stopped peer counts as gone")
	}
	peer.signal(syscall.SIGCONT)
	peer.tell(map[string]int{"rest": 1000})
	last := up.Peer.Stats().LastReceived
	eventually(t, "life again", func() bool { return up.Peer.Stats().LastReceived.After(last) })
	rest := peer.answer().Rest
	for i, s := range rest {
		if s != strconv.Itoa(i) {
			t.Fatalf("message %d is %s", i, s)
		}
	}
	if len(rest) != sent {
		t.Errorf("libzmq got %d of %d messages", len(rest), sent)
	}
	if dropped, err := push.Close(ctx); dropped != 0 || err != nil {
		t.Errorf("Close: %d, %v", dropped, err)
	}
}

func TestInteropLibzmqPushIsStopped(t *testing.T) {
	ctx := testContext(t)
	var ev events
	var from int
	pull := listen(t, Config{Events: ev.add, PingInterval: 20 * time.Millisecond})
	peer := startLibzmq(t, "push", pull.Endpoint())
	up := ev.next(t, &from, Up, nil)
	start := up.Peer.Stats().BytesIn
	eventually(t, "PONG from libzmq", func() bool { return up.Peer.Stats().BytesIn > start+3 })
	peer.signal(syscall.SIGSTOP)
	eventually(t, "silence", func() bool { return time.Since(up.Peer.Stats().LastReceived) > 500*time.Millisecond })
	peer.signal(syscall.SIGCONT)
	last := up.Peer.Stats().LastReceived
	eventually(t, "life again", func() bool { return up.Peer.Stats().LastReceived.After(last) })
	peer.tell(map[string]any{"numbers": [2]int{7, 8}})
	if m, err := pull.Recv(ctx); err != nil || string(m.Frames[0]) != "7" {
		t.Errorf("%q, %v", m.Frames, err)
	}
}
