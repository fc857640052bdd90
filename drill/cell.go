package drill

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"time"

	"github.com/kvferry/kvferry/room"
	"github.com/kvferry/kvferry/wire"
)

// Outcome is one run of a cell.
type Outcome struct {
	Cell
	Problems []string
	// Times from the fault on; negative: it did not happen.
	Detect, Client, Release time.Duration
	Retries                 int    // how often rooms after the fault failed before they succeeded
	Again                   string // why, the last time
	Logs                    string // of the ranks, where there are problems
}

// run is one run of a cell.
type run struct {
	Cell
	fault *fault
	side  side
	rng   *rand.Rand
	pair  *pair
	net   *network
	room  *drive
	with  *drive // a second room, where the fault needs one
	post  chan struct{}
	wait  context.Context
	trap  *trap

	posted sync.Once
	at     int64 // of the fault, CLOCK_MONOTONIC
	hurt   map[*rank]bool
	held   bool          // prefill's pages had to wait for the drill
	hit    chan struct{} // closed when an engine's fault has struck
	out    Outcome
	bg     sync.WaitGroup
}

// settleTime is some ticks of a rank and of its scheduler.
const settleTime = 400 * time.Millisecond

// longest bounds one run.
const longest = 90 * time.Second

// errBefore is an error of a run in which the fault has not struck yet, so that it says nothing about the cell.
var errBefore = errors.New("before the fault")

// setOuts is how often a run may set out: a worker may choose a port that a proxy can't have, a machine under load may keep a room from its
// moment.
const setOuts = 4

// try runs a cell once.
func try(ctx context.Context, self []string, n *nursery, c Cell, seed uint64) (out Outcome) {
	for range setOuts {
		var before bool
		if out, before = setOut(ctx, self, n, c, seed); !before || ctx.Err() != nil {
			break
		}
	}
	return out
}

func setOut(ctx context.Context, self []string, n *nursery, c Cell, seed uint64) (out Outcome, before bool) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	r := &run{Cell: c, fault: faultOf(c.Fault), side: side(c.Side), rng: rand.New(rand.NewPCG(seed, 1)), post: make(chan struct{}), wait: ctx,
		hurt: map[*rank]bool{}, hit: make(chan struct{}), out: Outcome{Cell: c, Detect: -1, Client: -1, Release: -1}}
	tp := map[side]int{sideP: 1, sideD: 1}
	if c.Fault == "rank-killed" {
		tp[r.side] = 2
	}
	patient := side("")
	if c.Fault == "paused" {
		patient = r.side.other()
	}
	var err error
	if r.pair, err = newPair(ctx, self, n, c.Engine, tp, patient); err != nil {
		err = fmt.Errorf("%w: start: %w", errBefore, err)
	} else {
		r.net = r.pair.net
		err = r.drill()
	}
	if err != nil {
		r.problem("%v", err)
	}
	if len(r.out.Problems) > 0 {
		for _, x := range r.pair.born {
			if t := x.lastWords(); t != "" {
				r.out.Logs += x.name + ":\n" + t + "\n"
			}
		}
	}
	cancel()
	r.pair.close()
	r.bg.Wait()
	return r.out, errors.Is(err, errBefore)
}

func (r *run) problem(format string, args ...any) {
	r.out.Problems = append(r.out.Problems, fmt.Sprintf(format, args...))
}

// drill is the course of every cell. An error ends it; what is merely wrong is noted as a problem.
func (r *run) drill() error {
	if err := r.pair.whole(r.wait); err != nil {
		return fmt.Errorf("%w: %w", errBefore, err)
	}
	select { // until every rank has ticked, as one does that is not new
	case <-time.After(settleTime):
	case <-r.wait.Done():
		return r.wait.Err()
	}
	if err := r.reach(); err != nil {
		return fmt.Errorf("%w: moment not reached: %w", errBefore, err)
	}
	if err := r.fault.strike(r); err != nil {
		return fmt.Errorf("strike: %w", err)
	}
	r.letPost()
	if r.trap != nil {
		r.net.spring(r.trap, pass)
	}
	if !r.fault.late {
		r.net.limit(-1)
	}
	r.bg.Go(r.client)
	if err := r.verdicts(); err != nil {
		return err
	}
	if err := r.pagesBack(); err != nil {
		return err
	}
	if err := r.heal(); err != nil {
		return fmt.Errorf("heal: %w", err)
	}
	if err := r.aftermath(); err != nil {
		return err
	}
	r.times()
	return nil
}

