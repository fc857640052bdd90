package drill

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvferry/kvferry/room"
)

// Setup is the first line that a rank process reads.
type Setup struct {
	Side      string `json:"side"`
	Engine    string `json:"engine"`
	Instance  string `json:"instance"` // of all its ranks
	TP        int    `json:"tp"`
	TPRank    int    `json:"tp_rank"`
	Bind      string `json:"bind"`      // host of every listener
	Advertise string `json:"advertise"` // host under which the proxies listen; each has the port of what it stands for
	Control   int    `json:"control"`   // ports
	Name      int    `json:"name"`      // of the engine's control listener
	Data      int    `json:"data"`
	Boot      int    `json:"boot"`              // of the bootstrap server; 0: none here
	Ranks     []int  `json:"ranks,omitempty"`   // control ports of all ranks of the instance
	Patient   bool   `json:"patient,omitempty"` // condemn nobody for silence
}

// order is one command to a rank process.
type order struct {
	ID    int     `json:"id"`
	Op    string  `json:"op"`
	Room  room.ID `json:"room,omitempty"`
	Life  uint64  `json:"life,omitempty"`
	Pages int     `json:"pages,omitempty"`
	Chunk int     `json:"chunk,omitempty"`
	Boot  string  `json:"boot,omitempty"`
	Code  string  `json:"code,omitempty"` // of an abort's cause
	Text  string  `json:"text,omitempty"`
	Fault string  `json:"fault,omitempty"` // of the engine's next write
}

// word is one line of a rank process: the reply to an order, or an event of a room.
type word struct {
	ID     int     `json:"id,omitempty"`
	Event  string  `json:"event,omitempty"` // one of the events below
	Room   room.ID `json:"room,omitempty"`
	At     int64   `json:"t_ns"` // CLOCK_MONOTONIC, which all processes of a machine share
	Error  string  `json:"error,omitempty"`
	Status string  `json:"status,omitempty"`
	Code   string  `json:"code,omitempty"`
	Cause  string  `json:"cause,omitempty"`
	Proof  string  `json:"proof,omitempty"`
	Tables *tables `json:"tables,omitempty"`
}

// Events of a rank process and of its rooms.
const (
	evReady     = "ready"     // the process serves
	evMet       = "met"       // the room knows its other side
	evDone      = "done"      // it has its verdict
	evQuiescent = "quiescent" // nothing can touch its pages any more
	evFree      = "free"      // they are in the pool again, under guard
	evCleared   = "cleared"   // it has left every table
)

// tables are what must be empty when no room is there.
type tables struct {
	Rooms    int `json:"rooms"`
	Unserved int `json:"unserved"`
	Writes   int `json:"writes"`
	Halves   int `json:"halves"`
	Letters  int `json:"unacknowledged"`
	Withheld int `json:"unproven_generations"` // page numbers whose writers are not proven silent
	Doubts   int `json:"doubts"`               // lives of rooms of which prefill can never say that it writes nothing more
	Quarant  int `json:"quarantined"`          // pages
	Used     int `json:"pages_used"`
	Unread   int `json:"unread"` // messages that were dropped as not understood; may stay
}

// monotonic is CLOCK_MONOTONIC in nanoseconds.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // the clock is always there on Linux
	}
	return ts.Nano()
}

// Sizes of a drill's ranks, and times of their states.
const (
	poolPages = 16
	roomPages = 8
	chunks    = 4
	pageSize  = 16
	kvHeads   = 4
	headBytes = 256
	layers    = 2
	auxSlots  = 16
	auxBytes  = 64

	stateTime    = 7 * time.Second // of every state of a room
	stallTime    = 4 * time.Second // how long prefill's scheduler may leave a room unnamed
	condemnAfter = 2 * time.Second
)
