package tcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvferry/kvferry/transfer"
)

// wheel is a process with a real Mooncake engine.
type wheel struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	log  bytes.Buffer // complete once the process has ended
	name string
	base uint64
}

const wheelBytes = 48 << 20

func startWheel(t *testing.T, env ...string) *wheel {
	t.Helper()
	python := os.Getenv("KVFERRY_PYTHON")
	if python == "" {
		t.Skip("KVFERRY_PYTHON is not set, so there is no real Mooncake engine to meet; `make pyenv` makes the environment where the package registries can be reached")
	}
	w := &wheel{t: t, cmd: exec.Command(python, "testdata/mooncake_peer.py", strconv.Itoa(wheelBytes))}
	w.cmd.Env = append(os.Environ(), "MC_FORCE_TCP=1")
	w.cmd.Env = append(w.cmd.Env, env...)
	w.cmd.Stderr = &w.log
	var err error
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.out = bufio.NewReaderSize(out, 1<<20)
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = w.in.Close() // it exits
		stop := time.AfterFunc(10*time.Second, func() { _ = w.cmd.Process.Kill() })
		err := w.cmd.Wait()
		if stop.Stop(); t.Failed() {
			t.Logf("the engine ended with %v and said:\n%s", err, tail(w.log.String()))
		}
	})
	var hello struct {
		Name    string
		Base    uint64
		Version string
	}
	w.line(&hello)
	w.name, w.base = hello.Name, hello.Base
	t.Logf("mooncake-transfer-engine %s at %s", hello.Version, hello.Name)
	return w
}

func tail(s string) string { return s[max(0, len(s)-4000):] }

func (w *wheel) line(to any) {
	w.t.Helper()
	b, err := w.out.ReadBytes('\n')
	if err != nil {
		w.t.Fatalf("the Mooncake engine has ended: %v", err)
	}
	if err := json.Unmarshal(b, to); err != nil {
		w.t.Fatalf("%q: %v", b[:min(len(b), 200)], err)
	}
}

// tell gives a command and returns how long it took.
func (w *wheel) tell(result any, op string, args map[string]any) time.Duration {
	w.t.Helper()
	all := map[string]any{"op": op}
	for k, v := range args {
		all[k] = v
	}
	b, err := json.Marshal(all)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.in.Write(append(b, '\n')); err != nil {
		w.t.Fatalf("the Mooncake engine has ended: %v", err)
	}
	var answer struct {
		Result  json.RawMessage
		Error   string
		Seconds float64
	}
	if w.line(&answer); answer.Error != "" {
		w.t.Fatalf("%s: %s", op, answer.Error)
	}
	if err := json.Unmarshal(answer.Result, result); err != nil {
		w.t.Fatalf("%s: %v", op, err)
	}
	return time.Duration(answer.Seconds * float64(time.Second))
}

func (w *wheel) code(op string, args map[string]any) (int, time.Duration) {
	w.t.Helper()
	var n int
	d := w.tell(&n, op, args)
	return n, d
}

