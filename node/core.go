package node

import (
	"container/heap"
	"errors"
	"slices"
	"time"

	"github.com/kvferry/kvferry/event"
	"github.com/kvferry/kvferry/room"
)

// Errors of Step. They report a misuse by the owner; nothing has changed then.
var (
	ErrDuplicate    = errors.New("room is in use on this rank")
	ErrUnknownRoom  = errors.New("no such room on this rank")
	ErrAfterLast    = errors.New("chunk after the last one")
	ErrPosted       = errors.New("pages are published already")
	ErrNoGeneration = errors.New("no page generation is free: every number is held by a room or by writers that are not proven silent")
	ErrEvent        = errors.New("event is not for this side")
	ErrCrowded      = errors.New("too many rooms on this rank")
)

// TickInterval is how often the caller sends Tick.
const TickInterval = 100 * time.Millisecond

// Bounds of tables.
const (
	MaxRooms      = 1 << 20 // rooms of one rank, whoever opened them
	MaxUnserved   = 1 << 16 // rooms on prefill that have metadata but no sender
	MaxTombstones = 1 << 16
	MaxNamed      = 1 << 16 // rooms of one SendQueued
	TombstoneLife = 60 * time.Second
	LostLife      = time.Hour // how long prefill keeps the registration of a decode rank that is silent and does not come back
)

// Config is fixed for a node's life. Zero values take the defaults.
type Config struct {
	Rank  int // unique rank number of a prefill rank, as in its messages
	Pages int // size of the page pool

	// What the engine can do, on decode.
	Virtual  bool // virtual pages and seal: pages are free once the sealed lease is idle
	Coverage bool // Covered is reported, and Success needs it
	// Slots is the largest number of virtual slots of any region (pages, aux or state slots); it bounds the generations. Default Pages.
	Slots int

	SuspectAfter   time.Duration // of silence: no new rooms for the peer. Default 1 s; negative: never
	CondemnAfter   time.Duration // of silence: the peer's rooms fail. Default 2 s; negative: never
	Rendezvous     time.Duration // decode: from Open to Routed. Default 15 s
	Bootstrap      time.Duration // prefill: from Open to all metadata. Default 300 s
	Waiting        time.Duration // decode: from Post to the verdict. Default 300 s
	Stall          time.Duration // decode: how long a native prefill's scheduler may leave a room unnamed. Default 15 s; negative: for ever
	Arrival        time.Duration // decode: from the last Success to the last byte. Default 2 s
	Settle         time.Duration // prefill: how long a failure waits for writes before a foreign decode is told nothing. Default 5 s
	QuarantineTime time.Duration // decode without virtual pages: how long proof may take. Default 30 s
	Unproven       time.Duration // decode: when quarantined pages are released all the same, labelled as unproven. Default: never
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.SuspectAfter, time.Second)
	def(&c.CondemnAfter, 2*time.Second)
	def(&c.Rendezvous, 15*time.Second)
	def(&c.Bootstrap, 300*time.Second)
	def(&c.Waiting, 300*time.Second)
	def(&c.Stall, 15*time.Second)
	def(&c.Arrival, 2*time.Second)
	def(&c.Settle, 5*time.Second)
	def(&c.QuarantineTime, 30*time.Second)
	c.Slots = max(c.Slots, c.Pages, 1)
	return c
}

// Counts are the sizes of a node's tables.
type Counts struct {
	Rooms, Unserved, Writes, Peers, Registrations int
	Tombstones, Quarantined                       int // the two that outlive rooms
	UnprovenGenerations                           int // decode: page numbers withheld until their writers are proven silent
	Unacknowledged                                int // messages that native peers have not acknowledged yet
	Promises                                      int // prefill: lives of rooms of which it has said that it writes nothing more; they live as long as tombstones
	Doubts                                        int // prefill: lives of rooms of which it can never say so, while the decode rank is registered
}

// core is what both sides share: the action list, deadlines, peers and tombstones.
type core struct {
	cfg    Config
	side   room.Side
	wall   time.Time     // of the newest Step
	skew   time.Duration // pauses of our own
	now    time.Time     // wall without them: what every clock here goes by
	out    []Action
	timers timerHeap
	seq    uint64
	peers  map[string]*peer
	order  []*peer // in order of first use, for ticks
	tombs  tombstones

	letters map[uint64]*letter // by number
	mails   uint64             // number of the newest letter
}

func newCore(side room.Side, cfg Config) core {
	return core{cfg: cfg.withDefaults(), side: side, peers: map[string]*peer{}, tombs: tombstones{at: map[room.ID]int{}}, letters: map[uint64]*letter{}}
}

func (c *core) do(a Action) { c.out = append(c.out, a) }

func (c *core) emit(k event.Kind, e event.Event) {
	e.Kind, e.Side, e.Rank, e.At = k, c.side, c.cfg.Rank, c.wall
	c.do(Emit{e})
}

