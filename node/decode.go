package node

import (
	"slices"
	"time"

	"github.com/kvferry/kvferry/event"
	"github.com/kvferry/kvferry/room"
)

// Decode is the protocol of one decode rank.
type Decode struct {
	core
	Ledger     *Ledger
	rooms      map[room.ID]*recvRoom
	gens       generations
	withheld   map[room.Epoch]*recvRoom // rooms that are over, but whose generation waits for its writers to be proven silent
	aborts     map[int64]*recvRoom      // by the generation of the ABORT that awaits acknowledgements
	abortCount int64                    // generation of the newest ABORT
	byRank     map[rankKey]*peer        // native prefill ranks that are up
}

// rankKey is a rank of a native instance.
type rankKey struct {
	instance room.InstanceID
	rank     int
}

// target is one prefill rank of a room.
type target struct {
	Target
	sent     bool      // metadata has left
	late     bool      // it was found while no connection was up: it is whoever answers next
	answered bool      // it said Success
	failed   bool      // it said Failed
	silent   bool      // it said that no write of its own is left, or its success says so
	named    time.Time // by its scheduler, or the publication
}

// recvRoom is a room on decode. It exists from OpenReceive until it is cleared and quiescent.
type recvRoom struct {
	id      room.ID
	epoch   room.Epoch
	status  room.Status
	cause   room.Cause
	stamp   uint64
	targets []target

	routed, posted, published bool
	arriving                  bool // every rank has said Success, bytes are missing
	covered, sealed, idle     bool
	quiet, quarantined        bool
	retired                   bool // the generation may be used again
	closed                    bool
	post                      Post
	generation                uint32
	abort                     int64  // generation of the ABORT that was sent
	stall                     uint64 // stamp of the timer that looks at what prefill's scheduler says
	unproven                  bool   // the operator's limit has passed
}

// NewDecode makes the node of a decode rank.
func NewDecode(cfg Config) *Decode {
	n := &Decode{core: newCore(room.Decode, cfg), Ledger: NewLedger(cfg.Pages), rooms: map[room.ID]*recvRoom{}, withheld: map[room.Epoch]*recvRoom{}, aborts: map[int64]*recvRoom{}, byRank: map[rankKey]*peer{}}
	n.gens = generations{limit: 1, busy: map[uint32]bool{}}
	if cfg.Virtual {
		n.gens.limit = uint32((1<<31)/uint64(n.cfg.Slots)) - 1
	}
	return n
}

// Counts returns the sizes of all tables.
func (n *Decode) Counts() Counts {
	return Counts{Rooms: len(n.rooms), Peers: len(n.peers), Tombstones: n.tombs.len(), Quarantined: n.Ledger.Quarantined(), UnprovenGenerations: len(n.gens.busy), Unacknowledged: len(n.letters)}
}

// Step takes one event in.
func (n *Decode) Step(now time.Time, ev Event) ([]Action, error) {
	n.begin(now)
	var err error
	switch ev := ev.(type) {
	case OpenReceive:
		err = n.open(ev)
	case Routed:
		n.route(ev)
	case Post:
		err = n.post(ev)
	case Covered:
		if r := n.life(ev.Room, ev.Epoch); r != nil {
			r.covered = true
			n.emit(event.Covered, note(r.id, ""))
			n.finish(r)
		}
	case LeaseIdle:
		if r := n.life(ev.Room, ev.Epoch); r != nil {
			r.idle = true
			n.prove(r)
			n.rest(r)
		}
	case StatusHeard:
		n.apply(ev)
	case AckHeard:
		n.acked(ev)
	case QuiescentHeard:
		n.acknowledge(ev.Instance, ev.Rank, ev.Room, ev.Epoch, ev.Seq)
		if r := n.life(ev.Room, ev.Epoch); r != nil {
			n.silenced(r, ev.Rank)
		} else if r := n.withheld[ev.Epoch]; r != nil {
			n.silenced(r, ev.Rank)
		}
	case Fail:
		if r := n.rooms[ev.Room]; r != nil {
			n.conclude(r, room.Failed, ev.Cause)
		}
	case Clear:
		n.clear(ev.Room)
	case PeerUp:
		n.peerUp(ev)
	case PeerDown:
		n.down(ev)
	case PeerRefused:
		if p := n.peers[ev.Endpoint]; p != nil {
			n.lose(p, room.NewCause(room.PeerDead, room.Decode, ev.Endpoint, ev.Text), true)
			n.release(p)
		}
	case PeerHeard:
		n.heard(ev)
	case ReceiptHeard:
		n.receipt(ev)
	case QueuedHeard:
		n.queued(ev)
	case GoodbyeHeard:
		n.goodbye(ev)
	case Leave:
		n.farewell(ev)
	case Tick:
		n.tick()
	default:
		err = ErrEvent
	}
	return n.out, err
}

