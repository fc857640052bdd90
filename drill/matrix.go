package drill

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvferry/kvferry/room"
)

// Moment is where in its life a room is when the fault strikes.
type Moment string

// Moments, in order.
const (
	Rendezvous Moment = "rendezvous" // decode's question for prefill's addresses is under way
	Queued     Moment = "queued"     // decode knows prefill and waits for pages of its own
	Published  Moment = "published"  // the message with decode's page numbers is under way
	InFlight   Moment = "in-flight"  // some bytes of the pages have arrived, the next one is under way
	LastByte   Moment = "last-byte"  // all bytes but the last one have arrived
	Decoding   Moment = "decoding"   // both sides have said Success, decode uses the pages
	Cleared    Moment = "cleared"    // both sides have let the room go
)

// Moments lists them.
var Moments = []Moment{Rendezvous, Queued, Published, InFlight, LastByte, Decoding, Cleared}

// early reports that prefill does not know yet that decode has the room.
func (m Moment) early() bool { return m == Rendezvous || m == Queued || m == Published }

// over reports that the room has its verdict.
func (m Moment) over() bool { return m == Decoding || m == Cleared }

// moving reports that bytes of pages are under way.
func (m Moment) moving() bool { return m == InFlight || m == LastByte }

// Cell is one combination of the matrix.
type Cell struct {
	Fault  string `json:"fault"`
	Moment Moment `json:"moment"`
	Side   string `json:"side"` // p or d
	Engine string `json:"engine"`
	NA     string `json:"na,omitempty"` // why the combination has no meaning; empty: it is drilled
}

func (c Cell) String() string { return c.Side + "-" + c.Fault + "@" + string(c.Moment) }

// want is the verdict that a rank's room must have.
type want struct {
	success, failed bool
	codes           []room.Code // of the failure; none: any that is no bug
}

var (
	mustSucceed = want{success: true}
	mustFail    = want{failed: true}
)

func fails(codes ...room.Code) want { return want{failed: true, codes: codes} }

func (w want) or(x want) want {
	return want{w.success || x.success, w.failed || x.failed, append(slices.Clone(w.codes), x.codes...)}
}

// orRefused is for prefill where decode gives a room up while bytes arrive: a write that finds the pages sealed may come before the word.
func (w want) orRefused(m Moment, gaveUp side) want {
	if m.moving() && gaveUp == sideD {
		return w.or(fails(room.TransferFailed))
	}
	return w
}

// judge compares a verdict.
func (w want) judge(v word) string {
	if v.Status == room.Success.String() {
		if !w.success {
			return "succeeded, want a failure"
		}
		return ""
	}
	code, _ := room.ParseCode(v.Code)
	switch {
	case !w.failed:
		return fmt.Sprintf("failed with %s (%s), want success", v.Code, v.Cause)
	case len(w.codes) == 0 && code != room.Internal && code != room.Corrupt && code != room.Incompatible, slices.Contains(w.codes, code):
		return ""
	case len(w.codes) == 0:
		return fmt.Sprintf("failed with %s (%s), which is no cause of this fault", v.Code, v.Cause)
	}
	return fmt.Sprintf("failed with %s (%s), want %v", v.Code, v.Cause, w.codes)
}

// fault is a row of the matrix.
type fault struct {
	name  string
	about string
	// na says why a cell has no meaning; nil: every cell has one.
	na func(e engineKind, m Moment, s side) string
	// expect is what the ranks of both sides must come to, those that the fault ends or stops excepted.
	expect func(m Moment, s side) (p, d want)
	strike func(*run) error
	// late: bytes of pages that are under way arrive only when everything is over.
	late bool
	// process: the fault is one of a side's process, so that detection is the other side's. Else it is the slower side's.
	process bool
	// gateway: a client waits at a gateway, with workers behind it.
	gateway bool
}

// both says the same of both sides.
func both(w want) (p, d want) { return w, w }

// settled is for faults after which a room that had its verdict keeps it.
func settled(f func(Moment, side) (p, d want)) func(Moment, side) (p, d want) {
	return func(m Moment, s side) (p, d want) {
		if m.over() {
			return both(mustSucceed)
		}
		return f(m, s)
	}
}

