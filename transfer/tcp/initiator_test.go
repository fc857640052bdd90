package tcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvferry/kvferry/transfer"
)

// upstream is a target that behaves as a Mooncake engine of some version was recorded to, and in further ways as told.
type upstream struct {
	t             *testing.T
	control, data net.Listener
	wg            sync.WaitGroup
	mem           []byte
	mu            sync.Mutex // of mem
	descriptor    atomic.Pointer[string]
	nulls         atomic.Int64 // descriptors that are still to be answered null
	conns, served atomic.Int64
	asked         atomic.Int64

	version  int
	oneShot  bool // closes after each request, as up to 0.3.9
	reject   bool
	silent   bool // never answers a payload
	status   uint32
	odd      bool // answers without the magic
	blocked  chan struct{}
	cutAfter int // bytes of a payload
}

const upstreamBase = 0x7f0000001000

func newUpstream(t *testing.T, u *upstream) *upstream {
	t.Helper()
	u.t, u.mem = t, make([]byte, 8<<20)
	for _, l := range []*net.Listener{&u.control, &u.data} {
		var err error
		if *l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}
	u.describe()
	ctl := func(c net.Conn) { u.serveControl(c) }
	u.wg.Go(func() { u.accept(u.control, ctl) })
	u.wg.Go(func() { u.accept(u.data, u.serveData) })
	t.Cleanup(func() {
		_, _ = u.control.Close(), u.data.Close()
		if u.blocked != nil {
			close(u.blocked)
		}
		u.wg.Wait()
	})
	return u
}

func (u *upstream) describe() {
	d := map[string]any{"name": u.control.Addr().String(), "protocol": "tcp", "tcp_data_port": u.data.Addr().(*net.TCPAddr).Port, "buffers": []any{}}
	if u.version >= 2 {
		d["tcp_proto_version"] = u.version
	}
	b, err := json.Marshal(d)
	if err != nil {
		u.t.Fatal(err)
	}
	s := string(b) + "\n"
	u.descriptor.Store(&s)
}

func (u *upstream) accept(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		u.wg.Go(func() {
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(hang))
			serve(c)
		})
	}
}

func (u *upstream) serveControl(c net.Conn) {
	typ, _, err := readControl(c)
	if err != nil || typ == typeProbe && u.version < 2 { // before probes
		return
	}
	body := `{"status":"success"}`
	if typ == typeMetadata {
		u.asked.Add(1)
		body = *u.descriptor.Load()
		if u.nulls.Add(-1) >= 0 {
			body = "null"
		}
	}
	_, _ = c.Write(appendControl(nil, typ, []byte(body)))
	_, _ = io.Copy(io.Discard, c)
}

func (u *upstream) serveData(c net.Conn) {
	u.conns.Add(1)
	for {
		b := make([]byte, headerLen)
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		h := parseHeader(b)
		v2 := h.op&flagV2 != 0
		at := h.addr - upstreamBase
		if u.blocked != nil {
			<-u.blocked
			return
		}
		if h.op&^flagV2 != opWrite || v2 && u.version < 2 || u.reject || h.size == 0 || at > uint64(len(u.mem)) || h.size > uint64(len(u.mem))-at {
			if v2 && u.version >= 2 {
				_, _ = c.Write(appendStatus(nil, statusRejected))
			}
			return // with the payload unread
		}
		payload := make([]byte, h.size)
		if u.cutAfter > 0 {
			_, _ = io.ReadFull(c, payload[:min(u.cutAfter, len(payload))])
			return
		}
		if _, err := io.ReadFull(c, payload); err != nil {
			return
		}
		u.mu.Lock()
		copy(u.mem[at:], payload)
		u.mu.Unlock()
		u.served.Add(1)
		if u.silent {
			continue
		}
		if v2 {
			out := appendStatus(nil, u.status)
			if u.odd {
				out[7] = 0
			}
			if _, err := c.Write(out); err != nil {
				return
			}
		}
		if u.oneShot {
			return
		}
	}
}

func (u *upstream) name() string { return u.control.Addr().String() }

// pages is a batch of n fragments of a size, one after the other.
func (u *upstream) pages(n, size int) []transfer.Fragment {
	src := random(n * size)
	var batch []transfer.Fragment
	for i := range n {
		batch = append(batch, transfer.Fragment{Src: src[i*size : (i+1)*size], Dst: upstreamBase + uint64(i*size)})
	}
	return batch
}

func (u *upstream) check(batch []transfer.Fragment) {
	u.t.Helper()
	u.mu.Lock()
	defer u.mu.Unlock()
	for i, f := range batch {
		if at := f.Dst - upstreamBase; !bytes.Equal(u.mem[at:at+uint64(len(f.Src))], f.Src) {
			u.t.Fatalf("fragment %d is not in place", i)
		}
	}
}

func write(t *testing.T, e *Engine, name string, batch []transfer.Fragment) error {
	t.Helper()
	h, err := e.Write(name, batch)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []<-chan struct{}{h.Done(), h.Settled()} {
		select {
		case <-c:
		case <-time.After(hang):
			t.Fatal("the batch does not end")
		}
	}
	return h.Err()
}

