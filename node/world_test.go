package node

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvferry/kvferry/room"
)

// world joins prefill and decode nodes by a seeded network without sockets: messages, writes and lease ends are queued and delivered in
// an order that the seed decides (in order per pair of endpoints, as ZMTP gives it).
type world struct {
	t     testing.TB
	now   time.Time
	rng   *rand.Rand
	p     []*Prefill
	d     []*Decode
	inst  map[string]room.InstanceID // by endpoint; zero: foreign
	dead  map[string]bool
	cut   map[string]bool // endpoint answers nothing and is not refused
	queue map[string][]func()
	keys  []string
	// what the owners saw
	verdict  map[string]room.Status
	cause    map[string]room.Cause
	quiet    map[string]Proof
	cleared  map[string]bool
	pages    map[string]map[room.ID]lease
	dials    []func() // connections that found nobody
	failNext int      // so many writes fail
	doubt    bool     // and their bytes may land all the same
	hold     bool
	held     []func()
	trace    uint64
}

type lease struct {
	gen    uint32
	pages  []int32
	sealed bool
	want   int
	got    map[int]bool
	done   bool
}

func pEnd(i int) string { return fmt.Sprintf("tcp://p:%d", i) }
func dEnd(i int) string { return fmt.Sprintf("tcp://d:%d", i) }
func who(side room.Side, i int, id room.ID) string {
	return fmt.Sprintf("%v%d/%d", side, i, id)
}

func newWorld(t testing.TB, seed uint64, np, nd int, native bool) *world {
	w := &world{t: t, now: time.Unix(1000, 0), rng: rand.New(rand.NewPCG(seed, 1)), inst: map[string]room.InstanceID{}, dead: map[string]bool{}, cut: map[string]bool{},
		queue: map[string][]func(){}, verdict: map[string]room.Status{}, cause: map[string]room.Cause{}, quiet: map[string]Proof{}, cleared: map[string]bool{}, pages: map[string]map[room.ID]lease{}}
	for i := range np {
		w.p = append(w.p, NewPrefill(Config{Rank: i, Pages: 64}))
		if native {
			w.inst[pEnd(i)] = room.InstanceID{1, byte(i + 1)}
		}
	}
	for i := range nd {
		w.d = append(w.d, NewDecode(Config{Rank: i, Pages: 64, Virtual: true, Coverage: true}))
		w.pages[dEnd(i)] = map[room.ID]lease{}
		if native {
			w.inst[dEnd(i)] = room.InstanceID{2, byte(i + 1)}
		}
	}
	return w
}

func (w *world) push(key string, f func()) {
	if w.queue[key] == nil {
		w.keys = append(w.keys, key)
	}
	w.queue[key] = append(w.queue[key], f)
}

// one delivers one queued thing; false when there is none.
func (w *world) one() bool {
	var ready []string
	for _, k := range w.keys {
		if len(w.queue[k]) > 0 {
			ready = append(ready, k)
		}
	}
	if len(ready) == 0 {
		return false
	}
	k := ready[w.rng.IntN(len(ready))]
	f := w.queue[k][0]
	w.queue[k] = w.queue[k][1:]
	f()
	return true
}

func (w *world) run() {
	for w.one() {
	}
}

// pass lets time go by in ticks; peers that live are heard.
func (w *world) pass(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); {
		w.now = w.now.Add(TickInterval)
		dials := w.dials
		w.dials = nil
		for _, f := range dials {
			f()
		}
		for i := range w.p {
			for j := range w.d {
				if !w.dead[dEnd(j)] && !w.cut[dEnd(j)] {
					w.stepP(i, PeerHeard{dEnd(j), w.now})
				}
				if !w.dead[pEnd(i)] && !w.cut[pEnd(i)] {
					w.stepD(j, PeerHeard{pEnd(i), w.now})
				}
			}
		}
		for i := range w.p {
			w.stepP(i, Tick{})
		}
		for j := range w.d {
			w.stepD(j, Tick{})
		}
		w.run()
	}
}

