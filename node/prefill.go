package node

import (
	"slices"
	"time"

	"github.com/kvferry/kvferry/event"
	"github.com/kvferry/kvferry/room"
)

// Prefill is the protocol of one prefill rank.
type Prefill struct {
	core
	Ledger   *Ledger
	rooms    map[room.ID]*sendRoom
	unserved int
	sessions map[string]Registration
	writes   map[WriteID]*write
	next     WriteID
	doubts   []doubt
	promised promises
}

// destination is one decode rank of a room.
type destination struct {
	Metadata
	told  bool // the verdict was sent to its endpoint, or must not be
	past  bool // it must not be told any more
	doubt bool // a write to it has ended, or taken so long, that bytes may still land
}

type chunk struct {
	Chunk
	index, pos int
}

type write struct {
	id    WriteID
	room  *sendRoom
	dst   *destination
	chunk int
	pages int
}

type ackTarget struct {
	endpoint   string
	generation int64
}

// sendRoom is a room on prefill. It exists from the first OpenSend or Metadata until it is cleared and quiescent.
type sendRoom struct {
	id     room.ID
	status room.Status
	cause  room.Cause
	stamp  uint64 // of its deadline

	opened, closed bool // a sender exists; its owner has let go
	concluded      bool
	dsts           []*destination
	chunks         []chunk // queued until the destinations are known
	pos, queued    int     // pages and chunks handed over
	last           bool
	held           []int32 // pages that the room holds in the ledger
	outstanding    []*write
	poisoned       bool // bytes of a write may still land
	quiet          bool // Quiescent reported
	acks           []ackTarget
}

// NewPrefill makes the node of a prefill rank.
func NewPrefill(cfg Config) *Prefill {
	return &Prefill{core: newCore(room.Prefill, cfg), Ledger: NewLedger(cfg.Pages), rooms: map[room.ID]*sendRoom{}, sessions: map[string]Registration{}, writes: map[WriteID]*write{}, promised: promises{at: map[room.Epoch]promise{}}}
}

// Counts returns the sizes of all tables.
func (n *Prefill) Counts() Counts {
	return Counts{Rooms: len(n.rooms), Unserved: n.unserved, Writes: len(n.writes), Peers: len(n.peers), Registrations: len(n.sessions), Tombstones: n.tombs.len(), Unacknowledged: len(n.letters), Promises: len(n.promised.at), Doubts: len(n.doubts)}
}

// Step takes one event in.
func (n *Prefill) Step(now time.Time, ev Event) ([]Action, error) {
	n.begin(now)
	var err error
	switch ev := ev.(type) {
	case OpenSend:
		err = n.open(ev.Room)
	case Chunk:
		err = n.chunk(ev)
	case WriteSettled:
		n.settled(ev)
	case Fail:
		if r := n.rooms[ev.Room]; r != nil && !r.status.Terminal() {
			n.conclude(r, room.Failed, ev.Cause)
		}
	case Clear:
		n.clear(ev.Room)
	case Registration:
		n.register(ev)
	case Metadata:
		n.metadata(ev)
	case AbortHeard:
		n.abort(ev)
	case PeerUp:
		n.peerUp(ev)
	case PeerDown:
		n.down(ev)
	case PeerRefused:
		n.refused(ev)
	case PeerHeard:
		n.heard(ev)
	case ReceiptHeard:
		n.receipt(ev)
	case GoodbyeHeard:
		n.goodbye(ev)
	case StillQueued:
		n.stillQueued()
	case Leave:
		n.farewell(ev)
	case Tick:
		n.tick()
	default:
		err = ErrEvent
	}
	return n.out, err
}

func (n *Prefill) create(id room.ID) *sendRoom {
	r := &sendRoom{id: id, status: room.Bootstrapping}
	n.rooms[id] = r
	return r
}

func (n *Prefill) open(id room.ID) error {
	r := n.rooms[id]
	switch {
	case r != nil && r.opened:
		return ErrDuplicate
	case r == nil && len(n.rooms) >= MaxRooms:
		return ErrCrowded
	case r == nil:
		r = n.create(id)
	default:
		n.unserved--
	}
	r.opened = true
	n.emit(event.Opened, note(id, ""))
	t, over := n.tombs.get(id, n.now)
	n.tombs.remove(id)
	n.do(Changed{Room: id, Status: r.status, Prefix: r.prefix()})
	if r.status == room.Bootstrapping {
		r.stamp = n.arm(id, timerDeadline, n.cfg.Bootstrap)
	}
	if over && t.overtaken {
		n.conclude(r, room.Failed, t.cause)
		return nil
	}
	n.bootstrap(r)
	return nil
}

