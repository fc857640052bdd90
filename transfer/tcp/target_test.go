package tcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/kvferry/kvferry/transfer"
)

const hang = 2 * time.Minute

// open is a target with all items of one region admitted.
type open struct {
	*Engine
	mem    []byte
	region transfer.Region
	lease  transfer.Lease
}

func opened(t testing.TB, cfg Config, item, items int) *open {
	t.Helper()
	m := memory(t, item*items) // given back after the engine is closed
	return admitted(t, start(t, cfg), m, item)
}

// memory is outside of the race detector's view: to it a status is no synchronisation.
func memory(t testing.TB, n int) []byte {
	t.Helper()
	m, err := transfer.NewMemory(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m.Bytes()
}

func admitted(t testing.TB, e *Engine, mem []byte, item int) *open {
	t.Helper()
	x := &open{Engine: e, mem: mem}
	var err error
	if x.region, err = x.Register(mem, item); err != nil {
		t.Fatal(err)
	}
	x.lease = x.admit(t, 0)
	return x
}

func (x *open) admit(t testing.TB, gen uint32) transfer.Lease {
	t.Helper()
	items := make([]int32, x.region.Items())
	for i := range items {
		items[i] = int32(i)
	}
	l, err := x.Open(transfer.Grant{Generation: gen, Windows: []transfer.Window{{Region: x.region, Items: items}}})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// dialData is a connection that speaks the protocol by hand.
func dialData(t testing.TB, e *Engine) *net.TCPConn {
	t.Helper()
	_, addr := e.Addrs()
	c, err := net.Dial("tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(hang)); err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn)
}

func send(t testing.TB, w io.Writer, parts ...[]byte) {
	t.Helper()
	if _, err := w.Write(bytes.Join(parts, nil)); err != nil {
		t.Fatal(err)
	}
}

func request(op byte, addr uint64, size int) []byte {
	b := appendHeader(nil, header{size: uint64(size), addr: addr, op: op})
	copy(b[17:], "\xde\xad\xbe\xef\x01\x23\x45") // as upstream leaves it
	return b
}

func wantStatus(t testing.TB, r io.Reader, want uint32) {
	t.Helper()
	b := make([]byte, statusLen)
	if _, err := io.ReadFull(r, b); err != nil {
		t.Fatalf("status: %v, want %d", err, want)
	}
	if code, err := parseStatus(b); err != nil || code != want {
		t.Fatalf("status %d, %v, want %d", code, err, want)
	}
}

func wantEnd(t testing.TB, r io.Reader) {
	t.Helper()
	if n, err := io.Copy(io.Discard, r); err == nil && n > 0 {
		t.Fatalf("%d bytes before the end", n)
	}
}

func random(n int) []byte {
	b := make([]byte, n)
	rng := rand.New(rand.NewPCG(uint64(n), 5))
	const period = 65521 // prime: no two pages are alike
	for i := range min(n, period) {
		b[i] = byte(rng.Uint32())
	}
	for k := period; k < n; k *= 2 {
		copy(b[k:], b[:k])
	}
	return b
}

func TestWriteAndReadByHand(t *testing.T) {
	x := opened(t, Config{}, 1<<20, 42)
	c := dialData(t, x.Engine)
	for _, n := range []int{1, 65535, 65536, 65537, 3 << 20, 40 << 20} {
		at, src, got := 12345, random(n), make([]byte, n)
		send(t, c, request(opWrite|flagV2, x.region.Base()+uint64(at), n), src)
		wantStatus(t, c, statusOK)
		if !bytes.Equal(x.mem[at:at+n], src) {
			t.Fatalf("%d bytes are not in place when the status has come", n)
		}
		send(t, c, request(opRead|flagV2, x.region.Base()+uint64(at), n))
		wantStatus(t, c, statusOK)
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, src) {
			t.Fatalf("%d bytes read back: %v, equal is %v", n, err, bytes.Equal(got, src))
		}
	}
}

// Version 1 has no status: a half close is answered by a clean end once all is consumed.
func TestVersion1ByHand(t *testing.T) {
	x := opened(t, Config{}, 1<<20, 4)
	for _, n := range []int{1, 70_000, 3 << 20} {
		c := dialData(t, x.Engine)
		src := random(n)
		send(t, c, request(opWrite, x.region.Base(), 0), request(opWrite, x.region.Base()+7, n), src, request(opRead, x.region.Base()+7, n))
		got := make([]byte, n)
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, src) {
			t.Fatalf("%d bytes read back: %v, equal is %v", n, err, bytes.Equal(got, src))
		}
		send(t, c, request(opWrite, x.region.Base(), n), src)
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
			t.Fatalf("end: %d, %v", n, err)
		}
		if !bytes.Equal(x.mem[:n], src) {
			t.Fatal("not in place at the end")
		}
		// What is not admitted must not end cleanly.
		c = dialData(t, x.Engine)
		send(t, c, request(opWrite, x.region.Base()-1, n))
		_, werr := c.Write(src) // the reset is told once, to whoever comes first
		cerr := c.CloseWrite()
		if _, err := c.Read(make([]byte, 1)); werr == nil && cerr == nil && errors.Is(err, io.EOF) {
			t.Fatalf("%d bytes that are not admitted: %v, want a reset", n, err)
		}
	}
}