func always(w want) func(Moment, side) (p, d want) {
	return func(Moment, side) (p, d want) { return both(w) }
}

// byMoment is what an early prefill (which hears of decode's end from the client alone) and the others fail with.
func byMoment(m Moment, early, later want) want {
	if m.early() {
		return early.or(later)
	}
	return later
}

// Short names of causes.
const (
	cAborted  = room.Aborted
	cDead     = room.PeerDead
	cSilent   = room.PeerSilent
	cAnew     = room.PeerRestarted
	cWrite    = room.TransferFailed
	cTime     = room.Timeout
	cAway     = room.Unavailable
	cLeaves   = room.Draining
	cGaveUp   = room.PeerAborted
	cReported = room.PeerFailed
)

// noWrite is why faults of a write have no meaning at a moment.
func noWrite(_ engineKind, m Moment, s side) string {
	switch {
	case s == sideD:
		return "decode writes nothing"
	case m.early():
		return "no write begins before decode's page numbers are known"
	case m.over():
		return "every write has ended"
	}
	return ""
}

// message is the control message that marks a moment on its way to a side; empty: there is none.
func message(m Moment, to side) string {
	switch {
	case m == Published && to == sideP:
		return "metadata"
	case m == InFlight && to == sideP:
		return "ABORT"
	case m == InFlight:
		return "STATUS Failed"
	case m == LastByte && to == sideP:
		return "ACK of STATUS"
	case m == LastByte:
		return "STATUS Success"
	}
	return ""
}

func noMessage(_ engineKind, m Moment, s side) string {
	switch {
	case message(m, s) != "":
		return ""
	case m == Published:
		return "decode's page numbers go to prefill only"
	case m == Rendezvous:
		return "this moment is marked by an HTTP request, no control message"
	}
	return "no control message marks this moment"
}

func onlyP(why string) func(engineKind, Moment, side) string {
	return func(_ engineKind, _ Moment, s side) string {
		if s == sideD {
			return why
		}
		return ""
	}
}

