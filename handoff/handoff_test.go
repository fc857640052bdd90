package handoff

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvferry/kvferry/backend"
	"github.com/kvferry/kvferry/backend/mooncake"
	"github.com/kvferry/kvferry/kvlayout"
	"github.com/kvferry/kvferry/node"
	"github.com/kvferry/kvferry/room"
	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/tcp"
	"github.com/kvferry/kvferry/zmtp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testPages = 16
	testSlots = 4
)

// directory knows the prefill ranks of one instance.
type directory struct {
	p []*Prefill
	t kvlayout.Topology
}

func (d directory) Find(_ context.Context, _ room.ID, _ Peer, own kvlayout.Geometry) (Route, error) {
	m, err := kvlayout.Ranks(d.t, kvlayout.Topology{TP: own.TP, CP: 1, PP: own.PP}, kvlayout.Rank{TP: own.TPRank, PP: own.PPRank}, kvlayout.Pairing{Layers: own.Layers})
	if err != nil {
		return Route{}, err
	}
	var r Route
	for _, t := range m.Targets {
		for _, p := range d.p {
			if UniqueRank(p.cfg.Geometry) == t.Unique {
				r.Targets = append(r.Targets, node.Target{Endpoint: p.Endpoint(), Rank: t.Unique, Dummy: t.Dummy, Required: t.DstInfos})
			}
		}
	}
	return r, nil
}

type pair struct {
	t testing.TB
	p []*Prefill
	d []*Decode
}

func instance(b byte) (id room.InstanceID) {
	id[0] = b
	_, _ = rand.Read(id[1:])
	return id
}

func memoryFor(t testing.TB, g kvlayout.Geometry) Memory {
	var m Memory
	buf := func(n, item int) Buffer {
		mem, err := transfer.NewMemory(n * item)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = mem.Close() })
		return Buffer{mem.Bytes(), item}
	}
	for i := range g.Regions() {
		m.KV = append(m.KV, buf(testPages, int(g.ItemLen(i))))
	}
	m.Aux = []Buffer{buf(testSlots, 64)}
	return m
}

func newPair(t testing.TB, ptp, ppp, dtp, dpp int, order kvlayout.Order) *pair {
	x := &pair{t: t}
	base := kvlayout.Geometry{Order: order, DType: "float32", Model: "m", PageSize: 4, TP: 1, PP: 1, Layers: 4, End: 4, KVHeads: 4, HeadBytes: 64}
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	make1 := func(name string, t2 kvlayout.Topology, r kvlayout.Rank, id room.InstanceID) (Control, kvlayout.Geometry, *tcp.Engine, Memory) {
		e, err := tcp.New(t.Context(), tcp.Config{})
		if err != nil {
			t.Fatal(err)
		}
		g := base.At(t2, r)
		mem := memoryFor(t, g)
		t.Cleanup(func() {
			if err := e.Close(context.Background()); err != nil {
				t.Errorf("engine of %s: %v", name, err)
			}
		})
		return Control{Instance: id, Dialect: mooncake.Dialect{}, Logger: log.With("at", name)}, g, e, mem
	}
	pt, dt := kvlayout.Topology{TP: ptp, CP: 1, PP: ppp}, kvlayout.Topology{TP: dtp, CP: 1, PP: dpp}
	pid, did := instance(1), instance(2)
	for i := range pt.Size() {
		r, _ := pt.Rank(i)
		c, g, e, mem := make1(fmt.Sprint("p", i), pt, r, pid)
		p, err := NewPrefill(t.Context(), PrefillConfig{Control: c, Memory: mem, Geometry: g, Engine: e})
		if err != nil {
			t.Fatal(err)
		}
		x.p = append(x.p, p)
	}
	for i := range dt.Size() {
		r, _ := dt.Rank(i)
		c, g, e, mem := make1(fmt.Sprint("d", i), dt, r, did)
		d, err := NewDecode(t.Context(), DecodeConfig{Control: c, Memory: mem, Geometry: g, Engine: e, Directory: directory{x.p, pt}})
		if err != nil {
			t.Fatal(err)
		}
		x.d = append(x.d, d)
	}
	t.Cleanup(x.close)
	return x
}