// life finds the room in the epoch that is meant; zero means any.
func (n *Decode) life(id room.ID, e room.Epoch) *recvRoom {
	if r := n.rooms[id]; r != nil && (e == 0 || r.epoch == e) {
		return r
	}
	return nil
}

func (n *Decode) open(ev OpenReceive) error {
	if n.rooms[ev.Room] != nil {
		return ErrDuplicate
	}
	if len(n.rooms) >= MaxRooms {
		return ErrCrowded
	}
	r := &recvRoom{id: ev.Room, epoch: ev.Epoch, status: room.Absent}
	n.rooms[ev.Room] = r
	n.emit(event.Opened, note(r.id, ""))
	n.set(r, room.Bootstrapping)
	r.stamp = n.arm(r.id, timerDeadline, n.cfg.Rendezvous)
	return nil
}

func (n *Decode) set(r *recvRoom, s room.Status) {
	if next := room.Next(r.status, s); next != r.status {
		r.status = next
		n.do(Changed{Room: r.id, Status: next, Cause: r.cause})
	}
}

func (n *Decode) route(ev Routed) {
	r := n.rooms[ev.Room]
	if r == nil || r.routed || r.status.Terminal() {
		return
	}
	r.routed = true
	var avoid room.Cause
	for _, t := range ev.Targets {
		p := n.use(t.Endpoint)
		r.targets = append(r.targets, target{Target: t, late: p.known && !p.up})
		if p.lost {
			avoid = room.NewCause(room.Unavailable, room.Decode, t.Endpoint, "it has been silent and has not come back")
		}
		p.rooms.add(r.id)
		p.rank = t.Rank
		n.index(p)
		switch {
		case p.leaving:
			avoid = room.NewCause(room.Draining, room.Prefill, t.Endpoint, "it has said goodbye")
		case p.suspect:
			avoid = room.Causef(room.Unavailable, room.Decode, t.Endpoint, "no sign of life for %v", n.now.Sub(p.heard).Round(time.Millisecond))
		}
	}
	r.stamp = 0 // the owner may take its time to find pages
	if r.posted {
		r.stamp = n.arm(r.id, timerDeadline, n.cfg.Waiting)
	}
	e := note(r.id, "")
	e.Pages = len(ev.Targets)
	n.emit(event.Routed, e)
	if !avoid.IsZero() {
		n.conclude(r, room.Failed, avoid)
		return
	}
	n.set(r, room.WaitingForInput)
	n.publish(r)
}

func (n *Decode) post(ev Post) error {
	r := n.rooms[ev.Room]
	switch {
	case r == nil || r.closed:
		return ErrUnknownRoom
	case r.posted:
		return ErrPosted
	case r.status.Terminal():
		return nil // its verdict is on the way to the owner
	}
	if err := n.Ledger.Check(ev.Pages); err != nil {
		return err
	}
	g, ok := n.gens.take()
	if !ok {
		return ErrNoGeneration
	}
	n.Ledger.Hold(ev.Pages)
	r.posted, r.post, r.generation = true, ev, g
	if r.routed {
		r.stamp = n.arm(r.id, timerDeadline, n.cfg.Waiting)
	}
	n.do(OpenLease{r.id, r.epoch, g, ev.Pages, ev.Aux, ev.State})
	n.publish(r)
	return nil
}

