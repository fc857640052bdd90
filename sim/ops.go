package sim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/kvferry/kvferry/room"
)

// OpKind is what an operation does.
type OpKind uint8

const (
	_ OpKind = iota
	// owners
	OpenSend    // prefill Rank opens Room
	Chunk       // prefill Rank hands over N pages of Room; Last
	OpenReceive // decode Rank opens Room
	Route       // decode Rank learns who serves Room
	Post        // decode Rank publishes N pages for Room
	Fail        // the owner on Side, Rank gives Room up
	Clear       // the owner on Side, Rank lets go of Room
	// faults
	Break  // the connection of Side, Rank to Peer ends; N bits: 1 late, 2 both ways
	Hole   // nothing passes between Side, Rank and Peer for For
	Pause  // Side, Rank stands still for For
	Kill   // the process of Side, Rank ends; N 1: its host vanishes, nothing refuses
	Start  // a new process takes the place of that of Side, Rank
	Repeat // the next message of Side, Rank to Peer comes again after For
	Fate   // the N-th write of prefill Rank ends as Mode says, For later
	Linger // readers of the next sealed lease of decode Rank stay inside for For
	Leave  // Side, Rank says goodbye, gives its rooms up, and ends after For
	Wedge  // the scheduler of prefill Rank hangs for For
	Drop   // the next N messages of Side, Rank to Peer are lost, as when a queue is full
	endOp
)

var opNames = [endOp]string{"", "open-send", "chunk", "open-receive", "route", "post", "fail", "clear",
	"break", "hole", "pause", "kill", "start", "repeat", "fate", "linger", "leave", "wedge", "drop"}

func (k OpKind) String() string {
	if k < endOp {
		return opNames[k]
	}
	return "unknown"
}

// Mode is how a write ends.
type Mode uint8

const (
	Done      Mode = iota // every byte lands, then it settles
	Clean                 // it fails when half has landed, proven
	Dirty                 // it fails when half has landed, and the other half lands later
	Doubt                 // it fails and nothing lands later, but that is not proven
	Hang                  // it takes For longer
	HangDirty             // it takes For longer, then Dirty
	endMode
)

var modeNames = [endMode]string{"done", "clean", "dirty", "doubt", "hang", "hang-dirty"}

func (m Mode) String() string {
	if m < endMode {
		return modeNames[m]
	}
	return "unknown"
}

// Op is one operation of a schedule.
type Op struct {
	At   time.Duration
	Kind OpKind
	Side room.Side
	Rank int
	Peer int // rank on the other side
	Room room.ID
	N    int
	From int // pages before these
	Last bool
	Mode Mode
	For  time.Duration
}

func (o Op) String() string {
	s := fmt.Sprintf("%9.3fs %s %v%d", o.At.Seconds(), o.Kind, o.Side, o.Rank)
	if o.Kind < Break {
		s += fmt.Sprintf(" room %d", o.Room)
	}
	switch o.Kind {
	case Chunk:
		s += fmt.Sprintf(" pages %d last %v", o.N, o.Last)
	case Break:
		s += fmt.Sprintf(" to %d late %v both %v", o.Peer, o.N&1 != 0, o.N&2 != 0)
	case Drop:
		s += fmt.Sprintf(" to %d messages %d", o.Peer, o.N)
	case Hole, Repeat:
		s += fmt.Sprintf(" to %d for %v", o.Peer, o.For)
	case Pause, Linger, Leave, Wedge:
		s += fmt.Sprintf(" for %v", o.For)
	case Kill:
		s += fmt.Sprintf(" vanished %v", o.N == 1)
	case Fate:
		s += fmt.Sprintf(" write %d %v after %v", o.N, o.Mode, o.For)
	default: // the rest has no more to tell
	}
	return s
}

// script draws the operations of a world.
type script struct {
	cfg Config
	r   rng
	ops []Op
}

func (s *script) add(o Op) {
	if s.r.n(100) < s.cfg.skip { // an owner that never gets that far
		return
	}
	s.ops = append(s.ops, o)
}

// generate is the schedule of a Config, in order of time.
func generate(cfg Config) []Op {
	s := &script{cfg: cfg, r: newRNG(cfg.Seed, 0x0b5)}
	for i := range cfg.Rooms {
		id := room.ID(100 + i)
		at := s.r.span(0, cfg.span())
		again := cfg.reuse() && s.r.oneIn(3)
		var over time.Duration // when its owners are done with the first use, if that matters
		if again && s.r.oneIn(2) {
			over = at + s.r.delay(500*time.Millisecond)
		}
		s.life(id, at, over, 0)
		switch {
		case over > 0:
			s.life(id, over+s.r.delay(100*time.Millisecond), 0, 1)
		case again:
			s.life(id, at+s.r.delay(6*time.Second), 0, 1)
		default: // once
		}
	}
	for range cfg.Faults {
		s.fault()
	}
	slices.SortStableFunc(s.ops, func(a, b Op) int { return cmp.Compare(a.At, b.At) })
	return s.ops
}

