package sim

import (
	"container/heap"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"github.com/kvferry/kvferry/node"
	"github.com/kvferry/kvferry/room"
)

// stepper is a node of either side.
type stepper interface {
	Step(now time.Time, ev node.Event) ([]node.Action, error)
	Counts() node.Counts
}

// occurrence is something that happens at a time.
type occurrence struct {
	at  time.Duration
	seq uint64
	f   func()
}

type agenda []occurrence

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].seq < a[j].seq
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(occurrence)) }
func (a *agenda) Pop() any {
	old := *a
	x := old[len(old)-1]
	old[len(old)-1] = occurrence{}
	*a = old[:len(old)-1]
	return x
}

// world is one run. Everything that happens is on its agenda; nothing happens twice at once.
type world struct {
	cfg    Config
	now    time.Duration
	agenda agenda
	seq    uint64

	ranks   [2][]*proc // the processes that stand in each rank's place now, prefill first
	procs   []*proc    // all that ever were
	net     network
	pubs    []*publication
	fates   map[[2]int]Op // of writes, by prefill rank and number
	failed  map[verdictKey]room.Cause
	epochs  map[room.Epoch]int // in order of their rooms, from 1
	written map[int]int        // writes so far, by prefill rank

	calm       bool // faults are over
	steps      int
	failures   int // verdicts
	hash       uint64
	log        []string
	violations []Violation
}

// maxViolations ends a run: the first is what counts.
const maxViolations = 8

// Run carries a world out and reports what it found.
func Run(cfg Config) Result {
	w := &world{cfg: cfg, fates: map[[2]int]Op{}, written: map[int]int{}, failed: map[verdictKey]room.Cause{}, epochs: map[room.Epoch]int{}}
	w.net.at = map[string]*proc{}
	for i := range cfg.Prefill {
		w.ranks[0] = append(w.ranks[0], w.boot(room.Prefill, i, nil))
	}
	for j := range cfg.Decode {
		w.ranks[1] = append(w.ranks[1], w.boot(room.Decode, j, nil))
	}
	for _, o := range cfg.Ops {
		if o.Kind == Fate {
			w.fates[[2]int{o.Rank, o.N}] = o
			continue
		}
		w.push(o.At, func() { w.operate(o) })
	}
	w.play(cfg.span() + 4*time.Second)
	w.finish()
	return Result{Hash: w.hash, Steps: w.steps, Failed: w.failures, Violations: w.violations, Log: w.log}
}

// push puts f on the agenda, not before now.
func (w *world) push(at time.Duration, f func()) {
	w.seq++
	heap.Push(&w.agenda, occurrence{max(at, w.now), w.seq, f})
}

func (w *world) after(d time.Duration, f func()) { w.push(w.now+d, f) }

// play lets time pass until end.
func (w *world) play(end time.Duration) {
	for len(w.agenda) > 0 && w.agenda[0].at <= end && len(w.violations) < maxViolations {
		o := heap.Pop(&w.agenda).(occurrence)
		w.now = o.at
		o.f()
	}
	w.now = max(w.now, end)
}

// clock is the time as nodes see it.
func (w *world) clock() time.Time { return time.Unix(1000, 0).Add(w.now) }

// side is the index of a side in ranks.
func side(s room.Side) int {
	if s == room.Prefill {
		return 0
	}
	return 1
}

func (w *world) rank(s room.Side, i int) *proc { return w.ranks[side(s)][i] }

// violate notes a broken invariant.
func (w *world) violate(rule, format string, args ...any) {
	v := Violation{w.now, rule, fmt.Sprintf(format, args...)}
	w.violations = append(w.violations, v)
	w.note("!!! %v", v)
}

// note adds a line to the trace.
func (w *world) note(format string, args ...any) {
	line := fmt.Sprintf("%9.3fs "+format, append([]any{w.now.Seconds()}, args...)...)
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%d %s", w.hash, line) // a hash takes everything
	w.hash = h.Sum64()
	if w.cfg.Trace {
		w.log = append(w.log, line)
	}
}

// step feeds a process's node and carries out what it says. Nothing of that leads to another step before this one is over.
func (w *world) step(p *proc, ev node.Event) error {
	if p.gone {
		return nil
	}
	w.steps++
	p.heard(ev)
	as, err := p.node.Step(w.clock(), ev)
	if !quiet(ev, as, err) {
		w.note("%v < %s%s", p, describe(ev), errText(err))
	}
	for _, a := range as {
		switch a.(type) {
		case node.Emit:
			continue
		case node.SendQueued: // once a second, for ever
		default:
			w.note("%v   > %s", p, describe(a))
		}
		w.act(p, ev, a)
	}
	p.check(ev)
	return err
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return " → " + err.Error()
}

// plain takes what says nothing out of a line.
var plain = strings.NewReplacer(" Cause:internal error }", "}", " Cause:internal error ", " ", " State:[]", "", " Instance:00000000000000000000000000000000", "", " Err:<nil>", "",
	" Prefix:0", "", " SrcState:[]", "", " DstState:[]", "", " Bytes:0", "", " Refused:false", "", " Refused:}", "}", " Seq:0", "", " Epoch:0", "", " Dummy:false", "", " SrcAux:-1", "",
	" DstAux:-1", "", " Aux:-1", "", " HasGeneration:true", "", " Native:false", "")

// describe writes an event or action down.
func describe(x any) string { return plain.Replace(fmt.Sprintf("%T%+v", x, x)[len("node."):]) }

// quiet says that a step is not worth a line.
func quiet(ev node.Event, as []node.Action, err error) bool {
	switch ev.(type) {
	case node.StillQueued, node.QueuedHeard:
		return true
	default: // depends
	}
	if len(as) > 0 || err != nil {
		return false
	}
	switch ev.(type) {
	case node.Tick, node.PeerHeard:
		return true
	default:
		return false
	}
}

// act carries out one action.
func (w *world) act(p *proc, ev node.Event, a node.Action) {
	switch a := a.(type) {
	case node.Connect:
		p.connect(a.Endpoint)
	case node.Disconnect:
		p.disconnect(a.Endpoint)
	case node.StartWrite:
		p.startWrite(a)
	case node.CancelWrite:
		p.cancelWrite(a)
	case node.Unregistered:
		delete(p.registered, a.Session)
	case node.OpenLease:
		p.openLease(a)
	case node.SealLease:
		p.sealLease(a)
	case node.RetireLease:
		p.retireLease(a)
	case node.Changed:
		p.changed(ev, a)
	case node.Quiescent:
		p.quiescent(a)
	case node.Quarantined:
		p.quarantined(a)
	case node.Cleared:
		p.cleared(a)
	default:
		p.message(a)
	}
}