func (r *run) letPost() { r.posted.Do(func() { close(r.post) }) }

// live are the ranks of the drilled room that can be expected to say something.
func (r *run) live(of ...side) (list []*rank) {
	for _, s := range of {
		for _, x := range r.room.ranks[s] {
			if !r.hurt[x] {
				list = append(list, x)
			}
		}
	}
	return list
}

// reach brings a room to the moment and holds it there.
func (r *run) reach() error {
	if r.Fault == "out-of-pages" && r.side == sideP {
		return r.decodeFirst()
	}
	id := r.pair.rooms + 1
	var spent <-chan struct{}
	switch r.Moment {
	case Rendezvous:
		r.trap = newTrap(kindBoot, sideP, len(r.pair.inst[sideD].ranks), nil)
	case Published:
		r.trap = newTrap(kindControl, sideP, r.pair.meetings(), func(f [][]byte) bool {
			return wire.ClassifyP(wire.Mooncake, f) == wire.KindMetadata && string(f[0]) == id.String()
		})
	case LastByte, InFlight:
		if spent = r.moving(id); spent == nil && r.trap == nil {
			return r.start() // the engine's write marks the moment
		}
	case Queued, Decoding, Cleared: // the room stays there by itself
	}
	if r.trap != nil {
		r.net.lay(r.trap)
	}
	if r.Moment != Queued {
		r.letPost()
	}
	if err := r.start(); err != nil {
		return err
	}
	if spent != nil {
		return r.until("bytes are under way", spent)
	}
	return r.arrive()
}

// moving prepares the moments at which bytes are under way.
func (r *run) moving(id room.ID) <-chan struct{} {
	total := r.pair.bytes()
	switch {
	case r.isWrite():
		return nil
	case r.isMessage() && r.Moment == LastByte:
		r.trap = r.messageTrap(id)
		return nil
	case r.Moment == LastByte:
		return r.net.limit(total - 1)
	}
	return r.net.limit(1 + r.rng.Int64N(total-2))
}

func (r *run) arrive() error {
	switch r.Moment {
	case Queued:
		for _, x := range r.room.ranks[sideD] {
			if ok, err := r.room.met(r.wait, x); err != nil || !ok {
				return errors.Join(fmt.Errorf("%s does not find prefill", x.name), err)
			}
		}
	case Decoding, Cleared:
		words, err := r.room.verdicts(r.wait, r.room.all())
		if err != nil {
			return err
		}
		for _, w := range words {
			if p := mustSucceed.judge(w); p != "" {
				return errors.New(p)
			}
		}
		if err := r.room.check(r.wait); err != nil || r.Moment == Decoding {
			return err
		}
		return r.room.clear(r.wait)
	default:
		return r.until(string(r.Moment), r.trap.caught)
	}
	return nil
}

func (r *run) start() (err error) {
	r.letPostUnlessQueued()
	r.room, err = r.pair.begin(r.wait, r.post, r.beforeChunk)
	return err
}

func (r *run) letPostUnlessQueued() {
	if r.Moment != Queued {
		r.letPost()
	}
}

func (r *run) until(what string, c <-chan struct{}) error { return until(r.wait, what, c) }

// client does what a gateway does: when decode's leg has ended before prefill has heard of decode, it ends prefill's. Ranks of an instance
// that has lost one give its early rooms up, as an engine does.
func (r *run) client() {
	if !r.Moment.early() && (r.Fault != "one-way" || r.side != sideP || r.Moment.over()) {
		return
	}
	gone := func(w word) bool {
		return w.Room == r.room.id && w.Event == evDone && w.Status != room.Success.String()
	}
	var wg sync.WaitGroup
	ended := make(chan struct{}, len(r.room.ranks[sideD]))
	for _, x := range r.room.ranks[sideD] {
		wg.Go(func() {
			if _, err := x.wait(r.wait, "leg", gone); err == nil || errors.Is(err, errEnded) {
				ended <- struct{}{}
			}
		})
	}
	go func() {
		wg.Wait()
		close(ended)
	}()
	if _, ok := <-ended; !ok {
		return
	}
	for _, x := range r.room.all() {
		_, _ = x.tell(order{Op: "abort", Room: r.room.id, Code: room.Aborted.String(), Text: "the other leg has ended"}) // it may be gone
	}
	for range ended { // until the last has looked
	}
}