func TestPipelinedAndInPieces(t *testing.T) {
	x := opened(t, Config{}, 100_000, 10)
	rng := rand.New(rand.NewPCG(9, 9))
	var stream []byte
	want := make([]byte, len(x.mem))
	at := 0
	sizes := []int{1, 5, 24, 100, 16383, 16384, 20_000, 70_000, 200_000, 3, 9000, 16385, 64 << 10, 64<<10 - 24}
	for _, n := range sizes {
		src := random(n)
		stream = append(append(stream, request(opWrite|flagV2, x.region.Base()+uint64(at), n)...), src...)
		copy(want[at:], src)
		at += n + 13
	}
	for name, pieces := range map[string]func(io.Reader) io.Reader{
		"at once": func(r io.Reader) io.Reader { return r },
		"by one":  iotest.OneByteReader,
		"random": func(r io.Reader) io.Reader {
			return readerFunc(func(b []byte) (int, error) { return r.Read(b[:min(len(b), 1+rng.IntN(40_000))]) })
		},
	} {
		clear(x.mem)
		c := dialData(t, x.Engine)
		in := pieces(bytes.NewReader(stream))
		if name == "by one" { // the beginning is enough
			in = pieces(bytes.NewReader(stream[:20_000]))
		}
		go func() {
			b := make([]byte, 64<<10)
			for {
				n, err := in.Read(b)
				if _, werr := c.Write(b[:n]); err != nil || werr != nil {
					return
				}
			}
		}()
		if name == "by one" {
			for range 5 {
				wantStatus(t, c, statusOK)
			}
			continue
		}
		for range sizes {
			wantStatus(t, c, statusOK)
		}
		if !bytes.Equal(x.mem, want) {
			t.Errorf("%s: memory differs", name)
		}
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// endsWith reports whether the rest of a connection is one status.
func endsWith(t *testing.T, c io.Reader, code uint32) bool {
	t.Helper()
	b, err := io.ReadAll(c)
	if err != nil {
		t.Errorf("read: %v", err)
	}
	return bytes.Equal(b, appendStatus(nil, code))
}

func TestForeignRejections(t *testing.T) {
	x := opened(t, Config{}, 1000, 10)
	other, err := x.Register(make([]byte, 1000), 1000)
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]header{
		"below":                {size: 10, addr: x.region.Base() - 5},
		"above":                {size: 10, addr: x.region.Base() + 1<<31*1000 + 1<<40},
		"overflow":             {size: 1<<64 - 1, addr: x.region.Base() + 1},
		"over the lease's end": {size: 1001, addr: x.region.Base() + 9000},
		"a huge size":          {size: 1 << 62, addr: x.region.Base()},
		"two regions":          {size: other.Base() - x.region.Base() + 1, addr: x.region.Base()},
		"not admitted":         {size: 10, addr: other.Base()},
		"no bytes":             {size: 0, addr: x.region.Base()},
	} {
		for _, op := range []byte{opWrite, opRead} {
			c := dialData(t, x.Engine)
			r.op = op | flagV2
			send(t, c, appendHeader(nil, r), make([]byte, 3000))
			if !endsWith(t, c, statusRejected) {
				t.Errorf("%s, operation %#x: not rejected", name, op)
			}
			if r.size == 0 {
				continue
			}
			c = dialData(t, x.Engine)
			r.op = op
			send(t, c, appendHeader(nil, r))
			wantEnd(t, c)
		}
	}
	x.lease.Seal()
	c := dialData(t, x.Engine)
	send(t, c, request(opWrite|flagV2, x.region.Base(), 5000), make([]byte, 5000), request(opWrite|flagV2, x.region.Base(), 40_000/4), make([]byte, 10_000))
	wantStatus(t, c, statusOK)
	wantStatus(t, c, statusOK)
	send(t, c, request(opRead|flagV2, x.region.Base(), 5)) // there is nothing to read in the sink
	wantStatus(t, c, statusRejected)
	if got := x.Stats(); got.BytesSunk != 15_000 || got.Refused == 0 {
		t.Errorf("%+v", got)
	}
}

// A peer that closes its half gets the statuses that it is owed.
func TestHalfClose(t *testing.T) {
	x := opened(t, Config{}, 1000, 10)
	c := dialData(t, x.Engine)
	send(t, c, bytes.Repeat(append(request(opWrite|flagV2, x.region.Base(), 3), 1, 2, 3), 5))
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		wantStatus(t, c, statusOK)
	}
	wantEnd(t, c)
}