// note makes an event without a chunk.
func note(id room.ID, peer string) event.Event { return event.Event{Room: id, Peer: peer, Chunk: -1} }

// ownPause is from how long on nothing was stepped that it was a pause of our own (SIGSTOP, a stalled machine): nobody else is to blame for
// that time, so it counts for no deadline and for no silence.
const ownPause = 10 * TickInterval

func (c *core) begin(now time.Time) {
	if gap := now.Sub(c.wall); gap > 0 {
		if gap > ownPause && !c.wall.IsZero() {
			c.skew += gap - TickInterval
		}
		c.wall = now
		c.now = now.Add(-c.skew)
	}
	c.out = c.out[:0]
}

// ---- deadlines

type timerKind uint8

const (
	timerDeadline   timerKind = iota // the room's current state
	timerSettle                      // prefill: tell or give up telling
	timerQuarantine                  // decode: proof
	timerUnproven                    // decode: release without proof
	timerStall                       // decode: prefill's scheduler
	timerRepeat                      // a letter, whose number is the stamp
)

// timer is due once; stamp must equal the room's own, else it is out of date.
type timer struct {
	at    int64 // in nanoseconds of the node's own time
	seq   uint64
	room  room.ID
	kind  timerKind
	stamp uint64
}

type timerHeap []timer