// get is a part of the engine's memory.
func (w *wheel) get(offset, length int) []byte {
	w.t.Helper()
	var s string
	w.tell(&s, "get", map[string]any{"offset": offset, "length": length})
	b, err := hex.DecodeString(s)
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

// fill makes a part of the engine's memory what fill makes.
func (w *wheel) fill(offset, length, seed int) []byte {
	w.t.Helper()
	var ok bool
	w.tell(&ok, "fill", map[string]any{"offset": offset, "length": length, "seed": seed})
	b := make([]byte, length)
	for i := range b {
		k := i % 65521
		b[i] = byte(k*131 + seed*31 + (k>>8)*17)
	}
	return b
}

// T1: control messages to the engine.
func TestMooncakeControl(t *testing.T) {
	w := startWheel(t)
	e := start(t, Config{})
	if err := e.Probe(t.Context(), w.name); err != nil {
		t.Errorf("probe: %v", err)
	}
	if err := e.Notify(t.Context(), w.name, "room", "seven"); err != nil {
		t.Errorf("notify: %v", err)
	}
	var notes [][2]string
	if w.tell(&notes, "notifies", nil); len(notes) != 1 || notes[0] != [2]string{"room", "seven"} {
		t.Errorf("notes %v", notes)
	}
	body, err := e.ask(t.Context(), w.name, typeMetadata, []byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	d, err := readDescriptor(body)
	if err != nil || d == nil || d.ProtoVersion < 2 || d.Native != 0 {
		t.Errorf("descriptor %s is %+v, %v", body, d, err)
	}
	for _, typ := range []byte{typeConnection, typeOld} {
		body, err := e.ask(t.Context(), w.name, typ, []byte("{}"))
		var r rejection
		if err != nil || json.Unmarshal(body, &r) != nil {
			t.Errorf("type %d: %q, %v", typ, body, err)
		}
	}
	if _, err := e.ask(t.Context(), w.name, 7, []byte("{}")); !errors.Is(err, transfer.ErrPeerGone) {
		t.Errorf("an unknown type: %v", err)
	}
}

// T2: writes to the engine, read back over a connection of our own at once, so that a write that is not yet applied shows.
func TestMooncakeAsTarget(t *testing.T) {
	w := startWheel(t)
	for name, cfg := range map[string]Config{"version 2": {}, "version 1": {Version1: true}} {
		t.Run(name, func(t *testing.T) {
			e := start(t, cfg)
			read := readerOf(t, e, w.name)
			for _, n := range []int{1, 65535, 65536, 65537, 3 << 20, 40 << 20} {
				src := random(n)
				if err := write(t, e, w.name, []transfer.Fragment{{Src: src, Dst: w.base + 12345}}); err != nil {
					t.Fatalf("%d bytes: %v", n, err)
				}
				if !bytes.Equal(read(w.base+12345, n), src) {
					t.Fatalf("%d bytes differ", n)
				}
			}
			if got := w.get(12345, 1000); !bytes.Equal(got, random(40 << 20)[:1000]) {
				t.Error("the engine's own view differs")
			}
			src := random(40 << 20)
			for i := range 50 {
				at := i * 7777
				if err := write(t, e, w.name, []transfer.Fragment{{Src: src[at : at+2_400_000], Dst: w.base + uint64(at)}}); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(read(w.base+uint64(at), 2_400_000), src[at:at+2_400_000]) {
					t.Fatalf("write %d is torn", i)
				}
			}
			var batch []transfer.Fragment // pipelined
			for i := range 1500 {
				n := 4096
				if i%10 == 0 {
					n = 20_000
				}
				batch = append(batch, transfer.Fragment{Src: src[i*20_000 : i*20_000+n], Dst: w.base + uint64(i*20_000)})
			}
			if err := write(t, e, w.name, batch); err != nil {
				t.Fatal(err)
			}
			got := read(w.base, 1500*20_000)
			for i, f := range batch {
				if !bytes.Equal(got[i*20_000:i*20_000+len(f.Src)], f.Src) {
					t.Fatalf("fragment %d differs", i)
				}
			}
		})
	}
}

// readerOf reads a peer's memory by version 2 of the data protocol.
func readerOf(t *testing.T, e *Engine, name string) func(addr uint64, n int) []byte {
	t.Helper()
	p, err := e.enter(name)
	if err != nil {
		t.Fatal(err)
	}
	defer p.leave()
	d, err := p.describe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", d.dataAddr(name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return func(addr uint64, n int) []byte {
		t.Helper()
		b := make([]byte, n)
		_ = c.SetDeadline(time.Now().Add(hang))
		send(t, c, request(opRead|flagV2, addr, n))
		wantStatus(t, c, statusOK)
		if _, err := io.ReadFull(c, b); err != nil {
			t.Fatal(err)
		}
		return b
	}
}

// T3: an address that is not registered.
func TestMooncakeRejects(t *testing.T) {
	w := startWheel(t)
	for _, cfg := range []Config{{}, {Version1: true}} {
		e := start(t, cfg)
		for _, n := range []int{100, 5 << 20} {
			for _, addr := range []uint64{w.base - 50, w.base + wheelBytes - 50, 1 << 61} {
				err := write(t, e, w.name, []transfer.Fragment{{Src: make([]byte, n), Dst: addr}})
				if !isOne(err, []error{transfer.ErrNotRegistered, transfer.ErrPeerGone}) {
					t.Errorf("%+v: %d bytes at %#x: %v", cfg.Version1, n, addr, err)
				}
			}
		}
		if err := write(t, e, w.name, []transfer.Fragment{{Src: make([]byte, 100), Dst: w.base}}); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	}
}

// T4 and T6: the engine writes to and reads from us.
func TestMooncakeAsInitiator(t *testing.T) {
	for name, c := range map[string]struct {
		env    []string
		blocks int
	}{
		"defaults":   {nil, 1000},
		"no pool":    {[]string{"MC_TCP_ENABLE_CONNECTION_POOL=0"}, 5000},
		"pool":       {[]string{"MC_TCP_ENABLE_CONNECTION_POOL=1"}, 1000},
		"version 1":  {[]string{"MC_TCP_PROTO=1"}, 300},
		"three only": {nil, 3},
	} {
		t.Run(name, func(t *testing.T) {
			w := startWheel(t, c.env...)
			v1 := len(c.env) > 0 && strings.HasPrefix(c.env[0], "MC_TCP_PROTO")
			var mu sync.Mutex
			covered := map[string]uint64{}
			var x *open
			x = opened(t, Config{OnNotify: func(name, msg string) {
				mu.Lock()
				defer mu.Unlock()
				covered[name+"="+msg], _ = x.lease.Covered()
			}}, 64<<10, 700)
			settle := func(want []byte, at int) { // version 1 tells its caller before we have everything
				t.Helper()
				for deadline := time.Now().Add(hang); !bytes.Equal(x.mem[at:at+len(want)], want); time.Sleep(time.Millisecond) {
					if !v1 || time.Now().After(deadline) {
						t.Fatalf("%d bytes at %d differ", len(want), at)
					}
				}
			}
			for i, n := range []int{1, 65535, 65536, 65537, 3 << 20, 40 << 20} {
				want := w.fill(777, n, i)
				if code, _ := w.code("write", map[string]any{"peer": x.Name(), "offset": 777, "addr": x.region.Base() + 4321, "length": n}); code != 0 {
					t.Fatalf("a write of %d bytes: %d", n, code)
				}
				settle(want, 4321)
				if code, _ := w.code("read", map[string]any{"peer": x.Name(), "offset": 0, "addr": x.region.Base() + 4321, "length": min(n, 1<<20)}); code != 0 {
					t.Fatalf("a read of %d bytes: %d", n, code)
				}
				if k := min(n, 2000); !bytes.Equal(w.get(0, k), want[:k]) {
					t.Fatalf("a read of %d bytes differs", n)
				}
			}
			const block = 5000
			want := w.fill(0, c.blocks*block, 99)
			var offsets, lengths []int
			var addrs []uint64
			for i := range c.blocks {
				k := (i*7919 + 1) % c.blocks
				offsets, lengths, addrs = append(offsets, k*block), append(lengths, block), append(addrs, x.region.Base()+uint64(k*block))
			}
			if code, _ := w.code("batch", map[string]any{"peer": x.Name(), "offsets": offsets, "addrs": addrs, "lengths": lengths}); code != 0 {
				t.Fatalf("a batch of %d: %d", c.blocks, code)
			}
			settle(want, 0)

			x.lease.Retire()
			x.lease = x.admit(t, 1)
			next := x.region.Base() + uint64(len(x.mem))
			if code, _ := w.code("notify", map[string]any{"peer": x.Name(), "offset": 0, "addr": next, "length": 1 << 20, "name": "t", "msg": "m"}); code != 0 {
				t.Errorf("a write with a notification: %d", code)
			}
			for deadline := time.Now().Add(hang); ; time.Sleep(time.Millisecond) {
				mu.Lock()
				got, ok := covered["t=m"]
				mu.Unlock()
				if ok {
					if got != 1<<20 && !v1 {
						t.Errorf("the notification came when %d bytes were in place", got)
					}
					break
				} else if time.Now().After(deadline) {
					t.Fatal("no notification")
				}
			}
			if code, _ := w.code("probe", map[string]any{"peer": x.Name()}); code != 0 {
				t.Errorf("a probe: %d", code)
			}
			var first uint64
			if w.tell(&first, "first", map[string]any{"peer": x.Name()}); first != x.region.Base() {
				t.Errorf("the first buffer is at %#x, want %#x", first, x.region.Base())
			}

			// Sealed: told OK, nothing written.
			x.lease.Seal()
			before := bytes.Clone(x.mem)
			if code, _ := w.code("write", map[string]any{"peer": x.Name(), "offset": 0, "addr": next, "length": 20 << 20}); code != 0 {
				t.Errorf("a write to a sealed range: %d", code)
			}
			for deadline := time.Now().Add(hang); x.Stats().BytesSunk < 20<<20; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%+v", x.Stats())
				}
			}
			if !bytes.Equal(x.mem, before) {
				t.Error("memory of a sealed lease has changed")
			}
			_ = w.in.Close()
			for deadline := time.Now().Add(hang); x.Stats().DataConns+x.Stats().ControlConns > 0; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("connections are left: %+v", x.Stats())
				}
			}
		})
	}
}

