package sim

import (
	"fmt"
	"time"

	"github.com/kvferry/kvferry/node"
	"github.com/kvferry/kvferry/room"
)

// Peers says which processes are kvferry (native) and which stand for a foreign implementation.
type Peers uint8

const (
	Native  Peers = iota // all are native
	Foreign              // no pair is native
	Mixed                // each process by lot
)

func (p Peers) String() string {
	switch p {
	case Native:
		return "native"
	case Foreign:
		return "foreign"
	default:
		return "mixed"
	}
}

// Config is one world. FromSeed draws all of it.
type Config struct {
	Seed            uint64
	Prefill, Decode int // ranks
	Peers           Peers
	Virtual         bool // decode's engine has virtual pages
	Coverage        bool // and counts the bytes
	Rooms, Faults   int
	Short           bool // the deadlines of rooms are seconds, not minutes
	Few             bool // decode has few page generations
	Patient         bool // nobody is condemned for silence
	Stutter         bool // native messages come twice now and then
	Group           bool // a room of an instance is one of all its ranks
	Ops             []Op // in order of time
	Trace           bool // fill in Result.Log

	skip int                                            // percent of the owners' operations that do not happen
	wrap func(room.Side, stepper, *node.Ledger) stepper // replaces a node by one that is broken, for tests of the checks
}

// Result is what a run found.
type Result struct {
	Hash       uint64 // of everything that happened
	Steps      int    // of all nodes
	Failed     int    // lives of rooms, on each rank
	Violations []Violation
	Log        []string // with Config.Trace
}

// Violation is a broken invariant.
type Violation struct {
	At   time.Duration
	Rule string
	Text string
}

func (v Violation) String() string {
	return fmt.Sprintf("%9.3fs %s: %s", v.At.Seconds(), v.Rule, v.Text)
}

// FromSeed draws a world.
func FromSeed(seed uint64) Config {
	r := newRNG(seed, 0xc0f)
	c := Config{Seed: seed, Prefill: 1 + r.n(3), Decode: 1 + r.n(3), Peers: Peers(r.n(3)), Rooms: 1 + r.n(10), Short: r.oneIn(2), Few: r.oneIn(3)}
	switch r.n(5) {
	case 0, 1:
		c.Virtual, c.Coverage = true, true
	case 2:
		c.Virtual = true
	default: // an engine that writes where it was told, whatever happens
	}
	if !r.oneIn(5) {
		c.Faults = 1 + r.n(10)
	}
	if !r.oneIn(3) {
		c.skip = 4
	}
	c.Group = !r.oneIn(3)
	c.Patient = r.oneIn(10)
	c.Stutter = r.oneIn(4)
	c.Ops = generate(c)
	return c
}

func (c Config) String() string {
	return fmt.Sprintf("seed %d: %d prefill, %d decode, %v, virtual %v, coverage %v, %d rooms, short deadlines %v, few generations %v, one verdict for all ranks %v, %d operations",
		c.Seed, c.Prefill, c.Decode, c.Peers, c.Virtual, c.Coverage, c.Rooms, c.Short, c.Few, c.Group, len(c.Ops))
}

// reuse says whether room numbers may come again. Between foreign peers without coverage nothing tells the lives of a number apart.
func (c Config) reuse() bool { return c.Peers == Native || c.Coverage }

// pages is the size of a room, and whether it has an aux slot.
func (c Config) pages(id room.ID) int {
	r := newRNG(c.Seed, 0xba6e, uint64(id))
	return r.n(6)
}

// prefix is how many tokens of a room decode has already.
func (c Config) prefix(id room.ID) int { return int(id) % 3 * 16 }

// barred says that two ranks can't exchange KV.
func (c Config) barred(i, j int) bool {
	r := newRNG(c.Seed, 0xbad)
	if !r.oneIn(20) {
		return false
	}
	r = newRNG(c.Seed, 0xbad, uint64(i), uint64(j))
	return r.oneIn(2)
}

func (c Config) aux(id room.ID) int32 {
	r := newRNG(c.Seed, 0xa0c5, uint64(id))
	return int32(r.n(3)) - 1
}

// dummy says whether decode rank j needs nothing of prefill rank i for a room. Prefill rank j mod ranks is always needed.
func (c Config) dummy(id room.ID, i, j int) bool {
	r := newRNG(c.Seed, 0xd0, uint64(id), uint64(i), uint64(j))
	return i != j%c.Prefill && r.oneIn(5)
}

// nativeAt says whether a process is native.
func (c Config) nativeAt(side room.Side, rank int) bool {
	r := newRNG(c.Seed, 0x9a7e, uint64(side), uint64(rank))
	switch c.Peers {
	case Native:
		return true
	case Foreign:
		return false
	default:
		return r.oneIn(2)
	}
}

const (
	poolPages = 24      // of one process
	slotBits  = 8       // virtual numbers are generation << slotBits + page
	tagBits   = 16      // above them stands the number of the publication, by which the checks know whom a write is for
	maxTags   = 1 << 15 // publications of one world
)

// node is the configuration of a rank's node.
func (c Config) node(side room.Side, rank int) node.Config {
	n := node.Config{Rank: rank, Pages: poolPages}
	if c.Short {
		n.Bootstrap, n.Waiting, n.Rendezvous = 5*time.Second, 6*time.Second, 3*time.Second
	}
	if c.Patient {
		n.CondemnAfter = -1
	}
	if side == room.Decode {
		n.Virtual, n.Coverage = c.Virtual, c.Coverage
		if !c.Virtual && c.Short {
			n.Unproven = 20 * time.Second
		}
		n.Slots = 1 << 23 // 255 generations
		if c.Few {
			n.Slots = 1 << 29 // 3 generations
		}
	}
	return n
}