func (h timerHeap) Len() int { return len(h) }
func (h timerHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h timerHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *timerHeap) Push(x any)   { *h = append(*h, x.(timer)) }
func (h *timerHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// arm sets a deadline and returns its stamp.
func (c *core) arm(id room.ID, kind timerKind, after time.Duration) uint64 {
	c.seq++
	heap.Push(&c.timers, timer{c.now.Add(after).UnixNano(), c.seq, id, kind, c.seq})
	return c.seq
}

// due pops the next deadline of a room that has passed, and repeats the letters that come before it.
func (c *core) due() (timer, bool) {
	for len(c.timers) > 0 && c.timers[0].at <= c.now.UnixNano() {
		t := heap.Pop(&c.timers).(timer)
		if t.kind != timerRepeat {
			return t, true
		}
		c.repeat(t.stamp)
	}
	return timer{}, false
}

// sweep takes the deadlines away that are out of date, when they are more than those of the rooms and letters there are: a room that ends
// leaves its own behind, minutes before they are due.
func (c *core) sweep(rooms int, current func(timer) bool) {
	const some, each = 1024, 4 // of a room at a time: its state's, the stall's, and one of its end's
	if len(c.timers) <= some+each*rooms+len(c.letters) {
		return
	}
	c.timers = slices.DeleteFunc(c.timers, func(t timer) bool {
		if t.kind == timerRepeat {
			return c.letters[t.stamp] == nil
		}
		return !current(t)
	})
	heap.Init(&c.timers)
}

// ---- peers

// peer is a control socket of the other side.
type peer struct {
	endpoint string
	rank     int // decode: of the prefill rank that listens there
	up       bool
	broke    bool            // a connection to this instance has ended
	suspect  bool            // silent for long
	leaving  bool            // it has said goodbye
	queues   bool            // decode: it names the rooms that its scheduler holds
	lost     bool            // it is taken for dead, nothing is sent to it any more; kept if something is open until it answers or refuses
	since    time.Time       // when it was lost
	known    bool            // instance was told
	instance room.InstanceID // zero: foreign
	before   room.InstanceID // that it took the place of
	heard    time.Time
	rooms    set[room.ID]
	withheld set[room.Epoch] // decode: rooms that are over, but it may still write to their page numbers
	sessions []string        // prefill: registered from here
	owed     []SendAbort     // decode: aborts that wait for the connection
	dummies  []SendMetadata  // decode: of rooms that have succeeded without it; its own room waits for them
	letters  set[uint64]     // that it has not acknowledged
}

func (p *peer) native() bool { return !p.instance.IsZero() }

// use finds or makes the peer of an endpoint and connects to it.
func (c *core) use(endpoint string) *peer {
	p := c.peers[endpoint]
	if p == nil {
		p = &peer{endpoint: endpoint, heard: c.now}
		c.peers[endpoint] = p
		c.order = append(c.order, p)
		c.do(Connect{endpoint})
	}
	return p
}

// forget drops a peer; the next use of its endpoint connects anew.
func (c *core) forget(p *peer) {
	c.unmail(p)
	delete(c.peers, p.endpoint)
	for i, q := range c.order {
		if q == p {
			c.order = append(c.order[:i], c.order[i+1:]...)
			break
		}
	}
	c.do(Disconnect{p.endpoint})
}

// retry parts with a condemned peer and connects anew: what answers there, or that nothing does, settles what it has left open.
func (c *core) retry(p *peer) {
	c.do(Disconnect{p.endpoint})
	c.do(Connect{p.endpoint})
	p.up, p.broke, p.lost, p.since = false, true, true, c.now
}

// silent lists the peers that are to be condemned now.
func (c *core) silent() (dead []*peer) {
	for _, p := range c.order {
		if p.lost {
			continue
		}
		silence := c.now.Sub(p.heard)
		if c.cfg.CondemnAfter >= 0 && silence > c.cfg.CondemnAfter {
			dead = append(dead, p)
		}
		if suspect := c.cfg.SuspectAfter >= 0 && silence > c.cfg.SuspectAfter; suspect != p.suspect {
			p.suspect = suspect
			if suspect {
				c.emit(event.PeerSuspect, note(0, p.endpoint))
			}
		}
	}
	return dead
}

// connected notes a connection to an instance; the caller has dealt with another one that was there before.
func (c *core) connected(p *peer, id room.InstanceID) (again bool) {
	again = p.broke && p.known && p.instance == id
	p.up, p.broke, p.lost, p.known, p.instance, p.heard, p.suspect = true, false, false, true, id, c.now, false
	return again
}

// left notes the goodbye of an instance and returns the rooms of its peers.
func (c *core) left(ev GoodbyeHeard) (rooms []room.ID) {
	for _, p := range c.order {
		if p.native() && p.instance == ev.Instance {
			p.leaving = true
			rooms = append(rooms, p.rooms.list...)
		}
	}
	return rooms
}

// farewell sends goodbye to every native peer.
func (c *core) farewell(ev Leave) {
	for _, p := range c.order {
		if p.native() && p.up {
			c.do(SendGoodbye{p.endpoint, ev.Cause})
		}
	}
}

func (c *core) down(ev PeerDown) {
	if p := c.peers[ev.Endpoint]; p != nil {
		p.up, p.broke = false, true
		e := note(0, ev.Endpoint)
		e.Note = ev.Text
		c.emit(event.PeerDown, e)
	}
}

func (c *core) heard(ev PeerHeard) {
	if p, at := c.peers[ev.Endpoint], ev.At.Add(-c.skew); p != nil && at.After(p.heard) {
		p.heard, p.suspect = at, false
	}
}

// set is a set with a stable order of iteration.
type set[K comparable] struct {
	list []K
	at   map[K]int
}

func (s *set[K]) add(id K) {
	if s.at == nil {
		s.at = map[K]int{}
	}
	if _, ok := s.at[id]; !ok {
		s.at[id] = len(s.list)
		s.list = append(s.list, id)
	}
}

func (s *set[K]) remove(id K) {
	i, ok := s.at[id]
	if !ok {
		return
	}
	last := s.list[len(s.list)-1]
	s.list[i] = last
	s.at[last] = i
	s.list = s.list[:len(s.list)-1]
	delete(s.at, id)
}

// ---- tombstones

// tombstone remembers that a room is over. overtaken: an abort came for a room that was never opened here.
type tombstone struct {
	id        room.ID
	until     time.Time
	cause     room.Cause // zero: it succeeded
	overtaken bool
	epochs    []room.Epoch // lives of the room that it is about; empty: any
	heard     []string     // prefill: decode ranks that the room knew
	partly    bool         // there were others
	dead      bool         // withdrawn
}

// covers reports whether the tombstone is about a life of its room on a decode rank. Another life of a native rank is not, unless the room
// was over before it had heard of that rank at all.
func (t tombstone) covers(endpoint string, e room.Epoch) bool {
	return e == 0 || len(t.epochs) == 0 || slices.Contains(t.epochs, e) || t.partly && !slices.Contains(t.heard, endpoint)
}

// tombstones is a bounded queue in order of expiry, with an index.
type tombstones struct {
	queue []tombstone
	base  int // number of entries ever dropped from the front
	at    map[room.ID]int
}

func (t *tombstones) len() int { return len(t.at) }

func (t *tombstones) add(s tombstone, now time.Time) {
	t.remove(s.id)
	t.expire(now)
	if len(t.at) >= MaxTombstones {
		t.drop()
	}
	t.at[s.id] = t.base + len(t.queue)
	t.queue = append(t.queue, s)
}

func (t *tombstones) get(id room.ID, now time.Time) (tombstone, bool) {
	t.expire(now)
	i, ok := t.at[id]
	if !ok {
		return tombstone{}, false
	}
	return t.queue[i-t.base], true
}

func (t *tombstones) remove(id room.ID) {
	if i, ok := t.at[id]; ok {
		t.queue[i-t.base].dead = true
		delete(t.at, id)
	}
}

func (t *tombstones) drop() {
	if s := t.queue[0]; !s.dead {
		delete(t.at, s.id)
	}
	t.queue = t.queue[1:]
	t.base++
}

func (t *tombstones) expire(now time.Time) {
	for len(t.queue) > 0 && (t.queue[0].dead || !t.queue[0].until.After(now)) {
		t.drop()
	}
	if len(t.queue) == 0 {
		t.queue = nil // let the array go
	}
}