// set applies the transition rule and tells the owner of a change.
func (n *Prefill) set(r *sendRoom, s room.Status) {
	next := room.Next(r.status, s)
	if next == r.status {
		return
	}
	r.status = next
	if r.opened {
		n.do(Changed{r.id, next, r.cause, r.prefix()})
	}
}

func (r *sendRoom) prefix() int {
	for _, d := range r.dsts {
		if d.Prefix > 0 {
			return d.Prefix
		}
	}
	return 0
}

func (r *sendRoom) complete() bool {
	return len(r.dsts) > 0 && len(r.dsts) >= r.dsts[0].Required
}

// bootstrap moves a room on whose destinations are all known, and starts what was queued.
func (n *Prefill) bootstrap(r *sendRoom) {
	if !r.complete() || r.status.Terminal() {
		return
	}
	if r.status < room.WaitingForInput {
		e := note(r.id, r.dsts[0].Endpoint)
		e.Pages = len(r.dsts[0].Pages)
		n.emit(event.Bootstrapped, e)
		if r.opened {
			r.stamp = 0 // from here on the owner's compute and its writes have their own limits
		}
		n.set(r, room.WaitingForInput)
	}
	queue := r.chunks
	r.chunks = nil
	for _, c := range queue {
		n.start(r, c)
	}
	n.finish(r)
}

func (n *Prefill) drop(id room.ID, peer, what string) {
	e := note(id, peer)
	e.Note = what
	n.emit(event.Dropped, e)
}

func (n *Prefill) chunk(ev Chunk) error {
	r := n.rooms[ev.Room]
	if r == nil || !r.opened || r.closed {
		return ErrUnknownRoom
	}
	if r.last {
		return ErrAfterLast
	}
	if err := n.Ledger.Check(ev.Pages); err != nil {
		return err
	}
	if r.status.Terminal() {
		return nil // its verdict is on the way to the owner
	}
	n.Ledger.Hold(ev.Pages)
	r.held = append(r.held, ev.Pages...)
	c := chunk{ev, r.queued, r.pos}
	r.queued++
	r.pos += len(ev.Pages)
	r.last = ev.Last
	if r.status < room.WaitingForInput {
		r.chunks = append(r.chunks, c)
		return nil
	}
	n.start(r, c)
	n.finish(r)
	return nil
}

// start posts a chunk to every destination that takes part.
func (n *Prefill) start(r *sendRoom, c chunk) {
	n.set(r, room.Transferring)
	if len(c.Pages) == 0 && !c.Last {
		return
	}
	for _, d := range r.dsts {
		if d.Dummy {
			continue
		}
		src := c.Pages
		if have := max(0, len(d.Pages)-c.pos); have < len(src) {
			src = src[:have] // decode asked for fewer pages than prefill has
		}
		var dst []int32
		if len(src) > 0 {
			dst = d.Pages[c.pos : c.pos+len(src)]
		}
		n.next++
		w := &write{id: n.next, room: r, dst: d, chunk: c.index, pages: len(src)}
		n.writes[w.id] = w
		r.outstanding = append(r.outstanding, w)
		a := StartWrite{Write: w.id, Room: r.id, Session: d.Session, Chunk: c.index, Src: src, Dst: dst, Last: c.Last, SrcAux: -1, DstAux: -1}
		if c.Last {
			a.SrcAux, a.DstAux, a.SrcState, a.DstState = c.Aux, d.Aux, c.State, d.State
		}
		n.do(a)
		e := event.Event{Room: r.id, Peer: d.Session, Chunk: c.index, Pages: len(src)}
		n.emit(event.Sending, e)
	}
}

func (n *Prefill) settled(ev WriteSettled) {
	w := n.writes[ev.Write]
	if w == nil {
		return
	}
	delete(n.writes, ev.Write)
	r := w.room
	for i, o := range r.outstanding {
		if o == w {
			r.outstanding = append(r.outstanding[:i], r.outstanding[i+1:]...)
			break
		}
	}
	e := event.Event{Room: r.id, Peer: w.dst.Session, Chunk: w.chunk, Pages: w.pages, Bytes: ev.Bytes, Cause: ev.Cause}
	if ev.Err == nil {
		n.emit(event.Applied, e)
	} else {
		n.emit(event.WriteFailed, e)
		if !ev.Proven {
			n.suspect(r, w.dst)
		}
		n.conclude(r, room.Failed, ev.Cause)
	}
	n.finish(r)
}

// finish moves a room on after a write has settled or the last chunk was handed over.
func (n *Prefill) finish(r *sendRoom) {
	if len(r.outstanding) > 0 {
		return
	}
	if r.last && len(r.chunks) == 0 && !r.status.Terminal() && r.complete() {
		n.conclude(r, room.Success, room.Cause{})
	}
	n.rest(r)
}