// faults is the matrix by rows.
var faults = []*fault{
	{name: "killed", about: "every process of the side gets SIGKILL", strike: (*run).kill, late: true, process: true,
		expect: settled(func(m Moment, s side) (p, d want) {
			if m == Rendezvous {
				return fails(cAborted), fails(cDead, cAway)
			}
			return byMoment(m, fails(cAborted), fails(cDead, cWrite)), fails(cDead)
		})},
	{name: "stopped", about: "every process of the side gets SIGSTOP, and SIGCONT when the other side has its verdict", strike: (*run).stop, late: true, process: true,
		expect: settled(func(m Moment, s side) (p, d want) {
			if m == Rendezvous {
				return fails(cTime, cAborted), fails(cSilent, cAway, cTime)
			}
			return byMoment(m, fails(cTime, cAborted), fails(cSilent)), fails(cSilent)
		})},
	{name: "paused", about: "every process of the side is stopped for 5 s while the other is patient: it must condemn nobody for its own pause", strike: (*run).pause, expect: always(mustSucceed)},
	{name: "rank-killed", about: "one rank of two of the side gets SIGKILL", strike: (*run).killOne, late: true,
		expect: settled(func(m Moment, s side) (p, d want) {
			if s == sideP { // the other rank may have done its part by then
				return mustSucceed.or(fails(cAborted, cDead, cWrite)), byMoment(m, fails(cAway), fails(cDead))
			}
			return byMoment(m, fails(cAborted), fails(cDead, cWrite)), byMoment(m, fails(cAborted, cAway), fails(cDead, cWrite))
		})},
	{name: "restart", about: "every process of the side is killed, and others have its addresses before anybody notices", strike: (*run).restart, late: true, process: true,
		expect: settled(func(m Moment, s side) (p, d want) {
			// Decode's question may reach the new prefill, whose scheduler never names the room.
			return byMoment(m, fails(cAborted), fails(cAnew, cDead, cWrite)), byMoment(m, fails(cAway, cTime), fails(cAnew, cDead))
		})},
	{name: "drain", about: "the side leaves as planned, with a goodbye", strike: (*run).drain, late: true, process: true,
		expect: settled(func(m Moment, s side) (p, d want) {
			return byMoment(m, fails(cAborted), fails(cLeaves)).orRefused(m, s), byMoment(m, fails(cAway, cDead), fails(cLeaves))
		})},
	{name: "link-cut", about: "every connection is reset, new ones carry nothing", strike: (*run).cut, late: true, na: onlyP("it cuts both ways: the same as on p"),
		expect: settled(cutOff)},
	{name: "black-hole", about: "no byte arrives any more, in either direction; no connection ends", strike: (*run).swallow, late: true, na: onlyP("it takes both ways: the same as on p"),
		expect: settled(cutOff)},
	{name: "one-way", about: "no byte of the side's arrives any more", strike: (*run).mute, late: true,
		expect: settled(func(m Moment, s side) (p, d want) {
			if s == sideP { // prefill hears decode as before, so its client ends its leg
				return fails(cAborted, cSilent, cWrite, cTime), byMoment(m, fails(cTime, cAway), fails(cSilent))
			}
			return byMoment(m, fails(cAborted, cTime), fails(cSilent)), fails(cTime, cSilent, cAway)
		})},
	{name: "slow", about: "the side's bytes trickle: 20 ms for each message and 1 MiB/s", strike: (*run).slow, expect: always(mustSucceed)},
	{name: "reset", about: "every connection to the side is reset once; new ones work", strike: (*run).reset,
		expect: settled(func(m Moment, s side) (p, d want) {
			if m.moving() && s == sideD { // the connections that carry the pages
				return both(mustSucceed.or(fails(cWrite)))
			}
			return both(mustSucceed)
		})},
	{name: "registry-lost", about: "prefill's bootstrap server is gone", strike: (*run).loseRegistry, na: onlyP("decode has no registry"),
		expect: func(m Moment, _ side) (p, d want) {
			if m == Rendezvous {
				return fails(cAborted), fails(cAway, cTime)
			}
			return both(mustSucceed)
		}},
	{name: faultError, about: "the engine refuses a write", strike: (*run).spoilWrite, na: noWrite, expect: always(fails(cWrite))},
	{name: faultPartial, about: "the engine writes half of a batch and reports an error", strike: (*run).spoilWrite, na: noWrite, expect: always(fails(cWrite))},
	{name: faultLands, about: "the engine reports an error, and the bytes land 300 ms later", strike: (*run).spoilWrite, na: noWrite, expect: always(fails(cWrite))},
	{name: faultStuck, about: "a write neither ends nor fails; the client gives up after 1 s", strike: (*run).spoilWrite, na: noWrite, expect: always(fails(cAborted))},
	{name: faultVanish, about: "the engine reports success for a write of which no byte arrives", strike: (*run).spoilWrite, na: noWrite,
		expect: func(Moment, side) (p, d want) { return mustSucceed, fails(room.Incomplete) }},
	{name: "bit-flip", about: "the network flips one bit of a page", strike: (*run).flip, na: noWrite, expect: always(fails(room.Corrupt))},
	{name: "msg-lost", about: "the message to the side that marks the moment vanishes", strike: (*run).spoilMessage, late: true, na: noMessage, expect: afterMessage(true)},
	{name: "msg-duplicated", about: "it comes twice", strike: (*run).spoilMessage, late: true, na: noMessage, expect: afterMessage(false)},
	{name: "msg-reordered", about: "it comes behind the next message of its connection", strike: (*run).spoilMessage, late: true, na: noMessage, expect: afterMessage(false)},
	{name: "msg-malformed", about: "its frames are junk", strike: (*run).spoilMessage, late: true, na: noMessage, expect: afterMessage(true)},
	{name: "abort", about: "the side's engine gives the room up", strike: (*run).abort, late: true, process: true,
		na: func(_ engineKind, m Moment, _ side) string {
			if m == Cleared {
				return "nothing is left to be given up"
			}
			return ""
		},
		expect: settled(func(m Moment, s side) (p, d want) { return fails(cAborted).orRefused(m, s), fails(cAborted) })},
	{name: "client-gone", about: "the client of a gateway leaves while its request is under way", gateway: true, na: noGateway},
	{name: "gateway-gone", about: "the gateway gets SIGKILL", gateway: true, na: noGateway},
	{name: "over-long-prompt", about: "a prompt comes that the side's worker has no place for", gateway: true, na: noPrompt},
	{name: "out-of-pages", about: "the side's pool is empty for 500 ms", strike: (*run).starve, expect: always(mustSucceed),
		na: func(_ engineKind, m Moment, s side) string {
			switch {
			case s == sideP && m != Published:
				return "prefill takes its pages once, before it opens the room; the last moment for that is published"
			case s == sideD && m != Queued:
				return "decode takes its pages once, at the end of queued"
			}
			return ""
		}},
}