func (x *pair) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, d := range x.d {
		if err := d.Close(ctx); err != nil {
			x.t.Error(err)
		}
	}
	for _, p := range x.p {
		if err := p.Close(ctx); err != nil {
			x.t.Error(err)
		}
	}
}

// open begins a room on all ranks.
func (x *pair) open(id room.ID) (tx []*Sender, rx []*Receiver) {
	for _, p := range x.p {
		s, err := p.Send(id)
		if err != nil {
			x.t.Fatal(err)
		}
		tx = append(tx, s)
	}
	for _, d := range x.d {
		r, err := d.Open(id, Peer{Bootstrap: "test", DPRank: -1})
		if err != nil {
			x.t.Fatal(err)
		}
		rx = append(rx, r)
	}
	return tx, rx
}

func wait(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s does not come", what)
	}
}

func (x *pair) halves(tx []*Sender, rx []*Receiver) (all []Half) {
	for _, s := range tx {
		all = append(all, s)
	}
	for _, r := range rx {
		all = append(all, r)
	}
	return all
}

// empty checks that no table of any rank has an entry of a room, and that all pages are free.
func (x *pair) empty(all []Half) {
	x.t.Helper()
	for _, h := range all {
		h.Clear()
		switch h := h.(type) {
		case *Sender:
			wait(x.t, "clearing a sender", h.Cleared())
		case *Receiver:
			wait(x.t, "clearing a receiver", h.Cleared())
		}
	}
	for i, p := range x.p {
		if c := p.Counts(); c.Rooms+c.Halves+c.Writes+c.Unserved != 0 || c.PagesFree != testPages {
			x.t.Errorf("prefill %d: %+v", i, c)
		}
	}
	for i, d := range x.d {
		if c := d.Counts(); c.Rooms+c.Halves+c.Quarantined != 0 || c.PagesFree != testPages {
			x.t.Errorf("decode %d: %+v", i, c)
		}
	}
}

// bytesOf is the content of (layer, K|V, token, head), the same on every rank that holds it.
func bytesOf(layer, kv, token, head int) []byte {
	b := make([]byte, 64)
	for i := range b {
		b[i] = byte(layer*101 + kv*57 + token*31 + head*13 + i)
	}
	return b
}

// each calls f with every (region, page of the prompt, token in the page, head of the rank) of a rank and its place in a page.
func each(g kvlayout.Geometry, pages int, f func(region, page, at int, want []byte)) {
	n := g.End - g.Start
	first := g.TPRank * g.Heads()
	for region := range 2 * n {
		for page := range pages {
			for tok := range g.PageSize {
				for h := range g.Heads() {
					at := (tok*g.Heads() + h) * 64
					if g.Order == kvlayout.HeadMajor {
						at = (h*g.PageSize + tok) * 64
					}
					f(region, page, at, bytesOf(g.Start+region%n, region/n, page*g.PageSize+tok, first+h))
				}
			}
		}
	}
}

func TestHandOff(t *testing.T) {
	for _, order := range []kvlayout.Order{kvlayout.HeadMajor, kvlayout.TokenMajor} {
		for _, s := range [][4]int{{1, 1, 1, 1}, {2, 1, 1, 1}, {1, 1, 2, 1}, {4, 1, 2, 1}, {1, 2, 1, 1}, {1, 1, 1, 2}, {2, 2, 1, 1}, {1, 2, 2, 2}} {
			t.Run(fmt.Sprintf("%v/%v", order, s), func(t *testing.T) {
				x := newPair(t, s[0], s[1], s[2], s[3], order)
				for id := room.ID(1); id <= 3; id++ {
					x.handOff(id)
				}
			})
		}
	}
}