// publish sends metadata to every target that is up and has not got it. A target is met before anything is sent to it, so that a foreign
// one gets nothing that it does not know.
func (n *Decode) publish(r *recvRoom) {
	if !r.posted || r.status == room.Failed {
		return
	}
	for i := range r.targets {
		t := &r.targets[i]
		p := n.peers[t.Endpoint]
		if t.sent || p == nil || !p.up || r.status == room.Success && !t.Dummy {
			continue
		}
		t.sent, t.named, r.published = true, n.now, true
		if r.stall == 0 && n.cfg.Stall >= 0 && p.native() {
			r.stall = n.arm(r.id, timerStall, n.cfg.Stall)
		}
		n.do(r.metadata(t, p.native()))
		e := note(r.id, t.Endpoint)
		e.Pages = len(r.post.Pages)
		n.emit(event.Published, e)
	}
}

func (r *recvRoom) metadata(t *target, native bool) SendMetadata {
	return SendMetadata{t.Endpoint, native, r.id, r.epoch, r.generation, r.post.Pages, r.post.Aux, r.post.State, r.post.Prefix, t.Required, t.Dummy}
}

// oweDummies keeps what a room that has succeeded still has to say to ranks that it needed nothing of, until they can be reached.
func (n *Decode) oweDummies(r *recvRoom) {
	for i := range r.targets {
		t := &r.targets[i]
		if p := n.peers[t.Endpoint]; t.Dummy && !t.sent && p != nil && !p.up && !p.lost {
			t.sent = true
			p.dummies = append(p.dummies, r.metadata(t, false))
		}
	}
}

// apply takes a prefill rank's word on a room.
func (n *Decode) apply(ev StatusHeard) {
	n.acknowledge(ev.Instance, ev.Rank, ev.Room, ev.Epoch, ev.Seq)
	r := n.life(ev.Room, ev.Epoch)
	if r == nil {
		n.drop(ev.Room, "status for a room that is not here")
		return
	}
	e := event.Event{Room: r.id, Peer: rankName(ev.Rank), Chunk: -1, Status: ev.Status, Cause: ev.Cause}
	n.emit(event.StatusHeard, e)
	i := slices.IndexFunc(r.targets, func(t target) bool { return t.Rank == ev.Rank && !t.Dummy })
	if i < 0 {
		n.drop(ev.Room, "status from a rank that is not expected")
		return
	}
	t := &r.targets[i]
	switch ev.Status {
	case room.Success:
		t.answered = true
		t.silent = t.silent || ev.Epoch != 0 || !n.cfg.Coverage // without an epoch it may be about an older life of the number
		n.finish(r)
	case room.Failed:
		t.failed = true
		t.silent = t.silent || ev.Refused
		cause := ev.Cause
		if cause.IsZero() {
			cause = room.NewCause(room.PeerFailed, room.Decode, t.Endpoint, "")
		}
		n.conclude(r, room.Failed, cause)
	default:
		n.drop(ev.Room, "status that is no verdict")
	}
	n.prove(r)
	n.rest(r)
}

func (n *Decode) drop(id room.ID, what string) {
	e := note(id, "")
	e.Note = what
	n.emit(event.Dropped, e)
}

// finish gives Success when every expected rank has said so and every byte is in place.
func (n *Decode) finish(r *recvRoom) {
	if r.status.Terminal() || !r.posted || !r.routed {
		return
	}
	for _, t := range r.targets {
		if !t.Dummy && !t.answered {
			return
		}
	}
	if n.cfg.Coverage && !r.covered {
		if r.arriving {
			return
		}
		r.arriving = true
		r.stamp = n.arm(r.id, timerDeadline, n.cfg.Arrival)
		return
	}
	n.conclude(r, room.Success, room.Cause{})
}