func hello(to Instance) []byte {
	b := appendHeader(nil, header{size: helloSize, addr: helloAddr, op: opHello})
	return append(append(b, make([]byte, 16)...), to[:]...)
}

// table is a request of many writes without its payloads.
func table(entries ...entry) []byte {
	h := header{addr: uint64(len(entries)), op: opTable}
	for _, x := range entries {
		h.size += x.size
	}
	b := appendHeader(nil, h)
	for _, x := range entries {
		b = binary.LittleEndian.AppendUint64(b, x.size)
		b = binary.LittleEndian.AppendUint64(b, x.addr)
	}
	return append(b, make([]byte, headerLen+tableLen(len(entries))-len(b))...)
}

func TestTables(t *testing.T) {
	const item = 40_000
	x := opened(t, Config{}, item, 64)
	x.lease.Retire()
	a, err := x.Open(transfer.Grant{Generation: 1, Windows: []transfer.Window{{Region: x.region, Items: []int32{0, 1, 2, 3, 4, 5, 6, 7}}}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := x.Open(transfer.Grant{Generation: 2, Windows: []transfer.Window{{Region: x.region, Items: []int32{8, 9, 10, 11}}}})
	if err != nil {
		t.Fatal(err)
	}
	addr := func(gen, page int) uint64 { return x.region.Base() + uint64(gen*64+page)*item }
	c := dialData(t, x.Engine)
	send(t, c, hello(x.Instance()))
	wantStatus(t, c, statusOK)
	src := random(12 * item)
	part := func(k int) []byte { return src[k*item : (k+1)*item] }
	// Writes of two leases, some refused, of all sizes, in pieces.
	entries := []entry{{size: item, addr: addr(1, 0)}, {size: item, addr: addr(2, 8)}, {size: item, addr: addr(3, 0)}, {size: 100, addr: addr(1, 1)}, {size: item, addr: addr(1, 2)}, {size: item, addr: 77}, {size: 2 * item, addr: addr(1, 3)}}
	stream := table(entries...)
	for _, k := range [][]byte{part(0), part(8), part(11), part(1)[:100], part(2), part(11), src[3*item : 5*item]} {
		stream = append(stream, k...)
	}
	for len(stream) > 0 {
		n := min(len(stream), 30_011)
		send(t, c, stream[:n])
		stream = stream[n:]
		runtime.Gosched()
	}
	for _, want := range []uint32{statusOK, statusOK, statusOutOfRange, statusOK, statusOK, statusNotRegistered, statusOK} {
		wantStatus(t, c, want)
	}
	want := make([]byte, len(x.mem))
	for _, k := range []int{0, 2, 3, 4, 8} {
		copy(want[k*item:], part(k))
	}
	copy(want[item:], part(1)[:100])
	if !bytes.Equal(x.mem, want) {
		t.Error("memory differs")
	}
	if got, _ := a.Covered(); got != 4*item+100 {
		t.Errorf("%d bytes of the first lease are covered", got)
	}
	// One lease is sealed while the target waits with the memory of both.
	send(t, c, table(entry{size: item, addr: addr(1, 5)}, entry{size: item, addr: addr(2, 9)}, entry{size: item, addr: addr(1, 6)}), part(5)[:10_000])
	for deadline := time.Now().Add(hang); !bytes.Equal(x.mem[5*item:5*item+10_000], part(5)[:10_000]); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the beginning does not arrive")
		}
	}
	b.Seal()
	select {
	case <-b.Idle():
	case <-time.After(hang):
		t.Fatal("a reader stays inside")
	}
	send(t, c, part(5)[10_000:], part(9), part(6))
	wantStatus(t, c, statusOK)
	wantStatus(t, c, statusSealed)
	wantStatus(t, c, statusOK)
	copy(want[5*item:], src[5*item:7*item])
	if !bytes.Equal(x.mem, want) {
		t.Error("memory differs after a seal")
	}
	// Tables that are none end the connection.
	for name, bad := range map[string][]byte{
		"no entries":     appendHeader(nil, header{op: opTable}),
		"too many":       appendHeader(nil, header{op: opTable, addr: tableMax + 1}),
		"a wrong total":  append(appendHeader(nil, header{size: 5, op: opTable, addr: 1}), table(entry{size: item, addr: addr(1, 0)})[headerLen:]...),
		"a size of none": table(entry{size: 0, addr: addr(1, 0)}),
		"a size too big": table(entry{size: 1 << 60, addr: addr(1, 0)}),
	} {
		c := dialData(t, x.Engine)
		send(t, c, hello(x.Instance()), bad)
		if !endsWith(t, c, statusOK) && !t.Failed() {
			t.Errorf("%s: more than the answer to the hello", name)
		}
	}
	c = dialData(t, x.Engine) // of a foreign engine it is a strange read
	send(t, c, table(entry{size: item, addr: addr(1, 0)}))
	wantEnd(t, c)
}

