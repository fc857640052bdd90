package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvferry/kvferry/backend/mooncake"
	"github.com/kvferry/kvferry/event"
	"github.com/kvferry/kvferry/handoff"
	"github.com/kvferry/kvferry/kvlayout"
	"github.com/kvferry/kvferry/llm"
	"github.com/kvferry/kvferry/node"
	"github.com/kvferry/kvferry/registry"
	"github.com/kvferry/kvferry/room"
	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/tcp"
)

// Config describes an instance. Zero values take the defaults.
type Config struct {
	Side      room.Side // Prefill or Decode; required
	Model     *llm.Model
	ModelName string
	Geometry  llm.Geometry // page size default 16
	Pages     int          // of each rank; default 512
	Chunk     int          // tokens of a prefill step; default 64
	Slots     int          // rooms under way, each with an aux slot; default 128
	MaxQueue  int          // requests that wait beside; default 1024
	MaxBody   int64        // bytes; default 4 MiB
	Host      string       // bind address of all sockets but the API's; default 127.0.0.1
	Advertise string       // under which peers reach them; default Host
	Log       *slog.Logger
	Node      node.Config // times
	// NoChecksums leaves out the CRC32C of what a prefill instance writes to kvferry's decode ranks.
	NoChecksums bool
	// QuarantineLimit is the share of a rank's pages, in percent, that may be in quarantine before the instance takes no more requests and
	// reports itself unhealthy. Default 10; 100: never.
	QuarantineLimit int
	// Drain is how long running requests may go on when the instance leaves. Default 5 s.
	Drain time.Duration
}