func (w *world) log(side room.Side, i int, a Action) {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%d %v %d %T %+v", w.trace, side, i, a, a)
	w.trace = h.Sum64()
	if testing.Verbose() {
		if _, ok := a.(Emit); !ok {
			w.t.Logf("%v%d %T%+v", side, i, a, a)
		}
	}
}

func (w *world) stepP(i int, ev Event) {
	if w.dead[pEnd(i)] {
		return
	}
	as, err := w.p[i].Step(w.now, ev)
	if err != nil {
		w.t.Fatalf("prefill %d: %T%+v: %v", i, ev, ev, err)
	}
	for _, a := range as {
		w.log(room.Prefill, i, a)
		w.doP(i, a)
	}
}

func (w *world) stepD(j int, ev Event) {
	if w.dead[dEnd(j)] {
		return
	}
	as, err := w.d[j].Step(w.now, ev)
	if err != nil {
		w.t.Fatalf("decode %d: %T%+v: %v", j, ev, ev, err)
	}
	for _, a := range as {
		w.log(room.Decode, j, a)
		w.doD(j, a)
	}
}

func dIndex(endpoint string) (j int) { _, _ = fmt.Sscanf(endpoint, "tcp://d:%d", &j); return }
func pIndex(endpoint string) (i int) { _, _ = fmt.Sscanf(endpoint, "tcp://p:%d", &i); return }

func (w *world) toD(i int, endpoint string, ev Event) {
	j := dIndex(endpoint)
	w.push(fmt.Sprintf("p%d>d%d", i, j), func() {
		if !w.cut[pEnd(i)] && !w.cut[endpoint] {
			w.stepD(j, ev)
		}
	})
}

func (w *world) toP(j int, endpoint string, ev Event) {
	i := pIndex(endpoint)
	w.push(fmt.Sprintf("d%d>p%d", j, i), func() {
		if !w.cut[dEnd(j)] && !w.cut[endpoint] {
			w.stepP(i, ev)
		}
	})
}

func (w *world) owner(side room.Side, i int, a Action) {
	switch a := a.(type) {
	case Changed:
		k := who(side, i, a.Room)
		if old, ok := w.verdict[k]; ok && old.Terminal() && !w.cleared[k] {
			w.t.Errorf("%s: %v after the verdict %v", k, a.Status, old)
		}
		w.verdict[k] = a.Status
		if a.Status == room.Failed {
			w.cause[k] = a.Cause
			if a.Cause.IsZero() {
				w.t.Errorf("%s failed without a cause", k)
			}
		}
		delete(w.cleared, k)
	case Quiescent:
		w.quiet[who(side, i, a.Room)] = a.Proof
	case Cleared:
		w.cleared[who(side, i, a.Room)] = true
	}
}

func (w *world) doP(i int, a Action) {
	w.owner(room.Prefill, i, a)
	switch a := a.(type) {
	case Connect:
		w.connect(a.Endpoint, func(ev Event) { w.stepP(i, ev) })
	case StartWrite:
		f := func() {
			if w.failNext > 0 {
				w.failNext--
				w.stepP(i, WriteSettled{Write: a.Write, Proven: !w.doubt, Err: errors.New("write"), Cause: room.NewCause(room.TransferFailed, room.Prefill, a.Session, "")})
				return
			}
			w.land(i, a)
			w.stepP(i, WriteSettled{Write: a.Write, Proven: true})
		}
		if w.hold {
			w.held = append(w.held, f)
			return
		}
		w.push(fmt.Sprintf("write%d.%d", i, a.Write%3), f)
	case SendStatus:
		ev := StatusHeard{Room: a.Room, Rank: a.Rank, Status: a.Status}
		if a.Native {
			ev.Epoch, ev.Cause, ev.Instance, ev.Seq = a.Epoch, a.Cause, w.inst[pEnd(i)], a.Seq
		}
		w.toD(i, a.Endpoint, ev)
	case SendReceipt:
		w.toD(i, a.Endpoint, ReceiptHeard{a.Room, a.Seq})
	case SendQueued:
		w.toD(i, a.Endpoint, QueuedHeard{w.inst[pEnd(i)], a.Rank, a.Rooms})
	case SendGoodbye:
		w.toD(i, a.Endpoint, GoodbyeHeard{w.inst[pEnd(i)], a.Cause})
	case SendQuiescent:
		w.toD(i, a.Endpoint, QuiescentHeard{a.Room, a.Epoch, a.Rank, w.inst[pEnd(i)], a.Seq})
	case SendRefused:
		w.toD(i, a.Endpoint, StatusHeard{Room: a.Room, Epoch: a.Epoch, Rank: a.Rank, Status: room.Failed, Cause: a.Cause, Refused: true})
	case SendAck:
		w.toD(i, a.Endpoint, AckHeard{a.Room, a.Rank, a.Generation, true})
	}
}