func TestNativeConnection(t *testing.T) {
	x := opened(t, Config{}, 1000, 10)
	c := dialData(t, x.Engine)
	send(t, c, hello(x.Instance()))
	wantStatus(t, c, statusOK)
	big := random(100_000)
	request := func(op byte, addr uint64, size int) []byte {
		return appendHeader(nil, header{size: uint64(size), addr: addr, op: op})
	}
	send(t, c, request(opWrite|flagV2, x.region.Base()-1, len(big)), big, request(opWrite|flagV2, x.region.Base()+9000, len(big)), big,
		request(opWrite|flagV2, x.region.Base(), 10), big[:10], request(opRead|flagV2, x.region.Base()+10_000, 10), request(opRead|flagV2, x.region.Base(), 10))
	wantStatus(t, c, statusNotRegistered)
	wantStatus(t, c, statusOutOfRange)
	wantStatus(t, c, statusOK)
	wantStatus(t, c, statusOutOfRange)
	wantStatus(t, c, statusOK)
	got := make([]byte, 10)
	if err := second(io.ReadFull(c, got)); err != nil || !bytes.Equal(got, big[:10]) {
		t.Errorf("read % x, %v", got, err)
	}
	summed := func(addr uint64, payload []byte) []byte {
		h := header{size: uint64(len(payload)), addr: addr, op: opWrite | flagV2, flags: sumFlag}
		h.sum = crc32.Update(crc32.Checksum(appendHeader(nil, h)[:headLen], castagnoli), castagnoli, payload)
		return append(appendHeader(nil, h), payload...)
	}
	wrong, elsewhere := summed(x.region.Base(), big[:700]), summed(x.region.Base(), big[:700])
	wrong[len(wrong)-1] ^= 1
	elsewhere[8]++ // its address
	send(t, c, summed(x.region.Base(), big[:700]), wrong, elsewhere)
	wantStatus(t, c, statusOK)
	wantStatus(t, c, statusCorrupt)
	wantStatus(t, c, statusCorrupt)
	x.lease.Seal()
	send(t, c, request(opWrite|flagV2, x.region.Base(), 10_000), big[:10_000])
	wantStatus(t, c, statusSealed)
	// Statuses wait while more follows, and no longer.
	more := appendHeader(nil, header{size: 1, addr: x.region.Base(), op: opWrite | flagV2, flags: moreFlag})
	send(t, c, more, []byte{1}, more, []byte{1}, appendHeader(nil, header{op: opSync}))
	wantStatus(t, c, statusSealed)
	wantStatus(t, c, statusSealed)
	send(t, c, bytes.Repeat(append(bytes.Clone(more), 1), 2*acksLen/statusLen))
	for range 2 * acksLen / statusLen {
		wantStatus(t, c, statusSealed)
	}

	c = dialData(t, x.Engine)
	send(t, c, hello(Instance{1}))
	wantStatus(t, c, statusOtherInstance)
	wantEnd(t, c)
	// Only the first request can be a hello, and only with both numbers.
	c = dialData(t, x.Engine)
	send(t, c, request(opWrite|flagV2, x.region.Base(), 1), []byte{1})
	wantStatus(t, c, statusOK)
	send(t, c, hello(x.Instance()))
	wantEnd(t, c)
	c = dialData(t, x.Engine)
	send(t, c, request(opHello|flagV2, helloAddr, 100))
	wantStatus(t, c, statusRejected)
	wantEnd(t, c)
	// An engine that passes for Mooncake's knows no hello.
	y := opened(t, Config{Foreign: true}, 1000, 10)
	c = dialData(t, y.Engine)
	send(t, c, hello(y.Instance()))
	wantEnd(t, c)
}