func TestTargetsOfEveryVersion(t *testing.T) {
	for name, u := range map[string]*upstream{
		"0.3.9, one request a connection": {oneShot: true},
		"0.3.11, persistent":              {},
		"0.3.13, version 2":               {version: 2},
		"a later version":                 {version: 3},
	} {
		t.Run(name, func(t *testing.T) {
			newUpstream(t, u)
			e := start(t, Config{Progress: 5 * time.Second})
			for _, x := range []struct{ n, size int }{{1, 1}, {3, 100}, {1000, 512}, {40, 16 << 10}, {16, 65536}, {3, 2_400_001}} {
				batch := u.pages(x.n, x.size)
				before := u.served.Load()
				if err := write(t, e, u.name(), append(batch, transfer.Fragment{Dst: 7})); err != nil {
					t.Fatalf("%d × %d: %v", x.n, x.size, err)
				}
				u.check(batch)
				if n := u.served.Load() - before; n != int64(x.n) {
					t.Errorf("%d × %d: %d requests", x.n, x.size, n)
				}
			}
			if v2, conns := u.version >= 2, u.conns.Load(); v2 && conns > 2 || !v2 && conns != u.served.Load() {
				t.Errorf("%d connections for %d requests", conns, u.served.Load())
			}
			if n := u.asked.Load(); n != 1 {
				t.Errorf("the descriptor is asked for %d times", n)
			}
			if err := e.Probe(t.Context(), u.name()); err != nil {
				t.Errorf("probe: %v", err)
			}
		})
	}
}

func TestTargetsThatFail(t *testing.T) {
	for name, c := range map[string]struct {
		u    *upstream
		want []error
	}{
		"rejects":                   {&upstream{version: 2, reject: true}, []error{transfer.ErrNotRegistered, transfer.ErrPeerGone}},
		"version 1 rejects":         {&upstream{reject: true}, []error{transfer.ErrPeerGone}},
		"cuts a payload":            {&upstream{version: 2, cutAfter: 50_000}, []error{transfer.ErrPeerGone}},
		"version 1 cuts a payload":  {&upstream{cutAfter: 50_000}, []error{transfer.ErrPeerGone}},
		"never answers":             {&upstream{version: 2, silent: true}, []error{transfer.ErrTimeout}},
		"version 1, never confirms": {&upstream{blocked: make(chan struct{})}, []error{transfer.ErrTimeout}},
		"reads nothing":             {&upstream{version: 2, blocked: make(chan struct{})}, []error{transfer.ErrTimeout}},
		"status 7":                  {&upstream{version: 2, status: 7}, []error{transfer.ErrNotRegistered}},
		"no magic":                  {&upstream{version: 2, odd: true}, []error{transfer.ErrProtocol}},
	} {
		t.Run(name, func(t *testing.T) {
			newUpstream(t, c.u)
			e := start(t, Config{Progress: 300 * time.Millisecond})
			for _, x := range []struct{ n, size int }{{1, 200_000}, {100, 70_000}} {
				err := write(t, e, c.u.name(), c.u.pages(x.n, x.size))
				if !isOne(err, c.want) {
					t.Errorf("%d × %d: %v, want one of %v", x.n, x.size, err, c.want)
				}
			}
			if s := e.Stats(); s.Links > 0 && !errors.Is(c.want[0], transfer.ErrNotRegistered) { // one that had sent nothing yet when the other was rejected is sound
				t.Errorf("connections are kept: %+v", s)
			}
		})
	}
}

func isOne(err error, want []error) bool {
	for _, w := range want {
		if errors.Is(err, w) {
			return true
		}
	}
	return false
}

func TestATargetThatHasJustStarted(t *testing.T) {
	u := newUpstream(t, &upstream{version: 2})
	u.nulls.Store(2)
	e := start(t, Config{})
	if err := write(t, e, u.name(), u.pages(1, 10)); err != nil {
		t.Errorf("a descriptor that comes at the third time: %v", err)
	}
	u.nulls.Store(1 << 40)
	f := start(t, Config{})
	if err := write(t, f, u.name(), u.pages(1, 10)); !errors.Is(err, transfer.ErrPeerGone) {
		t.Errorf("no descriptor ever: %v", err)
	}
}

// A target that comes back under its name, with another data port, is found again after one failure.
func TestRestartUnderTheSameName(t *testing.T) {
	u, v := newUpstream(t, &upstream{version: 2}), newUpstream(t, &upstream{version: 2})
	e := start(t, Config{})
	batch := u.pages(4, 1000)
	if err := write(t, e, u.name(), batch); err != nil {
		t.Fatal(err)
	}
	u.descriptor.Store(v.descriptor.Load())
	_ = u.data.Close()
	e.mu.Lock()
	e.peers[u.name()].trim(time.Now().Add(time.Hour)) // the old process took its connections with it
	e.mu.Unlock()
	if err := write(t, e, u.name(), batch); !errors.Is(err, transfer.ErrPeerGone) {
		t.Errorf("with the old descriptor: %v", err)
	}
	if err := write(t, e, u.name(), batch); err != nil {
		t.Errorf("with the new one: %v", err)
	}
	v.check(batch)
}

