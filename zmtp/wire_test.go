package zmtp

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"testing"
)

// libzmqHello is what libzmq 4.3.5 (pyzmq 27.3.0) sends from a PUSH with the NULL mechanism: greeting and READY.
const libzmqHello = "ff00000000000000017f03014e554c4c" +
	"00000000000000000000000000000000" + "00000000000000000000000000000000" + "00000000000000000000000000000000" +
	"041a" + "055245414459" + "0b536f636b65742d54797065" + "0000000450555348"

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func testLimits() Limits {
	cfg, err := Config{Limits: Limits{MaxFrame: 1 << 20, MaxMessage: 2 << 20, MaxFrames: 64}}.withDefaults()
	if err != nil {
		panic(err)
	}
	return cfg.Limits
}

func TestLibzmqHello(t *testing.T) {
	d := newDecoder(bytes.NewReader(unhex(t, libzmqHello)), testLimits())
	g, err := d.greeting()
	if err != nil || g.minor != 1 {
		t.Fatalf("greeting %+v, %v", g, err)
	}
	body, _, err := d.next()
	if err != nil {
		t.Fatal(err)
	}
	name, data, err := parseCommand(body)
	if err != nil || name != cmdReady {
		t.Fatalf("command %q, %v", name, err)
	}
	if r, err := parseReady(data); err != nil || r.socketType != typePush || len(r.props) != 0 {
		t.Errorf("READY %+v, %v", r, err)
	}
	ours := appendReady(appendGreeting(nil), ready{socketType: typePush})
	if got := hex.EncodeToString(ours); got != libzmqHello {
		t.Errorf("we say\n%s, libzmq\n%s", got, libzmqHello)
	}
}

func TestGreetingIsJudgedByteByByte(t *testing.T) {
	good := appendGreeting(nil)
	edit := func(at int, b byte) []byte { g := bytes.Clone(good); g[at] = b; return g }
	for _, c := range []struct {
		name string
		in   []byte
		want error
	}{
		{"HTTP", []byte("G"), ErrProtocol},
		{"TLS hello", []byte{0x16}, ErrProtocol},
		{"signature", edit(9, 0)[:signatureLen], ErrProtocol},
		{"ZMTP 2.0", append(bytes.Clone(good[:signatureLen]), 1), ErrVersion},
		{"CURVE", append(bytes.Clone(good[:mechanismOff]), append([]byte("CURVE"), make([]byte, 47)...)...), ErrMechanism},
		{"NULLX", edit(mechanismOff+4, 'X'), ErrMechanism},
		{"cut off", good[:63], ErrTruncated},
		{"nothing", nil, io.EOF},
	} {
		if _, err := newDecoder(bytes.NewReader(c.in), testLimits()).greeting(); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if g, err := parseGreeting(edit(10, 4)); err != nil || g.minor != versionMinor {
		t.Errorf("a newer major version: %+v, %v", g, err)
	}
}

func longHeader(flags byte, size uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{flags | flagLong}, size)
}

