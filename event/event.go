// Package event is the typed stream of what happens to rooms and peers. One stream feeds logs, metrics, timelines and the assertions of
// tests; nothing else observes the protocol.
//
// A Sink is called from the goroutine that caused the event, often under a lock: it must not block and must not call back into the
// emitter. Log is the bounded in-memory reader; it starts no goroutine, and all its methods are safe for concurrent use.
package event

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/kvferry/kvferry/room"
)

// Kind is what happened. The zero value is no kind.
type Kind uint8

const (
	_            Kind = iota
	Opened            // a side created the room
	Routed            // decode knows the prefill ranks of the room
	Published         // decode sent its page numbers (Peer: prefill rank)
	Bootstrapped      // prefill has the page numbers of every decode rank
	Computed          // the engine finished computing a chunk
	Sending           // a write of a chunk was posted (Peer: decode session)
	Applied           // a write has settled without error: its bytes are in place at the destination
	WriteFailed       // a write has settled with an error
	Covered           // every byte of the room's pages is in place (decode)
	StatusSent        // prefill told its status to a decode endpoint
	StatusHeard       // decode got a status from a prefill rank
	AbortSent
	AbortHeard
	Verdict    // the room has its verdict
	Quiescent  // nothing can touch the room's pages any more
	FirstToken // the first token left for the client
	Finished   // the request is over
	Cleared    // the room's tables are empty
	Quarantine // pages are withheld: quiescence is not proven
	PeerUp
	PeerDown
	PeerSuspect // silent for long: no new rooms
	PeerDead
	Dropped // a message was not understood or not wanted
	endKind
)

var kindNames = [endKind]string{"", "opened", "routed", "published", "bootstrapped", "computed", "sending", "applied", "write_failed", "covered",
	"status_sent", "status_heard", "abort_sent", "abort_heard", "verdict", "quiescent", "first_token", "finished", "cleared", "quarantine",
	"peer_up", "peer_down", "peer_suspect", "peer_dead", "dropped"}

func (k Kind) String() string {
	if k < endKind {
		return kindNames[k]
	}
	return "unknown"
}

// MarshalText writes the name.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads a name; an unknown one becomes 0.
func (k *Kind) UnmarshalText(b []byte) error {
	*k = 0
	for i, n := range kindNames {
		if n == string(b) && n != "" {
			*k = Kind(i)
		}
	}
	return nil
}

// Event is one thing that happened. Fields that do not apply are zero; Chunk and Rank are -1 then.
type Event struct {
	At     time.Time
	Kind   Kind
	Side   room.Side
	Rank   int // the rank that saw it
	Room   room.ID
	Peer   string // endpoint, session or rank of the other side
	Chunk  int    // index of the chunk within the room
	Pages  int
	Bytes  int64
	Status room.Status
	Cause  room.Cause
	Note   string // proof of quiescence, kind of a dropped message
}

type eventJSON struct {
	AtNS   int64   `json:"at_ns"`
	Kind   Kind    `json:"event"`
	Side   string  `json:"side"`
	Rank   int     `json:"rank"`
	Room   room.ID `json:"room"`
	Peer   string  `json:"peer,omitempty"`
	Chunk  int     `json:"chunk"`
	Pages  int     `json:"pages,omitempty"`
	Bytes  int64   `json:"bytes,omitempty"`
	Status int8    `json:"status"`
	Cause  string  `json:"cause,omitempty"`
	Text   string  `json:"text,omitempty"`
	Note   string  `json:"note,omitempty"`
}

// MarshalJSON writes the event with at_ns in nanoseconds of wall-clock time since 1970.
func (e Event) MarshalJSON() ([]byte, error) {
	j := eventJSON{AtNS: e.At.UnixNano(), Kind: e.Kind, Side: e.Side.String(), Rank: e.Rank, Room: e.Room, Peer: e.Peer, Chunk: e.Chunk,
		Pages: e.Pages, Bytes: e.Bytes, Status: int8(e.Status), Note: e.Note}
	if !e.Cause.IsZero() {
		j.Cause, j.Text = e.Cause.Code.String(), e.Cause.Text
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads what MarshalJSON writes. Of the cause, code and text come back.
func (e *Event) UnmarshalJSON(b []byte) error {
	var j eventJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	side, _ := room.ParseSide(j.Side)
	*e = Event{At: time.Unix(0, j.AtNS), Kind: j.Kind, Side: side, Rank: j.Rank, Room: j.Room, Peer: j.Peer, Chunk: j.Chunk, Pages: j.Pages,
		Bytes: j.Bytes, Status: room.Status(j.Status), Note: j.Note}
	if code, ok := room.ParseCode(j.Cause); ok {
		e.Cause = room.NewCause(code, side, j.Peer, j.Text)
	}
	return nil
}

// Sink takes events; nil is a valid sink that takes nothing when used through Emit.
type Sink func(Event)

// Emit passes e on.
func (s Sink) Emit(e Event) {
	if s != nil {
		s(e)
	}
}

// Tee passes every event to all sinks that are not nil.
func Tee(sinks ...Sink) Sink {
	return func(e Event) {
		for _, s := range sinks {
			s.Emit(e)
		}
	}
}

// Log keeps the newest events, at most its capacity; what it overwrites is counted.
type Log struct {
	mu      sync.Mutex
	ring    []Event
	total   uint64
	waiters chan struct{}
}

// NewLog makes a log of the given capacity, at least 1.
func NewLog(capacity int) *Log {
	return &Log{ring: make([]Event, max(1, capacity)), waiters: make(chan struct{})}
}

// Add is the log's Sink.
func (l *Log) Add(e Event) {
	l.mu.Lock()
	l.ring[l.total%uint64(len(l.ring))] = e
	l.total++
	close(l.waiters)
	l.waiters = make(chan struct{})
	l.mu.Unlock()
}

// Overwritten is the number of events that are no longer kept.
func (l *Log) Overwritten() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total - min(l.total, uint64(len(l.ring)))
}

// Select returns the kept events for which keep is true, oldest first, and a channel that is closed when the next event is added.
func (l *Log) Select(keep func(Event) bool) ([]Event, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var got []Event
	n := min(l.total, uint64(len(l.ring)))
	for i := l.total - n; i < l.total; i++ {
		if e := l.ring[i%uint64(len(l.ring))]; keep(e) {
			got = append(got, e)
		}
	}
	return got, l.waiters
}

// Room returns the kept events of one room, oldest first.
func (l *Log) Room(id room.ID) []Event {
	got, _ := l.Select(func(e Event) bool { return e.Room == id && e.Kind < PeerUp })
	return got
}