// T5: the engine meets a target that rejects, dies, is silent, or does not read. It fails, when it should.
func TestMooncakeMeetsATargetThatFails(t *testing.T) {
	w := startWheel(t, "MC_TCP_STATUS_TIMEOUT_SEC=3", "MC_TRANSFER_TIMEOUT=8")
	args := func(name string, addr uint64, n int) map[string]any {
		return map[string]any{"peer": name, "offset": 0, "addr": addr, "length": n}
	}
	within := func(what string, code int, took, least, most time.Duration) {
		t.Helper()
		if code != -1 || took < least || took > most {
			t.Errorf("%s: %d after %v, want -1 after %v to %v", what, code, took, least, most)
		}
	}
	x := opened(t, Config{}, 64<<10, 16)
	for _, n := range []int{100, 10 << 20} {
		code, took := w.code("write", args(x.Name(), x.region.Base()-50, n))
		within("not admitted", code, took, 0, 2*time.Second)
	}
	if code, _ := w.code("write", args(x.Name(), x.region.Base(), 1000)); code != 0 {
		t.Errorf("afterwards: %d", code)
	}

	f := newFabric(t).(*fabric)
	s := f.station(t, Config{})
	mem := make([]byte, 40<<20)
	r, err := s.Register(mem, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	items := make([]int32, 40)
	for i := range items {
		items[i] = int32(i)
	}
	l, err := s.Open(transfer.Grant{Windows: []transfer.Window{{Region: r, Items: items}}})
	if err != nil {
		t.Fatal(err)
	}
	resume := s.data.stall(1 << 20) // the cut comes in the middle
	time.AfterFunc(300*time.Millisecond, func() { f.Cut(s.Name()) })
	code, took := w.code("write", args(s.Name(), r.Base(), 40<<20))
	resume()
	within("killed in the middle", code, took, 0, 3*time.Second)
	l.Seal()
	<-l.Idle()

	silent := newUpstream(t, &upstream{version: 2, silent: true})
	code, took = w.code("write", args(silent.name(), upstreamBase, 100_000))
	within("silent after the payload", code, took, 2*time.Second, 6*time.Second)
	blocked := newUpstream(t, &upstream{version: 2, blocked: make(chan struct{})})
	code, took = w.code("write", args(blocked.name(), upstreamBase, 40<<20))
	within("not reading", code, took, 7*time.Second, 12*time.Second)
	if err := start(t, Config{}).Probe(context.Background(), w.name); err != nil {
		t.Errorf("the engine afterwards: %v", err)
	}
}