// Another incarnation under the same name and ports takes what is meant for it, and nothing that was meant for the one before.
func TestAnotherIncarnation(t *testing.T) {
	a := opened(t, Config{}, 1000, 4)
	e := start(t, Config{})
	frag := []transfer.Fragment{{Src: make([]byte, 10), Dst: a.region.Base()}}
	if err := write(t, e, a.Name(), frag); err != nil {
		t.Fatal(err)
	}
	control, data := a.Addrs()
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := opened(t, Config{Port: control.(*net.TCPAddr).Port, DataPort: data.(*net.TCPAddr).Port}, 1000, 4)
	if b.region.Base() == a.region.Base() {
		t.Error("the same addresses again")
	}
	h, err := e.Write(b.Name(), frag)
	if err != nil {
		t.Fatal(err)
	}
	if <-h.Settled(); !errors.Is(h.Err(), transfer.ErrNotRegistered) || !h.Answered() {
		t.Errorf("meant for the one before: %v, answered %v", h.Err(), h.Answered())
	}
	frag[0].Dst = b.region.Base()
	if err := write(t, e, b.Name(), frag); err != nil {
		t.Errorf("meant for it: %v", err)
	}
}

// A connection that the target closed while it was idle is replaced without a word.
func TestIdleConnectionThatWasClosed(t *testing.T) {
	x := opened(t, Config{Idle: 20 * time.Millisecond}, 1000, 4)
	e := start(t, Config{})
	frag := []transfer.Fragment{{Src: make([]byte, 10), Dst: x.region.Base()}}
	for range 5 {
		if err := write(t, e, x.Name(), frag); err != nil {
			t.Fatal(err)
		}
		for x.Stats().DataConns > 0 {
			time.Sleep(time.Millisecond)
		}
	}
}

// Unused connections and peers are forgotten.
func TestUnusedPeersAreForgotten(t *testing.T) {
	x := opened(t, Config{}, 1000, 4)
	e := start(t, Config{Keep: 20 * time.Millisecond})
	if err := write(t, e, x.Name(), []transfer.Fragment{{Src: make([]byte, 10), Dst: x.region.Base()}}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(hang); ; time.Sleep(time.Millisecond) {
		if s := e.Stats(); s.Peers == 0 && s.Links == 0 && x.Stats().DataConns == 0 {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("%+v", s)
		}
	}
}

// After a refusal in the middle of a batch, the connections to a native target are used again.
func TestConnectionsSurviveARefusal(t *testing.T) {
	x := opened(t, Config{}, 32<<10, 128)
	e := start(t, Config{})
	var batch []transfer.Fragment
	for i := range 128 {
		batch = append(batch, transfer.Fragment{Src: make([]byte, 32<<10), Dst: x.region.Base() + uint64(i)*32<<10})
	}
	if err := write(t, e, x.Name(), batch); err != nil {
		t.Fatal(err)
	}
	links := e.Stats().Links
	for i := range 20 {
		bad := append([]transfer.Fragment{}, batch...)
		bad[i*6].Dst += 1 << 40
		if err := write(t, e, x.Name(), bad); !errors.Is(err, transfer.ErrOutOfRange) {
			t.Errorf("refused: %v", err)
		}
		if err := write(t, e, x.Name(), batch); err != nil {
			t.Fatal(err)
		}
	}
	var many []transfer.Fragment // is refused while it is being sent
	for i := range 100_000 {
		many = append(many, transfer.Fragment{Src: batch[0].Src[:100], Dst: x.region.Base() + uint64(i%128)*32<<10})
	}
	many[7].Dst += 1 << 40
	out := e.Stats().BytesOut
	if err := write(t, e, x.Name(), many); !errors.Is(err, transfer.ErrOutOfRange) {
		t.Errorf("refused: %v", err)
	}
	if out = e.Stats().BytesOut - out; out > 10_000_000 {
		t.Errorf("%d bytes were sent after the refusal", out)
	}
	if err := write(t, e, x.Name(), batch); err != nil {
		t.Fatal(err)
	}
	if s := e.Stats(); s.Links != links {
		t.Errorf("%d connections, before %d", s.Links, links)
	}
	if n := x.Stats().DataConns; n != links {
		t.Errorf("the target has %d connections, want %d", n, links)
	}
}

func TestAMillionFragments(t *testing.T) {
	const n, size, item = 1_000_000, 32, 4096
	x := opened(t, Config{}, item, n*size/item+1)
	e := start(t, Config{})
	src := random(n * size)
	batch := make([]transfer.Fragment, n)
	for i := range batch {
		k := i * 7919 % n
		batch[i] = transfer.Fragment{Src: src[k*size : (k+1)*size], Dst: x.region.Base() + uint64(k*size)}
	}
	if err := write(t, e, x.Name(), batch); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(x.mem[:n*size], src) {
		t.Error("memory differs")
	}
	if got, _ := x.lease.Covered(); got != n*size {
		t.Errorf("%d bytes are covered, want %d", got, n*size)
	}
}