func (x *pair) handOff(id room.ID) {
	x.t.Helper()
	const pages = 5
	tx, rx := x.open(id)
	dst := make([][]int32, len(x.d))
	src := make([][]int32, len(x.p))
	for i, p := range x.p {
		src[i], _ = p.Pages().Alloc(pages)
		each(p.cfg.Geometry, pages, func(region, page, at int, want []byte) {
			b := p.mem.KV[region]
			copy(b.Mem[int(src[i][page])*b.Item+at:], want)
		})
		copy(p.mem.Aux[0].Mem[2*64:], fmt.Sprintf("aux of room %d", id))
	}
	for i, r := range rx {
		dst[i], _ = x.d[i].Pages().Alloc(pages)
		if err := r.Post(Destination{Pages: dst[i], Aux: 1}); err != nil {
			x.t.Fatal(err)
		}
	}
	for i, s := range tx {
		for _, c := range []Chunk{{Pages: src[i][:2], Aux: -1}, {Pages: src[i][2:4], Aux: -1}, {Pages: src[i][4:], Aux: 2, Last: true}} {
			if err := s.Chunk(c); err != nil {
				x.t.Fatal(err)
			}
		}
	}
	all := x.halves(tx, rx)
	for _, h := range all {
		wait(x.t, "verdict", h.Done())
		if v := h.Verdict(); !v.OK() {
			x.t.Fatalf("%T: %v", h, v.Cause)
		}
	}
	for i, d := range x.d {
		wrong := 0
		each(d.cfg.Geometry, pages, func(region, page, at int, want []byte) {
			b := d.mem.KV[region]
			if !bytes.Equal(b.Mem[int(dst[i][page])*b.Item+at:][:len(want)], want) {
				wrong++
			}
		})
		if wrong > 0 {
			x.t.Errorf("decode %d: %d heads of tokens are wrong", i, wrong)
		}
		if want := fmt.Sprintf("aux of room %d", id); !bytes.HasPrefix(d.mem.Aux[0].Mem[64:], []byte(want)) {
			x.t.Errorf("decode %d: aux is %q", i, d.mem.Aux[0].Mem[64:96])
		}
		wait(x.t, "quiescence", rx[i].Quiescent())
		if err := d.Pages().Release(dst[i]); err != nil {
			x.t.Error(err)
		}
	}
	for i, p := range x.p {
		if err := p.Pages().Release(src[i]); err != nil {
			x.t.Error(err)
		}
	}
	x.empty(all)
}

func TestGroupHasOneVerdict(t *testing.T) {
	x := newPair(t, 2, 1, 2, 1, kvlayout.HeadMajor)
	tx, rx := x.open(7)
	pg, dg := NewGroup(tx[0], tx[1]), NewGroup(rx[0], rx[1])
	for i, r := range rx {
		dst, _ := x.d[i].Pages().Alloc(2)
		if err := r.Post(Destination{Pages: dst, Aux: 1}); err != nil {
			t.Fatal(err)
		}
		if err := x.d[i].Pages().Release(dst); err != nil { // the room holds them
			t.Fatal(err)
		}
	}
	for _, s := range tx {
		wait(t, "metadata", s.Ready())
	}
	cause := room.NewCause(room.ClientGone, room.Prefill, "", "left")
	tx[1].Abort(cause)
	for _, g := range []*Group{pg, dg} {
		wait(t, "verdict", g.Done())
		if v := g.Verdict(); v.OK() || v.Cause.Code != room.ClientGone {
			t.Errorf("%v", v)
		}
	}
	for _, h := range x.halves(tx, rx) {
		wait(t, "verdict of a rank", h.Done())
		if h.Verdict().Cause.Code != room.ClientGone {
			t.Errorf("a rank failed with %v", h.Verdict().Cause)
		}
		wait(t, "quiescence", h.Quiescent())
	}
	x.empty(x.halves(tx, rx))
}

func TestPrefillThatIsNotThere(t *testing.T) {
	x := newPair(t, 1, 1, 1, 1, kvlayout.HeadMajor)
	if err := x.p[0].Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	rx, err := x.d[0].Open(7, Peer{})
	if err != nil {
		t.Fatal(err)
	}
	wait(t, "verdict", rx.Done())
	if c := rx.Verdict().Cause; c.Code != room.PeerDead {
		t.Errorf("%v", c)
	}
	x.p = nil
	x.empty([]Half{rx})
}

func TestDuplicateRoomIsRefused(t *testing.T) {
	x := newPair(t, 1, 1, 1, 1, kvlayout.HeadMajor)
	tx, rx := x.open(7)
	if _, err := x.p[0].Send(7); err == nil {
		t.Error("a second sender of the room")
	}
	if _, err := x.d[0].Open(7, Peer{}); err == nil {
		t.Error("a second receiver of the room")
	}
	x.empty(x.halves(tx, rx))
}