// conclude gives a room its one verdict: the first cause is kept, and a Success after a recorded failure is that failure. The owner is told
// first, then every decode endpoint that may be. Concluding again does nothing, but for a failure after a Success, which is told.
func (n *Prefill) conclude(r *sendRoom, verdict room.Status, cause room.Cause) {
	if r.status == room.Failed || !r.cause.IsZero() {
		verdict = room.Failed
	}
	if verdict == room.Failed && r.cause.IsZero() {
		r.cause = cause
		if cause.IsZero() {
			r.cause = room.NewCause(room.Internal, room.Prefill, "", "the room failed without a cause")
		}
	}
	if r.concluded && verdict == r.status {
		return
	}
	for _, d := range r.dsts {
		d.told = d.told && d.past // a failure after a Success
	}
	r.concluded = true
	r.stamp = 0
	r.chunks = nil
	n.set(r, verdict)
	e := note(r.id, "")
	e.Status, e.Cause = verdict, r.cause
	n.emit(event.Verdict, e)
	if len(r.outstanding) > 0 {
		n.arm(r.id, timerSettle, n.cfg.Settle)
	}
	n.tell(r)
	n.rest(r)
}

// tell sends the verdict to every endpoint of a destination that is no dummy, once each. A foreign decode takes Failed for permission to
// reuse its pages, so it is told only when every write has settled, and not at all when bytes may land even then.
func (n *Prefill) tell(r *sendRoom) {
	for i, d := range r.dsts {
		if d.told || d.Dummy || !d.Native && (len(r.outstanding) > 0 || r.poisoned) {
			continue
		}
		d.told = true
		if slices.ContainsFunc(r.dsts[:i], func(x *destination) bool { return !x.Dummy && x.Endpoint == d.Endpoint }) {
			continue
		}
		p := n.use(d.Endpoint)
		a := SendStatus{d.Endpoint, d.Native, r.id, d.Epoch, r.status, n.cfg.Rank, r.cause, 0}
		if d.Native {
			if r.status == room.Success {
				n.promised.add(d.Epoch, true, n.now)
			}
			n.mail(p, r.id, func(seq uint64) Action { a.Seq = seq; return a })
		} else {
			n.do(a)
		}
		e := note(r.id, d.Endpoint)
		e.Status, e.Cause = r.status, r.cause
		n.emit(event.StatusSent, e)
	}
}

// rest reports quiescence once every write of a concluded room has settled, pays the acknowledgements it owes, and ends a cleared room.
func (n *Prefill) rest(r *sendRoom) {
	if len(r.outstanding) > 0 || !r.status.Terminal() {
		return
	}
	n.tell(r)
	if !r.quiet {
		r.quiet = true
		_ = n.Ledger.Release(r.held) // held by this room, so it can't fail
		r.held = nil
		if r.opened {
			n.do(Quiescent{r.id, ProofSettled})
			e := note(r.id, "")
			e.Note = string(ProofSettled)
			n.emit(event.Quiescent, e)
		}
		for _, d := range r.dsts {
			if r.status == room.Failed && !d.doubt && d.Native && !d.Dummy && n.peers[d.Endpoint] != nil {
				n.quiescent(d.Endpoint, r.id, d.Epoch)
			}
		}
	}
	n.acknowledge(r)
	if r.closed || !r.opened {
		n.erase(r)
	}
}

func (n *Prefill) clear(id room.ID) {
	r := n.rooms[id]
	if r == nil || r.closed {
		return
	}
	r.closed = true
	if !r.status.Terminal() {
		n.conclude(r, room.Failed, room.NewCause(room.Aborted, room.Prefill, "", "the owner let the room go"))
	}
	n.rest(r)
}

func (n *Prefill) bury(s tombstone) {
	s.until = n.now.Add(TombstoneLife)
	n.tombs.add(s, n.now)
}

// erase is the one way out of every table.
func (n *Prefill) erase(r *sendRoom) {
	if n.rooms[r.id] != r {
		return
	}
	delete(n.rooms, r.id)
	if !r.opened {
		n.unserved--
	}
	s := tombstone{id: r.id, cause: r.cause, overtaken: !r.opened, partly: !r.complete()}
	for _, d := range r.dsts {
		if p := n.peers[d.Endpoint]; p != nil {
			p.rooms.remove(r.id)
		}
		s.heard = append(s.heard, d.Endpoint)
		if d.Epoch != 0 {
			s.epochs = append(s.epochs, d.Epoch)
		}
	}
	n.bury(s)
	if r.opened {
		n.do(Cleared{r.id})
	}
	n.emit(event.Cleared, note(r.id, ""))
}