func TestFramesOutOfBounds(t *testing.T) {
	many := bytes.Repeat([]byte{flagMore, 0}, 65)
	for _, c := range []struct {
		name string
		in   []byte
		want error
	}{
		{"2^63-1", longHeader(0, 1<<63-1), ErrLimit},
		{"2^64-1", longHeader(0, 1<<64-1), ErrLimit},
		{"1 TiB READY", longHeader(flagCommand, 1<<40), ErrLimit},
		{"frame above the limit", longHeader(0, 1<<20+1), ErrLimit},
		{"endless frames", many, ErrLimit},
		{"reserved flag", []byte{0x08, 0}, ErrProtocol},
		{"command with more", []byte{flagCommand | flagMore, 0}, ErrProtocol},
		{"ends in a header", []byte{flagLong, 0, 0}, ErrTruncated},
		{"ends in a frame", []byte{0, 5, 'a'}, ErrTruncated},
		{"ends in a large frame", append(longHeader(0, 1<<20), make([]byte, 1<<19)...), ErrTruncated},
		{"ends between frames", []byte{flagMore, 1, 'a'}, ErrTruncated},
		{"ends between messages", []byte{0, 1, 'a'}, io.EOF},
	} {
		_, _, err := decodeAll(bytes.NewReader(c.in), testLimits())
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	// Three frames that fit alone, and not together.
	big := append(append(longHeader(flagMore, 1<<20), make([]byte, 1<<20)...), longHeader(flagMore, 1<<20)...)
	if _, _, err := decodeAll(bytes.NewReader(big), testLimits()); !errors.Is(err, ErrLimit) {
		t.Errorf("message above the limit: %v", err)
	}
}

// A frame's memory follows the bytes that came, not those that were announced.
func TestAnnouncedSizeIsNotAllocated(t *testing.T) {
	var asked int
	d := newDecoder(bytes.NewReader(append(longHeader(0, 1<<20), make([]byte, 100)...)), testLimits())
	d.reserve = func(n int) error { asked += n; return nil }
	if _, _, err := d.next(); !errors.Is(err, ErrTruncated) || asked > firstGrow {
		t.Errorf("%v, reserved %d bytes for 100", err, asked)
	}
	full := errors.New("full")
	d = newDecoder(bytes.NewReader(longHeader(0, 1<<20)), testLimits())
	d.reserve = func(int) error { return full }
	if _, _, err := d.next(); !errors.Is(err, full) || d.reserved != 0 {
		t.Errorf("%v, %d reserved", err, d.reserved)
	}
}

// libzmq puts PING and PONG between the frames of a message.
func TestCommandBetweenFrames(t *testing.T) {
	in := []byte{flagMore, 1, 'a'}
	in = appendCommand(in, cmdPing, []byte{0, 0, 'c'})
	in = append(in, 0, 1, 'b')
	ms, cmds, err := decodeAll(bytes.NewReader(in), testLimits())
	if !errors.Is(err, io.EOF) || len(ms) != 1 || !equalFrames(ms[0], frames("a", "b")) || len(cmds) != 1 {
		t.Errorf("%q, %q, %v", ms, cmds, err)
	}
}

func TestOwnersCannotReachEachOther(t *testing.T) {
	var in []byte
	for i := range 3 {
		in = appendMessage(in, frames(strings.Repeat("x", i+1), "y"))
	}
	ms, _, err := decodeAll(bytes.NewReader(in), testLimits())
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	_ = append(ms[0][0], "clobber"...)
	_ = append(ms[0], []byte("clobber"))
	if !equalFrames(ms[0], frames("x", "y")) || !equalFrames(ms[1], frames("xx", "y")) {
		t.Errorf("%q", ms)
	}
}

func TestReadyOutOfBounds(t *testing.T) {
	prop := func(name, value string) []byte {
		return append(binary.BigEndian.AppendUint32(appendCommandName(nil, name), uint32(len(value))), value...)
	}
	var many []byte
	for i := range MaxProperties + 1 {
		many = append(many, prop(fmt.Sprintf("X-%d", i), "")...)
	}
	for name, c := range map[string]struct {
		in   []byte
		want error
	}{
		"value longer than READY": {append(appendCommandName(nil, "X-A"), 0xff, 0xff, 0xff, 0xff), ErrTruncated},
		"name longer than READY":  {[]byte{200, 'x'}, ErrTruncated},
		"empty name":              {prop("", "v"), ErrProtocol},
		"name with blank":         {prop("X A", "v"), ErrProtocol},
		"twice":                   {append(prop("X-A", "1"), prop("x-a", "2")...), ErrProtocol},
		"too many":                {many, ErrLimit},
	} {
		if _, err := parseReady(c.in); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	r, err := parseReady(append(append(prop("SOCKET-TYPE", "PULL"), prop("identity", "me")...), prop("X-Any", "\x00\xff")...))
	if err != nil || r.socketType != typePull || len(r.props) != 1 || r.props["X-Any"] != "\x00\xff" {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := parsePing([]byte{0}); !errors.Is(err, ErrTruncated) {
		t.Errorf("short PING: %v", err)
	}
	if _, err := parsePing(make([]byte, 2+maxPingContext+1)); !errors.Is(err, ErrLimit) {
		t.Errorf("long PING context: %v", err)
	}
}

// decodeAll decodes to the first error.
func decodeAll(r io.Reader, l Limits) (ms [][][]byte, cmds [][]byte, err error) {
	d := newDecoder(r, l)
	for {
		body, m, err := d.next()
		if err != nil {
			return ms, cmds, err
		}
		if body != nil {
			cmds = append(cmds, bytes.Clone(body))
			continue
		}
		if got := messageCost(m.frames); got != m.cost {
			panic(fmt.Sprintf("cost %d, computed %d", m.cost, got))
		}
		ms = append(ms, m.frames)
	}
}

// pieces gives a reader's bytes in pieces whose sizes come from a seed.
type pieces struct {
	r    io.Reader
	seed uint32
}

func (p *pieces) Read(b []byte) (int, error) {
	p.seed = p.seed*1664525 + 1013904223
	n := 1 + int(p.seed>>24)
	if n > 128 {
		n -= 128 // small pieces as often as large ones
		n *= n
	}
	return p.r.Read(b[:min(n, len(b))])
}

func FuzzDecode(f *testing.F) {
	long := appendMessage(nil, [][]byte{pattern(directFrame + 5), nil, pattern(300)})
	for _, in := range [][]byte{
		nil, {0, 0}, {flagMore, 0, 0, 1, 'x'}, longHeader(0, 1<<63-1), longHeader(flagCommand, 1<<40), longHeader(0, 3),
		appendCommand(nil, cmdPing, []byte{0, 0}), appendMessage(appendReady(nil, ready{typePush, Properties{"X-A": "b"}}), frames("", "a", "")), long,
		[]byte("GET / HTTP/1.1\r\n\r\n"),
	} {
		f.Add(in, uint32(1))
	}
	limits := testLimits()
	f.Fuzz(func(t *testing.T, in []byte, seed uint32) {
		ms, cmds, err := decodeAll(bytes.NewReader(in), limits)
		ms2, cmds2, err2 := decodeAll(&pieces{bytes.NewReader(in), seed}, limits)
		if fmt.Sprint(err) != fmt.Sprint(err2) || len(ms) != len(ms2) || len(cmds) != len(cmds2) {
			t.Fatalf("whole: %d messages, %d commands, %v; in pieces: %d, %d, %v", len(ms), len(cmds), err, len(ms2), len(cmds2), err2)
		}
		var again []byte
		for i, m := range ms {
			if !equalFrames(m, ms2[i]) {
				t.Fatalf("message %d differs in pieces", i)
			}
			again = appendMessage(again, m)
			if v := bytes.Join(vector(m), nil); !bytes.Equal(v, appendMessage(nil, m)) {
				t.Fatalf("message %d as vector differs", i)
			}
		}
		back, _, err := decodeAll(bytes.NewReader(again), limits)
		if !errors.Is(err, io.EOF) || len(back) != len(ms) {
			t.Fatalf("encoded again: %d messages of %d, %v", len(back), len(ms), err)
		}
		for i := range ms {
			if !equalFrames(ms[i], back[i]) {
				t.Fatalf("message %d differs when encoded again", i)
			}
		}
	})
}

func FuzzHandshake(f *testing.F) {
	f.Add(appendReady(appendGreeting(nil), ready{typePull, Properties{"X-Kvferry-Instance": "i"}}))
	f.Add(appendCommand(appendGreeting(nil), cmdError, []byte("\x03bad")))
	f.Add(appendCommand(appendGreeting(nil), cmdPing, []byte("\x00\x00ctx")))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		d := newDecoder(bytes.NewReader(in), testLimits())
		if _, err := d.greeting(); err != nil {
			return
		}
		body, _, err := d.next()
		if err != nil || body == nil {
			return
		}
		name, data, err := parseCommand(body)
		if err != nil {
			return
		}
		if got := appendCommand(nil, name, data); !bytes.HasSuffix(got, body) {
			t.Fatalf("%q encodes as %q", body, got)
		}
		_ = parseError(data)
		if ctx, err := parsePing(data); err == nil && len(ctx) > maxPingContext {
			t.Fatalf("context of %d bytes", len(ctx))
		}
		r, err := parseReady(data)
		if err != nil {
			return
		}
		frame := appendReady(nil, r)
		_, _, n, err := parseFrameHeader(frame)
		if err != nil {
			t.Fatal(err)
		}
		_, data, err = parseCommand(frame[n:])
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseReady(data)
		if err != nil || again.socketType != r.socketType || !maps.Equal(again.props, r.props) {
			t.Fatalf("%+v encodes as %+v, %v", r, again, err)
		}
	})
}