// land is the receiving engine: it puts bytes into open leases alone, and checks that a page is never written for another room's life.
func (w *world) land(i int, a StartWrite) {
	for id, l := range w.pages[a.Session] {
		for k, v := range a.Dst {
			if uint32(v)/64 != l.gen || l.sealed {
				continue
			}
			if id != a.Room {
				w.t.Errorf("room %d writes to page %d of room %d", a.Room, v, id)
			}
			l.got[int(v)<<8|i] = true
			_ = k
		}
		if len(l.got) == l.want && !l.done {
			l.done = true
			w.pages[a.Session][id] = l
			j := dIndex(a.Session)
			w.stepD(j, Covered{Room: id})
		}
	}
}

func (w *world) connect(endpoint string, step func(Event)) {
	w.push("up "+endpoint, func() {
		switch {
		case w.dead[endpoint]:
			step(PeerRefused{endpoint, "connection refused"})
		case w.cut[endpoint]:
			w.dials = append(w.dials, func() { w.connect(endpoint, step) })
		default:
			step(PeerUp{endpoint, w.inst[endpoint]})
		}
	})
}

func (w *world) doD(j int, a Action) {
	w.owner(room.Decode, j, a)
	me := dEnd(j)
	native := !w.inst[me].IsZero()
	switch a := a.(type) {
	case Connect:
		w.connect(a.Endpoint, func(ev Event) { w.stepD(j, ev) })
	case OpenLease:
		w.pages[me][a.Room] = lease{gen: a.Generation, pages: a.Pages, want: len(a.Pages) * len(w.p), got: map[int]bool{}}
	case SealLease:
		l := w.pages[me][a.Room]
		l.sealed = true
		w.pages[me][a.Room] = l
		w.push("idle", func() { w.stepD(j, LeaseIdle(a)) })
	case SendRegistration:
		w.toP(j, a.Endpoint, Registration{Session: me, Endpoint: me, Instance: w.inst[me]})
	case SendMetadata:
		m := Metadata{Room: a.Room, Session: me, Endpoint: me, Aux: a.Aux, Required: a.Required, Prefix: a.Prefix, Dummy: a.Dummy, Native: native}
		if native {
			m.Epoch = a.Epoch
		}
		for _, p := range a.Pages {
			m.Pages = append(m.Pages, int32(a.Generation*64)+p)
		}
		w.toP(j, a.Endpoint, m)
	case SendAbort:
		ev := AbortHeard{Room: a.Room, Endpoint: me, Generation: a.Generation, HasGeneration: a.Generation != 0}
		if native {
			ev.Epoch, ev.Cause, ev.Seq = a.Epoch, a.Cause, a.Seq
		}
		w.toP(j, a.Endpoint, ev)
	case SendReceipt:
		w.toP(j, a.Endpoint, ReceiptHeard{a.Room, a.Seq})
	case SendGoodbye:
		w.toP(j, a.Endpoint, GoodbyeHeard{w.inst[me], a.Cause})
	}
}