// verdicts waits until every rank that can has its verdict, and judges it.
func (r *run) verdicts() error {
	if r.Moment.over() {
		r.linger()
	}
	p, d := r.fault.expect(r.Moment, r.side)
	for _, s := range []side{sideP, sideD} {
		w := p
		if s == sideD {
			w = d
		}
		for _, x := range r.live(s) {
			v, err := x.await(r.wait, r.room.id, evDone)
			if err != nil {
				if r.wait.Err() != nil {
					return err
				}
				r.problem("%v", err)
				continue
			}
			if p := w.judge(v); p != "" {
				r.problem("%s: room %s", x.name, p)
			}
		}
	}
	return nil
}

// linger gives a fault that comes after the verdict the time that it would take to be noticed.
func (r *run) linger() {
	d := 100 * time.Millisecond
	if slices.Contains([]string{"stopped", "link-cut", "black-hole", "one-way"}, r.Fault) {
		d = condemnAfter + time.Second/2
	}
	select {
	case <-time.After(d):
	case <-r.wait.Done():
	}
}

// pagesBack waits for decode's pages of a failed room, which no help of the network may be needed for, and for prefill's where its peer is
// known to be gone. A write that is stuck, or whose bytes the network holds, keeps prefill's.
func (r *run) pagesBack() error {
	if r.Moment.over() {
		return nil
	}
	ranks := r.live(sideD)
	switch r.Fault {
	case "killed", "stopped", "restart", "link-cut", "black-hole":
		ranks = r.live(sideP, sideD)
	}
	for _, x := range ranks {
		if w, ok := x.find(of(r.room.id, evDone)); !ok || w.Status == room.Success.String() {
			continue
		}
		if _, err := x.await(r.wait, r.room.id, evFree); err != nil {
			r.problem("%v", err)
		}
	}
	if r.Fault == faultStuck || r.Moment.moving() && (r.Fault == "abort" || r.Fault == "msg-lost" || r.Fault == "msg-duplicated" || r.Fault == "msg-malformed") && r.net.holds() {
		r.held = true
		select {
		case <-time.After(writeTime):
		case <-r.wait.Done():
		}
		for _, x := range r.live(sideP) {
			if _, ok := x.find(of(r.room.id, evQuiescent)); ok {
				r.problem("%s: its pages came back while a write reads them", x.name)
			}
		}
	}
	return r.wait.Err()
}

// writeTime is more than it takes a rank to give pages back that nothing reads, and less than prefill waits for a write of a failed room.
const writeTime = 100 * time.Millisecond

// times measures from the fault on.
func (r *run) times() {
	if r.Moment.over() {
		return
	}
	var detect, client, release int64
	for s, ranks := range r.room.ranks {
		for _, x := range ranks {
			w, ok := x.find(of(r.room.id, evDone))
			failed := ok && w.Status != room.Success.String()
			told := w.At
			if end := x.end(); end != 0 && !failed && r.hurt[x] && !ok {
				told, failed = end, true
				ok = false
			}
			if !failed {
				continue
			}
			if client == 0 || told < client {
				client = told
			}
			if !ok || r.hurt[x] || r.fault.process && s == r.side {
				continue
			}
			detect = max(detect, told)
			if f, ok := x.find(of(r.room.id, evFree)); ok && !(r.held && s == sideP) {
				release = max(release, f.At)
			}
		}
	}
	since := func(at int64) time.Duration {
		if at == 0 {
			return -1
		}
		return max(0, time.Duration(at-r.at))
	}
	r.out.Detect, r.out.Client, r.out.Release = since(detect), since(client), since(release)
}
