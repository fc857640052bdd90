package drill

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/kvferry/kvferry/backend/mooncake"
	"github.com/kvferry/kvferry/handoff"
	"github.com/kvferry/kvferry/kvlayout"
	"github.com/kvferry/kvferry/node"
	"github.com/kvferry/kvferry/registry"
	"github.com/kvferry/kvferry/room"
	"github.com/kvferry/kvferry/transfer"
)

// server is a rank process: an engine's side of the hand-off without a model.
type server struct {
	setup   Setup
	side    room.Side
	log     *slog.Logger
	engine  *faulty
	prefill *handoff.Prefill
	decode  *handoff.Decode
	shape   shape
	item    int
	kv      [][]byte
	aux     []byte
	telling sync.WaitGroup // of what rooms have still to say

	mu    sync.Mutex // guards what follows, and writing
	out   *json.Encoder
	rooms map[room.ID]*hand
	slots [auxSlots]bool // taken
	hoard []int32        // pages that are held for nothing
}

// Serve runs one rank: it reads a Setup and then orders, and writes a word for each and for what happens to its rooms. It returns when in
// ends, or when it was told to close.
func Serve(ctx context.Context, in io.Reader, out, logs io.Writer) error {
	lines := bufio.NewScanner(in)
	if !lines.Scan() {
		return fmt.Errorf("no setup: %w", errors.Join(lines.Err(), io.ErrUnexpectedEOF))
	}
	s := &server{out: json.NewEncoder(out), rooms: map[room.ID]*hand{}, log: slog.New(slog.NewTextHandler(logs, nil))}
	if err := json.Unmarshal(lines.Bytes(), &s.setup); err != nil {
		return fmt.Errorf("setup %.80q: %w", lines.Text(), err)
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	s.say(word{Event: evReady})
	for lines.Scan() {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return fmt.Errorf("order %.80q: %w", lines.Text(), err)
		}
		w, err := s.obey(o)
		w.ID, w.Room = o.ID, o.Room
		if err != nil {
			w.Error = err.Error()
		}
		s.say(w)
		if o.Op == "close" {
			return nil
		}
	}
	return lines.Err()
}

func (s *server) say(w word) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.At = monotonic()
	_ = s.out.Encode(w) // without a reader standard input ends, too
}

func (s *server) start(ctx context.Context) error {
	var ok bool
	if s.side, ok = room.ParseSide(s.setup.Side); !ok {
		return fmt.Errorf("side %q, want prefill or decode", s.setup.Side)
	}
	kind, err := engineOf(s.setup.Engine)
	if err != nil {
		return err
	}
	g := kvlayout.Geometry{Order: kvlayout.TokenMajor, DType: "auto", PageSize: pageSize, TP: 1, PP: 1, Layers: layers, End: layers, KVHeads: kvHeads, HeadBytes: headBytes}
	g = g.At(kvlayout.Topology{TP: s.setup.TP, CP: 1, PP: 1}, kvlayout.Rank{TP: s.setup.TPRank})
	if err := g.Validate(); err != nil {
		return err
	}
	s.shape, s.item = shapeOf(g), int(g.ItemLen(0))
	mem, err := s.memory(g.Regions())
	if err != nil {
		return err
	}
	e, err := kind.make(ctx, s.setup)
	if err != nil {
		return err
	}
	s.engine = &faulty{Engine: e}
	id, err := room.ParseInstanceID(s.setup.Instance)
	if err != nil {
		return err
	}
	control := handoff.Control{Instance: id, Dialect: mooncake.Dialect{}, Logger: s.log, Advertise: s.setup.Advertise,
		Bind: net.JoinHostPort(s.setup.Bind, strconv.Itoa(s.setup.Control))}
	times := node.Config{Rendezvous: stateTime, Bootstrap: stateTime, Waiting: stateTime, Stall: stallTime, CondemnAfter: condemnAfter}
	if s.setup.Patient {
		times.CondemnAfter, times.SuspectAfter, times.Stall = -1, -1, -1
	}
	if s.side == room.Decode {
		s.decode, err = handoff.NewDecode(ctx, handoff.DecodeConfig{Control: control, Memory: mem, Geometry: g, Engine: s.engine, Directory: anew{}, Node: times})
		return err
	}
	if s.prefill, err = handoff.NewPrefill(ctx, handoff.PrefillConfig{Control: control, Memory: mem, Geometry: g, Engine: s.engine, Node: times}); err != nil {
		return err
	}
	go s.schedule(ctx)
	return s.bootstrap(ctx, g)
}