// conclude gives the room its verdict and shuts its pages. Abort goes to every rank that knows of them, and to none that has failed itself
// in a way that proves it knows.
func (n *Decode) conclude(r *recvRoom, verdict room.Status, cause room.Cause) {
	if r.status.Terminal() {
		return
	}
	if verdict == room.Failed {
		r.cause = cause
	}
	r.stamp = 0
	n.set(r, verdict)
	e := note(r.id, "")
	e.Status, e.Cause = verdict, cause
	n.emit(event.Verdict, e)
	if r.posted {
		r.sealed = true
		n.do(SealLease{r.id, r.epoch})
	}
	if verdict == room.Success {
		n.oweDummies(r)
	}
	if verdict == room.Failed {
		n.sendAborts(r)
		if r.published && !n.cfg.Virtual {
			n.arm(r.id, timerQuarantine, n.cfg.QuarantineTime)
		}
	}
	n.rest(r)
}

// prove frees the room's generation for another room once its writers are silent.
func (n *Decode) prove(r *recvRoom) {
	if !r.sealed || !r.idle || r.retired || !r.writersSilent() {
		return
	}
	r.retired = true
	n.gens.give(r.generation)
	n.do(RetireLease{r.id, r.epoch})
	delete(n.aborts, r.abort)
	delete(n.withheld, r.epoch)
	for _, t := range r.targets {
		if p := n.peers[t.Endpoint]; p != nil {
			p.withheld.remove(r.epoch)
		}
	}
}

// proof says why nothing can touch the pages any more; empty: not known yet.
func (n *Decode) proof(r *recvRoom) Proof {
	switch {
	case !r.posted:
		return ProofUnpublished
	case !r.idle:
		return ""
	case !r.published:
		return ProofUnpublished
	case n.cfg.Virtual:
		return ProofSealed
	case r.status == room.Success:
		return ProofSuccess
	case r.writersSilent():
		return ProofAcked
	case r.unproven:
		return ProofNone
	}
	return ""
}

// rest reports quiescence when it is proven, and ends a cleared room.
func (n *Decode) rest(r *recvRoom) {
	if !r.status.Terminal() || n.rooms[r.id] != r {
		return
	}
	if !r.quiet {
		proof := n.proof(r)
		if proof == "" {
			return
		}
		r.quiet = true
		if r.posted {
			_ = n.Ledger.Release(r.post.Pages) // held by this room, so it can't fail
		}
		if r.quarantined {
			n.Ledger.quarantined -= len(r.post.Pages)
		}
		n.do(Quiescent{r.id, proof})
		e := note(r.id, "")
		e.Note = string(proof)
		n.emit(event.Quiescent, e)
	}
	if r.closed {
		n.erase(r)
	}
}

func (n *Decode) clear(id room.ID) {
	r := n.rooms[id]
	if r == nil || r.closed {
		return
	}
	r.closed = true
	n.conclude(r, room.Failed, room.NewCause(room.Aborted, room.Decode, "", "the owner let the room go"))
	n.rest(r)
}

// erase is the one way out of every table. What stays of a room is its page numbers, while a writer may still use them.
func (n *Decode) erase(r *recvRoom) {
	delete(n.rooms, r.id)
	keep := r.posted && !r.retired && n.cfg.Virtual
	for _, t := range r.targets {
		if p := n.peers[t.Endpoint]; p != nil {
			p.rooms.remove(r.id)
			if keep {
				p.withheld.add(r.epoch)
			}
		}
	}
	if keep {
		n.withheld[r.epoch] = r
	} else {
		delete(n.aborts, r.abort)
	}
	n.do(Cleared{r.id})
	n.emit(event.Cleared, note(r.id, ""))
}
