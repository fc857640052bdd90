package drill

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
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
	hit    chan struct{} // closed when an engine's fault has struck
	out    Outcome
	bg     sync.WaitGroup
}

// settleTime is some ticks of a rank and of its scheduler.
const settleTime = 400 * time.Millisecond

// longest bounds one run.
const longest = 90 * time.Second

// try runs a cell once.
func try(ctx context.Context, self []string, n *nursery, c Cell, seed uint64) Outcome {
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
	if r.pair, err = newPair(ctx, self, n, c.Engine, tp, patient); err == nil {
		r.net = r.pair.net
		if err = r.drill(); err != nil {
			r.problem("%v", err)
		}
	} else {
		r.problem("start: %v", err)
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
	return r.out
}

func (r *run) problem(format string, args ...any) {
	r.out.Problems = append(r.out.Problems, fmt.Sprintf(format, args...))
}

// drill is the course of every cell. An error ends it; what is merely wrong is noted as a problem.
func (r *run) drill() error {
	if err := r.pair.whole(r.wait); err != nil {
		return fmt.Errorf("before the fault: %w", err)
	}
	select { // until every rank has ticked, as one does that is not new
	case <-time.After(settleTime):
	case <-r.wait.Done():
		return r.wait.Err()
	}
	if err := r.reach(); err != nil {
		return fmt.Errorf("moment not reached: %w", err)
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
			if _, err := x.await(r.wait, r.room.id, evMet); err != nil {
				return err
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

func (r *run) until(what string, c <-chan struct{}) error {
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-c:
		return nil
	case <-t.C:
		return fmt.Errorf("%s: not within %v", what, patience)
	case <-r.wait.Done():
		return r.wait.Err()
	}
}

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
// known to be gone. A write that is stuck keeps prefill's.
func (r *run) pagesBack() error {
	if r.Moment.over() {
		return nil
	}
	ranks := r.live(sideD)
	switch r.Fault {
	case "killed", "stopped", "restart", "link-cut", "black-hole":
		ranks = r.live(sideP, sideD)
	case faultStuck:
		for _, x := range r.live(sideP) {
			if _, ok := x.find(of(r.room.id, evFree)); ok {
				r.problem("%s: its pages came back while a write reads them", x.name)
			}
		}
	}
	for _, x := range ranks {
		if w, ok := x.find(of(r.room.id, evDone)); !ok || w.Status == room.Success.String() {
			continue
		}
		if _, err := x.await(r.wait, r.room.id, evFree); err != nil {
			r.problem("%v", err)
		}
	}
	return r.wait.Err()
}

// heal ends the fault, replaces instances that have lost a process, and lets late bytes arrive.
func (r *run) heal() error {
	for x := range r.hurt {
		if x.end() == 0 {
			_ = x.signal(syscall.SIGCONT) // it may be ending
		}
	}
	if err := r.net.heal(r.wait); err != nil {
		return err
	}
	for _, x := range r.pair.inst[sideP].ranks {
		if x.end() == 0 {
			if _, err := x.do(r.wait, order{Op: "heal"}); err != nil && !errors.Is(err, errEnded) {
				return err
			}
		}
	}
	for x := range r.hurt {
		if r.Fault == "stopped" && x.end() == 0 {
			r.afterStop(x)
		}
	}
	if r.Fault == "drain" {
		for _, x := range r.room.ranks[r.side] {
			if err := r.until(x.name+" ends", x.done); err != nil {
				return err
			}
		}
	}
	for _, s := range []side{sideP, sideD} {
		if slices.ContainsFunc(r.pair.inst[s].ranks, func(x *rank) bool { return x.end() != 0 }) {
			if err := r.finish(s); err != nil {
				return err
			}
			if err := r.replace(s); err != nil {
				return err
			}
		}
	}
	ctx, cancel := context.WithTimeout(r.wait, patience)
	defer cancel()
	return r.net.idle(ctx)
}

// replace puts a new incarnation in the place of an instance.
func (r *run) replace(s side) error {
	if err := r.pair.again(r.wait, s); err != nil {
		return err
	}
	for _, p := range r.net.proxies {
		if err := p.listen(r.wait); err != nil {
			return err
		}
	}
	return nil
}

// afterStop looks at a process that goes on: its room must come to a verdict, too.
func (r *run) afterStop(x *rank) {
	w := mustFail
	if r.Moment.over() {
		w = mustSucceed
	}
	v, err := x.await(r.wait, r.room.id, evDone)
	if err != nil {
		r.problem("after it went on: %v", err)
	} else if p := w.judge(v); p != "" {
		r.problem("%s: after it went on: room %s", x.name, p)
	}
}

// finish ends the drilled room on what lives of an instance that is to be replaced.
func (r *run) finish(s side) error {
	for _, x := range r.room.ranks[s] {
		if x.end() != 0 {
			continue
		}
		if _, gone := x.find(of(r.room.id, evFree)); !gone && r.Moment.over() {
			if _, err := x.tell(order{Op: "clear", Room: r.room.id}); err != nil {
				return err
			}
		}
		if _, err := x.await(r.wait, r.room.id, evFree); err != nil && !errors.Is(err, errEnded) {
			r.problem("%v", err)
		}
	}
	return r.wait.Err()
}

// aftermath looks at what is left: bytes, tables, pages, and whether rooms work.
func (r *run) aftermath() error {
	success := func(x *rank) bool {
		w, ok := x.find(of(r.room.id, evDone))
		return ok && w.Status == room.Success.String()
	}
	if slices.ContainsFunc(r.room.ranks[sideD], success) {
		if r.Moment != Cleared {
			if err := r.room.check(r.wait); err != nil {
				r.problem("%v", err)
			}
		}
		for _, x := range r.room.ranks[sideP] {
			if x.end() == 0 && !success(x) {
				r.problem("decode succeeded, %s did not", x.name)
			}
		}
	} else if slices.ContainsFunc(r.room.ranks[sideP], success) && r.Moment != LastByte && r.Fault != "rank-killed" {
		r.problem("prefill succeeded, decode did not")
	}
	for _, d := range []*drive{r.room, r.with} {
		if d == nil {
			continue
		}
		if err := d.clear(r.wait); err != nil {
			r.problem("%v", err)
		}
	}
	if err := r.again(); err != nil {
		r.problem("the next rooms: %v", err)
	}
	for _, x := range r.pair.all() {
		r.empty(x)
	}
	if err := r.numbersBack(); err != nil {
		return err
	}
	return r.wait.Err()
}

// again runs two rooms at a time, which take all pages, until both succeed.
func (r *run) again() error {
	ctx, cancel := context.WithTimeout(r.wait, patience)
	defer cancel()
	for {
		var errs [2]error
		var wg sync.WaitGroup
		for i := range errs {
			r.pair.rooms++
			id := r.pair.rooms
			wg.Go(func() { errs[i] = r.pair.wholeAs(ctx, id) })
		}
		wg.Wait()
		err := errors.Join(errs[0], errs[1])
		if err == nil || ctx.Err() != nil {
			return err
		}
		r.out.Retries++
		r.out.Again = err.Error()
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// tables asks a rank for its tables until they are fit, for as long as patience lasts.
func (r *run) tables(x *rank, fit func(tables) bool) (t tables, ok bool) {
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		w, err := x.do(r.wait, order{Op: "tables"})
		if err != nil {
			r.problem("%v", err)
			return t, false
		}
		t = *w.Tables
		if ok = fit(t); ok || time.Now().After(end) || r.wait.Err() != nil {
			return t, ok
		}
	}
}

// empty checks a rank's tables and that nobody has written to free pages.
func (r *run) empty(x *rank) {
	role := sideP
	if x.setup.Side == room.Decode.String() {
		role = sideD
	}
	var last tables
	t, ok := r.tables(x, func(t tables) bool {
		last = t
		unread := t.Unread
		t.Unread = 0
		if role == sideD && r.cutWrite() {
			t.Withheld = 0
		}
		return t == tables{} && (unread > 0) == (r.Fault == "msg-malformed" && role == r.side)
	})
	switch {
	case !ok:
		r.problem("%s: tables are %+v, want them empty", x.name, last)
	case role == sideD && r.Fault == faultLands && t.Withheld == 0:
		r.problem("%s: page numbers are free although bytes for them may still come", x.name)
	}
	if _, err := x.do(r.wait, order{Op: "guards"}); err != nil {
		r.problem("%v", err)
	}
}

// numbersBack replaces prefill where decode keeps page numbers because of it: with its process the last doubt is gone.
func (r *run) numbersBack() error {
	kept := false
	for _, x := range r.pair.inst[sideD].ranks {
		w, err := x.do(r.wait, order{Op: "tables"})
		if err != nil {
			return err
		}
		kept = kept || w.Tables.Withheld > 0
	}
	if !kept || !r.cutWrite() {
		return nil
	}
	if err := r.replace(sideP); err != nil {
		return err
	}
	if err := r.again(); err != nil {
		r.problem("the next rooms: %v", err)
	}
	for _, x := range r.pair.inst[sideD].ranks {
		if t, ok := r.tables(x, func(t tables) bool { return t.Withheld == 0 }); !ok {
			r.problem("%s: %d page numbers are kept although prefill's process is gone", x.name, t.Withheld)
		}
	}
	return nil
}

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
			if f, ok := x.find(of(r.room.id, evFree)); ok {
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