// schedule is the turning of a scheduler's loop, which an engine would call from it.
func (s *server) schedule(ctx context.Context) {
	t := time.NewTicker(250 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			s.prefill.StillQueued()
		case <-ctx.Done():
			return
		}
	}
}

// anew is a Directory that remembers nothing, so that every room asks.
type anew struct{}

// Find implements handoff.Directory.
func (anew) Find(ctx context.Context, id room.ID, p handoff.Peer, own kvlayout.Geometry) (handoff.Route, error) {
	r, err := new(handoff.Lookup).Find(ctx, id, p, own)
	r.Until = time.Time{} // of this room alone
	return r, err
}

// bootstrap serves the instance's registry on its first rank.
func (s *server) bootstrap(ctx context.Context, g kvlayout.Geometry) error {
	if s.setup.Boot == 0 {
		return nil
	}
	id, _ := room.ParseInstanceID(s.setup.Instance) // start has parsed it
	info := registry.Info{Instance: id, Geometry: g, DPSize: 1}
	for _, port := range s.setup.Ranks {
		info.Ranks = append(info.Ranks, registry.RankAddr{IP: s.setup.Advertise, Port: port})
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(s.setup.Bind, strconv.Itoa(s.setup.Boot)))
	if err != nil {
		return err
	}
	srv := registry.NewServer(registry.NewBootstrap(nil, func() any { return info }).Handler())
	go func() {
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("registry", "error", err)
		}
	}()
	return nil
}

// memory is the pool, all of it under guard.
func (s *server) memory(regions int) (m handoff.Memory, err error) {
	buffer := func(n, item int) (handoff.Buffer, error) {
		mem, err := transfer.NewMemory(n * item)
		if err != nil {
			return handoff.Buffer{}, err
		}
		return handoff.Buffer{Mem: mem.Bytes(), Item: item}, nil
	}
	for range regions {
		b, err := buffer(poolPages, s.item)
		if err != nil {
			return m, err
		}
		m.KV, s.kv = append(m.KV, b), append(s.kv, b.Mem)
	}
	for page := range int32(poolPages) {
		s.stamp(page, guard)
	}
	b, err := buffer(auxSlots, auxBytes)
	if err != nil {
		return m, err
	}
	m.Aux, s.aux = []handoff.Buffer{b}, b.Mem
	for slot := range auxSlots {
		s.stampAux(slot, guard)
	}
	return m, nil
}

func (s *server) page(region int, page int32) []byte {
	return s.kv[region][int(page)*s.item : (int(page)+1)*s.item]
}

func (s *server) stamp(page int32, w stamp) {
	for r := range s.kv {
		s.shape.write(s.page(r, page), r, w)
	}
}

func (s *server) check(page int32, w stamp) error {
	for r := range s.kv {
		if err := s.shape.check(s.page(r, page), r, w); err != nil {
			return fmt.Errorf("page %d: %w", page, err)
		}
	}
	return nil
}

// auxShape is how stamps lie in an aux slot; its region is beyond all KV regions.
var auxShape = shape{tokens: 1, heads: 1, units: auxBytes / unit}

const auxRegion = 0xffff

func (s *server) slot(i int) []byte { return s.aux[i*auxBytes : (i+1)*auxBytes] }

func (s *server) stampAux(i int, w stamp) { auxShape.write(s.slot(i), auxRegion, w) }

func (s *server) pages() handoff.Pages {
	if s.decode != nil {
		return s.decode.Pages()
	}
	return s.prefill.Pages()
}

func (s *server) tables() *tables {
	var c handoff.Counts
	if s.decode != nil {
		c = s.decode.Counts()
	} else {
		c = s.prefill.Counts()
	}
	t := &tables{Rooms: c.Rooms, Unserved: c.Unserved, Writes: c.Writes, Halves: c.Halves, Letters: c.Unacknowledged, Withheld: c.UnprovenGenerations, Doubts: c.Doubts,
		Quarant: c.Quarantined, Used: c.Pages - c.PagesFree}
	for _, n := range c.MessagesUnread {
		t.Unread += int(n)
	}
	return t
}