func (c Config) withDefaults() (Config, error) {
	def := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	def(&c.Geometry.PageSize, 16)
	def(&c.Geometry.TP, 1)
	def(&c.Geometry.PP, 1)
	def(&c.Pages, 512)
	def(&c.Chunk, 64)
	def(&c.Slots, 128)
	def(&c.MaxQueue, 1024)
	def(&c.QuarantineLimit, 10)
	if c.MaxBody == 0 {
		c.MaxBody = 4 << 20
	}
	if c.Drain == 0 {
		c.Drain = 5 * time.Second
	}
	if c.Host == "" {
		c.Host = "127.0.0.1"
	}
	if c.Advertise == "" {
		c.Advertise = c.Host
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	switch {
	case c.Side != room.Prefill && c.Side != room.Decode:
		return c, fmt.Errorf("worker: side is %v, want prefill or decode", c.Side)
	case c.Model == nil:
		return c, errors.New("worker: no model")
	case c.Pages < 1 || c.Chunk < 1 || c.Slots < 1 || c.MaxQueue < 1:
		return c, fmt.Errorf("worker: %d pages, chunks of %d tokens, %d slots, a queue of %d: want at least 1 of each", c.Pages, c.Chunk, c.Slots, c.MaxQueue)
	}
	return c, c.Geometry.Validate(c.Model.Config())
}

// Worker is one instance.
type Worker struct {
	cfg      Config
	id       room.InstanceID
	in       *llm.Instance
	events   *event.Log
	boot     *registry.Bootstrap
	prefills []*handoff.Prefill // by rank index, on prefill
	decodes  []*handoff.Decode
	pools    []handoff.Pages
	geos     []kvlayout.Geometry
	aux      [][]byte // by rank: all slots
	engines  []*tcp.Engine
	memory   []*transfer.Memory

	mu      sync.Mutex
	queue   []*job // waits for pages, in order of arrival
	active  []*job // is computed
	slots   []int  // free aux slots
	jobs    int    // of every kind
	leaving bool
	wake    chan struct{}
	beat    atomic.Int64 // of the scheduler loop, ns since 1970
	settle  sync.WaitGroup
}

// New makes an instance: memory, engines and control sockets of all ranks. Close gives them back. The scheduler runs in Run.
func New(ctx context.Context, cfg Config) (*Worker, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	w := &Worker{cfg: cfg, events: event.NewLog(1 << 14), wake: make(chan struct{}, 1)}
	_, _ = rand.Read(w.id[:]) // never fails
	for i := range cfg.Slots {
		w.slots = append(w.slots, i)
	}
	w.beat.Store(time.Now().UnixNano())
	if err := w.makeRanks(ctx); err != nil {
		closing, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return nil, errors.Join(err, w.Close(closing))
	}
	w.boot = registry.NewBootstrap(func() bool { return w.Trouble() == "" }, func() any { return w.info() })
	if cfg.Side == room.Prefill {
		for i := range w.prefills {
			if err := w.boot.Put(w.row(i)); err != nil {
				return nil, err
			}
		}
	}
	return w, nil
}

// rankGeometry is where a rank stands; rank (pp, tp) has the index pp × TP + tp.
func (w *Worker) rankGeometry(i int) kvlayout.Geometry {
	c, g := w.cfg.Model.Config(), w.cfg.Geometry
	base := kvlayout.Geometry{Order: kvlayout.HeadMajor, DType: llm.DType, Model: c.Fingerprint, PageSize: g.PageSize, TP: 1, PP: 1, Layers: c.Layers, End: c.Layers,
		KVHeads: c.KVHeads, HeadBytes: c.HeadDim * 4}
	return base.At(kvlayout.Topology{TP: g.TP, CP: 1, PP: g.PP}, kvlayout.Rank{TP: i % g.TP, PP: i / g.TP})
}

func (w *Worker) makeRanks(ctx context.Context) error {
	var all [][][]byte
	for i := range w.cfg.Geometry.Ranks() {
		g := w.rankGeometry(i)
		w.geos = append(w.geos, g)
		var mem handoff.Memory
		var regions [][]byte
		for range g.Regions() {
			m, err := transfer.NewMemory(w.cfg.Pages * int(g.ItemLen(0)))
			if err != nil {
				return err
			}
			w.memory = append(w.memory, m)
			regions = append(regions, m.Bytes())
			mem.KV = append(mem.KV, handoff.Buffer{Mem: m.Bytes(), Item: int(g.ItemLen(0))})
		}
		m, err := transfer.NewMemory(w.cfg.Slots * auxLen)
		if err != nil {
			return err
		}
		w.memory = append(w.memory, m)
		w.aux = append(w.aux, m.Bytes())
		mem.Aux = []handoff.Buffer{{Mem: m.Bytes(), Item: auxLen}}
		all = append(all, regions)
		if err := w.makeRank(ctx, i, g, mem); err != nil {
			return fmt.Errorf("rank %d: %w", i, err)
		}
	}
	var err error
	w.in, err = llm.NewInstance(w.cfg.Model, w.cfg.Geometry, all)
	return err
}

func (w *Worker) makeRank(ctx context.Context, i int, g kvlayout.Geometry, mem handoff.Memory) error {
	e, err := tcp.New(ctx, tcp.Config{Bind: w.cfg.Host, Advertise: w.cfg.Advertise, Logger: w.cfg.Log, NoChecksums: w.cfg.NoChecksums})
	if err != nil {
		return err
	}
	w.engines = append(w.engines, e)
	control := handoff.Control{Instance: w.id, Dialect: mooncake.Dialect{}, Bind: net.JoinHostPort(w.cfg.Host, "0"), Logger: w.cfg.Log.With("rank", i), Events: w.events.Add}
	if w.cfg.Advertise != w.cfg.Host {
		control.Advertise = w.cfg.Advertise
	}
	if w.cfg.Side == room.Prefill {
		p, err := handoff.NewPrefill(ctx, handoff.PrefillConfig{Control: control, Memory: mem, Geometry: g, Engine: e, Node: w.cfg.Node})
		if err != nil {
			return err
		}
		w.prefills, w.pools = append(w.prefills, p), append(w.pools, p.Pages())
		return nil
	}
	d, err := handoff.NewDecode(ctx, handoff.DecodeConfig{Control: control, Memory: mem, Geometry: g, Engine: e, Node: w.cfg.Node})
	if err != nil {
		return err
	}
	w.decodes, w.pools = append(w.decodes, d), append(w.pools, d.Pages())
	return nil
}

// address is a prefill rank's control socket.
func (w *Worker) address(i int) registry.RankAddr {
	host, port, _ := net.SplitHostPort(strings.TrimPrefix(w.prefills[i].Endpoint(), "tcp://"))
	n, _ := strconv.Atoi(port)
	return registry.RankAddr{IP: host, Port: n}
}

// row is what SGLang's decode learns of a prefill rank. The layout's name keeps an SGLang decode of another page order away.
func (w *Worker) row(i int) registry.RankRow {
	g, a, layout := w.geos[i], w.address(i), "hnd"
	return registry.RankRow{TPSize: g.TP, TPRank: g.TPRank, CPSize: 1, DPSize: 1, PPSize: g.PP, PPRank: g.PPRank, SystemDP: 1, IP: a.IP, Port: a.Port, PageSize: g.PageSize,
		DType: g.DType, Layout: &layout, LoadBalance: registry.FollowRoom, Policy: registry.PolicyEarly}
}

// info is what a kvferry peer or gateway learns of the instance.
func (w *Worker) info() registry.Info {
	i := registry.Info{Instance: w.id, Geometry: w.geos[0], DPSize: 1, Context: w.cfg.Model.Config().Context}
	if w.cfg.Side != room.Prefill {
		return i
	}
	i.Ranks = make([]registry.RankAddr, len(w.prefills))
	for k := range w.prefills {
		i.Ranks[handoff.UniqueRank(w.geos[k])] = w.address(k)
	}
	return i
}

// Bootstrap is the prefill instance's bootstrap server.
func (w *Worker) Bootstrap() *registry.Bootstrap { return w.boot }

// ID names this incarnation.
func (w *Worker) ID() room.InstanceID { return w.id }

// Events is the instance's newest events.
func (w *Worker) Events() *event.Log { return w.events }

// emit adds an event of the worker's own.
func (w *Worker) emit(k event.Kind, e event.Event) {
	e.Kind, e.At, e.Side = k, time.Now(), w.cfg.Side
	w.events.Add(e)
}

// Trouble says why no requests should come here: the instance leaves, its scheduler makes no progress, or too many pages are in quarantine.
// Empty: it is well.
func (w *Worker) Trouble() string {
	w.mu.Lock()
	leaving := w.leaving
	w.mu.Unlock()
	switch {
	case leaving:
		return "the instance is leaving"
	case time.Since(time.Unix(0, w.beat.Load())) >= stuck:
		return "its scheduler makes no progress"
	}
	return w.quarantined()
}

// quarantined says that a rank has more pages in quarantine than may be.
func (w *Worker) quarantined() string {
	for _, d := range w.decodes {
		if text := quarantine(d.Counts(), w.cfg.QuarantineLimit); text != "" {
			return text
		}
	}
	return ""
}

// stuck is how long the scheduler may take for a step.
const stuck = 10 * time.Second

// quarantine says that a rank has more pages in quarantine than the limit in percent allows.
func quarantine(c handoff.Counts, limit int) string {
	if c.Quarantined*100 <= c.Pages*limit {
		return ""
	}
	return fmt.Sprintf("%d of %d pages are in quarantine, limit %d %%", c.Quarantined, c.Pages, limit)
}

// Load is what the gateway weighs.
func (w *Worker) Load() (free, total, running, waiting int) {
	w.mu.Lock()
	running, waiting = len(w.active), len(w.queue)
	w.mu.Unlock()
	free = w.cfg.Pages
	for _, p := range w.pools {
		free = min(free, p.Free())
	}
	return free, w.cfg.Pages, running, waiting
}

// Tables are the sizes of everything that must return to where it was when no request is under way.
type Tables struct {
	Jobs        int              `json:"jobs"`
	Queued      int              `json:"queued"`
	Active      int              `json:"active"`
	SlotsFree   int              `json:"slots_free"`
	Ranks       []handoff.Counts `json:"ranks"`
	Goroutines  int              `json:"goroutines"`
	Descriptors int              `json:"descriptors"`

	// What engines keep for the next request, bounded, for two minutes or until they close. Each connection is a descriptor; one that came,
	// and each spare, is a goroutine.
	DataOut int `json:"data_out"` // connections to other engines
	DataIn  int `json:"data_in"`  // and from them
	Spare   int `json:"spare"`    // goroutines
}

// Tables returns the sizes now.
func (w *Worker) Tables() Tables {
	w.mu.Lock()
	t := Tables{Jobs: w.jobs, Queued: len(w.queue), Active: len(w.active), SlotsFree: len(w.slots)}
	w.mu.Unlock()
	for _, p := range w.prefills {
		t.Ranks = append(t.Ranks, p.Counts())
	}
	for _, d := range w.decodes {
		t.Ranks = append(t.Ranks, d.Counts())
	}
	for _, e := range w.engines {
		s := e.Stats()
		t.DataOut += s.Links
		t.DataIn += s.DataConns + s.ControlConns
		t.Spare += s.Spare
	}
	t.Goroutines, t.Descriptors = processCounts()
	return t
}

// Leave begins to drain: no new request is taken, and Healthy is false.
func (w *Worker) Leave() {
	w.mu.Lock()
	w.leaving = true
	w.mu.Unlock()
	w.poke()
}

// Drained waits until no request is under way, or ctx ends.
func (w *Worker) Drained(ctx context.Context) bool {
	t := time.NewTicker(10 * time.Millisecond)
	defer t.Stop()
	for {
		w.mu.Lock()
		n := w.jobs
		w.mu.Unlock()
		if n == 0 {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-t.C:
		}
	}
}

// Close ends every room, gives sockets and memory back, and waits for that until ctx ends. Where something may still touch the memory then,
// the memory stays and the error says so. Run must have returned.
func (w *Worker) Close(ctx context.Context) error {
	var errs []error
	for _, d := range w.decodes {
		errs = append(errs, d.Close(ctx))
	}
	for _, p := range w.prefills {
		errs = append(errs, p.Close(ctx))
	}
	for _, e := range w.engines {
		errs = append(errs, e.Close(ctx))
	}
	w.settle.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("memory stays mapped: %w", err)
	}
	for _, m := range w.memory {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// poke lets the scheduler look again.
func (w *Worker) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// take removes x from list.
func take(list []*job, x *job) ([]*job, bool) {
	i := slices.Index(list, x)
	if i < 0 {
		return list, false
	}
	return slices.Delete(list, i, i+1), true
}