func second[T any](_ T, err error) error { return err }

func TestControlMessages(t *testing.T) {
	var mu sync.Mutex
	var notes []string
	e := start(t, Config{OnNotify: func(name, msg string) {
		mu.Lock()
		defer mu.Unlock()
		notes = append(notes, name+"="+msg)
	}})
	ask := func(in []byte) []byte {
		control, _ := e.Addrs()
		c, err := net.Dial("tcp", control.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(hang))
		send(t, c, in)
		b, err := io.ReadAll(c)
		if err != nil && len(b) > 0 {
			t.Fatal(err)
		}
		return b
	}
	connection := `{"local_gid":"","local_lid":0,"local_nic_path":"","payload":"","peer_nic_path":"","qp_num":[],"reply_msg":"transport not supported"}` + "\n"
	for name, c := range map[string]struct {
		typ      byte
		in, want string
	}{
		"probe":          {typeProbe, "{}", `{"status":"success"}` + "\n"},
		"notify":         {typeNotify, `{"name":"t","notify_msg":"m"}` + "\n", `{"name":"","notify_msg":"success"}` + "\n"},
		"connection":     {typeConnection, "{}", connection},
		"old":            {typeOld, "{}", connection},
		"probe, junk":    {typeProbe, "x", ""},
		"notify, a list": {typeNotify, `[1]`, ""},
		"notify, types":  {typeNotify, `{"name":["a"],"notify_msg":"m"}`, ""},
		"an object":      {typeOld, `{"qp_num":["x"]}`, connection},
		"unknown":        {7, "{}", ""},
	} {
		want := ""
		if c.want != "" {
			want = string(appendControl(nil, c.typ, []byte(c.want)))
		}
		if got := ask(appendControl(nil, c.typ, []byte(c.in))); string(got) != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	for _, in := range []string{"{}", "null", "[]", sample} { // whatever the requester says of itself
		got := ask(appendControl(nil, typeMetadata, []byte(in)))
		var d descriptor
		if len(got) < 9 || got[8] != typeMetadata || json.Unmarshal(got[9:], &d) != nil || d.Name != e.Name() {
			t.Errorf("descriptor %q", got)
		}
	}
	peer := start(t, Config{})
	if err := peer.Notify(t.Context(), e.Name(), "room", "7"); err != nil {
		t.Error(err)
	}
	if err := peer.Notify(t.Context(), e.Name(), "room", string(make([]byte, maxControl))); !errors.Is(err, transfer.ErrInvalid) {
		t.Errorf("a message too long: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(notes) != 2 || notes[1] != "room=7" {
		t.Errorf("notes are %q", notes)
	}
}

func TestThousandsOfShortConnections(t *testing.T) {
	const n = 5000
	x := opened(t, Config{MaxConns: 256}, 512, n) // far fewer than come: the others wait
	var wg sync.WaitGroup
	var mu sync.Mutex
	failed := 0
	_, addr := x.Addrs()
	gate := make(chan struct{}, 2000) // descriptors of this process
	for i := range n {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			err := func() error {
				c, err := net.Dial("tcp", addr.String())
				if err != nil {
					return err
				}
				defer c.Close()
				src := bytes.Repeat([]byte{byte(i), byte(i >> 8)}, 256)
				if _, err := c.Write(append(request(opWrite|flagV2, x.region.Base()+uint64(i)*512, 512), src...)); err != nil {
					return err
				}
				return second(io.ReadFull(c, src[:statusLen]))
			}()
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				if failed++; failed < 5 {
					t.Errorf("connection %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
	mem := x.mem
	for i := range n {
		if mem[i*512] != byte(i) || mem[i*512+511] != byte(i>>8) {
			t.Fatalf("write %d is not in place", i)
		}
	}
	if got, want := x.lease.Covered(); got != want {
		t.Errorf("%d of %d bytes are covered", got, want)
	}
}

// Silent connections hold little memory, and the oldest of them makes room for a newcomer.
func TestSilentConnections(t *testing.T) {
	x := opened(t, Config{MaxConns: 400}, 512, 4)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range 1000 {
		c := dialData(t, x.Engine)
		send(t, c, request(opWrite|flagV2, x.region.Base(), 512), make([]byte, 512))
		wantStatus(t, c, statusOK)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if n := x.Stats().DataConns; n > 400 {
		t.Errorf("%d connections", n)
	}
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 400*20<<10 {
		t.Errorf("%d bytes for 400 silent connections", grown)
	}
}

func TestAPayloadThatStallsIsCut(t *testing.T) {
	x := opened(t, Config{Stall: 50 * time.Millisecond}, 1<<20, 2)
	for _, n := range []int{10, 100, 70_000} {
		c := dialData(t, x.Engine)
		send(t, c, request(opWrite|flagV2, x.region.Base(), 1<<20)[:min(n, headerLen)], make([]byte, max(n-headerLen, 0)))
		wantEnd(t, c)
	}
	if got, _ := x.lease.Covered(); got != 70_000-headerLen {
		t.Errorf("%d bytes are covered", got)
	}
	c := dialData(t, x.Engine) // one that has nothing to say may be silent for longer
	select {
	case <-time.After(200 * time.Millisecond):
	case <-t.Context().Done():
	}
	send(t, c, request(opWrite|flagV2, x.region.Base(), 10), make([]byte, 10))
	wantStatus(t, c, statusOK)
}

func TestPeerThatReadsNoStatusesIsCut(t *testing.T) {
	x := opened(t, Config{Stall: 50 * time.Millisecond}, 64, 2)
	c := dialData(t, x.Engine)
	b := bytes.Repeat(append(request(opWrite|flagV2, x.region.Base(), 1), 1), 10_000)
	for {
		if _, err := c.Write(b); err != nil {
			if errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			break
		}
	}
}

func TestBindErrors(t *testing.T) {
	e := start(t, Config{})
	control, data := e.Addrs()
	for _, cfg := range []Config{{Port: control.(*net.TCPAddr).Port}, {DataPort: data.(*net.TCPAddr).Port}} {
		if _, err := New(t.Context(), cfg); err == nil || !bytes.Contains([]byte(err.Error()), []byte("address already in use")) {
			t.Errorf("a port that is taken: %v", err)
		}
	}
	for _, cfg := range []Config{{Bind: "0.0.0.0"}, {Bind: "::"}, {Port: -1}, {DataPort: 65536}, {PeerConns: -1}} {
		if _, err := New(t.Context(), cfg); !errors.Is(err, transfer.ErrInvalid) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	all := start(t, Config{Bind: "0.0.0.0", Advertise: "127.0.0.1"})
	if err := e.Probe(t.Context(), all.Name()); err != nil {
		t.Error(err)
	}
}

// FuzzDataConnection feeds a target a stream of bytes. Nothing but the admitted range may change, and the target goes on.
func FuzzDataConnection(f *testing.F) {
	x := opened(f, Config{Stall: 20 * time.Millisecond}, 256, 4)
	x.lease.Retire()
	mem := x.mem
	l, err := x.Open(transfer.Grant{Generation: 1, Windows: []transfer.Window{{Region: x.region, Items: []int32{1, 2}}}})
	if err != nil {
		f.Fatal(err)
	}
	defer l.Retire()
	zero := make([]byte, 256)
	// Addresses in the input are relative to the lease, since the region's base is random.
	f.Add([]byte{2, 0, 0, 0x81, 1, 2}, uint8(1), false)
	f.Add([]byte{1, 0, 0, 0x01, 1, 5, 0, 10, 0x80, 3, 1, 0, 0x81}, uint8(3), false)
	f.Add(bytes.Repeat([]byte{0, 1, 0, 0x81}, 20), uint8(20), true)
	f.Add(append([]byte{1, 0, 0, 0x81, 9}, table(entry{size: 100, addr: 5}, entry{size: 10, addr: 7})...), uint8(1), true)
	f.Fuzz(func(t *testing.T, in []byte, requests uint8, native bool) {
		var stream []byte
		if native {
			stream = hello(x.Instance())
		}
		for ; len(in) >= 4 && requests > 0; requests-- {
			size := int(in[0]) | int(in[1])<<8&0x300
			stream = append(stream, request(in[3], x.region.Base()+5*256+uint64(int64(int8(in[2]))*4), size)...)
			in = in[4:]
			n := min(size, len(in))
			stream, in = append(stream, in[:n]...), in[n:]
		}
		stream = append(stream, in...)
		_, addr := x.Addrs()
		c, err := net.Dial("tcp", addr.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(hang))
		_, _ = c.Write(stream)
		_ = c.(*net.TCPConn).CloseWrite()
		_, err = io.Copy(io.Discard, c)
		if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() {
			t.Fatalf("the target hangs: %v", err)
		}
		for _, outside := range [][]byte{mem[:256], mem[3*256:]} {
			if !bytes.Equal(outside, zero) {
				t.Fatalf("bytes outside of the lease are written: % x", outside)
			}
		}
	})
}