func (c Config) span() time.Duration { return time.Duration(1+c.Rooms) * 700 * time.Millisecond }

// life is one use of a room number by all owners.
func (s *script) life(id room.ID, at, over time.Duration, use int) {
	slow := 50 * time.Millisecond
	if s.r.oneIn(4) {
		slow = 3 * time.Second // somebody is late
	}
	pages := s.cfg.pages(id)
	for i := range s.cfg.Prefill {
		t := at + s.r.delay(slow)
		s.add(Op{At: t, Kind: OpenSend, Side: room.Prefill, Rank: i, Room: id, N: use})
		left, done := pages, 0
		if s.cfg.Coverage && s.r.oneIn(40) {
			left = max(0, left-1) // it skips a page
		}
		for {
			t += s.r.delay(slow)
			n := min(left, 1+s.r.n(3))
			left -= n
			s.add(Op{At: t, Kind: Chunk, Side: room.Prefill, Rank: i, Room: id, N: n, From: done, Last: left == 0})
			done += n
			if left == 0 {
				break
			}
		}
		s.end(room.Prefill, i, id, at, over, slow)
	}
	for j := range s.cfg.Decode {
		t := at + s.r.delay(slow)
		s.add(Op{At: t, Kind: OpenReceive, Side: room.Decode, Rank: j, Room: id, N: use})
		routed, posted := t+s.r.delay(slow), t+s.r.delay(slow)
		s.add(Op{At: routed, Kind: Route, Side: room.Decode, Rank: j, Room: id})
		s.add(Op{At: posted, Kind: Post, Side: room.Decode, Rank: j, Room: id, N: pages})
		s.end(room.Decode, j, id, at, over, slow)
	}
}

// end is how an owner leaves a room: mostly late, now and then early, twice or not at all.
func (s *script) end(side room.Side, rank int, id room.ID, at, over, slow time.Duration) {
	if over > 0 {
		s.add(Op{At: over + s.r.delay(20*time.Millisecond), Kind: Clear, Side: side, Rank: rank, Room: id})
		return
	}
	if s.r.oneIn(6) {
		s.add(Op{At: at + s.r.delay(2*slow), Kind: Fail, Side: side, Rank: rank, Room: id})
		if s.r.oneIn(4) {
			s.add(Op{At: at + s.r.delay(4*slow), Kind: Fail, Side: side, Rank: rank, Room: id})
		}
	}
	if s.r.oneIn(5) {
		return
	}
	t := at + slow + s.r.span(0, 3*time.Second)
	if s.r.oneIn(8) {
		t = at + s.r.delay(slow)
	}
	s.add(Op{At: t, Kind: Clear, Side: side, Rank: rank, Room: id})
}

// fault draws one fault.
func (s *script) fault() {
	r := &s.r
	o := Op{At: r.span(0, s.cfg.span()+3*time.Second), Side: room.Prefill, Rank: r.n(s.cfg.Prefill), Peer: r.n(s.cfg.Decode)}
	if r.oneIn(2) {
		o = Op{At: o.At, Side: room.Decode, Rank: o.Peer, Peer: o.Rank}
	}
	switch r.n(15) {
	case 0, 1:
		o.Kind, o.N = Break, r.n(4)
	case 2:
		o.Kind, o.For = Hole, r.span(100*time.Millisecond, 8*time.Second)
	case 3:
		o.Kind, o.For = Pause, r.span(100*time.Millisecond, 6*time.Second)
	case 4:
		o.Kind, o.N = Kill, r.n(2)
		if !r.oneIn(3) {
			s.ops = append(s.ops, Op{At: o.At + r.delay(5*time.Second), Kind: Start, Side: o.Side, Rank: o.Rank})
		}
	case 5:
		o.Kind = Start
	case 6, 7:
		o.Kind, o.For = Repeat, r.delay(4*time.Second)
	case 8:
		o = Op{At: o.At, Kind: Linger, Side: room.Decode, Rank: r.n(s.cfg.Decode), For: r.span(time.Second, 20*time.Second)}
	case 9:
		o.Kind, o.For = Leave, r.delay(3*time.Second)
	case 10:
		o = Op{At: o.At, Kind: Wedge, Side: room.Prefill, Rank: r.n(s.cfg.Prefill), For: r.delay(60 * time.Second)}
	case 11:
		o.Kind, o.N = Drop, 1+r.n(3)
	default:
		o = Op{Kind: Fate, Side: room.Prefill, Rank: r.n(s.cfg.Prefill), N: 1 + r.n(4*s.cfg.Rooms), Mode: Mode(1 + r.n(int(endMode)-1)), For: r.delay(100 * time.Second)}
	}
	s.ops = append(s.ops, o)
}