func cutOff(m Moment, _ side) (p, d want) {
	if m == Rendezvous {
		return fails(cAborted, cTime), fails(cAway, cTime, cSilent) // both have the same deadline
	}
	return byMoment(m, fails(cAborted), fails(cSilent, cWrite)), fails(cSilent)
}

// afterMessage is what a spoiled message leads to. gone: its receiver can't use it.
func afterMessage(gone bool) func(Moment, side) (p, d want) {
	return func(m Moment, s side) (p, d want) {
		switch {
		case m == InFlight:
			return fails(cAborted).orRefused(m, s.other()), fails(cAborted)
		case m == Published && gone: // metadata is not repeated; prefill's scheduler does not name the room
			return fails(cTime, cAborted), fails(cTime)
		}
		return both(mustSucceed)
	}
}

// cutWrite reports that a write of prefill may have been cut without an answer, so that nobody knows when its bytes are through while
// prefill lives: it never says that it is silent, and decode keeps the page numbers.
func (r *run) cutWrite() bool {
	switch r.Fault {
	case "stopped":
		return r.side == sideD && (r.Moment == Published || r.Moment.moving())
	case "link-cut", "black-hole", "one-way":
		return r.Moment.moving()
	case "reset":
		return r.side == sideD && r.Moment.moving()
	}
	return r.Fault == faultLands
}

// Faults are the names of the rows, each with what it is.
func Faults() (list [][2]string) {
	for _, f := range faults {
		list = append(list, [2]string{f.name, f.about})
	}
	return list
}

// About says what a fault is.
func About(name string) string {
	if f := faultOf(name); f != nil {
		return f.about
	}
	return ""
}

func faultOf(name string) *fault {
	i := slices.IndexFunc(faults, func(f *fault) bool { return f.name == name })
	if i < 0 {
		return nil
	}
	return faults[i]
}

// Matrix is every combination, those without meaning included.
func Matrix() (list []Cell) {
	for _, e := range engines {
		for _, f := range faults {
			for _, s := range []side{sideP, sideD} {
				for _, m := range Moments {
					c := Cell{Fault: f.name, Moment: m, Side: string(s), Engine: e.name}
					if f.na != nil {
						c.NA = f.na(e, m, s)
					}
					list = append(list, c)
				}
			}
		}
	}
	return list
}

// Select keeps the cells that one of the patterns names: fault, side-fault, and either of them with @moment. No patterns: all.
func Select(all []Cell, patterns []string) ([]Cell, error) {
	if len(patterns) == 0 {
		return all, nil
	}
	used := make([]bool, len(patterns))
	var list []Cell
	for _, c := range all {
		hit := false
		for i, p := range patterns {
			name, moment, _ := strings.Cut(p, "@")
			if (name == c.Fault || name == c.Side+"-"+c.Fault) && (moment == "" || moment == string(c.Moment)) {
				hit, used[i] = true, true
			}
		}
		if hit {
			list = append(list, c)
		}
	}
	if i := slices.Index(used, false); i >= 0 {
		return nil, fmt.Errorf("%q names no cell: want a fault, p- or d- before it, @moment behind it", patterns[i])
	}
	return list, nil
}