// kill ends a process: its sockets are refused from now on.
func (w *world) kill(endpoint string) {
	w.dead[endpoint] = true
	for i := range w.p {
		w.stepP(i, PeerDown{endpoint, "EOF"})
		w.stepP(i, PeerRefused{endpoint, "connection refused"})
	}
	for j := range w.d {
		w.stepD(j, PeerDown{endpoint, "EOF"})
		w.stepD(j, PeerRefused{endpoint, "connection refused"})
	}
}

// open begins a room on every rank; pages are published when post.
func (w *world) open(id room.ID, post bool) {
	for i := range w.p {
		w.stepP(i, OpenSend{id})
	}
	for j := range w.d {
		w.stepD(j, OpenReceive{id, room.Epoch(w.rng.Uint64() | 1)})
		var ts []Target
		for i := range w.p {
			ts = append(ts, Target{Endpoint: pEnd(i), Rank: i, Required: len(w.d)})
		}
		w.stepD(j, Routed{id, ts})
		if post {
			w.post(j, id, 3)
		}
	}
}

func (w *world) post(j int, id room.ID, n int) {
	pages, ok := w.d[j].Ledger.Alloc(nil, n)
	if !ok {
		w.t.Fatalf("decode %d has no %d pages", j, n)
	}
	w.stepD(j, Post{Room: id, Pages: pages, Aux: -1})
	if err := w.d[j].Ledger.Release(pages); err != nil { // from here on the room alone holds them
		w.t.Fatal(err)
	}
}

func (w *world) send(id room.ID) {
	for i := range w.p {
		for k, n := range []int{2, 1} {
			pages, _ := w.p[i].Ledger.Alloc(nil, n)
			w.stepP(i, Chunk{Room: id, Pages: pages, Aux: -1, Last: k == 1})
			if err := w.p[i].Ledger.Release(pages); err != nil {
				w.t.Fatal(err)
			}
		}
	}
}

// expect checks every rank's verdict; cause codes count on Failed, 0 means any.
func (w *world) expect(id room.ID, want room.Status, pCode, dCode room.Code) {
	w.t.Helper()
	check := func(side room.Side, i int, code room.Code) {
		w.t.Helper()
		k := who(side, i, id)
		if got, ok := w.verdict[k]; !ok || got != want || want == room.Failed && code != 0 && w.cause[k].Code != code {
			w.t.Errorf("%s: %v %v (%v), want %v %v", k, got, ok, w.cause[k], want, code)
		}
	}
	for i := range w.p {
		if !w.dead[pEnd(i)] {
			check(room.Prefill, i, pCode)
		}
	}
	for j := range w.d {
		if !w.dead[dEnd(j)] {
			check(room.Decode, j, dCode)
		}
	}
}

// end clears a room everywhere and checks that nothing of it is left.
func (w *world) end(ids ...room.ID) {
	w.t.Helper()
	for _, id := range ids {
		for i := range w.p {
			w.stepP(i, Clear{id})
		}
		for j := range w.d {
			w.stepD(j, Clear{id})
		}
	}
	w.run()
	for i, p := range w.p {
		if c := p.Counts(); !w.dead[pEnd(i)] && (c.Rooms+c.Unserved+c.Writes != 0 || p.Ledger.Free() != 64) {
			w.t.Errorf("prefill %d: %+v, %d pages free", i, c, p.Ledger.Free())
		}
	}
	for j, d := range w.d {
		if c := d.Counts(); !w.dead[dEnd(j)] && (c.Rooms+c.Quarantined != 0 || d.Ledger.Free() != 64) {
			w.t.Errorf("decode %d: %+v, %d pages free", j, c, d.Ledger.Free())
		}
	}
}

func (w *world) noWithheld() {
	w.t.Helper()
	for j, d := range w.d {
		if c := d.Counts(); c.UnprovenGenerations != 0 || len(d.withheld)+len(d.aborts) != 0 {
			w.t.Errorf("decode %d withholds %d generations, %d rooms, %d aborts", j, c.UnprovenGenerations, len(d.withheld), len(d.aborts))
		}
	}
}