func TestAnIncompatiblePairIsRefusedWithBothValues(t *testing.T) {
	x := newPair(t, 1, 1, 1, 1, kvlayout.HeadMajor)
	x.d[0].self.Native = bytes.Replace(x.d[0].self.Native, []byte("head-major"), []byte("token-major"), 1)
	tx, rx := x.open(7)
	dst, _ := x.d[0].Pages().Alloc(1)
	if err := rx[0].Post(Destination{Pages: dst, Aux: 0}); err != nil {
		t.Fatal(err)
	}
	wait(t, "verdict", rx[0].Done())
	if c := rx[0].Verdict().Cause; c.Code != room.Incompatible {
		t.Errorf("%v", c)
	}
	if err := x.d[0].Pages().Release(dst); err != nil {
		t.Fatal(err)
	}
	x.empty(x.halves(tx, rx))
}

func TestRoutesAreKeptWhileTheyHold(t *testing.T) {
	var r routes
	route := func(life time.Duration) Route {
		return Route{Targets: []node.Target{{Rank: 7}}, Until: time.Now().Add(life)}
	}
	r.keep(Peer{Bootstrap: "one room only"}, Route{Targets: []node.Target{{Rank: 1}}})
	r.keep(Peer{Bootstrap: "over"}, route(-time.Second))
	r.keep(Peer{Bootstrap: "holds", DPRank: 1}, route(time.Hour))
	for _, c := range []struct {
		peer Peer
		want bool
	}{
		{Peer{Bootstrap: "unknown"}, false}, {Peer{Bootstrap: "one room only"}, false}, {Peer{Bootstrap: "over"}, false},
		{Peer{Bootstrap: "holds"}, false}, {Peer{Bootstrap: "holds", DPRank: 1}, true},
	} {
		if got, ok := r.get(c.peer); ok != c.want || ok && got.Targets[0].Rank != 7 {
			t.Errorf("%+v: %+v, %v, want %v", c.peer, got, ok, c.want)
		}
	}
	if len(r.known) != 1 {
		t.Errorf("%d routes are kept, want 1", len(r.known))
	}
	for i := range 3 * maxCache {
		if r.keep(Peer{DPRank: i}, route(time.Hour)); len(r.known) > maxCache {
			t.Fatalf("%d routes are kept, the limit is %d", len(r.known), maxCache)
		}
	}
}

// damaging is an engine whose writes arrive as something else.
type damaging struct{ transfer.Engine }

func (e damaging) Write(string, []transfer.Fragment) (transfer.Handle, error) {
	return nil, fmt.Errorf("%w: test", transfer.ErrCorrupt)
}

func TestDamagedWritesFailTheRoomAsCorrupt(t *testing.T) {
	x := newPair(t, 1, 1, 1, 1, kvlayout.HeadMajor)
	x.p[0].cfg.Engine = damaging{x.p[0].cfg.Engine}
	tx, rx := x.open(7)
	if err := rx[0].Post(Destination{Pages: []int32{1, 2}, Aux: 0}); err != nil {
		t.Fatal(err)
	}
	if err := tx[0].Chunk(Chunk{Pages: []int32{3, 4}, Aux: 0, Last: true}); err != nil {
		t.Fatal(err)
	}
	for _, h := range []Half{tx[0], rx[0]} {
		wait(t, "verdict", h.Done())
		if v := h.Verdict(); v.Status != room.Failed || v.Cause.Code != room.Corrupt {
			t.Errorf("%v, want Failed as corrupt", v)
		}
		h.Clear()
	}
}

// A decode rank that has been restarted under its old addresses has the old session name; the end of the old registration is not that of the
// new one.
func TestPlanOfARestartedDecode(t *testing.T) {
	x := newPair(t, 1, 1, 1, 1, kvlayout.HeadMajor)
	p, d := x.p[0], x.d[0]
	registration := zmtp.Message{Frames: d.cfg.Dialect.Registration(d.self, true)}
	for range 3 {
		s := p.read(registration, backend.From{Instance: instance(9), Remote: "test"})
		if s.ev == nil {
			t.Fatal("the registration is not understood")
		}
		p.hear([]received{s})
		p.under(func() {
			if p.plans[d.self.Session] == nil {
				t.Error("no plan for the session")
			}
		})
	}
}
