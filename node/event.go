package node

import (
	"time"

	"github.com/kvferry/kvferry/room"
)

// Event is an input of Step. Events about rooms that are not known are no error unless the documentation of the type says so.
type Event interface{ isEvent() }

// ---- from the owner, on prefill

// OpenSend makes a sender: room → Bootstrapping, or WaitingForInput when all metadata is there.
// Errors: ErrDuplicate while the room has a sender.
type OpenSend struct{ Room room.ID }

// Chunk hands over the pages of one prefill step. They are read until the room is quiescent.
// Errors: ErrUnknownRoom, ErrAfterLast.
type Chunk struct {
	Room  room.ID
	Pages []int32 // physical pages, in order of position; kept by the node
	Aux   int32   // slot of the per-request metadata, read when Last; -1: none
	State [][]int32
	Last  bool
}

// WriteSettled reports the end of a StartWrite. Err nil: every byte is in place at the destination.
type WriteSettled struct {
	Write WriteID
	Err   error
	// Cause of Err, already typed; zero when Err is nil.
	Cause room.Cause
	// Proven says that no byte of a failed write can land any more.
	Proven bool
	Bytes  int64 // put in place
}

// ---- from the owner, on decode

// OpenReceive makes a receiver: room → Bootstrapping. Errors: ErrDuplicate while the number is in use here.
type OpenReceive struct {
	Room  room.ID
	Epoch room.Epoch
}

// Target is one prefill rank of a room.
type Target struct {
	Endpoint string // tcp://ip:port of its control socket
	Rank     int    // its unique rank number, as in its messages
	Dummy    bool   // it holds nothing that this rank needs; it gets dummy metadata and sends nothing
	Required int    // decode ranks that it waits for, this one included
}

// Routed tells which prefill ranks serve the room, in the order in which they are to be told.
type Routed struct {
	Room    room.ID
	Targets []Target
}

// Post publishes pages: the room's lease is opened and metadata goes to every target. Errors: ErrUnknownRoom, ErrPosted, ErrNoGeneration.
type Post struct {
	Room   room.ID
	Pages  []int32 // physical pages for tokens [Prefix, prompt), in order; kept by the node
	Aux    int32   // -1: none
	State  [][]int32
	Prefix int // tokens that decode already holds
}

// Covered reports that every expected byte of the lease is in place.
type Covered struct {
	Room  room.ID
	Epoch room.Epoch
}

// LeaseIdle reports that no reader is in the room's sealed pages any more.
type LeaseIdle struct {
	Room  room.ID
	Epoch room.Epoch
}

// ---- from the owner, on both sides

// Fail gives the room the verdict Failed with Cause (an abort, a client that left, an engine that failed).
type Fail struct {
	Room  room.ID
	Cause room.Cause
}

// Clear ends the owner's interest: the room fails as aborted if it has no verdict, and leaves every table once it is quiescent.
type Clear struct{ Room room.ID }

// Leave says goodbye to native peers: this rank is about to end, and none of its rooms will be served.
type Leave struct{ Cause room.Cause }

// StillQueued is the word of prefill's scheduler loop that it turns: native decode ranks are told which of their rooms it holds. The owner
// sends it from that loop, about once a second, and from nowhere else.
type StillQueued struct{}

// Tick lets time pass; the caller sends it every TickInterval.
type Tick struct{}

// ---- from peers' sockets

// PeerUp reports a connection to an endpoint that has finished its handshake. Instance is zero for a foreign peer.
type PeerUp struct {
	Endpoint string
	Instance room.InstanceID
}

// PeerDown reports that the connection to an endpoint ended; another is being tried.
type PeerDown struct {
	Endpoint string
	Text     string
}

// PeerRefused reports that nothing listens at an endpoint.
type PeerRefused struct {
	Endpoint string
	Text     string
}

// PeerHeard reports that bytes came from an endpoint at a time.
type PeerHeard struct {
	Endpoint string
	At       time.Time
}

// Registration introduces a decode rank to prefill. Session names its memory, Endpoint its control socket.
type Registration struct {
	Session, Endpoint string
	Instance          room.InstanceID // zero: foreign
	// Refused is the reason for which this pair can't exchange KV; empty: it can.
	Refused string
}

// Metadata publishes the pages of a decode rank for a room.
type Metadata struct {
	Room              room.ID
	Session, Endpoint string
	Native            bool
	Epoch             room.Epoch
	Pages             []int32 // D's own page numbers, maybe virtual
	Aux               int32   // -1: none
	State             [][]int32
	Required          int // decode ranks that this prefill rank waits for
	Prefix            int // tokens
	Dummy             bool
}

// AbortHeard is decode's abort. Generation is to be acknowledged when HasGeneration.
type AbortHeard struct {
	Room          room.ID
	Epoch         room.Epoch
	Endpoint      string // empty: not told
	Generation    int64
	HasGeneration bool
	Cause         room.Cause // zero: not told
	Seq           uint64     // to be acknowledged; 0: not
}

// StatusHeard is prefill's word on a room.
type StatusHeard struct {
	Room   room.ID
	Epoch  room.Epoch // zero: not told
	Rank   int
	Status room.Status
	Cause  room.Cause // zero: not told
	// Refused says that the rank does not serve this life of the room at all, so that it has written and will write nothing for it.
	Refused  bool
	Instance room.InstanceID // of the sender; zero: foreign
	Seq      uint64          // to be acknowledged; 0: not
}

// AckHeard acknowledges an abort: rank has no write for the room any more.
type AckHeard struct {
	Room          room.ID
	Rank          int
	Generation    int64
	HasGeneration bool
}

// QuiescentHeard says that a native prefill rank has no write for the room any more.
type QuiescentHeard struct {
	Room     room.ID
	Epoch    room.Epoch
	Rank     int
	Instance room.InstanceID
	Seq      uint64 // to be acknowledged; 0: not
}

// ReceiptHeard says that a native peer has message Seq.
type ReceiptHeard struct {
	Room room.ID
	Seq  uint64
}

// QueuedHeard names the rooms that a native prefill rank's scheduler holds.
type QueuedHeard struct {
	Instance room.InstanceID
	Rank     int
	Rooms    []room.ID
}

// GoodbyeHeard says that a native instance is about to end. Its rooms fail.
type GoodbyeHeard struct {
	Instance room.InstanceID
	Cause    room.Cause
}

func (OpenSend) isEvent()       {}
func (Chunk) isEvent()          {}
func (WriteSettled) isEvent()   {}
func (OpenReceive) isEvent()    {}
func (Routed) isEvent()         {}
func (Post) isEvent()           {}
func (Covered) isEvent()        {}
func (LeaseIdle) isEvent()      {}
func (Fail) isEvent()           {}
func (Clear) isEvent()          {}
func (Tick) isEvent()           {}
func (PeerUp) isEvent()         {}
func (PeerDown) isEvent()       {}
func (PeerRefused) isEvent()    {}
func (PeerHeard) isEvent()      {}
func (Registration) isEvent()   {}
func (Metadata) isEvent()       {}
func (AbortHeard) isEvent()     {}
func (StatusHeard) isEvent()    {}
func (AckHeard) isEvent()       {}
func (QuiescentHeard) isEvent() {}
func (ReceiptHeard) isEvent()   {}
func (QueuedHeard) isEvent()    {}
func (GoodbyeHeard) isEvent()   {}
func (Leave) isEvent()          {}
func (StillQueued) isEvent()    {}
